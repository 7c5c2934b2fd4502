"""The worker: one loop that fills slots, reaps, and waits for a wake-up, a poll or a free slot.

It keeps nothing that a crash could lose: what it holds is leased in the database, what it finished is committed before
anybody is told, and what it leaves behind another worker takes over when the lease ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast import events, jobs, migrate, registry
from holdfast.dialects import SCHEMA_VERSION
from holdfast.errors import ConfigError, StoreError
from holdfast.executor import Ended, Executor, Work
from holdfast.flow import Flow
from holdfast.ids import new_id
from holdfast.options import text
from holdfast.outage import Outage
from holdfast.payload import encode_value
from holdfast.retry import Duration, seconds, whole
from holdfast.settler import Settler
from holdfast.slots import Slots
from holdfast.threads import Threads
from holdfast.upkeep import Upkeep
from holdfast.wake import waker

if TYPE_CHECKING:
    from holdfast.app import Holdfast

T = TypeVar("T")

# How much work to claim ahead: what the slots finished in so many seconds, up to BUFFER jobs.
AHEAD = 0.25
BUFFER = 2_000
# A job that waited this long in the buffer goes back to its queue, where another worker may take it.
PATIENCE = 2.0
FIRST_POLL = 0.05


class Worker:
    """Runs an application's jobs: `async with hf.worker(): …` beside other work, or `await hf.worker().run()` alone.

    queues: those to serve; all that the handlers name unless told. concurrency: attempts at once.
    poll: the longest pause between two looks at the queues, with jitter. drain: seconds that running handlers get to
    finish at a stop; then async ones are cancelled, and what is left goes back to its queue. name: a prefix of the
    worker's id in the registry. It installs no signal handlers and never exits the process.
    """

    def __init__(
        self,
        app: Holdfast,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 20,
        poll: Duration = 1.0,
        drain: Duration = 30.0,
        name: str | None = None,
        buffer: int = BUFFER,
    ) -> None:
        self.app = app
        self.store = app.store
        self.id = f"{text(name or socket.gethostname(), 'name', 60)}-{os.getpid()}-{new_id()[-12:]}"
        self.queues = self._served_queues(queues)
        self.concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self.poll = seconds(poll, "poll", at_least=0.001)
        self.drain = seconds(drain, "drain")
        self.buffer_limit = whole(buffer, "buffer", 0, 1_000_000)
        self.handlers = {kind: h for kind, h in app.handlers.items() if h.options.queue in self.queues or queues}
        self.held: dict[str, Work] = {}
        # What broke the worker from inside, for whoever waits for it.
        self.failure: BaseException | None = None
        self._state = "new"

    def _served_queues(self, queues: Sequence[str] | None) -> list[str]:
        if isinstance(queues, str):
            raise ConfigError("queues", "must be a list of names, not one text", queues)
        named = list(dict.fromkeys(queues or [h.options.queue for h in self.app.handlers.values()]))
        if not named:
            raise ConfigError("queues", "a worker needs handlers or queues: register a handler with @hf.job", queues)
        return [text(name, "queues", 100) for name in named]

    # Life

    async def run(self) -> None:
        """Work until `stop` is called, then drain and return.

        Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable at the start; later trouble is outlived.
        """
        await self.start()
        try:
            await self._stopped.wait()
        finally:
            await self._end()

    async def start(self) -> None:
        """Check the schema, join the registry and begin to work in the background."""
        if self._state != "new":
            raise ConfigError("worker", "a worker runs once; make another", self._state)
        self._state = "running"
        await self.store.arun(migrate.check(SCHEMA_VERSION))
        await self.store.arun(registry.beat(self.id, self.info()))
        self._outage = Outage(self.id, self.app.events.emit)
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._at_once = asyncio.Event()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._more = True
        self._rate, self._rated_at, self._rated_count = 0.0, time.monotonic(), 0
        self._strays = False
        self.threads = Threads(self.concurrency, "holdfast-handler")
        self.executor = Executor(self.app, self.id, self.threads)
        self.settler = Settler(self.outlive, self.app.events.emit, self._forget)
        self.slots = Slots(self.concurrency, self.executor, self.settler.add, self._slot_is_free)
        self.slots.start()
        self.upkeep = Upkeep(self)
        self.waker = waker(self.store, self.id, self._on_wake, self.app.events.emit)
        self.app.wakers.add(self._wake_from_any_thread)
        self._tasks = [asyncio.create_task(self._claiming(), name="holdfast-claiming")]
        self._helpers = [asyncio.create_task(self.settler.serve(), name="holdfast-settler"), *self.upkeep.start()]
        if self.waker is not None:
            self._helpers.append(asyncio.create_task(self.waker.serve(), name="holdfast-waker"))
        for task in (*self._tasks, *self._helpers):
            task.add_done_callback(self._on_helper_end)
        self.app.events.emit(events.WorkerStarted(self.id, self.queues, list(self.handlers), self.concurrency))

    def stop(self, why: str = "asked to stop", *, at_once: bool = False) -> None:
        """Stop claiming and let handlers finish within the drain time; `at_once` cuts that short."""
        if self._state == "new":
            raise ConfigError("worker", "it was not started", self.id)
        if not self._stopping.is_set():
            self.app.events.emit(events.WorkerStopping(self.id, len(self.slots.running), why))
        self._stopping.set()
        if at_once:
            self._at_once.set()
        self._wake.set()
        self._stopped.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("the application is leaving")
        await self._end()

    async def _end(self) -> None:
        """Drain: give the buffer back, let handlers finish, release what is left, write every outcome."""
        if self._state != "running":
            return
        self._state = "ended"
        if not self.stopping:
            self.stop("its task was cancelled", at_once=True)
        self.app.wakers.discard(self._wake_from_any_thread)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        released = self._give_back(self.slots.take_back())
        with suppress(StoreError):
            await self.store.arun_once(registry.mark(self.id, "draining"))
        await self._drain()
        released += self._interrupt_all()
        await self._flush()
        for task in self._helpers:
            task.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        await self.slots.close()
        self.threads.close()
        with suppress(StoreError):
            await self.store.arun_once(registry.mark(self.id, "dead"))
        self.app.events.emit(events.WorkerStopped(self.id, released))

    async def _drain(self) -> None:
        """Wait for running handlers, the drain time at most; a second signal ends the wait."""
        hurry = asyncio.create_task(self._at_once.wait())
        quiet = asyncio.create_task(self.slots.quiet())
        await asyncio.wait([hurry, quiet], timeout=self.drain, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        quiet.cancel()

    def _interrupt_all(self) -> int:
        left = list(self.slots.running)
        for work in left:
            self.slots.interrupt(work, "stop")
        return len(left)

    async def _flush(self) -> None:
        """Let interrupted slots end and outcomes be written, within a bound: what is not written is reaped later."""
        deadline = time.monotonic() + (1.0 if self._at_once.is_set() else 5.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.slots.quiet(), deadline - time.monotonic())
        with suppress(TimeoutError):
            await asyncio.wait_for(self.settler.flushed(), max(0.1, deadline - time.monotonic()))

    # The loop

    async def _claiming(self) -> None:
        pause = FIRST_POLL
        while not self.stopping:
            self._wake.clear()
            took = await self._fill()
            pause = FIRST_POLL if took else min(self.poll, pause * 2)
            if self._more and self._room() > 0:
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), random.uniform(0.8, 1.2) * pause)

    async def _fill(self) -> int:
        """Claim as much as there is room for; several claims when some kinds have limits of their own."""
        took, self._more = 0, False
        for leases, limit in self._plan():
            if limit <= 0:
                self._more = True
                continue
            if self._strays:
                await self.outlive(jobs.release_strays(self.id, list(self.held)))
                self._strays = False
            began = time.monotonic()
            claimed = await self._claim(leases, limit)
            if claimed:
                self.app.events.emit(events.JobsClaimed(self.id, claimed, time.monotonic() - began))
            took += claimed
            self._more = self._more or claimed >= limit
        return took

    def _plan(self) -> list[tuple[dict[str, int], int]]:
        """Say what to claim: kinds without a limit together, each limited kind by itself."""
        room = self._room()
        free: dict[str, int] = {}
        plan: list[tuple[dict[str, int], int]] = []
        for kind, handler in self.handlers.items():
            lease = {kind: round(handler.options.lease * 1000)}
            if handler.options.concurrency is None:
                free |= lease
            else:
                plan.append((lease, min(room, handler.options.concurrency - self.slots.running_of(kind))))
        return [(free, room), *plan] if free else plan

    def _room(self) -> int:
        """Return how many jobs to claim now; none until half of what was claimed ahead is used up."""
        ahead = min(self.buffer_limit, int(self._finishing_rate() * AHEAD))
        buffered = len(self.slots.buffer)
        if buffered > ahead // 2:
            return 0
        return self.slots.count + ahead - len(self.slots.running) - buffered

    def _finishing_rate(self) -> float:
        """Return attempts finished per second, quick to rise and slow to fall."""
        now, count = time.monotonic(), self.slots.finished
        elapsed = now - self._rated_at
        if elapsed >= 0.01:
            latest = (count - self._rated_count) / elapsed
            self._rate = latest if latest > self._rate else 0.7 * self._rate + 0.3 * latest
            self._rated_at, self._rated_count = now, count
        return self._rate

    async def _claim(self, leases: dict[str, int], limit: int) -> int:
        work = jobs.claim(self.queues, limit=limit, worker=self.id, leases=leases)
        try:
            claimed = await self.store.arun_once(work)
        except StoreError as error:
            # The claim may have been committed without our hearing of it: give such leases back once we can.
            self._strays = True
            await self._outage.pause(error)
            return 0
        self._outage.over()
        now = time.monotonic()
        works = []
        for lease in claimed:
            handler = self.handlers[lease.kind]
            keep = self.app.queue_options(lease.queue).keep_done > 0
            works.append(Work(lease, handler, keep, now))
            self.held[lease.job_id] = works[-1]
        self.slots.feed(works)
        return len(works)

    async def outlive(self, work: Flow[T]) -> T:
        """Run a flow however long the database is away; every flow of the worker is safe to repeat."""
        while True:
            try:
                value = await self.store.arun_once(work)
            except StoreError as error:
                await self._outage.pause(error)
            else:
                self._outage.over()
                return value

    # What helpers call

    def lose(self, work: Work) -> None:
        """React to a lost lease: stop its handler, or drop it from the buffer."""
        if work.slot is not None:
            self.slots.interrupt(work, "lost")
        elif work in self.slots.buffer:
            self.slots.buffer.remove(work)
            self.held.pop(work.lease.job_id, None)
            self.app.events.emit(events.LeaseWasLost(*self.executor.about(work)))

    def cancel(self, work: Work) -> None:
        """React to a cancel request: stop its handler, or end it before it starts."""
        if work.slot is not None:
            self.slots.interrupt(work, "cancelled")
        elif work in self.slots.buffer:
            self.slots.buffer.remove(work)
            self.settler.add(self.executor.cancelled(work, "cancelled before it ran"))

    def give_back_stale(self) -> int:
        """Return jobs to the queue that waited too long for a slot."""
        stale = self.slots.take_back(older_than=time.monotonic() - PATIENCE)
        if stale:
            self._rate = 0.0
        return self._give_back(stale)

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
            "concurrency": self.concurrency,
            "running": len(self.slots.running) if hasattr(self, "slots") else 0,
        }
        return encode_value(about, "worker info")

    def _forget(self, ended: Ended) -> None:
        self.held.pop(ended.work.lease.job_id, None)

    def _slot_is_free(self) -> None:
        if self._more:
            self._wake.set()

    def _on_wake(self, queue: str | None) -> None:
        if queue is None or queue in self.queues:
            self._wake.set()

    def _wake_from_any_thread(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)

    def _on_helper_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        # A helper never ends by itself: this is a defect, and half a worker is worse than none.
        events.log.error("a part of the worker failed: %s", task.get_name(), exc_info=task.exception())
        self.failure = task.exception()
        if not self.stopping:
            self.stop(f"{task.get_name()} failed")
