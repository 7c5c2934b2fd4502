"""Pulse: sleep and see how late the waking is; nothing else tells a blocked event loop from a slow database."""

from __future__ import annotations

import asyncio
import time

from holdfast import events
from holdfast.worker.holdings import RENEWALS_PER_LEASE
from holdfast.worker.rounds.base import Round, RoundContext


class Pulse(Round):
    name = "pulse"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._late = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.is_first

    async def pause(self) -> None:
        period = self.context.holdings.shortest_lease / RENEWALS_PER_LEASE
        asleep = time.monotonic()
        await asyncio.sleep(period)
        self._late = time.monotonic() - asleep - period

    async def run(self) -> None:
        if self._late > self.context.holdings.shortest_lease / 2:
            self.context.emit(events.LoopBlocked(self.context.worker, self._late))
