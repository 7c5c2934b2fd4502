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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast import events, migrate, registry
from holdfast.appetite import Appetite
from holdfast.dialects import SCHEMA_VERSION
from holdfast.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, StoreError
from holdfast.executor import Ended, Executor, Work
from holdfast.flow import Flow
from holdfast.ids import new_id
from holdfast.model import Lease, PutBack
from holdfast.options import text
from holdfast.outage import LONGEST_PAUSE, Outage, refused
from holdfast.payload import encode_value
from holdfast.retry import Duration, seconds, whole
from holdfast.settler import Settler
from holdfast.slots import Slots
from holdfast.sources import OURS, JobsSource, Source, check
from holdfast.threads import Threads
from holdfast.upkeep import Upkeep
from holdfast.wake import make_waker

if TYPE_CHECKING:
    from holdfast.app import Holdfast

T = TypeVar("T")

# The most jobs to claim ahead of the slots.
BUFFER = 2_000
# A job that waited this long in the buffer goes back to its queue, where another worker may take it.
PATIENCE = 2.0
FIRST_POLL = 0.05
# The worker's own connections: claim, settle, renew, reap, beat and prune, one each, so that none ever waits.
CONNECTIONS = 6
# A database that says nothing for so long is taken for lost: a cut cable sends no error.
ANSWER = 30.0
# How often an error that no dialect knows is outlived before it is called a defect.
STRANGE = 3


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
        self.id = f"{text(name or socket.gethostname()[:60], 'name', 60)}-{os.getpid()}-{new_id()[-12:]}"
        self.queues = self._served_queues(queues)
        self.concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self.poll = seconds(poll, "poll", at_least=0.001)
        self.drain = seconds(drain, "drain")
        self.buffer_limit = whole(buffer, "buffer", 0, 1_000_000)
        # A job of any kind may be enqueued to any queue, so queues that were named are served for all kinds.
        self.handlers = {kind: h for kind, h in app.handlers.items() if h.options.queue in self.queues or queues}
        foreign = [source for source in app.foreign.sources if source.handlers]
        ours = [JobsSource(self.queues, self.handlers)] if self.handlers else []
        self.sources: list[Source] = [*ours, *foreign]
        if not self.sources:
            raise ConfigError("worker", "needs handlers: register one with @hf.job, or import what does", self.queues)
        # Handlers may use up the application's connections; what keeps their leases alive must not wait for one.
        self.store = app.store.beside(CONNECTIONS)
        self.held: dict[str, Work] = {}
        # By queue: whether its done jobs are kept.
        self._keeps: dict[str, bool] = {}
        # What broke the worker from inside, for whoever waits for it, and how many handlers would not end.
        self.failure: BaseException | None = None
        self.stuck = 0
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._why = ""

    def _served_queues(self, queues: Sequence[str] | None) -> list[str]:
        if isinstance(queues, str):
            raise ConfigError("queues", "must be a list of names, not one text", queues)
        named = list(dict.fromkeys(queues or [h.options.queue for h in self.app.handlers.values()]))
        return [text(name, "queues", 100) for name in named]

    # Life

    async def run(self) -> None:
        """Work until `stop` is called, then drain and return.

        Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable at the start; later trouble is outlived.
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
        self.app.events.emit(events.WorkerStarted(self.id, self.queues, list(self.handlers), self.concurrency))
        if self.stopping:
            self.app.events.emit(events.WorkerStopping(self.id, 0, self._why))

    def _begin(self) -> None:
        emit = self.app.events.emit
        self._outage = Outage(self.id, emit)
        self._wake = asyncio.Event()
        # What the last round of claims found: more than it could take; something that it had no room for.
        self._more, self._hungry = False, False
        # True when leases may be ours without our knowing, because the answer to a claim was lost.
        self._strays, self._failed_claims = False, 0
        self.threads = Threads(self.concurrency, "holdfast-handler")
        self.executor = Executor(self.app, self.id, self.threads)
        self.settler = Settler(self._write, emit, self._forget, self.id)
        self.slots = Slots(self.concurrency, self.executor, self.settler.add_and_hold, self._slot_is_free)
        self.appetite = Appetite(self.sources, self.slots, self.buffer_limit)
        self.upkeep = Upkeep(self)
        waker = make_waker(self.store, self.id, self._on_wake, emit)
        self._claims = asyncio.create_task(self._claiming(), name="holdfast-claiming")
        self._helpers = [asyncio.create_task(self.settler.serve(), name="holdfast-settler"), *self.upkeep.start()]
        if waker is not None:
            self._helpers.append(asyncio.create_task(waker.serve(), name="holdfast-waker"))
        for task in (self._claims, *self._helpers, *self.slots.start()):
            task.add_done_callback(self._on_helper_end)
        self.app.wakers.add(self._wake_from_any_thread)

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
                self.app.events.emit(events.WorkerStopping(self.id, len(self.slots.running), why))
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
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("the application is leaving", at_once=isinstance(error, asyncio.CancelledError))
        await self._end()

    async def _end(self) -> None:
        """Wind down and close, whatever comes in between."""
        if self._state != "running":
            return
        if not self.stopping:
            self.stop("its task was cancelled", at_once=True)
        self._state = "ended"
        self.app.wakers.discard(self._wake_from_any_thread)
        released = 0
        try:
            released = await self._wind_down()
        finally:
            await self._close()
            self.app.events.emit(events.WorkerStopped(self.id, released))

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
        if self._strays:
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
            self._strays = True
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
        if self.store is not self.app.store:
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
        self._hungry = any(limit <= 0 for _, _, limit in plan)
        for source, leases, limit in plan:
            if limit <= 0 or self.stopping:
                continue
            await self._give_back_strays()
            claimed = await self._claim(source, leases, limit)
            took += claimed
            self._more = self._more or claimed >= limit
        self._hungry = self._hungry or self._more
        return took

    async def _claim(self, source: Source, leases: dict[str, int], limit: int) -> int:
        work = source.claim(leases, limit, self.id)
        asked_at = time.monotonic()
        try:
            claimed = await self._ask(work, ANSWER)
        except StoreError as error:
            # The claim may have been committed without our hearing of it: give such leases back once we can.
            self._strays = self._strays or not isinstance(error, DatabaseBusy)
            self._failed_claims += 1
            await self._outage.pause(error, self._failed_claims)
            return 0
        self._failed_claims = 0
        self._outage.over(asked_at)
        if claimed:
            self.app.events.emit(events.JobsClaimed(self.id, len(claimed), time.monotonic() - asked_at))
        self._take([self._work(source, lease, asked_at) for lease in claimed])
        return len(claimed)

    async def _give_back_strays(self) -> None:
        if self._strays:
            await self._release_strays(self.outlive)
            self._strays = False

    def _work(self, source: Source, lease: Lease, asked_at: float) -> Work:
        keep = self._keeps.get(lease.queue)
        if keep is None:
            keep = self._keeps[lease.queue] = self.app.queue_options(lease.queue).keep_done > 0
        return Work(lease, source.handlers[lease.kind], keep, asked_at, source)

    def _take(self, works: list[Work]) -> None:
        """Take charge of what was claimed: run it, or see at once that it is not to run."""
        ready = []
        for work in works:
            earlier = self.held.get(work.key)
            if earlier is not None:
                # The job came round again while an attempt of ours, reaped by others, is still at it.
                self.lose(earlier)
            self.held[work.key] = work
            self.upkeep.hold(work.lease.lease_ms / 1000)
            if work.lease.cancel_requested:
                self.settler.add(self.executor.cancelled(work, "cancelled before it ran"))
            else:
                ready.append(work)
        if self.stopping:
            self._give_back(ready)
        else:
            self.slots.feed(ready)

    async def outlive(self, work: Flow[T], *, within: float = ANSWER) -> T:
        """Run a flow however long the database is away; every flow of the worker is safe to repeat.

        Raises: StoreError when the database is there and refuses the data itself.
        """
        tries = 0
        while True:
            asked_at = time.monotonic()
            try:
                value = await self._ask(work, within)
            except StoreError as error:
                if refused(error):
                    raise
                tries += 1
                await self._outage.pause(error, tries, min(LONGEST_PAUSE, within / 3))
            else:
                self._outage.over(asked_at)
                return value

    async def _write(self, work: Flow[T]) -> T:
        return await self.outlive(work)

    async def _ask(self, work: Flow[T], within: float) -> T:
        """Run a flow once; silence and errors that no dialect knows count as a lost database, for a while."""
        strange = 0
        while True:
            try:
                # A thread cannot be called back, and SQLite's own time-out bounds it.
                async with asyncio.timeout(None if self.store.embedded else within):
                    return await self.store.arun_once(work)
            except TimeoutError as error:
                raise DatabaseUnavailable(f"no answer within {within:g} s") from error
            except StoreError:
                raise
            except Exception as error:
                # A driver may break in ways of its own when its connection does. A defect shows by repeating.
                strange += 1
                self._strays = True
                if strange >= STRANGE:
                    raise
                events.log.warning("%s failed: %r; trying again", work, error)
                await asyncio.sleep(strange * 0.1)

    # What helpers call

    def lose(self, work: Work) -> None:
        """React to a lost lease: stop its handler, or drop it from the buffer."""
        if work.slot is not None:
            self.slots.interrupt(work, "lost")
        elif work in self.slots.buffer:
            self.slots.buffer.remove(work)
            self._let_go(work)
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
            self.appetite.lose()
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
            "kinds": sorted(self.handlers),
            "foreign": [source.name for source in self.sources if source.name != OURS.name],
            "concurrency": self.concurrency,
            "running": len(self.slots.running) if self._state == "running" else 0,
        }
        return encode_value(about, "worker info")

    def _forget(self, ended: Ended) -> None:
        self._let_go(ended.work)
        if isinstance(ended.write, PutBack) and ended.write.delay_ms == 0:
            # To be tried again at once: not every database tells its workers so.
            self._wake.set()

    def _let_go(self, work: Work) -> None:
        # Only if it is this lease's entry: the same job may have been claimed again meanwhile.
        if self.held.get(work.key) is work:
            del self.held[work.key]

    def _slot_is_free(self) -> None:
        if self._hungry and len(self.slots.buffer) <= self.appetite.low:
            self._wake.set()

    def _on_wake(self, queue: str | None) -> None:
        if queue is None or queue in self.queues:
            self._wake.set()

    def _wake_from_any_thread(self) -> None:
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    def _on_helper_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        # A helper never ends by itself: this is a defect, and half a worker is worse than none.
        events.log.error("a part of the worker failed: %s", task.get_name(), exc_info=task.exception())
        self.failure = task.exception()
        if not self.stopping:
            self.stop(f"{task.get_name()} failed")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
