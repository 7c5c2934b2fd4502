"""Claiming: one loop for each store that fills the slots, and waits for a wake-up, a poll or a free slot."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast import events
from holdfast.context import Context
from holdfast.handlers import Registration
from holdfast.life.source import Source
from holdfast.observe import Tallies, Tally
from holdfast.values.rows import Lease
from holdfast.worker.branch import Branch
from holdfast.worker.demand import Demand
from holdfast.worker.holdings import Holdings, apart
from holdfast.worker.slots import Slots
from holdfast.worker.work import BaseExecutor, Work

FIRST_POLL_SECONDS = 0.05
# How often a worker of a ring looks at shards that belong to others: what waits that long may be nobody's.
ASIDE_POLL_SECONDS = 10.0


class Alike(NamedTuple):
    """What jobs of one kind from one queue have in common: who runs and counts them, and whether done ones are kept."""

    queue: str
    handler: Registration[..., Any]
    keep: bool
    executor: BaseExecutor
    tally: Tally


class Claiming:
    """Claims from the sources of one store, at most `poll` seconds after the last look.

    Each store has a loop of its own, so that an outage of one makes no other wait.
    """

    def __init__(
        self,
        context: Context,
        worker: str,
        branch: Branch,
        slots: Slots,
        demand: Demand,
        holdings: Holdings,
        stopping: asyncio.Event,
        poll: float,
        tallies: Tallies,
    ) -> None:
        self._context = context
        self._worker = worker
        self.branch = branch
        self._sources = branch.sources
        self._patience = branch.patience
        self._pauses = branch.pauses
        self._slots = slots
        self._demand = demand
        self._holdings = holdings
        self._stopping = stopping
        self._poll = poll
        # Whether the last round of claims found more than it could take.
        self._more = False
        self._tallies = tallies
        # What the jobs of a source have in common: by kind for the queue that it last came from, and of all queues.
        self._latest: dict[Source, dict[str, Alike]] = {source: {} for source in branch.sources}
        self._alike: dict[tuple[Source, str, str], Alike] = {}

    async def serve(self) -> None:
        pause = FIRST_POLL_SECONDS
        while not self._stopping.is_set():
            self.branch.wake.clear()
            if self.branch.aside:
                await self._stand_aside()
            took = await self._fill()
            pause = FIRST_POLL_SECONDS if took else min(self._poll, pause * 2)
            if self._more and any(limit > 0 for _, _, limit in self._demand.plan(self._sources)):
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause(pause)):
                    await self.branch.wake.wait()

    async def _stand_aside(self) -> None:
        """Wait for as long as others have had their time, or until the shard is this worker's own."""
        until = time.monotonic() + random.uniform(0.8, 1.2) * ASIDE_POLL_SECONDS
        while self.branch.aside and not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.branch.wake.wait()
            self.branch.wake.clear()

    def _pause(self, pause: float) -> float:
        """Return how long to wait for a wake-up: with jitter, and not beyond the moment when a rate allows more."""
        waits = (source.again_in() for source in self._sources)
        return min(random.uniform(0.8, 1.2) * pause, *(max(wait, 0.001) for wait in waits if wait is not None), 1e9)

    async def _fill(self) -> int:
        """Claim as much as there is room for; several claims when some kinds have limits of their own."""
        self._more = False
        if self._pauses.stale and not await self._pauses.refreshed(self._patience):
            return 0
        took, plan = 0, self._demand.plan(self._sources)
        # Set before the first wait: a slot that becomes free from now on must not be missed.
        self._demand.wait_for_room(self, any(limit <= 0 for _, _, limit in plan))
        for source, leases, limit in plan:
            if limit <= 0 or self._stopping.is_set():
                continue
            await self._give_back_strays()
            claimed = await self._claim(source, leases, limit)
            took += claimed
            self._more = self._more or claimed >= limit
        if self._more:
            self._demand.wait_for_room(self, True)
        return took

    async def _claim(self, source: Source, leases: dict[str, int], limit: int) -> int:
        """Claim from one part of a source after the other, until there is enough."""
        took = 0
        for turn in source.turns():
            if took >= limit or self._stopping.is_set():
                break
            took += await self._claim_turn(source, leases, limit - took, turn)
        return took

    async def _claim_turn(self, source: Source, leases: dict[str, int], limit: int, turn: str | None) -> int:
        asked_at = time.monotonic()
        claiming = source.claim(leases, limit, self._worker, suspects=not self._slots.line.full, turn=turn)
        if claiming is None:
            return 0
        claimed = await self._patience.claim(claiming)
        found = len(claimed)
        if claimed and (looking := source.ready(claimed)) is not None:
            claimed = await self._patience.outlive(looking)
        if claimed and turn is not None and self.branch.moving is not None:
            claimed = list(await self.branch.moving.sifted(source, claimed))
        took = time.monotonic() - asked_at
        if claimed:
            self._tallies.trip("claim", took)
        if claimed and self._context.events.wants(events.JobsClaimed):
            self._context.events.emit(events.JobsClaimed(self._worker, len(claimed), took, source.name))
        self.take(source, claimed, asked_at)
        # Those that wait for others, too: behind them there may be more.
        return found

    def take(self, source: Source, claimed: Sequence[Lease], asked_at: float) -> None:
        """Hand claimed jobs on to be run; once the worker stops, they go back, and so do those paused meanwhile."""
        works, run = self._works(source, claimed, asked_at), not self._stopping.is_set()
        if source.paused and run:
            works, paused = apart(works, source.paused)
            self._holdings.take(paused, run=False)
        self._holdings.take(works, run=run)

    def _works(self, source: Source, claimed: Sequence[Lease], asked_at: float) -> list[Work]:
        # One loop for all of them: a call for each took a twentieth of the time of a job that does nothing.
        works, latest = [], self._latest[source]
        for lease in claimed:
            alike = latest.get(lease[2])
            if alike is None or alike[0] != lease[1]:
                alike = latest[lease.kind] = self._what_is_alike(source, lease)
            _, handler, keep, executor, tally = alike
            works.append(Work(lease, handler, keep, asked_at, source, executor, tally))
        return works

    def _what_is_alike(self, source: Source, lease: Lease) -> Alike:
        queue, kind = lease.queue, lease.kind
        found = self._alike.get((source, queue, kind))
        if found is None:
            keep = self._context.queue_options(queue).keep_done > 0
            tally = self._tallies.of(queue if source.ours else f"{source.name}:{queue}", kind)
            found = Alike(queue, source.handlers[kind], keep, self.branch.executor_for(source, kind), tally)
            self._alike[source, queue, kind] = found
        return found

    async def _give_back_strays(self) -> None:
        if self._patience.strays:
            for releasing in self.strays():
                await self._patience.outlive(releasing)
            self._patience.strays = False

    def strays(self) -> list[Any]:
        """Make the flows that give back what a lost answer to a claim left leased to us, unknown to us."""
        flows = [source.release_strays(self._worker, self._holdings.known(source)) for source in self._sources]
        return [one for one in flows if one is not None]
