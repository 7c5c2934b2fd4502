"""The worker: its life from start to stop, and how its parts are put together.

It keeps nothing that a crash could lose: what it holds is leased in the database, what it finished is committed before
anybody is told, and what it leaves behind another worker takes over when the lease ends.

A branch for each store reaches that database; its claims fill the slots, which are shared by all stores; its settler
writes what comes of it; its rounds renew, reap and clear up. The holdings know every job from claim to settle.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast import events
from holdfast.context import Context
from holdfast.errors import ConfigError, StoreError, WorkerFailed
from holdfast.flow import Flow
from holdfast.handlers import Registration
from holdfast.jobs.source import JobsSource
from holdfast.life.source import Source
from holdfast.observe import Tallies
from holdfast.outbox import Route
from holdfast.resources import Hooks
from holdfast.schedules import fingerprints
from holdfast.store import Store
from holdfast.values.failure import type_name, words
from holdfast.values.ids import new_id
from holdfast.values.options import Part, switch, text
from holdfast.values.retry import Duration, seconds, whole
from holdfast.worker import joints, registry
from holdfast.worker.branch import Branch, Served
from holdfast.worker.breaker import Breakers
from holdfast.worker.claiming import Claiming
from holdfast.worker.demand import Demand
from holdfast.worker.foreign_routes import sending
from holdfast.worker.handler_threads import Threads
from holdfast.worker.holdings import Holdings
from holdfast.worker.host import Host
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.pauses import Pauses
from holdfast.worker.receiving import Intake, Received, Receiving
from holdfast.worker.rounds import rounds_on
from holdfast.worker.rounds.base import RoundContext
from holdfast.worker.route_source import Delivery, RouteSource
from holdfast.worker.slots import Slots
from holdfast.worker.wake import make_waker
from holdfast.worker.work import Ended, Work

# The most jobs to claim ahead of the slots.
BUFFER_LIMIT = 2_000
# At a stop: how long a claim under way may take to come to its end, how long outcomes may take to be written beyond the
# drain time and at the very end, and how long a last word to the database may take, also when all must end at once.
CLAIM_ENDS_SECONDS = 2.0
RECEIVING_ENDS_SECONDS = 10.0
LEAST_FLUSH_SECONDS = 3.0
LAST_FLUSH_SECONDS = 1.0
LAST_WORD_SECONDS = 3.0
LAST_WORD_AT_ONCE_SECONDS = 1.0
# What the hooks have for what follows their `yield`, together.
HOOKS_END_SECONDS = 5.0
# A worker is ready while its last beat is younger: that of several beats.
READY_SECONDS = 45.0


class Worker:
    """Runs an application's jobs: `async with hf.worker(): …` beside other work, or `await hf.worker().run()` alone.

    queues: those to serve; by default all that the handlers name. concurrency: attempts at once.
    poll: the longest pause between two looks at the queues, with jitter. drain: seconds that running handlers get to
    finish at a stop; then async ones are cancelled, and what is left goes back to its queue. name: a prefix of the
    worker's id in the registry. ring: share keys with the other workers that do so, by bucket. receive: consume the
    messages of these queues' handlers. shards: serve these alone. It installs no signal handlers and never exits.
    also: further stores with sources of theirs; the registry stays on the application's own store. routes: those to
    deliver events for; their sinks are closed at the end. part: of foreign tables, handlers or routes alone.
    If a part of it breaks from inside, it stops and says so as a TaskGroup would: the task inside `async with` is
    cancelled, and the block ends with WorkerFailed; `run` raises the same.
    """

    def __init__(
        self,
        context: Context,
        handlers: Mapping[str, Registration[..., Any]],
        foreign: Sequence[Source] = (),
        also: Sequence[Served] = (),
        receptions: Sequence[Received] = (),
        routes: Sequence[Route] = (),
        part: Part = "all",
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 20,
        poll: Duration = 1.0,
        drain: Duration = 30.0,
        name: str | None = None,
        buffer: int = BUFFER_LIMIT,
        ring: bool = False,
        receive: bool = True,
        shards: Sequence[int] | None = None,
    ) -> None:
        self.context = context
        self.id = f"{text(name or socket.gethostname()[:60], 'name', 60)}-{os.getpid()}-{new_id()[-12:]}"
        self.routes = routes
        self._breakers = Breakers(self.id, context.events.emit, self._look_again)
        self._sending = partial(sending, breaker_of=self._breakers.of, part=part)
        self.queues = joints.served_queues(queues, handlers)
        self.concurrency = whole(concurrency, "concurrency", 1, 100_000)
        self.poll = seconds(poll, "poll", at_least=0.001)
        self.drain = seconds(drain, "drain")
        self.buffer_limit = whole(buffer, "buffer", 0, 1_000_000)
        self.ring = bool(switch(ring, "ring"))
        # A job of any kind may be enqueued to any queue, so queues that were named are served for all kinds.
        self.handlers = {kind: h for kind, h in handlers.items() if h.options.queue in self.queues or queues}
        self.shards = joints.served_shards(shards, context.stores.whole)
        # Those who serve the queue of a handler fetch its messages, for the first shard; with it go foreign tables.
        if 0 not in self.shards:
            receptions, foreign, also = (), (), ()
        self.receptions = [one for one in receptions if switch(receive, "receive") and one.queue in self.queues]
        self.branches = self._branches(foreign, also)
        self.sources = [source for branch in self.branches for source in branch.sources]
        if not self.sources:
            raise ConfigError("worker", "needs handlers: register one with @hf.job, or import what does", self.queues)
        self._resources = joints.resources(context.hooks if part != "routes" else Hooks(), self.sources)
        # All that it serves, for the registry: the queues of routes too.
        self.serves = [*self.queues, *(route.queue for route in routes)]
        self._stand_ready()

    def _stand_ready(self) -> None:
        """Set what changes while it runs."""
        # What it counts and times, until the next beat writes it down.
        self.tallies = Tallies()
        self._counted = self.tallies.reader()
        # When the registry last took its beat, by the monotonic clock.
        self.beaten_at = 0.0
        # The jobs that it holds, each until its outcome is committed.
        self.held: dict[Any, Work] = {}
        # What broke the worker from inside, in which part, and how many handlers would not end.
        self.failure: BaseException | None = None
        self._broken_part = ""
        self._host = Host()
        self.handlers_left = 0
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping, self._at_once = asyncio.Event(), asyncio.Event()
        self._intake = Intake()
        self._why = ""

    def _branches(self, foreign: Sequence[Source], also: Sequence[Served]) -> list[Branch]:
        home, stores = self.context.stores.whole, self.context.stores.ours
        ours = {n: Served(stores[n], self._our_sources(stores[n], () if n else foreign)) for n in self.shards}
        beside = [Served(one.store, list(map(self._sending, one.sources))) for one in also]
        said = {name: one.settings for name, one in self.context.queues.items() if not one.settings.is_plain}
        return joints.branches_of(home, ours, beside, said, len(self.receptions) + len(self.context.engines))

    def _our_sources(self, store: Store, foreign: Sequence[Source]) -> list[Source]:
        """Make the sources of one store of ours: jobs, the deliveries of each route, and foreign tables there."""
        floors = store.dialect.keeps_dead_rows
        ours = [JobsSource(self.queues, self.handlers, floors=floors)] if self.handlers and self.queues else []
        # Routes with one sink share what is known of it.
        routes = [RouteSource(Delivery(one), self._breakers.of(one.sink), floors=floors) for one in self.routes]
        return [*ours, *routes, *(self._sending(source) for source in foreign if source.handlers)]

    def _look_again(self) -> None:
        if self._state == "running":
            self._wake()

    # Life

    async def run(self) -> None:
        """Work until `stop` is called, then drain and return.

        Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable at the start; later trouble with the database is
        outlived. WorkerFailed when a part of the worker broke.
        """
        starting = asyncio.ensure_future(self.start())
        try:
            # A stop need not wait for a database that does not answer.
            await joints.unless(self._stopping, starting)
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
        """Check the tables on every store that answers, join the registry and begin to work in the background."""
        if self._state != "new":
            raise ConfigError("worker", "a worker runs once; make another", self._state)
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        try:
            self.context.declared_schedules()
            await joints.check(self.branches)
            hooks = await self._resources.start()
            await joints.register(self.branches, registry.beat(self.id, self.describe()))
        except BaseException:
            self._state = "ended"
            await self._resources.stop(HOOKS_END_SECONDS)
            await self._close_stores()
            raise
        self._state = "running"
        self._beaten()
        self._begin()
        if hooks is not None:
            hooks.add_done_callback(self._on_helper_end)
        part = self.shards if len(self.shards) < len(self.context.stores.ours) else None
        begun = events.WorkerStarted(self.id, self.serves, list(self.handlers), self.concurrency, part)
        self.context.events.emit(begun)
        if self.stopping:
            self.context.events.emit(events.WorkerStopping(self.id, 0, self._why))

    def _begin(self) -> None:
        """Make the parts and set them going."""
        context = self.context
        self.threads = Threads(self.concurrency, "holdfast-handler")
        for branch in self.branches:
            branch.begin(context, self.id, self.threads, self._forget, self.tallies)
        settlers = {source: branch.settler for branch in self.branches for source in branch.sources}
        wake = joints.waking(self.branches)
        self.slots = Slots(self.concurrency, joints.settling(settlers), wake)
        for branch in self.branches:
            branch.watch(self.slots.running, self._resources.values)
        self.demand = Demand(self.slots, self.buffer_limit)
        shortest = min(handler.options.lease for source in self.sources for handler in source.handlers.values())
        self.holdings = Holdings(self.slots, Outcomes(self.id, context.events), settlers, wake, shortest)
        self.held = self.holdings.held
        for source in self.sources:
            if isinstance(source, RouteSource):
                source.held = partial(self.holdings.of, source)
        self.slots.stints.on_broken = self.holdings.give_back
        for branch in self.branches:
            branch.pauses = Pauses(self.id, branch.sources, context.events.emit, self.holdings, branch.wake.set)
        shared = (self.slots, self.demand, self.holdings, self._stopping, self.poll, self.tallies)
        self.claims = [Claiming(context, self.id, branch, *shared) for branch in self.branches if branch.sources]
        self._wake = wake
        self._claim_tasks = [asyncio.create_task(one.serve(), name="holdfast-claiming") for one in self.claims]
        self._helpers = [task for branch in self.branches for task in self._helpers_of(branch)]
        receiving = self._intake.start([self._receiving(one) for one in self.receptions])
        for task in (*self._claim_tasks, *receiving, *self._helpers, *self.slots.start()):
            task.add_done_callback(self._on_helper_end)
        context.wakers.add(self._wake_from_any_thread)

    def _receiving(self, received: Received) -> Receiving:
        """Make what receives the messages of one broker, which become jobs of the application's own store."""
        home, emit = self.branches[0], self.context.events.emit
        return Receiving(received, self.id, home.patience.outlive, emit, self._stopping, home.wake.set)

    def _helpers_of(self, branch: Branch) -> list[asyncio.Task[None]]:
        """Start what runs beside the claims of one store."""
        emit = self.context.events.emit
        tasks = [asyncio.create_task(branch.settler.serve(), name="holdfast-settler")]
        waker = make_waker(branch.store, self.id, branch.wake_for, emit) if branch.hears_of_work else None
        if waker is not None:
            tasks.append(asyncio.create_task(waker.serve(), name="holdfast-waker"))
        round_context = RoundContext(
            worker=self.id,
            emit=emit,
            stopping=self._stopping,
            stop=self.stop,
            describe=self.describe,
            queue_options=self.context.queue_options,
            retention_digest=self.context.retention_digest,
            audit_retention=self.context.audit_retention,
            schedules=self.context.schedules,
            holdings=self.holdings,
            tallies=self.tallies,
            counted=self._counted.take,
            beaten=self._beaten,
            demand=self.demand,
            patience=branch.patience,
            pauses=branch.pauses,
            clock=branch.clock,
            sources=branch.sources,
            is_first=branch.first,
            registers=branch.registers,
            shard=branch.shard,
            set_aside=partial(joints.set_aside, self.branches) if branch.shard is not None else None,
            shards=self.shards,
            has_our_tables=branch.has_our_tables,
            buckets=branch.store.options.buckets if self.ring else None,
            wake=branch.wake.set,
            engines=self.context.engines,
            dispatch_hints=self.context.dispatch_hints,
        )
        tasks += [asyncio.create_task(one.serve(), name=f"holdfast-{one.name}") for one in rounds_on(round_context)]
        return tasks

    def stop(self, why: str = "asked to stop", *, at_once: bool = False) -> None:
        """Stop claiming and let handlers finish within the drain time; `at_once` cuts that short.

        May be called from any thread, at any time, again and again.
        """
        loop = self._loop
        if loop is None or joints.running_loop() is loop:
            self._stop(why, at_once)
        if loop is not None:
            # From another thread, or from a signal handler while the loop sleeps: this wakes it. It refuses where the
            # loop is closed, and then there is nothing left to stop.
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
            self._wake()

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
        # The type: an error of the application's that fails when asked for its `__class__` must stop the worker, too.
        cancelled = issubclass(type(error), asyncio.CancelledError)
        self.stop("the application is leaving", at_once=cancelled and not cut)
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
        released = self.holdings.give_back(self.holdings.take_back())
        receiving = joints.unless(self._at_once, self._intake.ended, min(self.drain, RECEIVING_ENDS_SECONDS))
        await asyncio.gather(self._finish_claiming(), receiving)
        await self._intake.cut_short()
        if not self._at_once.is_set():
            await self._say_to_all(registry.mark(self.id, "draining"))
        await joints.unless(self._at_once, self.slots.quiet(), deadline - time.monotonic())
        left = list(self.slots.running)
        for work in left:
            self.slots.interrupt(work, "stop")
        await self._flush(deadline)
        await asyncio.gather(*map(self._release_strays, self.claims))
        return released + len(left)

    async def _release_strays(self, claiming: Claiming) -> None:
        if claiming.branch.patience.strays:
            for releasing in claiming.strays():
                await self._say(claiming.branch.store, releasing)

    async def _finish_claiming(self) -> None:
        """Let claims under way come to their end: cut short, they would leave leases that nobody knows of."""
        if not self._claim_tasks:
            return
        await joints.unless(self._at_once, asyncio.wait(self._claim_tasks), CLAIM_ENDS_SECONDS)
        for claiming, task in zip(self.claims, self._claim_tasks, strict=True):
            if not task.done():
                claiming.branch.patience.strays = True
                task.cancel()
        await asyncio.wait(self._claim_tasks)

    async def _flush(self, deadline: float) -> None:
        """Let interrupted slots end and outcomes be written, within a bound: what is not written is reaped later."""
        if not self._at_once.is_set():
            left = max(LEAST_FLUSH_SECONDS, deadline - time.monotonic())
            await joints.unless(self._at_once, self._all_written(), left)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_SECONDS):
                await self._all_written()

    async def _all_written(self) -> None:
        await self.slots.quiet()
        await asyncio.gather(*(branch.settler.flushed() for branch in self.branches))

    async def _close(self) -> None:
        tasks = [*self._claim_tasks, *self._helpers]
        for task in tasks:
            task.cancel()
        self.threads.close()
        self.handlers_left = await self.slots.close()
        if self.handlers_left:
            events.log.error("%d handlers of %s ignore their cancellation and run on", self.handlers_left, self.id)
        await asyncio.wait(tasks, timeout=1.0)
        await self._resources.stop(LAST_WORD_AT_ONCE_SECONDS if self._at_once.is_set() else HOOKS_END_SECONDS)
        await self._breakers.close_sinks(self._last_words)
        counted = self._counted.take()
        home, *others = (branch.store for branch in self.branches if branch.registers)
        leaving = (self._say(store, registry.leave(self.id)) for store in others)
        await asyncio.gather(self._say(home, registry.leave(self.id, counted)), *leaving)
        await self._close_stores()

    async def _close_stores(self) -> None:
        for branch in self.branches:
            await branch.close()

    async def _say_to_all(self, work: Flow[Any]) -> None:
        stores = (branch.store for branch in self.branches if branch.registers)
        await asyncio.gather(*(self._say(store, work) for store in stores))

    async def _say(self, store: Store, work: Flow[Any]) -> None:
        """Run a last flow if the database lets us; nothing depends on it."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._last_words):
                await store.arun_once(work)

    @property
    def _last_words(self) -> float:
        return LAST_WORD_AT_ONCE_SECONDS if self._at_once.is_set() else LAST_WORD_SECONDS

    # What the parts call

    def describe(self) -> str:
        """Describe the worker for the registry."""
        return joints.described(
            self.handlers,
            queues=self.serves,
            kinds=sorted([*self.handlers, *(route.queue for route in self.routes)]),
            foreign=[source.name for source in self.sources if not source.ours],
            concurrency=self.concurrency,
            ring=self.ring,
            shards=self.shards,
            running=len(self.slots.running) if self._state == "running" else 0,
            schedules=fingerprints(self.context.schedules.values()),
        )

    def _beaten(self) -> None:
        self.beaten_at = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """Tell whether it claims jobs, and its last beat was taken not long ago."""
        return self._state == "running" and not self.stopping and time.monotonic() - self.beaten_at < READY_SECONDS

    @property
    def slots_used(self) -> tuple[int, int]:
        """How many slots run something, and how many do not."""
        busy = self.slots.occupied if self._state == "running" else 0
        return busy, self.concurrency - busy

    def _forget(self, batch: Iterable[Ended], at_once: bool = False) -> None:
        self.holdings.forget(batch, at_once)

    def _wake_from_any_thread(self) -> None:
        # The loop refuses once it is closed: nobody is left to wake.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)

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
