"""Prune: delete what has been kept for long enough: jobs, notes, results, keys, joins, audit lines, dead workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from datetime import timedelta
from typing import NamedTuple

from holdfast import admin, chains, events, jobs, results, runs
from holdfast.flow import Flow
from holdfast.worker import registry
from holdfast.worker.rounds.base import Round, RoundContext

PRUNE_CHUNK = 1_000
# A round takes no longer than this, so that a large backlog never starves the rest.
PRUNE_TURN_SECONDS = 5.0
FORGET_WORKERS_AFTER = timedelta(days=1)
# What an event tells the numbers of.
JOBS, KEYS, AUDIT = "jobs", "keys", "audit"


class Heap(NamedTuple):
    """What is pruned chunk by chunk, beside others: a large one must not keep the others waiting."""

    name: str
    counts_as: str | None
    pruning: Flow[int]


class Prune(Round):
    name = "prune"
    every_seconds = 60.0
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._deadline = 0.0
        # Where the last turn had no time left.
        self._first = ""

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    def name_for_all(self) -> str:
        """Workers that keep jobs for other times prune beside each other, so that each time is kept."""
        return f"{self.name} {self.context.retention_digest()}"

    async def run(self) -> None:
        context = self.context
        self._deadline = time.monotonic() + PRUNE_TURN_SECONDS
        pruned = await self._prune(deque(await self._heaps()))
        if pruned[JOBS] or pruned[KEYS] or pruned[AUDIT]:
            context.emit(events.Pruned(context.worker, pruned[JOBS], pruned[KEYS], pruned[AUDIT]))
        await self._forget_orphans()
        if context.registers:
            await context.patience.outlive(registry.forget(FORGET_WORKERS_AFTER))

    async def _heaps(self) -> list[Heap]:
        """List what there is to prune, first that at which the turn before had to stop."""
        context, chunk = self.context, PRUNE_CHUNK
        heaps: list[Heap] = []
        for outcome, queue in await context.patience.outlive(jobs.prune_queues()):
            older_ms = round(context.queue_options(queue).keeps(outcome) * 1000)
            heaps.append(Heap(f"{outcome} {queue}", JOBS, jobs.prune(outcome, queue, older_ms, limit=chunk)))
            heaps.append(Heap(f"runs {outcome} {queue}", JOBS, runs.prune(outcome, queue, older_ms, limit=chunk)))
        audit_ms = round(context.audit_retention * 1000)
        heaps += [
            Heap("dropped", None, jobs.prune_dropped(limit=chunk)),
            Heap("results", None, results.prune(limit=chunk)),
            Heap("debounces", None, jobs.prune_debounces(limit=chunk)),
            Heap("keys", KEYS, jobs.prune_keys(limit=chunk)),
            Heap("audit", AUDIT, admin.prune_audit(audit_ms, limit=chunk)),
        ]
        first = next((place for place, heap in enumerate(heaps) if heap.name == self._first), 0)
        return heaps[first:] + heaps[:first]

    async def _prune(self, heaps: deque[Heap]) -> Counter[str | None]:
        """Delete a chunk of each heap in turn, while any has more and the time is not over; return what was deleted."""
        deleted: Counter[str | None] = Counter()
        while heaps and time.monotonic() < self._deadline and not self.context.stopping.is_set():
            heap = heaps.popleft()
            count = await self.context.patience.outlive(heap.pruning)
            deleted[heap.counts_as] += count
            if count >= PRUNE_CHUNK:
                heaps.append(heap)
        self._first = heaps[0].name if heaps else ""
        return deleted

    async def _forget_orphans(self) -> None:
        """Forget what jobs waited for that are neither alive nor kept any more."""
        after = await self.context.patience.outlive(chains.forget_orphans())
        while after is not None and time.monotonic() < self._deadline and not self.context.stopping.is_set():
            after = await self.context.patience.outlive(chains.forget_orphans(after))
