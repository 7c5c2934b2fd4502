"""What a worker does beside its jobs: renew leases, beat, reap, bury silent workers, prune."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import events, jobs
from holdfast.errors import StoreError
from holdfast.values.options import QueueOptions
from holdfast.values.retry import delay_by
from holdfast.values.rows import Outcome
from holdfast.worker import registry

if TYPE_CHECKING:
    from holdfast.life.source import Source
    from holdfast.worker.work import Work
    from holdfast.worker.worker import Worker

BEAT = 10.0
SILENT = timedelta(seconds=60)
FORGET = timedelta(days=1)
REAP = 1.0
REAP_BATCH = 500
RENEW_BATCH = 500
# A reap that took a second is not made again for so many.
REAP_SHARE = 10
LONGEST_REAP_PAUSE = 5.0
PRUNE = 60.0
STUCK = 60.0
PRUNE_CHUNK = 1_000
# Of every pruning round so much time at most, so that a large backlog never starves the rest.
PRUNE_TURN = 5.0
# A lease shorter than this many seconds is written by hand: it makes the rounds no quicker.
SHORTEST = 0.5
# Every sixth of a lease those are renewed that are a sixth old: one lost round, or two, costs no lease.
ROUNDS = 6

Round = Callable[[], Awaitable[None]]


class Upkeep:
    """The periodic tasks of one worker, each with jitter so that workers drift apart."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._shortest = min(h.options.lease for source in worker.sources for h in source.handlers.values())
        self._shorter = asyncio.Event()
        # Not before: reaping that has become slow must not become all that the database does.
        self._reap_due = 0.0
        # Rows that were named already.
        self._stuck: set[str] = set()

    def start(self) -> list[asyncio.Task[None]]:
        rounds: list[tuple[str, float, Round]] = [
            ("reap", REAP, self._reap),
            ("beat", BEAT, self._beat),
            ("prune", PRUNE, self._prune),
            ("stuck", STUCK, self._name_stuck),
        ]
        return [
            asyncio.create_task(self._renewing(), name="holdfast-renew"),
            asyncio.create_task(self._feeling_the_pulse(), name="holdfast-pulse"),
            asyncio.create_task(self._giving_back(), name="holdfast-give-back"),
            *(asyncio.create_task(self._every(*one), name=f"holdfast-{one[0]}") for one in rounds),
        ]

    def hold(self, lease_seconds: float) -> None:
        """Note a lease that was claimed; one shorter than all before makes the rounds quicker from now on."""
        if max(lease_seconds, SHORTEST) < self._shortest:
            self._shortest = max(lease_seconds, SHORTEST)
            self._shorter.set()

    async def _every(self, name: str, period: float, fn: Round) -> None:
        said = ""
        while True:
            await asyncio.sleep(random.uniform(0.8, 1.0) * period)
            try:
                await fn()
                said = ""
            except StoreError as error:
                if str(error) != said:
                    said = str(error)
                    self._worker.context.events.emit(events.UpkeepFailed(self._worker.id, name, said))

    async def _renewing(self) -> None:
        while True:
            self._shorter.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.8, 1.0) * self._shortest / ROUNDS):
                    await self._shorter.wait()
            await self._renew()

    async def _feeling_the_pulse(self) -> None:
        """Sleep and see how late the waking is: nothing else tells a blocked loop from a slow database."""
        while True:
            period = self._shortest / ROUNDS
            asleep = time.monotonic()
            await asyncio.sleep(period)
            late = time.monotonic() - asleep - period
            if late > self._shortest / 2:
                self._worker.context.events.emit(events.LoopBlocked(self._worker.id, late))

    async def _renew(self) -> None:
        worker = self._worker
        now = time.monotonic()
        due = [work for work in worker.held.values() if _is_due(work, now)]
        if not due:
            return
        for source in {work.source.name: work.source for work in due}.values():
            part = [work for work in due if work.source is source]
            for start in range(0, len(part), RENEW_BATCH):
                await self._renew_batch(source, part[start : start + RENEW_BATCH], now)

    async def _renew_batch(self, source: Source, batch: list[Work], now: float) -> None:
        # An answer that takes a whole lease comes too late: give up on that connection and ask again on another.
        begun = {work.lease.id for work in batch if work.started}
        renewing = source.renew([work.lease for work in batch], self._worker.id, begun)
        renewed = await self._worker.reach.outlive(renewing, within=max(1.0, self._shortest / 2))
        for work in batch:
            self._after_renewal(work, renewed, now)

    def _after_renewal(self, work: Work, renewed: jobs.Renewed, asked_at: float) -> None:
        job_id = work.lease.job_id
        if self._worker.held.get(work.key) is not work:
            return
        if job_id not in renewed.kept:
            self._worker.lose(work)
            return
        work.renewed = asked_at
        if job_id in renewed.cancelled:
            self._worker.cancel(work)

    async def _reap(self) -> None:
        began = time.monotonic()
        if began < self._reap_due:
            return
        for source in self._worker.sources:
            await self._reap_from(source)
        ended = time.monotonic()
        # A share of the time, but no longer: an outage that was waited out says nothing about the next reap.
        self._reap_due = ended + min(LONGEST_REAP_PAUSE, REAP_SHARE * (ended - began))

    async def _reap_from(self, source: Source) -> None:
        worker = self._worker
        reaping = source.reap(
            worker.known(source),
            REAP_BATCH,
            lambda kind, attempt: delay_by(attempt, source.handlers[kind].options.retry)[0],
        )
        for one in await worker.reach.outlive(reaping) if reaping is not None else ():
            about = (one.leased_by or "", one.id, one.kind, one.queue, one.attempt)
            worker.context.events.emit(events.JobReaped(*about, one.outcome))
            if one.outcome == "dead":
                worker.context.events.emit(
                    events.JobDead(*about, "LeaseExpired: the lease ran out at the last attempt")
                )

    async def _beat(self) -> None:
        worker = self._worker
        status = await worker.reach.outlive(registry.beat(worker.id, worker.info()))
        if status == "draining" and not worker.stopping:
            worker.stop("the registry says draining")
        for silent in await worker.reach.outlive(registry.bury(SILENT)):
            worker.context.events.emit(events.WorkerBuried(silent))

    async def _prune(self) -> None:
        worker = self._worker
        deadline = time.monotonic() + PRUNE_TURN
        pruned = 0
        for outcome, queue in await worker.reach.outlive(jobs.prune_queues()):
            older_ms = round(retention(worker.context.queue_options(queue), outcome) * 1000)
            full = True
            while full and time.monotonic() < deadline and not worker.stopping:
                count = await worker.reach.outlive(jobs.prune(outcome, queue, older_ms, limit=PRUNE_CHUNK))
                pruned += count
                full = count == PRUNE_CHUNK
        full = True
        while full and time.monotonic() < deadline and not worker.stopping:
            full = await worker.reach.outlive(jobs.prune_dropped(limit=PRUNE_CHUNK)) == PRUNE_CHUNK
        keys = await worker.reach.outlive(jobs.prune_keys(limit=PRUNE_CHUNK))
        if pruned or keys:
            worker.context.events.emit(events.Pruned(worker.id, pruned, keys))
        await worker.reach.outlive(registry.forget(FORGET))

    async def _name_stuck(self) -> None:
        worker = self._worker
        for job_id, why in await worker.reach.outlive(jobs.stuck()):
            if job_id not in self._stuck:
                self._stuck.add(job_id)
                worker.context.events.emit(events.JobStuck(worker.id, job_id, why))

    async def _giving_back(self) -> None:
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            pause = self._worker.give_back_stale()


def _is_due(work: Work, now: float) -> bool:
    """Tell whether a lease is a sixth old; one whose job is being completed belongs to that transaction."""
    if work.job is not None and work.job.completing:
        return False
    return now - work.renewed >= work.lease.lease_ms / 1000 / ROUNDS


def retention(queue: QueueOptions, outcome: Outcome) -> float:
    """Return how many seconds a queue keeps jobs of this outcome."""
    return {"done": queue.keep_done, "dead": queue.keep_dead, "cancelled": queue.keep_cancelled}[outcome]
