"""Prune: delete finished jobs, notes and keys that have been kept for long enough, and workers long dead."""

from __future__ import annotations

import time
from datetime import timedelta

from holdfast import events, jobs
from holdfast.flow import Flow
from holdfast.worker import registry
from holdfast.worker.rounds.base import Round, RoundContext

PRUNE_CHUNK = 1_000
# A round takes no longer than this, so that a large backlog never starves the rest.
PRUNE_TURN_SECONDS = 5.0
FORGET_WORKERS_AFTER = timedelta(days=1)


class Prune(Round):
    name = "prune"
    every_seconds = 60.0

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._deadline = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    async def run(self) -> None:
        context = self.context
        outlive = context.patience.outlive
        self._deadline = time.monotonic() + PRUNE_TURN_SECONDS
        pruned = 0
        for outcome, queue in await outlive(jobs.prune_queues()):
            older_ms = round(context.queue_options(queue).keeps(outcome) * 1000)
            pruned += await self._all_of(jobs.prune(outcome, queue, older_ms, limit=PRUNE_CHUNK))
        await self._all_of(jobs.prune_dropped(limit=PRUNE_CHUNK))
        keys = await outlive(jobs.prune_keys(limit=PRUNE_CHUNK))
        if pruned or keys:
            context.emit(events.Pruned(context.worker, pruned, keys))
        if context.is_first:
            await outlive(registry.forget(FORGET_WORKERS_AFTER))

    async def _all_of(self, pruning: Flow[int]) -> int:
        """Delete chunk by chunk while there are more and the turn is not over."""
        total, count = 0, PRUNE_CHUNK
        while count == PRUNE_CHUNK and time.monotonic() < self._deadline and not self.context.stopping.is_set():
            count = await self.context.patience.outlive(pruning)
            total += count
        return total
