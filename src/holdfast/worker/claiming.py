"""Claiming: one loop for each store that fills the slots, and waits for a wake-up, a poll or a free slot."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holdfast import events
from holdfast.context import Context
from holdfast.life.source import Source
from holdfast.values.rows import Lease
from holdfast.worker.branch import Branch
from holdfast.worker.demand import Demand
from holdfast.worker.holdings import Holdings
from holdfast.worker.slots import Slots
from holdfast.worker.work import BaseExecutor, Work

FIRST_POLL_SECONDS = 0.05


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
    ) -> None:
        self._context = context
        self._worker = worker
        self.branch = branch
        self._sources = branch.sources
        self._patience = branch.patience
        self._slots = slots
        self._demand = demand
        self._holdings = holdings
        self._stopping = stopping
        self._poll = poll
        # Whether the last round of claims found more than it could take.
        self._more = False
        # By queue: whether its done jobs are kept.
        self._keeps: dict[str, bool] = {}
        self._executors: dict[Source, dict[str, BaseExecutor]] = {source: {} for source in branch.sources}

    async def serve(self) -> None:
        pause = FIRST_POLL_SECONDS
        while not self._stopping.is_set():
            self.branch.wake.clear()
            took = await self._fill()
            pause = FIRST_POLL_SECONDS if took else min(self._poll, pause * 2)
            if self._more and any(limit > 0 for _, _, limit in self._demand.plan(self._sources)):
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.8, 1.2) * pause):
                    await self.branch.wake.wait()

    async def _fill(self) -> int:
        """Claim as much as there is room for; several claims when some kinds have limits of their own."""
        took, plan = 0, self._demand.plan(self._sources)
        self._more = False
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
        asked_at = time.monotonic()
        claiming = source.claim(leases, limit, self._worker, suspects=not self._slots.line.full)
        claimed = await self._patience.claim(claiming)
        if claimed and self._context.events.wants(events.JobsClaimed):
            took = time.monotonic() - asked_at
            self._context.events.emit(events.JobsClaimed(self._worker, len(claimed), took, source.name))
        self.take(source, claimed, asked_at)
        return len(claimed)

    def take(self, source: Source, claimed: Sequence[Lease], asked_at: float) -> None:
        """Hand claimed jobs on to be run; once the worker stops, they go back."""
        works = [self._work(source, lease, asked_at) for lease in claimed]
        self._holdings.take(works, run=not self._stopping.is_set())

    def _work(self, source: Source, lease: Lease, asked_at: float) -> Work:
        queue, kind, executors = lease.queue, lease.kind, self._executors[source]
        keep = self._keeps.get(queue)
        if keep is None:
            keep = self._keeps[queue] = self._context.queue_options(queue).keep_done > 0
        executor = executors.get(kind)
        if executor is None:
            executor = executors[kind] = self.branch.executor_for(source, kind)
        return Work(lease, source.handlers[kind], keep, asked_at, source, executor)

    async def _give_back_strays(self) -> None:
        if self._patience.strays:
            for releasing in self.strays():
                await self._patience.outlive(releasing)
            self._patience.strays = False

    def strays(self) -> list[Any]:
        """Make the flows that give back what a lost answer to a claim left leased to us, unknown to us."""
        flows = [source.release_strays(self._worker, self._holdings.known(source)) for source in self._sources]
        return [one for one in flows if one is not None]
