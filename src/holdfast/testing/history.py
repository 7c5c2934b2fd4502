"""Histories: what several processes did with jobs, written down as it happens and read back as one story.

Each process has a `Recorder`, which appends lines of JSON to a file of its own; what a killed process wrote stays.
Times are those of the machine's monotonic clock, which all its processes share. `holdfast.testing.rules` holds promises
against the history.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import Holdfast
from holdfast.events import LeaseWasLost
from holdfast.job import Job
from holdfast.values.rows import Enqueued


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """Jobs that were enqueued: when the enqueue began and when its transaction was known to be committed.

    committed is None where that is not known, and `rolled_back` True where it is known that it was not.
    """

    ids: list[str]
    queue: str
    key: str | None
    began: float
    committed: float | None
    rolled_back: bool = False


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """An enqueue began: what is left of one whose process died before it ended."""

    queue: str
    key: str | None
    began: float


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A handler was called."""

    id: str
    queue: str
    kind: str
    key: str | None
    attempt: int
    fence: int
    process: int
    at: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A handler's call was over; `error` names what it raised."""

    id: str
    fence: int
    error: str | None
    lost: bool
    at: float


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A worker learned that it held a job no longer."""

    id: str
    attempt: int
    process: int
    at: float


Record = Sent | Asked | Began | Ended | Lost
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Record)


class Recorder:
    """Writes down what happens in this process.

    `attach` notes every call of a handler of the application; `enqueue` notes what a block enqueues.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def close(self) -> None:
        os.close(self._file)

    def write(self, record: Record) -> None:
        """Append one record. A process that is killed right after it has still written it."""
        with self._lock:
            os.write(self._file, _encoder.encode(record) + b"\n")

    def attach(self, app: Holdfast) -> None:
        """Write down each call of a handler, and each lease that a worker of this process finds lost."""
        app.around_handler(self.attempt)
        app.on(LeaseWasLost, self._lost)

    def attempt(self, job: Job) -> AbstractContextManager[None]:
        """Write down one call of a handler; for `Holdfast.around_handler`."""
        return self._attempt(job)

    @contextmanager
    def _attempt(self, job: Job) -> Iterator[None]:
        about = (job.id, job.queue, job.kind, job.key, job.attempt, job.fence)
        self.write(Began(*about, os.getpid(), time.monotonic()))
        error: str | None = None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.write(Ended(job.id, job.fence, error, job.lost, time.monotonic()))

    def _lost(self, event: LeaseWasLost) -> None:
        self.write(Lost(event.id, event.attempt, os.getpid(), time.monotonic()))

    @contextmanager
    def enqueue(self, queue: str, key: str | None = None) -> Iterator[Callable[..., None]]:
        """Write down what the block enqueues, with its commit: the block must hold the whole transaction.

        Give what `enqueue` answers to the function that the block gets. An exception that leaves the block says that
        the transaction was rolled back.
        """
        ids: list[str] = []
        began = time.monotonic()
        self.write(Asked(queue, key, began))
        try:
            yield partial(_note, ids)
        except BaseException:
            self.write(Sent(ids, queue, key, began, None, rolled_back=True))
            raise
        self.write(Sent(ids, queue, key, began, time.monotonic()))


def _note(ids: list[str], *answers: Enqueued | Iterable[Enqueued]) -> None:
    for answer in answers:
        ids += [answer.id] if isinstance(answer, Enqueued) else [one.id for one in answer]


@dataclass(frozen=True)
class Attempt:
    """One call of a handler: `ended` is None where its process did not live to write it."""

    id: str
    queue: str
    kind: str
    key: str | None
    attempt: int
    fence: int
    process: int
    began: float
    ended: float | None = None
    error: str | None = None
    lost: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the worker held the lease from begin to end, as far as it ever learned."""
        return self.ended is not None and not self.lost


@dataclass
class History:
    """What was written down, in the order of time; `left` names jobs that are still alive at the end of the test."""

    sent: list[Sent] = field(default_factory=list[Sent])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    """By job, how it ended: done, dead or cancelled, as the tables have it."""
    left: set[str] = field(default_factory=set[str])

    @classmethod
    def read(cls, paths: Iterable[str | os.PathLike[str]]) -> History:
        """Read the files of several recorders; a last line that was cut off counts for nothing."""
        return cls.of([record for path in paths for record in _records(Path(path))])

    @classmethod
    def of(cls, records: Sequence[Record]) -> History:
        ended = {(one.id, one.fence): one for one in records if isinstance(one, Ended)}
        lost = {(one.id, one.attempt, one.process) for one in records if isinstance(one, Lost)}
        begun = [one for one in records if isinstance(one, Began)]
        return cls(
            sorted([one for one in records if isinstance(one, Sent)], key=lambda one: one.began),
            sorted([_attempt(one, ended, lost) for one in begun], key=lambda one: one.began),
        )

    def learn(self, jobs: Iterable[Any]) -> None:
        """Take the ends of jobs from the tables: job views as `holdfast.admin` lists them."""
        for job in jobs:
            if job.state in ("done", "dead", "cancelled"):
                self.outcomes[job.id] = job.state
            else:
                self.left.add(job.id)


def _attempt(one: Began, ended: dict[tuple[str, int], Ended], lost: set[tuple[str, int, int]]) -> Attempt:
    end = ended.get((one.id, one.fence))
    is_lost = (one.id, one.attempt, one.process) in lost
    about = (one.id, one.queue, one.kind, one.key, one.attempt, one.fence, one.process, one.at)
    if end is None:
        return Attempt(*about, lost=is_lost)
    return Attempt(*about, end.at, end.error, end.lost or is_lost)


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield _decoder.decode(line)
