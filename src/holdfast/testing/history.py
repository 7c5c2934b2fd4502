"""Histories: what several processes did with jobs, written down as it happens and read back as one story.

Each process has a `Recorder`, which appends lines of JSON to a file of its own; what a killed process wrote stays.
Times are those of the machine's monotonic clock, which all its processes share. `holdfast.testing.rules` holds promises
against the history.

The tables tell the rest: `History.learn` takes the rows of the end, with what each says of its chain, batch or tick.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from holdfast.app import Holdfast
from holdfast.app.batching import Batch
from holdfast.errors import StoreError
from holdfast.events import LeaseWasLost
from holdfast.job import Job
from holdfast.schedules import SCHEDULE_HEADER, TICK_HEADER
from holdfast.values.rows import BATCH_HEADER, CONTINUES_HEADER, OUTCOMES, Enqueued
from holdfast.values.views import JobView


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """Jobs that were enqueued: when the enqueue began and when its transaction was known to be committed.

    committed is None where that is not known, and `rolled_back` True where it is known that it was not. `after` names
    the jobs that they were to run after.
    """

    ids: list[str]
    queue: str
    key: str | None
    began: float
    committed: float | None
    rolled_back: bool = False
    after: list[str] = []


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
    """A handler's call was over; `error` names what it raised.

    `failed` says that it raised an error of its own before it had completed its job: such a call ends no job as done.
    """

    id: str
    fence: int
    error: str | None
    lost: bool
    at: float
    failed: bool = False


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
        error, failed = None, False
        try:
            yield
        except BaseException as raised:
            error, failed = type(raised).__name__, _is_failure(raised, job)
            raise
        finally:
            self.write(Ended(job.id, job.fence, error, job.lost, time.monotonic(), failed))

    def _lost(self, event: LeaseWasLost) -> None:
        self.write(Lost(event.id, event.attempt, os.getpid(), time.monotonic()))

    @contextmanager
    def enqueue(
        self, queue: str, key: str | None = None, *, after: Iterable[Enqueued | str] = ()
    ) -> Iterator[Callable[..., None]]:
        """Write down what the block enqueues, with its commit: the block must hold the whole transaction.

        Give what `enqueue` answers, or a batch, to the function that the block gets. An exception that leaves the block
        says that the transaction was rolled back. after: as in `using(after=…)` of the jobs that the block enqueues.
        """
        ids: list[str] = []
        parents = [one if isinstance(one, str) else one.id for one in after]
        began = time.monotonic()
        self.write(Asked(queue, key, began))
        try:
            yield partial(_note, ids)
        except BaseException:
            self.write(Sent(ids, queue, key, began, None, rolled_back=True, after=parents))
            raise
        self.write(Sent(ids, queue, key, began, time.monotonic(), after=parents))


def _is_failure(raised: BaseException, job: Job) -> bool:
    """Tell whether a call that raised this has surely not completed its job.

    A cancelled one, or one that the database answered with an error, may have: the answer to a commit can be lost.
    """
    return isinstance(raised, Exception) and not isinstance(raised, StoreError) and not (job.completing or job.settled)


def _note(ids: list[str], *answers: Enqueued | Batch | Iterable[Enqueued]) -> None:
    for answer in answers:
        if isinstance(answer, Enqueued):
            ids.append(answer.id)
        elif isinstance(answer, Batch):
            # Its callback stands behind its members.
            ids += [*answer.ids, answer.id]
        else:
            ids += [one.id for one in answer]


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
    failed: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the worker held the lease from begin to end, as far as it ever learned."""
        return self.ended is not None and not self.lost


@dataclass(frozen=True)
class Row:
    """What the tables hold of a job at the end of the test: `fence` and `claimed` are those of its last claim.

    `continues` names the job before it in its chain, `batch` the batch that it is a member of, `tick` the moment that
    its schedule added it for.
    """

    id: str
    state: str
    queue: str
    kind: str
    key: str | None = None
    fence: int = 0
    claimed: datetime | None = None
    continues: str | None = None
    batch: str | None = None
    schedule: str | None = None
    tick: datetime | None = None

    @classmethod
    def of(cls, job: JobView) -> Row:
        headers = job.headers or {}
        tick = headers.get(TICK_HEADER)
        return cls(
            job.id,
            job.state,
            job.queue,
            job.kind,
            job.key,
            job.fence,
            job.leased_at,
            headers.get(CONTINUES_HEADER),
            headers.get(BATCH_HEADER),
            headers.get(SCHEDULE_HEADER),
            None if tick is None else datetime.fromisoformat(tick),
        )


@dataclass
class History:
    """What was written down, in the order of time; `left` names jobs that are still alive at the end of the test."""

    sent: list[Sent] = field(default_factory=list[Sent])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    """By job, how it ended: done, dead or cancelled, as the tables have it."""
    left: set[str] = field(default_factory=set[str])
    rows: list[Row] = field(default_factory=list[Row])

    @classmethod
    def read(cls, paths: Iterable[str | os.PathLike[str]]) -> History:
        """Read the files of several recorders; a last line that was cut off counts for nothing."""
        return cls.of([record for path in paths for record in _records(Path(path))])

    @classmethod
    def of(cls, records: Sequence[Record]) -> History:
        ended = {(one.id, one.fence): one for one in records if isinstance(one, Ended)}
        lost = {(one.id, one.attempt, one.process) for one in records if isinstance(one, Lost)}
        begun = [one for one in records if isinstance(one, Began)]
        attempts = sorted([_attempt(one, ended, lost) for one in begun], key=lambda one: one.began)
        return cls(
            sorted([one for one in records if isinstance(one, Sent)], key=lambda one: one.began),
            _with_overtaken(attempts),
        )

    def learn(self, jobs: Iterable[JobView]) -> None:
        """Take the ends of jobs from the tables: job views as `holdfast.admin` lists them, once nothing runs any more.

        Give all that are there: of a job without a row nothing is known but what processes wrote.
        """
        for job in jobs:
            self.rows.append(Row.of(job))
            if job.state in OUTCOMES:
                self.outcomes[job.id] = job.state
            else:
                self.left.add(job.id)

    def firsts(self) -> dict[str, float]:
        """Say when each job first began."""
        return {attempt.id: attempt.began for attempt in reversed(self.attempts) if not attempt.lost}

    def last_begins(self) -> dict[str, float]:
        """Say when each job last began."""
        return {attempt.id: attempt.began for attempt in self.attempts if not attempt.lost}

    def first_ends(self) -> dict[str, float]:
        """Say when each job was first seen to end whole; one that never did, when it last began."""
        ends = self.last_begins()
        for attempt in sorted(self.attempts, key=lambda one: one.ended or 0.0, reverse=True):
            if attempt.is_whole and attempt.ended is not None:
                ends[attempt.id] = attempt.ended
        return ends

    def lasts(self) -> dict[str, float]:
        """Say when each job was last seen to run: the end of its last whole attempt, else the begin of its last one."""
        last: dict[str, float] = {}
        for attempt in self.attempts:
            if attempt.lost:
                continue
            seen = attempt.ended if attempt.is_whole and attempt.ended is not None else attempt.began
            last[attempt.id] = max(seen, last.get(attempt.id, 0.0))
        return last


def _attempt(one: Began, ended: dict[tuple[str, int], Ended], lost: set[tuple[str, int, int]]) -> Attempt:
    end = ended.get((one.id, one.fence))
    is_lost = (one.id, one.attempt, one.process) in lost
    about = (one.id, one.queue, one.kind, one.key, one.attempt, one.fence, one.process, one.at)
    if end is None:
        return Attempt(*about, lost=is_lost)
    return Attempt(*about, end.at, end.error, end.lost or is_lost, end.failed)


def _with_overtaken(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Mark attempts during which a later claim of the job began to run: a killed worker does not learn of that."""
    # By job, when the first of its later claims began to run.
    after: dict[str, float] = {}
    found: list[Attempt] = []
    for attempt in sorted(attempts, key=lambda one: one.fence, reverse=True):
        began = after.get(attempt.id, float("inf"))
        overtaken = began < (attempt.began if attempt.ended is None else attempt.ended)
        found.append(replace(attempt, lost=True) if overtaken else attempt)
        after[attempt.id] = min(began, attempt.began)
    return sorted(found, key=lambda one: one.began)


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield _decoder.decode(line)
