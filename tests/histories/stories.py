"""Histories written by hand, for the tests of the checker: a way to write them, and a good one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.values.views import AuditLine, JobView
from tests.histories.checker import check
from tests.histories.history import Effect, History

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKER, ENQUEUER, PERSON = 10, 20, 30


def row(job_id: str, tag: str, state: Any = "done", fence: int = 1, **said: Any) -> JobView:
    nothing: dict[str, Any] = dict.fromkeys(JobView.__dataclass_fields__)
    usual = {"kind": "book", "queue": "default", "errors": [], "replays": 0, "max_attempts": 3, "attempts": 3}
    payload = msgspec.json.encode({"tag": tag, "acts": ["ok"]}).decode()
    times = {"created_at": NOW, "available_at": NOW, "finished_at": NOW + timedelta(seconds=1)}
    return JobView(
        **(nothing | usual | times | {"id": job_id, "state": state, "fence": fence, "payload": payload} | said)
    )


class Story:
    """A history that is written line by line."""

    def __init__(self) -> None:
        self.history = History()

    def say(self, what: str, pid: int, **said: Any) -> None:
        at = float(len(self.history.events))
        self.history.events.append(
            {"at": at, "wall": NOW.timestamp() + at, "pid": pid, "what": what, "actor": "x"} | said
        )

    def enqueue(self, name: str, *answers: tuple[str, bool], tx: bool = False, inside: Any = None, **said: Any) -> None:
        """Ask for as many jobs as there are answers; their tags are the call's name with their place."""
        jobs = [
            {"tag": f"{name}/{n}", "kind": "book", "queue": "default", "acts": ["ok"]} | said
            for n in range(len(answers))
        ]
        self.say("asked", ENQUEUER, call=name, jobs=jobs, tx=tx, inside=inside)
        self.say("answered", ENQUEUER, call=name, answers=[list(answer) for answer in answers])
        if tx:
            self.history.orders.add(name)
            self.say("committed", ENQUEUER, call=name)

    def start(self, job_id: str, tag: str, fence: int = 1, pid: int = WORKER, **said: Any) -> None:
        usual = {"attempt": 1, "most": 3, "act": "ok"}
        self.say("started", pid, job=job_id, tag=tag, fence=fence, **(usual | said))

    def end(self, job_id: str, fence: int = 1, how: str = "returned", pid: int = WORKER) -> None:
        self.say("ended", pid, job=job_id, fence=fence, attempt=1, how=how)

    def done(self, job_id: str, tag: str, fence: int = 1, **said: Any) -> None:
        """Run a job to its good end: handler, effect and row."""
        self.start(job_id, tag, fence)
        self.end(job_id, fence)
        self.history.effects.append(Effect(job_id, fence, 1, tag))
        self.history.rows.append(row(job_id, tag, fence=fence, **said))

    def act(self, action: str, job_id: str) -> None:
        at = NOW + timedelta(seconds=len(self.history.events))
        self.history.audit.append(AuditLine(at, action, job_id, "somebody", {}))
        self.say("acted", PERSON, action=action, ids=[job_id])

    def change(self, job_id: str, **said: Any) -> None:
        self.history.rows = [replace(one, **said) if one.id == job_id else one for one in self.history.rows]

    def broken(self) -> set[str]:
        return {violation.rule for violation in check(self.history)}


def good() -> Story:
    """Four jobs done: enqueued plainly, in a transaction, in a handler's, and in a queue that keeps nothing."""
    story = Story()
    story.enqueue("plain", ("a", True))
    story.enqueue("order", ("b", True), tx=True)
    story.enqueue("brief", ("d", True), queue="brief")
    story.done("a", "plain/0")
    story.enqueue("child", ("c", True), inside=["a", 1])
    story.done("b", "order/0")
    story.done("c", "child/0")
    story.done("d", "brief/0")
    story.history.rows = [one for one in story.history.rows if one.id != "d"]
    return story
