"""A process that does to jobs what people do by hand: cancel, make due, replay and discard, whatever it finds."""

import os
import random
import sys
import time

from holdfast import admin
from holdfast.admin import Filter
from holdfast.demo.crew import NAME, end_with_employer
from holdfast.errors import Conflict, HoldfastError, JobNotFound
from tests.histories.app import log, store
from tests.histories.settings import SEED

ACTIONS = {"cancel": 4, "retry": 3, "run_now": 1, "replay": 3, "discard": 1}
LIVE = Filter(states=("pending", "leased"))
ENDED = Filter(states=("dead", "cancelled"))


def act(action: str, chance: random.Random) -> None:
    """Do one thing and write down what it changed; what nobody knows the end of, the audit tells."""
    log.write("acts", action=action)
    try:
        ids = _act(action, chance)
    except (Conflict, JobNotFound) as refusal:
        log.write("refused", action=action, why=str(refusal)[:200])
    except HoldfastError as error:
        log.write("unknown", action=action, error=f"{type(error).__name__}: {error}"[:200])
    else:
        log.write("acted", action=action, ids=ids)


def _act(action: str, chance: random.Random) -> list[str]:
    if action == "replay":
        return store.run(admin.replay(ENDED, chance.randint(1, 4), "history")).ids
    if action == "discard":
        return store.run(admin.discard(Filter(), chance.randint(1, 2), "history"))
    found = store.run(admin.list_jobs(ENDED if action == "retry" and chance.random() < 0.5 else LIVE, 40))
    if not found:
        return []
    job_id = chance.choice(found).id
    if action == "cancel":
        # Of a running job it only asks for the end, and the job may still be done.
        return [job_id] if store.run(admin.cancel(job_id, "history")) == "cancelled" else []
    store.run(admin.retry(job_id, "history") if action == "retry" else admin.run_now(job_id, "history"))
    return [job_id]


if __name__ == "__main__":
    end_with_employer()
    chance = random.Random(f"{os.environ[SEED]}/{os.environ[NAME]}")
    while True:
        time.sleep(chance.uniform(0.05, 0.4))
        act(chance.choices(list(ACTIONS), list(ACTIONS.values()))[0], chance)
    sys.exit(1)
