"""One attempt: decode the payload and run the handler through the middlewares; `outcomes.py` judges what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import time
import types
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from holdfast import events, logs
from holdfast.context import Context, Next
from holdfast.errors import ConfigError, DatabaseUnavailable, TimedOut
from holdfast.flow import Flow
from holdfast.handlers import Registration
from holdfast.job import Job
from holdfast.life.expiry import must_record
from holdfast.observe.tallies import outcome_of
from holdfast.store import Store
from holdfast.tracing import Tracing
from holdfast.values.rows import Finish
from holdfast.worker.attempt_context import rest, stepped
from holdfast.worker.begins import Begins
from holdfast.worker.expiry import Expiry, may_expire
from holdfast.worker.handler_threads import Call, Given, Threads
from holdfast.worker.outcomes import Outcomes, is_a
from holdfast.worker.work import BaseExecutor, Ended, Hidden, Work

# How long it is kept in mind whether anybody listens to starts and ends.
ASK_SECONDS = 0.001


class Executor(BaseExecutor):
    """Runs handlers for one worker, one job at a time, each in a copy of the context that the worker started in.

    Without `begins`, nothing is recorded before a handler is called. `store` is where the jobs come from, by default
    the application's own: their handlers' transactions run there.
    """

    # What its attempts are called in traces.
    operation = "process"

    def __init__(
        self, context: Context, worker: str, threads: Threads, begins: Begins | None = None, store: Store | None = None
    ) -> None:
        self._context = context
        self._store = store or context.store
        self._outcomes = Outcomes(worker, context.events)
        self._done = self._outcomes.done
        # Whether anybody wants to hear of starts and ends, and when to ask again, by the monotonic clock.
        self._tells_starts = self._tells_ends = False
        self._asks_at = 0.0
        self.worker = worker
        self.threads = threads
        self._begins = begins
        self._expiry = Expiry(self._store.arun if begins is None else begins.run)
        self._variables = contextvars.copy_context()
        if context.tracing is not None:
            # A worker that was started inside a span, as by a server, does not put its jobs below that.
            self._variables.run(context.tracing.leave)
        # The same by slot, so that code knows where it runs (see `logs.py`).
        self._by_slot: dict[Any, contextvars.Context] = {}
        # All that runs in the worker's slots.
        self.running: Collection[Work] = ()
        # What makes spans of attempts, and whether of jobs without headers, too.
        self._tracing = context.tracing
        self._roots = context.tracing is not None and context.tracing.roots

    def attempt(self, work: Work, *, in_time: bool = False, traced: bool = False) -> Coroutine[Any, Any, Ended]:
        """Run the handler once. Whatever it raises, cancellation included, becomes an outcome: a slot lives on.

        `in_time` says that it is known not to have expired, `traced` that it has its span. A function that returns a
        coroutine: each coroutine within another is woken and put to sleep with it.
        """
        lease = work.lease
        if lease.headers is not None or self._roots:
            if not in_time and may_expire(lease):
                return self._attempt_in_time(work)
            if self._tracing is not None and not traced and self._tracing.wants(lease):
                return self._attempt_traced(work, self._tracing)
        # First what few jobs have: `must_record` would be a call for each.
        if (lease.lapses or lease.max_attempts <= 1) and self._begins and must_record(lease.lapses, lease.max_attempts):
            recording = work.source.begin(lease)
            if recording is not None:
                return self._attempt_on_record(work, self._begins, recording)
        return self._attempt(work)

    async def _attempt_traced(self, work: Work, tracing: Tracing) -> Ended:
        """Run a handler inside a span."""
        span, before = tracing.begin([work.lease], self.worker, self.operation), self._unspanned(work)
        self._by_slot[work.slot] = span.inside(before)
        try:
            ended = await self.attempt(work, in_time=True, traced=True)
        except BaseException as error:
            span.end("lost", error)
            raise
        finally:
            self._by_slot[work.slot] = before
        span.end(outcome_of(ended), ended.error)
        return ended

    def _unspanned(self, work: Work) -> contextvars.Context:
        """Return the context that attempts in a slot have: without a span, unless one has begun."""
        return self._by_slot.get(work.slot) or self._spot(work.slot)

    async def _attempt_in_time(self, work: Work) -> Ended:
        """Run a handler unless its job has expired."""
        ends, _ = await self._weed_out([work])
        return ends[0] if ends else await self.attempt(work, in_time=True)

    async def _weed_out(self, works: Sequence[Work]) -> tuple[list[Ended], list[Work]]:
        """End those of the jobs that have expired; return their ends, and the jobs that may begin."""
        asked = [work for work in works if may_expire(work.lease)]
        for work in works:
            # Not begun while it waits for the answer: a renewal would say that it has.
            work.started = 0.0
        try:
            expired = await self._expiry.of(asked)
        except DatabaseUnavailable:
            # They have not begun, as in `_attempt_on_record`.
            return [self._outcomes.released(_at_its_end(work)) for work in asked], _without(works, asked)
        except BaseException as error:
            read = self._outcomes.read
            return [read(self._outcomes.raised, _at_its_end(work), error) for work in works], []
        late = [work for work in asked if work.lease.job_id in expired]
        return [self._outcomes.expired(_at_its_end(work)) for work in late], _without(works, late)

    async def _attempt_on_record(self, work: Work, begins: Begins, recording: Flow[None]) -> Ended:
        """Run a handler whose call must be known of, should the process die."""
        try:
            await begins.record(work, recording)
        except DatabaseUnavailable:
            # It has not begun. Once the database is back, it is claimed again; meanwhile its slot is free.
            work.started = time.monotonic()
            return self._outcomes.released(work)
        except BaseException as error:
            work.started = time.monotonic()
            return self._outcomes.read(self._outcomes.raised, work, error)
        if work.handler.is_async and not self._context.middlewares:
            # Nothing waits between here and the call.
            begins.entered(work)
        try:
            return await self._attempt(work)
        finally:
            begins.entered(work)

    async def _attempt(self, work: Work) -> Ended:
        context, handler = self._context, work.handler
        # Not `_fresh`, which would be one more call for each job.
        variables = (self._by_slot.get(work.slot) or self._spot(work.slot)).copy()
        waits = handler.waits
        if waits is not False:
            self._name([work], variables)
        work.started = now = time.monotonic()
        if now >= self._asks_at:
            self._ask_who_listens(now)
        if self._tells_starts:
            started = events.JobStarted(*self._outcomes.about(work), source=work.source.name, waited=work.waited())
            variables.run(context.events.emit, started)
        # The shortest way for the plainest handlers: two frames and an object less for each job.
        job = None
        if not handler.is_plain or context.middlewares or context.around_handlers or context.care is not None:
            job = work.job = self._job(work)
        try:
            arguments = handler.signature.decode(work.lease.payload, handler.kind)
        except BaseException as error:
            # The payload will read no better the next time.
            return self._outcomes.dead(work, error)
        try:
            running = handler.fn(**arguments) if job is None else self._call(work, job, arguments)
            try:
                # The first step here: a handler that never waits is over with it, and spared a generator.
                waits_for = variables.run(running.send, None)
            except StopIteration as end:
                value = end.value
                if waits is None:
                    handler.waits = False
            else:
                handler.waits = True
                value = await rest(variables, running, waits_for)
        except GeneratorExit as error:
            if not loop_runs():
                # Not the handler's: the loop is gone, and this coroutine is being thrown away.
                raise
            return self._outcomes.read(self._outcomes.raised, work, error)
        except BaseException as error:
            return self._outcomes.read(self._outcomes.raised, work, error)
        if value is None and job is None:
            if self._tells_ends:
                return self._done(work, None)
            lease = work.lease
            # Without the frame of Finish's own `__new__`.
            write = tuple.__new__(Finish, (lease.id, lease.fence, "done", None, None, None, work.keep))
            return Ended(work, write, None)
        return self._outcomes.read(self._outcomes.returned, work, value)

    def _fresh(self, *works: Work) -> contextvars.Context:
        """Make the context of an attempt: that which the worker started in, and the jobs."""
        made = self._unspanned(works[0]).copy()
        self._name(works, made)
        return made

    def _name(self, works: Sequence[Work], variables: contextvars.Context) -> None:
        """Have the code in a context know its jobs, and what it leaves behind (see `logs.py`)."""
        leases = [work.lease for work in works]
        variables.run(logs.spot.set, logs.Spot(self.worker, works[0].slot, self.running, leases))

    def _spot(self, slot: Any) -> contextvars.Context:
        made = self._variables.copy()
        made.run(logs.spot.set, logs.Spot(self.worker, slot, self.running))
        if slot is not None:
            self._by_slot[slot] = made
        return made

    def _ask_who_listens(self, now: float) -> None:
        """Ask once for the jobs of a turn: to ask for each took a tenth of the time of a job that does nothing."""
        wants = self._context.events.wants
        self._tells_starts, self._tells_ends = wants(events.JobStarted), wants(events.JobDone)
        self._asks_at = now + ASK_SECONDS

    def _job(self, work: Work) -> Job:
        return Job(
            work.lease,
            self._store,
            keep=work.keep,
            source=work.source,
            worker=self.worker,
            # A job with one attempt is started once, so nobody may take its transaction along.
            shares_commit=work.handler.options.commit == "together" and work.lease.max_attempts > 1,
            before=tuple if work.stint is None else work.stint.ends,
        )

    # On a thread that takes job after job: see `streaks.py`

    def takes_streak(self, work: Work) -> bool:
        """Tell whether the attempt needs nothing of the event loop before its handler is called."""
        lease, context = work.lease, self._context
        return not (
            work.handler.is_async
            or context.middlewares
            or must_record(lease.lapses, lease.max_attempts)
            or may_expire(lease)
            or (self._tracing is not None and self._tracing.wants(lease))
            or context.events.wants(events.JobStarted)
        )

    def prepare(self, work: Work) -> None:
        if work.handler.signature.injected or self._context.wraps_calls:
            work.job = self._job(work)

    def call(self, work: Work) -> Ended | Given | Hidden:
        handler, job = work.handler, work.job
        try:
            arguments = handler.signature.decode(work.lease.payload, handler.kind)
        except BaseException as error:
            # The payload will read no better the next time.
            return self._outcomes.dead(work, error)
        # On a thread the slot tells the job.
        variables = self._unspanned(work).copy()
        try:
            if handler.signature.given:
                arguments |= self.given_to(handler.signature.given)
            if job is None:
                value = variables.run(handler.fn, **arguments)
            else:
                if handler.signature.injected:
                    arguments[handler.signature.injected] = job
                value = variables.run(self._call_on_thread, handler, job, arguments)
        except BaseException as error:
            return None, error
        if value is None:
            return self._done(work, None)
        if not is_a(value, types.CoroutineType):
            return value, None
        self._name([work], variables)
        return Hidden(value, variables)

    def judge(self, work: Work, value: Any, error: BaseException | None) -> Ended:
        if error is not None:
            return self._outcomes.read(self._outcomes.raised, work, error)
        return self._outcomes.read(self._outcomes.returned, work, value)

    async def finish(self, work: Work, hidden: Hidden) -> Ended:
        limit = work.handler.options.timeout
        running = hidden.coroutine if limit is None else within(limit, hidden.coroutine, since=work.started)
        try:
            value = await stepped(hidden.variables, running)
        except GeneratorExit as error:
            if not loop_runs():
                raise
            return self.judge(work, None, error)
        except BaseException as error:
            return self.judge(work, None, error)
        return self.judge(work, value, None)

    async def _call(self, work: Work, job: Job, arguments: dict[str, Any]) -> Any:
        signature = work.handler.signature
        if signature.injected:
            arguments[signature.injected] = job
        if signature.given:
            arguments |= self.given_to(signature.given)
        if not self._context.middlewares:
            return await self._run(work, job, arguments)

        async def innermost(_: Job) -> Any:
            return await self._run(work, job, arguments)

        call: Next = innermost
        for middleware in reversed(self._context.middlewares):
            call = wrapped(middleware, call)
        return await call(job)

    async def _run(self, work: Work, job: Job, arguments: dict[str, Any]) -> Any:
        handler, limit = work.handler, work.handler.options.timeout
        if not handler.is_async:
            call = self._on_thread([work], lambda: self._call_on_thread(handler, job, arguments))
        else:
            if self._begins is not None:
                self._begins.entered(work)
            wraps = self._context.wraps_calls
            call = self._run_inside(job, handler, arguments) if wraps else handler.fn(**arguments)
        # A wait with a time-out costs as much again as the hop to the thread.
        return await (call if limit is None else within(limit, call))

    async def _run_inside(self, job: Job, handler: Registration[..., Any], arguments: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            await self._aenter(stack, job)
            return await handler.fn(**arguments)

    async def _on_thread(self, works: Sequence[Work], fn: Callable[[], Any]) -> Any:
        """Make one call on a thread, for one job or for several."""
        call = self.threads.submit(fn)
        try:
            if self._begins is not None and self._begins.inside is works[0]:
                await self._begins.entered_on_thread(works[0], call)
            value, error = await call.future
        except asyncio.CancelledError:
            self._give_up(works, call)
            raise
        if error is not None:
            raise error
        # A decorator that knows nothing of async hides a coroutine function behind a plain one.
        return await value if is_a(value, types.CoroutineType) else value

    def _call_on_thread(self, handler: Registration[..., Any], job: Job, arguments: dict[str, Any]) -> Any:
        if not self._context.wraps_calls:
            return handler.fn(**arguments)
        with ExitStack() as stack:
            self._enter(stack, job)
            return handler.fn(**arguments)

    def _enter(self, stack: ExitStack, job: Job) -> None:
        """Open what goes around a call; on its thread."""
        if self._context.care is not None:
            stack.enter_context(self._context.care)
        self._enter_around(stack, job)

    async def _aenter(self, stack: AsyncExitStack, job: Job) -> None:
        """Open what goes around a call; on the event loop."""
        if self._context.care is not None:
            await stack.enter_async_context(self._context.care)
        self._enter_around(stack, job)

    def _enter_around(self, stack: ExitStack | AsyncExitStack, job: Job) -> None:
        for around in self._context.around_handlers:
            block = around(job)
            if not hasattr(type(block), "__enter__"):
                rule = "needs a function that returns a `with` block; add @contextmanager"
                raise ConfigError("around_handler", rule, around)
            stack.enter_context(block)

    def _give_up(self, works: Sequence[Work], call: Call) -> None:
        """Leave a thread to itself: it cannot be stopped, only told, and the fence refuses what it may still write."""
        for work in works:
            if work.job is not None:
                work.job.lost = True
        call.future.cancel()
        self.threads.abandon(call)


def _at_its_end(work: Work) -> Work:
    """Say of a job that its attempt ends now, without having begun."""
    work.started = time.monotonic()
    return work


def _without(works: Sequence[Work], others: Sequence[Work]) -> list[Work]:
    left_out = set(others)
    return [work for work in works if work not in left_out]


async def within(limit: float, call: Awaitable[Any], *, since: float | None = None) -> Any:
    """Wait for a call no longer than its time-out, which may have begun before."""
    used = 0.0 if since is None else time.monotonic() - since
    scope = asyncio.timeout(limit - used)
    try:
        async with scope:
            return await call
    except TimeoutError as error:
        if scope.expired():
            raise TimedOut(limit) from error
        raise


def wrapped(middleware: Any, call_next: Next) -> Next:
    async def call(job: Job) -> Any:
        return await middleware(job, call_next)

    return call


def loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
