"""Prune: delete what has been kept for long enough: jobs, notes, results, keys, joins, audit lines, dead workers."""

from __future__ import annotations

import time
from datetime import timedelta

from holdfast import admin, chains, events, jobs, results, runs
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
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._deadline = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    def name_for_all(self) -> str:
        """Workers that keep jobs for other times prune beside each other, so that each time is kept."""
        return f"{self.name} {self.context.retention_digest()}"

    async def run(self) -> None:
        context = self.context
        outlive = context.patience.outlive
        self._deadline = time.monotonic() + PRUNE_TURN_SECONDS
        pruned = 0
        for outcome, queue in await outlive(jobs.prune_queues()):
            older_ms = round(context.queue_options(queue).keeps(outcome) * 1000)
            pruned += await self._all_of(jobs.prune(outcome, queue, older_ms, limit=PRUNE_CHUNK))
            pruned += await self._all_of(runs.prune(outcome, queue, older_ms, limit=PRUNE_CHUNK))
        await self._all_of(jobs.prune_dropped(limit=PRUNE_CHUNK))
        await self._all_of(results.prune(limit=PRUNE_CHUNK))
        await self._all_of(jobs.prune_debounces(limit=PRUNE_CHUNK))
        keys = await outlive(jobs.prune_keys(limit=PRUNE_CHUNK))
        audit_ms = round(context.audit_retention * 1000)
        audit = await self._all_of(admin.prune_audit(audit_ms, limit=PRUNE_CHUNK))
        if pruned or keys or audit:
            context.emit(events.Pruned(context.worker, pruned, keys, audit))
        await self._forget_orphans()
        if context.registers:
            await outlive(registry.forget(FORGET_WORKERS_AFTER))

    async def _forget_orphans(self) -> None:
        """Forget what jobs waited for that are neither alive nor kept any more."""
        after = await self.context.patience.outlive(chains.forget_orphans())
        while after is not None and time.monotonic() < self._deadline and not self.context.stopping.is_set():
            after = await self.context.patience.outlive(chains.forget_orphans(after))

    async def _all_of(self, pruning: Flow[int]) -> int:
        """Delete chunk by chunk while there are more and the turn is not over."""
        total, count = 0, PRUNE_CHUNK
        while count == PRUNE_CHUNK and time.monotonic() < self._deadline and not self.context.stopping.is_set():
            count = await self.context.patience.outlive(pruning)
            total += count
        return total
