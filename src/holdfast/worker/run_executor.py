"""Attempts of runs: load the journal, drive the body, and make an end of what it came to."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast import events, runs
from holdfast.bound import Bound, continuing
from holdfast.context import Context, Next
from holdfast.errors import (
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    RunFinished,
    RunNotFound,
    StoreError,
)
from holdfast.flow import Flow, Steps, flow
from holdfast.job import Job
from holdfast.lines import LinedLease
from holdfast.remote import Engine
from holdfast.runs import RUN, RUN_HEADER, STUCK, Recorded
from holdfast.store import Shards, Store
from holdfast.values.failure import words
from holdfast.values.ids import new_id
from holdfast.values.payload import decode_value
from holdfast.values.rows import TRACE_HEADERS, Continued, Lease, Park, when
from holdfast.worker.attempt_context import stepped
from holdfast.worker.begins import Begins
from holdfast.worker.checkpoint_writer import CheckpointWriter
from holdfast.worker.db_clock import DbClock, read_clock
from holdfast.worker.expiry import may_expire
from holdfast.worker.handler_executor import Executor, wrapped
from holdfast.worker.handler_threads import Threads
from holdfast.worker.run_driver import RunDriver
from holdfast.worker.run_places import no_doubles
from holdfast.worker.run_transactions import PAUSE_SECONDS
from holdfast.worker.run_verdicts import Broken, Lost, Over, Parked, Stuck, Verdict, is_being_cancelled
from holdfast.worker.step_calls import RUN_JOB, StepCalls
from holdfast.worker.work import Ended, Work
from holdfast.workflows import Body, ContinueAsNew, NewRun, Operation, Run, Workflow, adopt, bodied, stop_letter

# A run that is stuck is tried again after this time.
STUCK_SECONDS = 60.0
# How often the inboxes of runs are looked into that are being worked on.
NEWS_SECONDS = 1.0
_REASON_LENGTH = 2_000


class Loaded(NamedTuple):
    """What there is of a run before it is driven: its key, its journal, and whether it was stuck."""

    key: str
    rows: list[Recorded]
    was_stuck: bool = False


class RunLease(LinedLease):
    """The lease of a run: of all that can follow the end of a job, its row names what follows the end of a run."""

    __slots__ = ()
    bits = RUN


_RUN_LEASE: Callable[[Lease], RunLease] = partial(tuple.__new__, RunLease)


class RunExecutor(Executor):
    """Runs workflows for one worker and store. A slot is taken only while something of a run is under way."""

    def __init__(
        self, context: Context, worker: str, threads: Threads, begins: Begins | None = None, store: Store | None = None
    ) -> None:
        super().__init__(context, worker, threads, begins, store)
        self.clock = DbClock(self._store)
        self.writer = CheckpointWriter(self.insist, worker, lambda moment: self.clock.learn(moment))
        entering = (self._enter, self._aenter)
        self.calls = StepCalls(self._store, threads, worker, entering, self.given_to, context.tracing)
        self.payload_limit = self._store.options.payload_limit
        self.engines: Mapping[str, Engine] = context.engines
        # By job: the runs that are being driven.
        self._live: dict[str, RunDriver] = {}
        self._watching: asyncio.Task[None] | None = None

    def takes_streak(self, work: Work) -> bool:
        return False

    async def insist(self, work: Flow[Any]) -> Any:
        """Run a flow however long the database is away.

        Raises: StoreError when it is there and refuses the data itself; what the flow raises.
        """
        if self._begins is None:
            return await self._store.arun(work)
        while True:
            try:
                return await self._begins.run(work)
            except (DatabaseUnavailable, DatabaseBusy):
                await asyncio.sleep(PAUSE_SECONDS)

    async def no_doubles(self, parent: str, new: Sequence[NewRun]) -> None:
        """Raises: Conflict, where a run has the id of a child in another shard. Waits while nobody can tell."""
        shards = self._context.stores.whole
        while isinstance(shards, Shards):
            try:
                return await shards.ago(no_doubles(shards, parent, new))
            except (DatabaseUnavailable, DatabaseBusy):
                await asyncio.sleep(PAUSE_SECONDS)

    async def remotely(self, engine: Engine, work: Flow[Any]) -> Any:
        """Run a flow that needs an engine's tables; they are made at their first use.

        Raises: Conflict, where they cannot be made: the run is stuck until somebody does.
        """
        while True:
            try:
                await engine.aprepare()
                break
            except (DatabaseUnavailable, DatabaseBusy):
                await asyncio.sleep(PAUSE_SECONDS)
            except StoreError as error:
                why = f"The tables of engine {engine.name} are not there and cannot be made: {words(error)}"
                raise Conflict(f"{why} Make them by hand: `holdfast migrate sql --store durable:PREFIX`.") from error
        return await self.insist(work)

    def dispatched(self, engine: Engine) -> None:
        """Have those of this process who look for results do so more often for a while."""
        for hint in self._context.dispatch_hints:
            hint(engine.name)

    def emit(self, event: events.Event) -> None:
        self._variables.copy().run(self._context.events.emit, event)

    async def stop_run(self, key: str, workflow: str) -> None:
        """Ask a child to stop; one that is over already needs nothing."""
        letter = stop_letter()
        with suppress(RunFinished, RunNotFound):
            await self.insist(runs.send(key, letter, workflow, fresh=False))

    def attempt(self, work: Work, *, in_time: bool = False, traced: bool = False) -> Coroutine[Any, Any, Ended]:
        # One that has begun does not expire: it may have to clean up. Whether it has, its journal says.
        return super().attempt(work, in_time=True, traced=traced)

    async def _attempt(self, work: Work) -> Ended:
        work.started = time.monotonic()
        if work.lease.__class__ is Lease:
            # It says what follows its end, which spares the settler to find that out.
            work.lease = _RUN_LEASE(work.lease)
        if self._context.events.wants(events.JobStarted):
            about = self._outcomes.about(work)
            started = events.JobStarted(*about, source=work.source.name, waited=work.waited())
            self._fresh(work).run(self._context.events.emit, started)
        try:
            arguments = work.handler.signature.decode(work.lease.payload, work.handler.kind)
        except BaseException as error:
            # The payload will read no better the next time.
            return self._outcomes.dead(work, error)
        try:
            loaded = await self._loaded(work)
            if not loaded.rows and may_expire(work.lease):
                expired, _ = await self._weed_out([work])
                if expired:
                    return expired[0]
                work.started = time.monotonic()
            context = self._context
            if context.middlewares or context.wraps_calls:
                verdict = await self._wrapped(work, loaded, arguments)
            else:
                verdict = await self._driven(work, loaded, arguments, self._fresh(work))
            return await self._ended(work, verdict, loaded)
        except BaseException as error:
            return self._outcomes.read(self._outcomes.raised, work, error)

    async def _loaded(self, work: Work) -> Loaded:
        """Read what is there of a run; one that was never claimed before has an empty journal."""
        lease = work.lease
        if not self.clock.known:
            self.clock.learn((await self.insist(read_clock())).timestamp())
        key = _headers_of(lease).get(RUN_HEADER)
        if key is None:
            await self.insist(adopt(lease.job_id, _workflow(work).workflow))
        loaded = Loaded(key or lease.job_id, [])
        if lease.fence > 1:
            head, rows = await self.insist(_load(lease.job_id))
            known, stuck = (head.key, head.stuck is not None) if head is not None else (lease.job_id, False)
            loaded = Loaded(known, rows, stuck)
        if lease.cancel_requested:
            # Before anything else is begun.
            hearing = runs.hear(lease.job_id, lease.fence, new_id(), loaded.rows, self.worker)
            loaded.rows.extend(await self.insist(hearing))
        return loaded

    async def _wrapped(self, work: Work, loaded: Loaded, arguments: dict[str, Any]) -> Verdict:
        """Drive a run inside the application's middlewares; what they raise is a failed attempt."""
        job = self._job(work)
        came_to: list[Verdict] = []

        async def innermost(_: Job) -> Any:
            variables = contextvars.copy_context()
            if self._context.wraps_calls:
                variables.run(RUN_JOB.set, job)
            came_to[:] = [await self._driven(work, loaded, arguments, variables)]
            return _given(came_to[0], job)

        call: Next = innermost
        for middleware in reversed(self._context.middlewares):
            call = wrapped(middleware, call)
        try:
            value = await stepped(self._fresh(work), _coroutine(call, job))
        except BaseException as error:
            if came_to and came_to[0] == Over(None, error):
                return came_to[0]
            if came_to and isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
                return came_to[0]
            raise
        if came_to and not isinstance(came_to[0], Over):
            return came_to[0]
        return Over(value, None)

    async def _driven(
        self, work: Work, loaded: Loaded, arguments: dict[str, Any], variables: contextvars.Context
    ) -> Verdict:
        lease, workflow = work.lease, _workflow(work)
        body = Body(lease.job_id, self.clock.now)
        run = Run(body, loaded.key, lease.job_id, workflow.workflow, workflow.number)
        driver = RunDriver(self, lease, body, _children_of(loaded.key, lease))
        loop = asyncio.get_running_loop()
        making = _making(work, run, arguments)
        # In that context, too: what a run starts, its steps for one, has it from there.
        loop.call_soon(driver.begin, loaded.rows, making, variables, context=variables.copy())
        self._live[lease.job_id] = driver
        self._watch()
        try:
            if loaded.was_stuck:
                await asyncio.sleep(0)
                if not driver.verdict.done():
                    await self.insist(runs.stick(lease.job_id, lease.fence, None))
            return await self._verdict(work, driver)
        finally:
            driver.close()
            if self._live.get(lease.job_id) is driver:
                del self._live[lease.job_id]

    async def _verdict(self, work: Work, driver: RunDriver) -> Verdict:
        while True:
            try:
                return await settled(driver.verdict)
            except asyncio.CancelledError:
                task: Any = asyncio.current_task()
                if work.interrupt != "cancelled":
                    raise
                # Somebody has cancelled the job: the run hears of it as of any request to stop, and may clean up.
                work.interrupt = None
                while task.cancelling():
                    task.uncancel()
                asking = self._ask_to_stop(work.lease.job_id, driver)
                self._asking = asyncio.get_running_loop().create_task(asking)

    async def _ask_to_stop(self, job_id: str, driver: RunDriver) -> None:
        await self.insist(_stop_one(job_id, new_id()))
        driver.look()

    # News for runs that are being driven

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._look_for_news(), name="holdfast-run-news")

    async def _look_for_news(self) -> None:
        """Look into the inboxes of all runs that are being driven, in one statement, for as long as there are some."""
        while self._live:
            await asyncio.sleep(NEWS_SECONDS)
            asked = dict(self._live)
            if asked:
                wanted = {job_id: driver.wants() for job_id, driver in asked.items()}
                for job_id in await self.insist(runs.news(wanted)):
                    asked[job_id].look()

    # What came of it

    async def _ended(self, work: Work, verdict: Verdict, loaded: Loaded) -> Ended:
        outcomes = self._outcomes
        match verdict:
            case Lost():
                return outcomes.lost(work)
            case Parked(waits_for, deadline):
                return self._parked(work, waits_for, deadline)
            case Stuck(error):
                return await self._stuck(work, error)
            case Broken(error):
                return outcomes.read(outcomes.raised, work, error)
            case Over(value, None):
                if isinstance(value, ContinueAsNew):
                    return self._continued_as_new(work, value, loaded.key)
                return outcomes.read(outcomes.done, work, value)
            case Over(_, error):
                if isinstance(error, asyncio.CancelledError):
                    return outcomes.cancelled(work, "cancelled while it ran")
                return outcomes.dead(work, error)  # type: ignore[arg-type]

    def _parked(self, work: Work, waits_for: str, deadline: float | None) -> Ended:
        lease = work.lease
        delay = None if deadline is None else max(1, math.ceil((deadline - self.clock.now()) * 1000))
        event = None
        if self._context.events.wants(events.RunParked):
            event = events.RunParked(*self._outcomes.about(work), waits_for, source=work.source.name)
        return Ended(work, Park(lease.id, lease.fence, waits_for, delay, 1, None, 0), event)

    async def _stuck(self, work: Work, error: BaseException) -> Ended:
        lease, reason = work.lease, words(error)[:_REASON_LENGTH]
        await self.insist(runs.stick(lease.job_id, lease.fence, reason))
        event = events.RunStuck(*self._outcomes.about(work), reason, source=work.source.name)
        park = Park(lease.id, lease.fence, STUCK, round(STUCK_SECONDS * 1000), 1, None, 0)
        return Ended(work, park, event, error)

    def _continued_as_new(self, work: Work, value: ContinueAsNew, key: str) -> Ended:
        workflow = _workflow(work).current
        try:
            bound = workflow.bind(*value.args, **value.kwargs)
        except BaseException as error:
            return self._outcomes.dead(work, error)
        headers = msgspec.json.encode({RUN_HEADER: key}).decode()
        then = continuing(
            Bound(bound.payload, bound.like._replace(headers=headers)), work.lease.job_id, work.lease.headers
        )
        end = Continued(work.lease.id, work.lease.fence, then, work.keep)
        return Ended(work, end, self._outcomes.done(work, None).event)


async def settled(verdict: asyncio.Future[Verdict]) -> Verdict:
    """Wait for a verdict, which a cancel here leaves alone."""
    if not verdict.done():
        # Not an `asyncio.Event`: that took a tenth of the worker's time for a run of one step.
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: asyncio.Future[Verdict]) -> None:
            if not told.done():
                told.set_result(None)

        verdict.add_done_callback(tell)
        await told
    return verdict.result()


@flow
def _load(job_id: str) -> Steps[tuple[runs.Head | None, list[Recorded]]]:
    head = yield from runs.head(job_id).start()
    return head, (yield from runs.journal(job_id).start())


@flow
def _stop_one(job_id: str, request: str) -> Steps[None]:
    yield from runs.asked_to_stop([job_id], [request])


def _headers_of(lease: Lease) -> dict[str, str]:
    return {} if lease.headers is None else decode_value(lease.headers)


async def _coroutine(call: Next, job: Job) -> Any:
    return await call(job)


def _given(verdict: Verdict, job: Job) -> Any:
    """Make of a verdict what middlewares get to see: a value, an exception, or None for a run that is not over."""
    match verdict:
        case Over(value, None):
            return value
        case Over(_, error) | Broken(error) if error is not None:
            raise error
        case Parked(waits_for):
            job.context["waits_for"] = waits_for
    return None


def _workflow(work: Work) -> Workflow[..., Any]:
    handler: Any = work.handler
    return handler  # type: ignore[no-any-return]


def _children_of(key: str, lease: Lease) -> Callable[[Operation], NewRun]:
    """Return what makes the children of a run; they are part of its trace."""
    trace = {name: value for name, value in _headers_of(lease).items() if name in TRACE_HEADERS}

    def new_run(op: Operation) -> NewRun:
        workflow: Workflow[..., Any] = op.fn
        bound: Bound = op.args[0]
        if trace:
            own: dict[str, str] = {} if bound.like.headers is None else decode_value(bound.like.headers)
            headers = msgspec.json.encode(trace | own).decode()
            bound = Bound(bound.payload, bound.like._replace(headers=headers))
        return workflow.new_run(f"{key}/{op.key}", bound, (lease.job_id, op.key))

    return new_run


def _making(work: Work, run: Run, arguments: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    workflow = _workflow(work)
    limit = workflow.options.timeout
    deadline = None if limit is None else when(work.lease.created_at).timestamp() + limit
    injected = {**arguments, str(workflow.signature.injected): run}
    call: Callable[[], Any] = lambda: workflow.fn(**injected)  # noqa: E731 - it has no name of its own
    return lambda: bodied(run, call, deadline, limit)
