"""The settler: writes outcomes in batches, and reports an end only once it is committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from holdfast import events
from holdfast.errors import StoreError, UniqueViolation, UnknownFollowers
from holdfast.flow import Flow
from holdfast.observe import Tallies
from holdfast.values.failure import words
from holdfast.values.rows import Continued, End, Finish, Lease
from holdfast.waits import ShardWaits, Waits
from holdfast.worker.completed import may_be_complete, set_right
from holdfast.worker.outcomes import Outcomes, measures
from holdfast.worker.work import Ended

# Unwritten outcomes above which slots wait: what a crash would run again is bounded by it.
UNWRITTEN_LIMIT = 5_000
# The most outcomes that one batch writes.
BATCH_LIMIT = 2_000


class Settler:
    """Collects what slots end with from one store; while one batch is being written the next one grows.

    `run` outlives outages and raises only where the database refuses the data itself; then the batch is taken apart,
    so that one outcome that cannot be stored costs itself and nothing else.
    """

    def __init__(
        self,
        run: Callable[[Flow[Any]], Awaitable[Any]],
        told: events.Events,
        forget: Callable[[Iterable[Ended], bool], None],
        worker: str,
        waits: Waits | ShardWaits | None = None,
        tallies: Tallies | None = None,
    ) -> None:
        self._run = run
        self._tallies = tallies or Tallies()
        self._waits = waits
        self._worker = worker
        self._events = told
        self._outcomes = Outcomes(worker, told)
        self._forget = forget
        self._waiting: list[Ended] = []
        self._writing = 0
        # Whether the end of a job was refused that has others behind it in its stint.
        self._refused = False
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + self._writing

    def add(self, ended: Ended) -> None:
        """Take an outcome."""
        if ended.write is None:
            self._report([ended])
            return
        if not self._waiting:
            self._empty.clear()
            self._something.set()
        self._waiting.append(ended)

    def add_and_hold(self, ended: Ended) -> asyncio.Event | None:
        """Take an outcome from a slot; returns what to wait for when too many are unwritten."""
        waiting = self._waiting
        if waiting and ended.write is not None:
            # What nearly every outcome of a full worker needs of `add`.
            waiting.append(ended)
        else:
            self.add(ended)
        if len(waiting) + self._writing < UNWRITTEN_LIMIT:
            return None
        self._room.clear()
        return self._room

    async def serve(self) -> None:
        while True:
            await self._something.wait()
            batch = self._take()
            if not self._waiting:
                self._something.clear()
            if batch:
                await self._write(batch)

    async def flushed(self) -> None:
        """Wait until every outcome is written."""
        await self._empty.wait()

    def _take(self) -> list[Ended]:
        """Take the next batch, each job once: an old lease and a new one of the same job must not be mixed up."""
        batch, rest = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
        first: dict[Any, Ended] = {}
        for ended in batch:
            first.setdefault(ended.work.key, ended)
        if len(first) < len(batch):
            rest = [ended for ended in batch if first[ended.work.key] is not ended] + rest
        self._waiting = rest
        return list(first.values())

    async def _write(self, batch: list[Ended]) -> None:
        self._writing = len(batch)
        # Most have no `Job`, and are not looked at for long.
        if any(may_be_complete(ended) for ended in batch if ended.work.job is not None):
            batch = await self._without_completed(batch)
        sources = {ended.work.source for ended in batch}
        for source in sources:
            # Mostly there is one, and nothing to sort.
            await self._settle([one for one in batch if one.work.source is source] if len(sources) > 1 else batch)
        self._writing = 0
        if self.unsettled < UNWRITTEN_LIMIT:
            self._room.set()
        if not self._waiting:
            self._empty.set()

    async def _without_completed(self, batch: list[Ended]) -> list[Ended]:
        """Report those whose own transactions have completed them; return the others."""
        right = await set_right(self._run, self._outcomes, batch)
        self._report([ended for ended in right if ended.write is None])
        return [ended for ended in right if ended.write is not None]

    async def _settle(self, batch: list[Ended]) -> None:
        if self._refused:
            batch = [self._kept_back(ended) for ended in batch]
        ends = [ended.write for ended in batch if ended.write is not None]
        leases = [ended.work.lease for ended in batch if ended.work.lease.__class__ is not Lease]
        source, asked_at = batch[0].work.source, time.monotonic()
        try:
            settled = await self._run(source.settle(ends, self._worker, leases))
        except Exception as error:
            await self._settle_apart(batch, error)
            return
        took = time.monotonic() - asked_at
        self._tallies.trip("settle", took)
        if self._events.wants(events.JobsSettled):
            self._events.emit(events.JobsSettled(self._worker, len(batch), took, len(settled.lost), source.name))
        self._report(batch, settled.lost, settled.followed)

    async def _settle_apart(self, batch: list[Ended], error: Exception) -> None:
        """Write a refused batch in halves, and a single refused outcome in plainer words.

        Raises: an error that is not the database's, when the plainest outcome meets it, too. A driver may fail at the
        data as well as a database, but this is then a defect.
        """
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        [ended] = batch
        plainer = self._plainer(ended, error)
        if plainer is not None:
            await self._settle([Ended(ended.work, plainer, ended.event)])
            return
        if not isinstance(error, StoreError):
            raise error
        # Nothing about it can be written. Its lease runs out, and the reaper has its own way to end a job.
        if ended.work.stint is not None:
            ended.work.stint.refused = self._refused = True
        self._forget([ended], False)
        about = self._outcomes.about(ended.work)
        self._events.emit(events.SettleRefused(*about, str(error), **measures(ended.work)))

    def _kept_back(self, ended: Ended) -> Ended:
        """Give a job back that ended behind one whose end was refused: that one runs again, and has to come first."""
        stint = ended.work.stint
        if stint is None or not stint.refused or not isinstance(ended.write, Finish | Continued):
            return ended
        return self._outcomes.released(ended.work)

    def _plainer(self, ended: Ended, error: Exception) -> End | None:
        """Return the outcome with less in it; None when there is nothing left to leave out."""
        write = ended.write
        if isinstance(error, UnknownFollowers):
            # It is not refused for what is in it.
            return None
        if isinstance(write, Finish) and isinstance(error, UniqueViolation) and write.keep:
            # The finished table has this job already: what is left to do is to take it out of the live one.
            return write._replace(keep=False)
        if isinstance(write, Finish) and write.result is not None:
            about = self._outcomes.about(ended.work)
            self._events.emit(events.ResultDropped(*about, words(error), **measures(ended.work)))
            record = self._outcomes.record(ended.work, error).named("ResultDropped")
            return write._replace(result=None, error=record.to_json())
        if write is not None and not isinstance(write, Continued) and write.error is not None:
            return write._replace(error=None)
        return None

    def _report(self, batch: Sequence[Ended], lost: Collection[str] = (), followed: bool = False) -> None:
        self._forget(batch, followed)
        self._tallies.count(batch, lost)
        if self._waits is not None and self._waits.any:
            self._waits.ended([ended.work.lease.job_id for ended in batch])
        for ended in batch:
            event = ended.event
            if lost and ended.work.lease.job_id in lost:
                event = self._outcomes.lost(ended.work).event
            if event is not None:
                self._events.emit(event)
