"""Give back: return jobs to their queue that waited too long for a slot; another worker may have one."""

from __future__ import annotations

import asyncio
import time

from holdfast.worker.rounds.base import Round, RoundContext

LONGEST_WAIT_SECONDS = 2.0
# A suspect whose turn had not come by then stays away this long: other workers may have room for it.
SUSPECTS_STAY_AWAY_SECONDS = 10.0
LEAST_PAUSE_SECONDS = 0.1


class GiveBack(Round):
    name = "give-back"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self.next_in = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.is_first

    async def pause(self) -> None:
        """Wait until the job that waits longest now may have waited too long."""
        await asyncio.sleep(self.next_in)

    async def run(self) -> None:
        holdings, now = self.context.holdings, time.monotonic()
        stale = holdings.take_back(older_than=now - LONGEST_WAIT_SECONDS)
        suspects = [work for work in stale if work.lease.lapses]
        # Not to their old places, where the next claim would find them before the ordinary jobs of their kind.
        holdings.give_back(suspects, later=SUSPECTS_STAY_AWAY_SECONDS)
        if len(stale) > len(suspects):
            self.context.demand.start_anew()
            holdings.give_back([work for work in stale if not work.lease.lapses])
        oldest = holdings.oldest_waiting(otherwise=now)
        self.next_in = max(LEAST_PAUSE_SECONDS, oldest + LONGEST_WAIT_SECONDS - now)
