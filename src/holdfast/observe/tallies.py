"""What a worker counts: a tally for each kind in each queue, cheap enough to be kept for every job.

An attempt that succeeded adds one to a number. A share of the attempts is also timed: all of them while there are few,
then every second, every fourth and so on, at most `MOST_TIMED` between two looks, evenly over the time between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from holdfast.observe.buckets import Histogram
from holdfast.observe.figures import MOST_KINDS, OTHER, Folded
from holdfast.values.rows import Continued, Finish, Park, PutBack

MOST_TIMED = 256


class Tally:
    """The attempts of one kind in one queue since the last look."""

    __slots__ = ("apart", "ended", "kind", "mask", "queue", "runs", "untimed", "waits")

    def __init__(self, queue: str, kind: str) -> None:
        self.queue = queue
        self.kind = kind
        # All ends, and those that are not `done`, by outcome.
        self.ended = 0
        self.apart: dict[str, int] = {}
        # Of the ends, those that are timed: where none of these bits is set.
        self.mask = 0
        # Ends of jobs that never began.
        self.untimed = 0
        self.waits: list[float] = []
        self.runs: list[float] = []

    def time(self, waited: float | None, took: float) -> None:
        """Note how long an attempt waited and took."""
        if waited is not None:
            self.waits.append(waited)
        self.runs.append(took)
        if len(self.runs) >= MOST_TIMED:
            # Half as many from now on, and half of those so far: each stands for as many attempts as the others.
            self.waits, self.runs = self.waits[::2], self.runs[::2]
            self.mask = 2 * self.mask + 1

    def fold(self, into: Folded) -> None:
        """Add what was counted to figures, and begin anew."""
        ended, apart, waits, runs = self.ended, self.apart, self.waits, self.runs
        begun = ended - self.untimed
        self.ended, self.apart, self.mask, self.untimed, self.waits, self.runs = 0, {}, 0, 0, [], []
        if not ended:
            return
        figures = into.of(self.queue, self.kind)
        done = ended - sum(apart.values())
        for outcome, number in {"done": done, **apart}.items():
            if number:
                figures.ended[outcome] = figures.ended.get(outcome, 0) + number
        figures.waits.add(Histogram.of(waits, begun))
        figures.runs.add(Histogram.of(runs, begun))


# Stands for the tally before the first: nobody reads it.
SPARE = Tally("", "")


class Reader:
    """One who wants to know what was counted since it last asked; each gets all of it."""

    def __init__(self, fold: Callable[[], None]) -> None:
        self._fold = fold
        self.kept = Folded()

    def take(self) -> Folded:
        self._fold()
        kept, self.kept = self.kept, Folded()
        return kept


class Tallies:
    """All that one worker counts; on its event loop, except for `enqueued`."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._trips: dict[str, list[float]] = {}
        self._readers: list[Reader] = []
        # Queues and kinds of jobs that were enqueued; handlers on threads add to it.
        self._enqueued: deque[tuple[str, str]] = deque()

    def reader(self) -> Reader:
        """Make one more who is told what was counted, from now on."""
        reader = Reader(self._spread)
        self._readers.append(reader)
        return reader

    def of(self, queue: str, kind: str) -> Tally:
        """Return the tally of a kind in a queue; of too many they share one."""
        found = self._tallies.get((queue, kind))
        if found is None:
            if len(self._tallies) >= MOST_KINDS:
                queue = kind = OTHER
            found = self._tallies.setdefault((queue, kind), Tally(queue, kind))
        return found

    def count(self, batch: Iterable[Any], lost: Collection[str] = ()) -> None:
        """Count attempts whose ends are committed; `lost` are ids of those that another has by now."""
        # What a batch has in common is kept in local names: a job that is done and not timed takes 0.08 µs here.
        tally = SPARE
        number = mask = 0
        for ended in batch:
            work = ended.work
            if work.tally is not tally:
                tally.ended = number
                tally = work.tally
                number, mask = tally.ended, tally.mask
            number += 1
            write = ended.write
            # The third field of a `Finish` is its outcome; nothing else has this text there.
            if lost or write is None or write[2] != "done":
                self._count_apart(tally, ended, lost)
            if not number & mask and work.started:
                tally.time(work.waited(), work.took)
                mask = tally.mask
        tally.ended = number
        SPARE.ended = 0

    def _count_apart(self, tally: Tally, ended: Any, lost: Collection[str]) -> None:
        outcome = outcome_of(ended, lost)
        if outcome != "done":
            tally.apart[outcome] = tally.apart.get(outcome, 0) + 1
        if not ended.work.started:
            tally.untimed += 1

    def reaped(self, queue: str, kind: str) -> None:
        """Count a lease that ran out and was taken back: not an end of an attempt of this worker's."""
        tally = self.of(queue, kind)
        tally.ended += 1
        tally.untimed += 1
        tally.apart["reaped"] = tally.apart.get("reaped", 0) + 1

    def trip(self, name: str, seconds: float) -> None:
        """Note how long a claim or a settle took."""
        took = self._trips.setdefault(name, [])
        if len(took) < MOST_TIMED:
            took.append(seconds)

    def enqueued(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Count jobs that this process has enqueued, by queue and kind; from any thread."""
        self._enqueued.extend(pairs)

    def _spread(self) -> None:
        """Tell all readers what was counted since the last look, and begin anew."""
        folded = self._fold()
        for reader in self._readers:
            reader.kept.add(folded)

    def _fold(self) -> Folded:
        folded = Folded()
        for tally in self._tallies.values():
            tally.fold(folded)
        for name, took in self._trips.items():
            folded.trips[name] = Histogram.of(took)
        self._trips = {}
        while self._enqueued:
            folded.of(*self._enqueued.popleft()).enqueued += 1
        return folded


def outcome_of(ended: Any, lost: Collection[str] = ()) -> str:
    """Name how an attempt ended, by what was written of it."""
    work, write = ended.work, ended.write
    if lost and work.lease.job_id in lost:
        return "lost"
    match write:
        case Finish():
            return write.outcome
        case Continued():
            return "done"
        case Park():
            return "parked"
        case PutBack():
            if not write.attempts_back:
                return "retried"
            return "snoozed" if work.started and write.delay_ms is not None else "released"
        case _:
            return "done" if work.settled else "lost"
