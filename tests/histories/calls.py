"""Enqueues, written down: what was asked for, what was answered, and how the transaction around it ended."""

from collections.abc import Sequence
from typing import Any

from holdfast import Bound, Enqueued, Holdfast
from tests.histories.log import Log

Wanted = dict[str, Any]


def bind(hf: Holdfast, wanted: Wanted) -> Bound:
    """Make a job of what is wanted; the tag in its payload tells later which call it came from."""
    payload = {"tag": wanted["tag"], "acts": wanted["acts"]}
    named = {"idempotency_key": wanted.get("key"), "unique": wanted.get("unique"), "queue": wanted["queue"]}
    return hf.bind(wanted["kind"], payload, **named, **wanted.get("options", {}))


class Call:
    """One enqueue, of one job or of many.

    `tx` says that it is part of a transaction of the application's, which also writes an order; `inside` that it is
    part of a handler's own transaction, and so names that handler's job and fence.
    """

    def __init__(
        self, log: Log, name: str, jobs: Sequence[Wanted], *, tx: bool = False, inside: tuple[str, int] | None = None
    ) -> None:
        self.name = name
        self._log = log
        log.write("asked", call=name, jobs=list(jobs), tx=tx, inside=inside)

    def answered(self, answers: Sequence[Enqueued]) -> None:
        self._log.write("answered", call=self.name, answers=[[answer.id, answer.created] for answer in answers])

    def committed(self) -> None:
        self._log.write("committed", call=self.name)

    def rolled_back(self) -> None:
        self._log.write("rolled back", call=self.name)

    def failed(self, error: BaseException) -> None:
        """Note that nobody knows what came of it."""
        self._log.write("failed", call=self.name, error=f"{type(error).__name__}: {error}"[:300])
