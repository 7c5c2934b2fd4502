"""What a worker does beside its jobs: renew leases, beat, reap, bury silent workers, prune."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import events, jobs, registry
from holdfast.model import Outcome
from holdfast.options import QueueOptions

if TYPE_CHECKING:
    from holdfast.executor import Work
    from holdfast.worker import Worker

BEAT = 10.0
SILENT = timedelta(seconds=60)
FORGET = timedelta(days=1)
REAP = 1.0
REAP_BATCH = 500
PRUNE = 60.0
PRUNE_CHUNK = 1_000
# Of every pruning round so much time at most, so that a large backlog never starves the rest.
PRUNE_TURN = 5.0
GIVE_BACK = 0.5


class Upkeep:
    """The periodic tasks of one worker, each with jitter so that workers drift apart."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def start(self) -> list[asyncio.Task[None]]:
        shortest = min(handler.options.lease for handler in self._worker.handlers.values())
        rounds: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            # Every sixth of a lease those are renewed whose last third begins before the next round.
            ("renew", shortest / 6, self._renew),
            ("reap", REAP, self._reap),
            ("beat", BEAT, self._beat),
            ("prune", PRUNE, self._prune),
            ("give-back", GIVE_BACK, self._give_back),
        ]
        return [asyncio.create_task(_every(period, fn), name=f"holdfast-{name}") for name, period, fn in rounds]

    async def _renew(self) -> None:
        worker = self._worker
        now = time.monotonic()
        due = [work for work in list(worker.held.values()) if now - work.renewed >= work.lease.lease_ms / 6000]
        if not due:
            return
        late = max(now - work.renewed - work.lease.lease_ms / 1000 for work in due)
        if late > 0:
            worker.app.events.emit(events.LoopBlocked(worker.id, late))
        renewed = await worker.outlive(jobs.renew([(work.lease, work.lease.lease_ms) for work in due]))
        for work in due:
            self._after_renewal(work, renewed, now)

    def _after_renewal(self, work: Work, renewed: jobs.Renewed, asked_at: float) -> None:
        job_id = work.lease.job_id
        if job_id not in self._worker.held:
            return
        if job_id not in renewed.kept:
            self._worker.lose(work)
            return
        work.renewed = asked_at
        if job_id in renewed.cancelled:
            self._worker.cancel(work)

    async def _reap(self) -> None:
        worker = self._worker
        policies = {kind: handler.options.retry for kind, handler in worker.handlers.items()}
        reaped = await worker.outlive(
            jobs.reap(
                kinds=list(policies),
                exclude=[work.lease.id for work in worker.held.values()],
                limit=REAP_BATCH,
                backoff=lambda kind, attempt: policies[kind].delay(attempt),
            )
        )
        for one in reaped:
            about = (one.leased_by or "", one.id, one.kind, one.queue, one.attempt)
            worker.app.events.emit(events.JobReaped(*about, one.outcome))
            if one.outcome == "dead":
                worker.app.events.emit(events.JobDead(*about, "LeaseExpired: the lease ran out at the last attempt"))

    async def _beat(self) -> None:
        worker = self._worker
        status = await worker.outlive(registry.beat(worker.id, worker.info()))
        if status == "draining" and not worker.stopping:
            worker.stop("the registry says draining")
        for silent in await worker.outlive(registry.bury(SILENT)):
            worker.app.events.emit(events.WorkerBuried(silent))
        await worker.outlive(registry.forget(FORGET))

    async def _prune(self) -> None:
        worker = self._worker
        deadline = time.monotonic() + PRUNE_TURN
        pruned = 0
        for outcome, queue in await worker.outlive(jobs.prune_queues()):
            older_ms = round(retention(worker.app.queue_options(queue), outcome) * 1000)
            full = True
            while full and time.monotonic() < deadline and not worker.stopping:
                count = await worker.outlive(jobs.prune(outcome, queue, older_ms, limit=PRUNE_CHUNK))
                pruned += count
                full = count == PRUNE_CHUNK
        keys = await worker.outlive(jobs.prune_keys(limit=PRUNE_CHUNK))
        if pruned or keys:
            worker.app.events.emit(events.Pruned(worker.id, pruned, keys))

    async def _give_back(self) -> None:
        self._worker.give_back_stale()


def retention(queue: QueueOptions, outcome: Outcome) -> float:
    """Return how many seconds a queue keeps jobs of this outcome."""
    return {"done": queue.keep_done, "dead": queue.keep_dead, "cancelled": queue.keep_cancelled}[outcome]


async def _every(period: float, fn: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(random.uniform(0.8, 1.0) * period)
        await fn()
