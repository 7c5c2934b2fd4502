"""Reap: take back the leases that other workers let run out."""

from __future__ import annotations

import time

from holdfast import events
from holdfast.life.source import Source
from holdfast.values.retry import delay_by
from holdfast.worker.rounds.base import Round, RoundContext

REAP_LIMIT = 500
# A reap that took a second is not made again for this many seconds.
PAUSE_PER_SECOND_OF_REAPING = 10
LONGEST_REAP_PAUSE_SECONDS = 5.0


class Reap(Round):
    name = "reap"
    every_seconds = 1.0

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        # Not before: reaping that has become slow must not become all that the database does.
        self.due = 0.0

    async def run(self) -> None:
        began = time.monotonic()
        if began < self.due:
            return
        for source in self.context.sources:
            await self._reap(source)
        ended = time.monotonic()
        # A share of the time, but no longer: an outage that was waited out says nothing about the next reap.
        self.due = ended + min(LONGEST_REAP_PAUSE_SECONDS, PAUSE_PER_SECOND_OF_REAPING * (ended - began))

    async def _reap(self, source: Source) -> None:
        context = self.context
        reaping = source.reap(
            context.holdings.known(source),
            REAP_LIMIT,
            lambda kind, attempt: delay_by(attempt, source.handlers[kind].options.retry)[0],
        )
        for one in await context.patience.outlive(reaping) if reaping is not None else ():
            about = (one.leased_by or "", one.id, one.kind, one.queue, one.attempt)
            context.tallies.reaped(one.queue if source.ours else f"{source.name}:{one.queue}", one.kind)
            context.emit(events.JobReaped(*about, one.outcome, source=source.name))
            if one.outcome == "dead":
                why = "LeaseExpired: the lease ran out at the last attempt"
                context.emit(events.JobDead(*about, why, source=source.name))
