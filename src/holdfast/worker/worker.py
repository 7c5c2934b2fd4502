"""The worker: one loop that fills slots, reaps, and waits for a wake-up, a poll or a free slot.

It keeps nothing that a crash could lose: what it holds is leased in the database, what it finished is committed before
anybody is told, and what it leaves behind another worker takes over when the lease ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from holdfast import events
from holdfast.context import Context
from holdfast.errors import ConfigError, StoreError, WorkerFailed
from holdfast.flow import Flow
from holdfast.handlers import Handler
from holdfast.jobs.source import OURS, JobsSource
from holdfast.life.source import Source, check
from holdfast.store import migrate
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.values.failure import type_name, words
from holdfast.values.ids import new_id
from holdfast.values.options import text
from holdfast.values.payload import encode_value
from holdfast.values.retry import Duration, seconds, whole
from holdfast.values.rows import Lease, PutBack
from holdfast.worker import registry
from holdfast.worker.begins import Begins
from holdfast.worker.demand import Appetite
from holdfast.worker.executor import Executor
from holdfast.worker.handler_threads import Threads
from holdfast.worker.host import Host
from holdfast.worker.outage import Outage
from holdfast.worker.patience import Reach
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.upkeep import Upkeep
from holdfast.worker.wake import make_waker
from holdfast.worker.work import Ended, Work

# The most jobs to claim ahead of the slots.
BUFFER = 2_000
# A job that waited this long in the buffer goes back to its queue, where another worker may take it.
PATIENCE = 2.0
# Seconds that a suspect stays away whose turn had not come by then: other workers may have room for it.
SUSPECTS_AWAY = 10.0
LEAST_PAUSE = 0.1
FIRST_POLL = 0.05
# The worker's own connections: claim, settle, renew, reap, beat and prune, one each, so that none ever waits.
CONNECTIONS = 6


class Worker:
    """Runs an application's jobs: `async with hf.worker(): …` beside other work, or `await hf.worker().run()` alone.

    queues: those to serve; by default all that the handlers name. concurrency: attempts at once.
    poll: the longest pause between two looks at the queues, with jitter. drain: seconds that running handlers get to
    finish at a stop; then async ones are cancelled, and what is left goes back to its queue. name: a prefix of the
    worker's id in the registry. It installs no signal handlers and never exits the process.
    If a part of it breaks from inside, it stops and says so as a TaskGroup would: the task inside `async with` is
    cancelled, and the block ends with WorkerFailed; `run` raises the same.
    """

    def __init__(
        self,
        context: Context,
        handlers: Mapping[str, Handler[..., Any]],
        foreign: Sequence[Source] = (),
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 20,
        poll: Duration = 1.0,
        drain: Duration = 30.0,
        name: str | None = None,
        buffer: int = BUFFER,
    ) -> None:
        self.context = context
        self.id = f"{text(name or socket.gethostname()[:60], 'name', 60)}-{os.getpid()}-{new_id()[-12:]}"
        self.queues = _served_queues(queues, handlers)
        self.concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self.poll = seconds(poll, "poll", at_least=0.001)
        self.drain = seconds(drain, "drain")
        self.buffer_limit = whole(buffer, "buffer", 0, 1_000_000)
        # A job of any kind may be enqueued to any queue, so queues that were named are served for all kinds.
        self.handlers = {kind: h for kind, h in handlers.items() if h.options.queue in self.queues or queues}
        ours = [self._jobs()] if self.handlers else []
        self.sources: list[Source] = [*ours, *(source for source in foreign if source.handlers)]
        if not self.sources:
            raise ConfigError("worker", "needs handlers: register one with @hf.job, or import what does", self.queues)
        # Handlers may use up the application's connections; what keeps their leases alive must not wait for one.
        self.store = context.store.beside(CONNECTIONS)
        self.held: dict[str, Work] = {}
        # By queue: whether its done jobs are kept.
        self._keeps: dict[str, bool] = {}
        # What broke the worker from inside, in which part, and how many handlers would not end.
        self.failure: BaseException | None = None
        self._broken_part = ""
        self._host = Host()
        self.stuck = 0
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._why = ""

    def _jobs(self) -> JobsSource:
        return JobsSource(self.queues, self.handlers, floors=self.context.store.dialect.keeps_dead_rows)

    # Life

    async def run(self) -> None:
        """Work until `stop` is called, then drain and return.

        Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable at the start; later trouble with the database is
        outlived. WorkerFailed when a part of the worker broke.
        """
        starting = asyncio.ensure_future(self.start())
        try:
            # A stop need not wait for a database that does not answer.
            await self._unless(self._stopping, starting)
            if starting.done():
                starting.result()
                await self._stopping.wait()
        finally:
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            await self._end()
        self._raise_failure()

    async def start(self) -> None:
        """Check the schema, join the registry and begin to work in the background."""
        if self._state != "new":
            raise ConfigError("worker", "a worker runs once; make another", self._state)
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        try:
            await self.store.arun(migrate.check(SCHEMA_VERSION))
            await self.store.arun(check(self.sources))
            await self.store.arun(registry.beat(self.id, self.info()))
        except BaseException:
            self._state = "ended"
            await self._close_store()
            raise
        self._state = "running"
        self._begin()
        self.context.events.emit(events.WorkerStarted(self.id, self.queues, list(self.handlers), self.concurrency))
        if self.stopping:
            self.context.events.emit(events.WorkerStopping(self.id, 0, self._why))

    def _begin(self) -> None:
        emit = self.context.events.emit
        self.reach = Reach(self.store, Outage(self.id, emit))
        self._wake = asyncio.Event()
        # Whether the last round of claims found more than it could take.
        self._more = False
        self.threads = Threads(self.concurrency, "holdfast-handler")
        self.executor = Executor(self.context, self.id, self.threads, Begins(self.reach.outlive))
        self.settler = Settler(self.reach.outlive, emit, self._forget, self.id)
        self.slots = Slots(self.concurrency, self.executor, self.settler.add_and_hold, self._wake.set)
        self.appetite = Appetite(self.sources, self.slots, self.buffer_limit)
        self.upkeep = Upkeep(self)
        waker = make_waker(self.store, self.id, self._on_wake, emit)
        self._claims = asyncio.create_task(self._claiming(), name="holdfast-claiming")
        self._helpers = [asyncio.create_task(self.settler.serve(), name="holdfast-settler"), *self.upkeep.start()]
        if waker is not None:
            self._helpers.append(asyncio.create_task(waker.serve(), name="holdfast-waker"))
        for task in (self._claims, *self._helpers, *self.slots.start()):
            task.add_done_callback(self._on_helper_end)
        self.context.wakers.add(self._wake_from_any_thread)

    def stop(self, why: str = "asked to stop", *, at_once: bool = False) -> None:
        """Stop claiming and let handlers finish within the drain time; `at_once` cuts that short.

        May be called from any thread, at any time, again and again.
        """
        loop = self._loop
        if loop is None or _running_loop() is loop:
            self._stop(why, at_once)
        if loop is not None:
            # From another thread, or from a signal handler while the loop sleeps: this wakes it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._stop, why, at_once)

    def _stop(self, why: str, at_once: bool) -> None:
        if not self.stopping:
            self._why = why
            if self._state == "running":
                self.context.events.emit(events.WorkerStopping(self.id, len(self.slots.running), why))
        self._stopping.set()
        if at_once:
            self._at_once.set()
        if self._state == "running":
            self._wake.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def __aenter__(self) -> Self:
        await self.start()
        self._host.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cut = self._host.leave(error)
        self.stop("the application is leaving", at_once=isinstance(error, asyncio.CancelledError) and not cut)
        await self._end()
        if error is None or cut:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise WorkerFailed(self.id, self._broken_part) from self.failure

    async def _end(self) -> None:
        """Wind down and close, whatever comes in between."""
        if self._state != "running":
            return
        if not self.stopping:
            self.stop("its task was cancelled", at_once=True)
        self._state = "ended"
        self.context.wakers.discard(self._wake_from_any_thread)
        released = 0
        try:
            released = await self._wind_down()
        finally:
            await self._close()
            self.context.events.emit(events.WorkerStopped(self.id, released))

    async def _wind_down(self) -> int:
        """Give the buffer back, let handlers finish, release what is left, write every outcome."""
        deadline = time.monotonic() + self.drain
        released = self._give_back(self.slots.take_back())
        await self._finish_claiming()
        if not self._at_once.is_set():
            await self._say(registry.mark(self.id, "draining"))
        await self._unless(self._at_once, self.slots.quiet(), deadline - time.monotonic())
        left = list(self.slots.running)
        for work in left:
            self.slots.interrupt(work, "stop")
        await self._flush(deadline)
        if self.reach.strays:
            await self._release_strays(self._say)
        return released + len(left)

    async def _release_strays(self, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        for source in self.sources:
            releasing = source.release_strays(self.id, self.known(source))
            if releasing is not None:
                await run(releasing)

    def known(self, source: Source) -> list[Lease]:
        """List the leases of a source that this worker knows it holds."""
        return [work.lease for work in self.held.values() if work.source is source]

    async def _finish_claiming(self) -> None:
        """Let a claim under way come to its end: cut short, it would leave leases that nobody knows of."""
        await self._unless(self._at_once, asyncio.wait([self._claims]), 2.0)
        if not self._claims.done():
            self.reach.strays = True
            self._claims.cancel()
            await asyncio.wait([self._claims])

    async def _flush(self, deadline: float) -> None:
        """Let interrupted slots end and outcomes be written, within a bound: what is not written is reaped later."""
        if not self._at_once.is_set():
            await self._unless(self._at_once, self._all_written(), max(3.0, deadline - time.monotonic()))
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._all_written()

    async def _all_written(self) -> None:
        await self.slots.quiet()
        await self.settler.flushed()

    async def _close(self) -> None:
        for task in (self._claims, *self._helpers):
            task.cancel()
        self.threads.close()
        self.stuck = await self.slots.close()
        if self.stuck:
            events.log.error("%d handlers of %s ignore their cancellation and run on", self.stuck, self.id)
        await asyncio.wait([self._claims, *self._helpers], timeout=1.0)
        await self._say(registry.mark(self.id, "dead"))
        await self._close_store()

    async def _close_store(self) -> None:
        if self.store is not self.context.store:
            await self.store.aclose()

    async def _say(self, work: Flow[Any]) -> None:
        """Run a last flow if the database lets us; nothing depends on it."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1.0 if self._at_once.is_set() else 3.0):
                await self.store.arun_once(work)

    async def _unless(self, event: asyncio.Event, work: Awaitable[Any], timeout: float | None = None) -> None:
        """Wait for work until an event or a time-out; work that is a task of its own is not cancelled."""
        waits = [asyncio.ensure_future(work), asyncio.ensure_future(event.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                if wait is not work:
                    wait.cancel()

    # The loop

    async def _claiming(self) -> None:
        pause = FIRST_POLL
        while not self.stopping:
            self._wake.clear()
            took = await self._fill()
            pause = FIRST_POLL if took else min(self.poll, pause * 2)
            if self._more and any(limit > 0 for _, _, limit in self.appetite.plan()):
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.8, 1.2) * pause):
                    await self._wake.wait()

    async def _fill(self) -> int:
        """Claim as much as there is room for; several claims when some kinds have limits of their own."""
        took, plan = 0, self.appetite.plan()
        self._more = False
        # Set before the first wait: a slot that becomes free from now on must not be missed.
        self._hunger(any(limit <= 0 for _, _, limit in plan))
        for source, leases, limit in plan:
            if limit <= 0 or self.stopping:
                continue
            await self._give_back_strays()
            claimed = await self._claim(source, leases, limit)
            took += claimed
            self._more = self._more or claimed >= limit
        if self._more:
            self._hunger(True)
        return took

    def _hunger(self, hungry: bool) -> None:
        """Have a slot that ends an attempt wake the claims once the buffer is low, or not."""
        self.slots.hungry_at = self.appetite.low if hungry else -1

    async def _claim(self, source: Source, leases: dict[str, int], limit: int) -> int:
        asked_at = time.monotonic()
        claiming = source.claim(leases, limit, self.id, suspects=not self.slots.line.full)
        claimed = await self.reach.claim(claiming)
        if claimed:
            self.context.events.emit(events.JobsClaimed(self.id, len(claimed), time.monotonic() - asked_at))
        self._take([self._work(source, lease, asked_at) for lease in claimed])
        return len(claimed)

    async def _give_back_strays(self) -> None:
        if self.reach.strays:
            await self._release_strays(self.reach.outlive)
            self.reach.strays = False

    def _work(self, source: Source, lease: Lease, asked_at: float) -> Work:
        keep = self._keeps.get(lease.queue)
        if keep is None:
            keep = self._keeps[lease.queue] = self.context.queue_options(lease.queue).keep_done > 0
        return Work(lease, source.handlers[lease.kind], keep, asked_at, source)

    def _take(self, works: list[Work]) -> None:
        """Take charge of what was claimed: run it, or see at once that it is not to run."""
        ready = []
        self.upkeep.hold(min((work.lease.lease_ms for work in works), default=math.inf) / 1000)
        for work in works:
            if work.key in self.held:
                # The job came round again while an attempt of ours, reaped by others, is still at it.
                self.lose(self.held[work.key])
            self.held[work.key] = work
            if work.lease.cancel_requested:
                self.settler.add(self.executor.cancelled(work, "cancelled before it ran"))
            else:
                ready.append(work)
        if self.stopping:
            self._give_back(ready)
        else:
            self.slots.feed(ready)

    # What helpers call

    def lose(self, work: Work) -> None:
        """React to a lost lease: stop its handler, or drop it from the buffer."""
        if work.slot is not None:
            self.slots.interrupt(work, "lost")
        elif self.slots.withdraw(work):
            self._let_go(work)
            self.context.events.emit(events.LeaseWasLost(*self.executor.about(work)))

    def cancel(self, work: Work) -> None:
        """React to a cancel request: stop its handler, or end it before it starts."""
        if work.slot is not None:
            self.slots.interrupt(work, "cancelled")
        elif self.slots.withdraw(work):
            self.settler.add(self.executor.cancelled(work, "cancelled before it ran"))

    def give_back_stale(self) -> float:
        """Return jobs to the queue that waited too long for a slot; say in how many seconds the next may have."""
        now = time.monotonic()
        stale = self.slots.take_back(older_than=now - PATIENCE)
        suspects = [work for work in stale if work.lease.lapses]
        for work in suspects:
            # Not to its old place, where the next claim would find it first, before the ordinary jobs of its kind.
            self.settler.add(self.executor.released(work, later=SUSPECTS_AWAY))
        if len(stale) > len(suspects):
            self.appetite.lose()
            self._give_back([work for work in stale if not work.lease.lapses])
        oldest = min((work.taken for work in self.slots.waiting()), default=now)
        return max(LEAST_PAUSE, oldest + PATIENCE - now)

    def _give_back(self, works: list[Work]) -> int:
        for work in works:
            self.settler.add(self.executor.released(work))
        return len(works)

    def info(self) -> str:
        """Describe the worker for the registry."""
        about: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self.queues,
            "kinds": sorted(self.handlers),
            "foreign": [source.name for source in self.sources if source.name != OURS.name],
            "concurrency": self.concurrency,
            "running": len(self.slots.running) if self._state == "running" else 0,
        }
        return encode_value(about, "worker info")

    def _forget(self, batch: Iterable[Ended]) -> None:
        for ended in batch:
            self._let_go(ended.work)
            if ended.work.lease.lapses:
                self.slots.line.ended(ended.work)
            if ended.write.__class__ is PutBack and ended.write.delay_ms == 0:
                # To be tried again at once: not every database tells its workers so.
                self._wake.set()

    def _let_go(self, work: Work) -> None:
        # Only if it is this lease's entry: the same job may have been claimed again meanwhile.
        if self.held.get(work.key) is work:
            del self.held[work.key]

    def _on_wake(self, queue: str | None) -> None:
        if queue is None or queue in self.queues:
            self._wake.set()

    def _wake_from_any_thread(self) -> None:
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    def _on_helper_end(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and (self._state != "running" or self.stopping):
            return
        # A part never ends by itself: this is a defect, and half a worker is worse than none.
        self._break(task.get_name(), RuntimeError("it was ended from outside") if error is None else error)

    def _break(self, part: str, error: BaseException) -> None:
        """Stop because a part failed, and tell the host, who would otherwise wait for jobs that nobody runs."""
        if self.failure is None:
            self.failure, self._broken_part = error, part
        events.complain("a part of the worker failed: %s", part, error=error)
        self.context.events.emit(events.WorkerBroke(self.id, part, f"{type_name(error)}: {words(error)}"))
        if not self.stopping:
            self.stop(f"{part} failed")
        self._host.cut()


def _served_queues(queues: Sequence[str] | None, handlers: Mapping[str, Handler[..., Any]]) -> list[str]:
    if isinstance(queues, str):
        raise ConfigError("queues", "must be a list of names, not one text", queues)
    named = list(dict.fromkeys(queues or [h.options.queue for h in handlers.values()]))
    return [text(name, "queues", 100) for name in named]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
