"""Renew: put off the end of the leases that this worker holds, and hear which were lost or cancelled."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from holdfast.life.source import Renewed, Source
from holdfast.worker.holdings import RENEWALS_PER_LEASE
from holdfast.worker.rounds.base import Round, jittered
from holdfast.worker.work import Work

RENEW_BATCH_LIMIT = 500
LEAST_ANSWER_SECONDS = 1.0


class Renew(Round):
    name = "renew"

    async def pause(self) -> None:
        """Wait for a share of the shortest lease, and less as soon as a shorter one is held."""
        holdings = self.context.holdings
        holdings.lease_got_shorter.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered(holdings.shortest_lease / RENEWALS_PER_LEASE)):
                await holdings.lease_got_shorter.wait()

    async def run(self) -> None:
        now = time.monotonic()
        for source in self.context.sources:
            due = self.context.holdings.due(source, now)
            for start in range(0, len(due), RENEW_BATCH_LIMIT):
                await self._renew(source, due[start : start + RENEW_BATCH_LIMIT], now)

    async def _renew(self, source: Source, batch: list[Work], now: float) -> None:
        context = self.context
        begun = {work.lease.id for work in batch if work.started}
        renewing = source.renew([work.lease for work in batch], context.worker, begun)
        # An answer that takes a whole lease comes too late: give up on that connection and ask again on another.
        within = max(LEAST_ANSWER_SECONDS, context.holdings.shortest_lease / 2)
        renewed = await context.patience.outlive(renewing, within=within)
        for work in batch:
            self._after(work, renewed, now)

    def _after(self, work: Work, renewed: Renewed, asked_at: float) -> None:
        holdings, job_id = self.context.holdings, work.lease.job_id
        if not holdings.holds(work):
            return
        if job_id not in renewed.kept:
            holdings.lose(work)
            return
        work.renewed = asked_at
        if job_id in renewed.cancelled:
            holdings.cancel(work)
