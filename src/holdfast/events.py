"""What happens, as typed events: logging, metrics and tracing subscribe here and nowhere else."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from holdfast.errors import ConfigError

log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `level` is what the log gives it."""

    level: ClassVar[int] = logging.INFO

    @property
    def name(self) -> str:
        return type(self).__name__

    def fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.fields().items() if value not in (None, ""))
        return f"{_words(self.name)}: {shown}" if shown else _words(self.name)


def _words(name: str) -> str:
    """WorkerStarted → worker started."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()


@dataclass(frozen=True, slots=True)
class JobsEnqueued(Event):
    """Jobs were handed to the database; those in the caller's transaction are there only once that commits."""

    level = logging.DEBUG
    ids: Sequence[str]
    kinds: Sequence[str]
    in_transaction: bool


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    worker: str
    queues: Sequence[str]
    kinds: Sequence[str]
    concurrency: int


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    worker: str
    running: int
    why: str


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    worker: str
    released: int


@dataclass(frozen=True, slots=True)
class JobsClaimed(Event):
    level = logging.DEBUG
    worker: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    worker: str
    id: str
    kind: str
    queue: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    level = logging.DEBUG


@dataclass(frozen=True, slots=True)
class JobDone(JobEvent):
    level = logging.DEBUG
    seconds: float


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    level = logging.WARNING
    delay: float
    error: str


@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class JobDead(JobEvent):
    level = logging.ERROR
    error: str


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    reason: str


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    level = logging.DEBUG


@dataclass(frozen=True, slots=True)
class JobReaped(JobEvent):
    """A lease ran out and was taken back; `worker` is who lost it, `outcome` what became of the job."""

    level = logging.WARNING
    outcome: str


@dataclass(frozen=True, slots=True)
class LeaseWasLost(JobEvent):
    """A worker found that it no longer holds the job; whatever its handler did is not recorded."""

    level = logging.WARNING


@dataclass(frozen=True, slots=True)
class ResultDropped(JobEvent):
    """The handler returned what JSON cannot hold: the job is done, its result is not kept."""

    level = logging.WARNING
    error: str


@dataclass(frozen=True, slots=True)
class SettleRefused(JobEvent):
    """The database refuses to store what came of the attempt, whatever is left out: its lease will run out."""

    level = logging.ERROR
    error: str


@dataclass(frozen=True, slots=True)
class UpkeepFailed(Event):
    """The database refused a piece of a worker's upkeep (reap, beat, prune); it is tried again at its next turn."""

    level = logging.ERROR
    worker: str
    what: str
    error: str


@dataclass(frozen=True, slots=True)
class WorkerBuried(Event):
    level = logging.WARNING
    worker: str


@dataclass(frozen=True, slots=True)
class DatabaseLost(Event):
    """The database cannot be reached; said once per outage."""

    level = logging.ERROR
    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class DatabaseRegained(Event):
    worker: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ListenerLost(Event):
    """Wake-ups no longer arrive; polling carries on alone."""

    level = logging.WARNING
    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class ListenerRegained(Event):
    worker: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop stood still for so many seconds that leases could hardly be renewed, or not at all.

    A handler blocked it (a long computation, a sync call in an async handler), or the process was stopped.
    """

    level = logging.WARNING
    worker: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Pruned(Event):
    level = logging.DEBUG
    worker: str
    jobs: int
    keys: int


E = TypeVar("E", bound=Event)
Subscriber = Callable[[Any], None]


class Events:
    """Hands each event to whoever subscribed to its class or a base of it."""

    def __init__(self) -> None:
        self._subscribers: list[tuple[type[Event], Subscriber]] = []
        self._by_class: dict[type[Event], tuple[Subscriber, ...]] = {}

    def subscribe(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        if inspect.iscoroutinefunction(subscriber):
            raise ConfigError("subscriber", "must be a plain function: events are told as they happen", subscriber)
        self._subscribers.append((kind, subscriber))
        self._by_class.clear()

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether anybody listens, so that a hot path need not build what nobody reads."""
        listeners = self._of(kind)
        if listeners == (log_events,):
            return log.isEnabledFor(kind.level)
        return bool(listeners)

    def emit(self, event: Event) -> None:
        for subscriber in self._of(type(event)):
            try:
                subscriber(event)
            except (Exception, asyncio.CancelledError, SystemExit):
                log.exception("a subscriber of %s failed; the work goes on", event.name)

    def _of(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        found = self._by_class.get(kind)
        if found is None:
            found = tuple(fn for wanted, fn in self._subscribers if issubclass(kind, wanted))
            self._by_class[kind] = found
        return found


def log_events(event: Event) -> None:
    """The first subscriber: every event as a line of the `holdfast` logger, its fields in `extra`."""
    if log.isEnabledFor(event.level):
        log.log(event.level, "%s", event, extra={"holdfast": event.fields()})
