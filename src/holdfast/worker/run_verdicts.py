"""What the parts that drive a run share: what it came to, what they work with, places in its journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.events import Event
from holdfast.flow import Flow
from holdfast.remote import Engine
from holdfast.runs import Recorded
from holdfast.values.failure import ErrorRecord, iso
from holdfast.worker.checkpoint_writer import CheckpointWriter
from holdfast.worker.db_clock import DbClock
from holdfast.worker.step_calls import StepCalls
from holdfast.workflows import NewRun


class Over(NamedTuple):
    """The body is over: what it gave, or what it raised."""

    value: Any
    error: BaseException | None


class Parked(NamedTuple):
    """The run waits for something, until a moment of the database's clock at the latest."""

    waits_for: str
    deadline: float | None


class Stuck(NamedTuple):
    """The run cannot go on with the code that is there."""

    error: BaseException


class Broken(NamedTuple):
    """Something went wrong that is neither the body's doing nor the journal's: the attempt failed."""

    error: BaseException


class Lost(NamedTuple):
    """The run has another holder."""


Verdict = Over | Parked | Stuck | Broken | Lost


class Means(Protocol):
    """What the runs of one worker and store share."""

    worker: str
    clock: DbClock
    writer: CheckpointWriter
    calls: StepCalls
    payload_limit: int
    engines: Mapping[str, Engine]

    def insist(self, work: Flow[Any]) -> Coroutine[Any, Any, Any]: ...

    def no_doubles(self, parent: str, new: Sequence[NewRun]) -> Coroutine[Any, Any, None]: ...

    def remotely(self, engine: Engine, work: Flow[Any]) -> Coroutine[Any, Any, Any]: ...

    def dispatched(self, engine: Engine) -> None: ...

    def emit(self, event: Event) -> None: ...

    def stop_run(self, key: str, workflow: str) -> Coroutine[Any, Any, None]: ...


class Place:
    """A place in the journal: what is written there is told once all places before it are told or given up."""

    __slots__ = ("given_up", "row", "seq")

    def __init__(self, seq: int, row: Recorded | None = None) -> None:
        self.seq = seq
        self.row = row
        self.given_up = False

    @property
    def ready(self) -> bool:
        return self.row is not None or self.given_up


def error_record(error: BaseException, attempt: int, began: float, worker: str) -> ErrorRecord:
    """Describe why an attempt of a step failed that began at a moment of the monotonic clock."""
    now = time.time()
    started = iso(now - (time.monotonic() - began))
    return ErrorRecord.of(error, attempt=attempt, worker=worker, started_at=started, failed_at=iso(now))


def is_being_cancelled() -> bool:
    """Tell whether somebody has cancelled this very task, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
