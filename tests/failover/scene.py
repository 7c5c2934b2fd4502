"""One failover under load: who takes part, what is waited for, and what came of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.demo.crew import Crew
from holdfast.demo.proof import all_jobs
from holdfast.testing.history import History
from holdfast.testing.rules import Violation, check
from holdfast.values.views import JobView
from tests.failover.app import ENQUEUERS, FOLDER, LEASE, LINES, TABLE, WORKERS, application
from tests.failover.pair import Pair, until
from tests.faults.shared import backlog
from tests.histories.log import Event, read

SLOW = 4


class Effect(NamedTuple):
    """What a handler wrote, in the order in which it did."""

    tag: str
    job_id: str
    fence: int
    key: str | None
    n: int


class Scene:
    """The processes on both servers, each with a URL of another form."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair = pair
        self.folder = folder
        for name in ("history", "answers"):
            (folder / name).mkdir()
        self.url = pair.primary.fresh_database()
        self.urls = pair.urls(self.url.rpartition("/")[2])
        self.hf = application(self.urls["unasked"])
        self.hf.migrate()
        with self.hf.store.link() as link:
            link.raw.execute(TABLE)
        forms = dict(zip((*WORKERS, *ENQUEUERS), ("asked", "settings", "asked", "unasked"), strict=True))
        self.crews = {name: self._crew(name, self.urls[form]) for name, form in forms.items()}

    def _crew(self, name: str, url: str) -> Crew:
        folder = self.folder / name
        folder.mkdir()
        return Crew("tests.failover.app", {"HOLDFAST_URL": url, FOLDER: str(self.folder)}, folder)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Run everything until the block ends."""
        try:
            for name, crew in self.crews.items():
                crew.hire(name)
            yield
        except BaseException as error:
            for name, crew in self.crews.items():
                error.add_note(f"{name}:\n{crew.last_words()}")
            raise
        finally:
            for crew in self.crews.values():
                crew.dismiss(10.0)
            self.hf.close()

    def until_under_way(self) -> None:
        """Wait until all take part, then add jobs that take longer than their lease."""
        until("all enqueue", lambda: {event["actor"] for event in self.answers()} >= set(ENQUEUERS), 60)
        until("there are effects of each", lambda: self._seen_since(0.0) == set(ENQUEUERS), 60)
        kinds = ("book", "book_def") * (SLOW // 2)
        slow = [self.hf.bind(kind, {"tag": f"slow/{n}", "n": n, "seconds": LEASE * 2}) for n, kind in enumerate(kinds)]
        ids = {answer.id for answer in self.hf.enqueue_many(slow)}
        until("the slow ones run", lambda: ids <= {one.id for one in self._history().attempts})

    def until_going_on(self, since: float) -> None:
        """Wait until what was enqueued since then has had its effect, and workers listen on the new primary."""
        until("applications and workers go on", lambda: self._seen_since(since) == set(ENQUEUERS), 60)
        listening = "select count(*) from pg_stat_activity where application_name = 'holdfast-listener'"
        until("they listen again", lambda: self.pair.standby.execute(listening) == [(len(WORKERS),)], 60)

    def _seen_since(self, since: float) -> set[str]:
        tags = {event["tag"] for event in self.answers("answered") if event["began"] >= since}
        return {effect.tag.partition("/")[0] for effect in self.effects() if effect.tag in tags}

    def answers(self, *what: str) -> list[Event]:
        return [event for event in read(self.folder / "answers") if not what or event["what"] in what]

    def effects(self) -> list[Effect]:
        # Begun as a transaction, which notices a connection that was lost with the primary.
        with self.hf.store.transaction() as link:
            rows = link.raw.execute("select tag, job_id, fence, key, n from effects order by seq").fetchall()
        return [Effect(*row) for row in rows]

    def _history(self) -> History:
        return History.read((self.folder / "history").glob("*.jsonl"))

    def end(self) -> "Outcome":
        """Have the applications stop, let the workers finish what is there, and read what came of it."""
        (self.folder / "stop").touch()
        for name in ENQUEUERS:
            [caller] = self.crews[name].members
            assert caller.process.wait(60) == 0, f"{name} failed"
        until("every job has ended", lambda: backlog(self.hf.store) == 0, 60)
        for name in WORKERS:
            [worker] = self.crews[name].members
            assert worker.alive, f"{name} ended by itself"
        return Outcome(self.answers(), self.effects(), list(all_jobs(self.hf.store)), self._history())


def tag_of(job: JobView) -> str:
    return str(json.loads(job.payload)["tag"])


@dataclass
class Outcome:
    """What the applications were answered, and what the tables hold."""

    answers: list[Event]
    effects: list[Effect]
    jobs: list[JobView]
    history: History

    @cached_property
    def by_tag(self) -> dict[str, list[JobView]]:
        found: dict[str, list[JobView]] = defaultdict(list)
        for job in self.jobs:
            found[tag_of(job)].append(job)
        return dict(found)

    def said(self, what: str) -> dict[str, Event]:
        return {event["tag"]: event for event in self.answers if event["what"] == what}

    @property
    def lost(self) -> set[str]:
        """What was acknowledged and is not there."""
        return self.said("answered").keys() - self.by_tag.keys()

    @property
    def doubled(self) -> list[str]:
        """Enqueues that became two jobs, whether acknowledged or not."""
        return [tag for tag, jobs in self.by_tag.items() if len(jobs) > 1]

    @property
    def not_done(self) -> list[JobView]:
        return [job for job in self.jobs if job.state != "done"]

    @property
    def effects_doubled(self) -> list[str]:
        return [tag for tag, count in Counter(effect.tag for effect in self.effects).items() if count > 1]

    @property
    def effects_missing(self) -> set[str]:
        return self.by_tag.keys() - {effect.tag for effect in self.effects}

    @property
    def effects_unearned(self) -> list[Effect]:
        """Effects without the completion that they were committed with: of another fence, or of a job that is gone."""
        done = {(job.id, job.fence) for job in self.jobs if job.state == "done"}
        return [effect for effect in self.effects if (effect.job_id, effect.fence) not in done]

    @property
    def out_of_order(self) -> list[Effect]:
        last: dict[str | None, int] = {}
        found: list[Effect] = []
        for effect in self.effects:
            if effect.key is not None and effect.n <= last.get(effect.key, -1):
                found.append(effect)
            last[effect.key] = effect.n
        return found

    def repaired(self, killed_at: float, wall: float) -> list[str]:
        """Name enqueues that had been committed before the kill, and whose answer came after it: it was asked again."""
        late = [tag for tag, event in self.said("answered").items() if event["began"] < killed_at < event["at"]]
        return [tag for tag in late for job in self.by_tag.get(tag, ()) if job.created_at.timestamp() < wall]

    def violations(self) -> list[Violation]:
        self.history.learn(self.jobs)
        return check(self.history, ordered=[LINES])

    def waits(self, killed_at: float, promoted_at: float) -> dict[str, Any]:
        """Say how long each part of the wait took, in seconds."""
        answered = [event["at"] for event in self.answers if event["what"] == "answered"]
        began = [attempt.began for attempt in self.history.attempts if attempt.began > promoted_at]
        regained = {what: [e["after"] for e in self.answers if e["what"] == what] for what in REGAINED}
        return {
            "until the standby was promoted": promoted_at - killed_at,
            "until the next enqueue was acknowledged": min(at for at in answered if at > promoted_at) - killed_at,
            "until the next handler began": min(began) - killed_at,
            **{f"{what}, longest of the workers": max(after, default=0.0) for what, after in regained.items()},
        }


REGAINED = ("database regained", "listener regained")
