"""Mark jobs that somebody waits for, look at them, and what follows at their end.

Crash windows, all of them:

    the waiter dies after the mark           the job's end passes the door and tells nobody
    before the commit of the end             the job is still leased; nobody was told, and nothing is kept
    after it, before those who wait look     the row, or what was kept in its place, is there for the next look
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.chains import CONTINUED
from holdfast.flow import Columns, Steps, ask, flow, number_of, text_of
from holdfast.life.door import Left, attach

# Set on jobs whose end somebody waits for; the table in `life/door.py` has this bit.
WAITED_FOR = 1 << 5
# What is kept for those who wait is deleted after this time.
KEPT_SECONDS = 300.0
# In the place of a state: the job is done, no row of it is left, and what it gave was kept for those who wait.
LEFT = "left"
# And: another job continues it.
MOVED_ON = "continued"
# How many ids one notification holds: PostgreSQL takes up to 8,000 bytes.
IDS_TOLD_AT_ONCE = 200


class Seen(NamedTuple):
    """How a job is: its state or outcome (or LEFT), its queue and kind, whether its end is told, and what it left."""

    state: str
    queue: str
    kind: str
    marked: bool
    result: str | None


@flow
def mark(ids: Sequence[str], queues: Sequence[str] | None = None) -> Steps[set[str]]:
    """Have the ends of live jobs told to those who wait, and return the ids of those that were not marked before.

    queues: mark jobs of these only. A job whose row is locked now is left out, so that this never waits for a worker
    or for a transaction of the application's.
    Commits: its own. After a crash: safe to repeat.
    """
    wanted = None if queues is None else sorted(queues)
    rows = yield from ask("results_mark", ids=sorted(ids), queues=wanted, bit=WAITED_FOR, alone=True)
    return {text_of(row[0]) for row in rows}


@flow
def look(ids: Sequence[str]) -> Steps[dict[str, Seen]]:
    """Tell how jobs are, by id; one that is missing never was, or is gone."""
    rows = yield from ask("results_look", ids=sorted(ids), bit=WAITED_FOR, continued=CONTINUED, alone=True)
    # The finished row comes last and counts: a job that lives a second time is over all the same.
    return {
        text_of(job): Seen(state, queue, kind, bool(number_of(marked)), result)
        for job, state, queue, kind, marked, result in rows
    }


@flow
def prune(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of what was kept for those who waited; fewer than `limit` means: no more.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("results_prune", older_ms=round(KEPT_SECONDS * 1000), limit=limit, alone=True)
    return len(rows)


def tell(left: Sequence[Left]) -> Steps[None]:
    """Tell those who wait that jobs have ended, and keep what done ones gave of which no row is left."""
    ended = [row for row in left if row.how in ("done", "dead", "cancelled")]
    if not ended:
        # They live on, and keep the mark; or a dead letter was discarded, of whose death was told before.
        return
    # What is continued has given nothing; those who wait go on to the next of its chain, which has the mark, too.
    gone = [row for row in ended if row.how == "done" and not row.kept and row.then is None]
    batch: Columns = {
        "job_id": [row.id for row in gone],
        "queue": [row.queue for row in gone],
        "kind": [row.kind for row in gone],
        "result": [row.result for row in gone],
    }
    yield from ask("results_end", batch=batch, told=_told([row.id for row in ended]))


def _told(ids: Sequence[str]) -> list[str]:
    return [" ".join(ids[at : at + IDS_TOLD_AT_ONCE]) for at in range(0, len(ids), IDS_TOLD_AT_ONCE)]


def read_told(payload: str) -> list[str]:
    """Read the ids of a notification."""
    return payload.split()


attach(WAITED_FOR, tell)
