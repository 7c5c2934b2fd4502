"""For an application's own tests: run what is due here and now, and see what was enqueued.

No worker, no threads to wait for, no time to pass: the jobs run in the calling test, through the same executor and the
same fenced writes that a worker uses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import admin, events, jobs, lines, remote, runs, schedules, sinks
from holdfast.app import Holdfast
from holdfast.errors import ConfigError, JobNotFound, WrongColour
from holdfast.flow import Flow
from holdfast.handlers import Handler, Registration
from holdfast.jobs.source import OURS
from holdfast.life.source import Source
from holdfast.outbox import Route
from holdfast.sinks import Function, Jobs, Sink
from holdfast.store import Store
from holdfast.testing.django_tests import acheck_database
from holdfast.values.failure import words
from holdfast.values.given import told as told_hint
from holdfast.values.pauses import Paused
from holdfast.values.payload import decode_value
from holdfast.values.queues import QueueSettings
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import End, Finish, Lease, Park, PutBack
from holdfast.values.views import JobView
from holdfast.worker.breaker import Breakers
from holdfast.worker.bulk_executor import BulkExecutor
from holdfast.worker.completed import set_right
from holdfast.worker.handler_executor import Executor
from holdfast.worker.handler_threads import Errand, Threads
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.relay_executor import RelayExecutor
from holdfast.worker.rounds.schedules import told
from holdfast.worker.route_source import Delivery, RouteSource
from holdfast.worker.run_executor import RunExecutor
from holdfast.worker.work import BaseExecutor, Ended, Work
from holdfast.workflows import History, Replayed, RunHandle, served
from holdfast.workflows import replay as replay_history

# What hooks have for what follows their `yield`.
HOOKS_END_SECONDS = 5.0
# A job that enqueues itself again and again must not hang a test.
MOST_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that `run_due` made; `outcome` is done, retried, snoozed, dead, cancelled or lost,
    and for a run also waiting or stuck."""

    id: str
    kind: str
    outcome: str
    result: Any
    error: str | None


def run_due(
    app: Holdfast,
    *,
    ahead: Duration = 0,
    raise_errors: bool = True,
    limit: int = MOST_JOBS,
    own_database: bool = False,
) -> list[Ran]:
    """Run every due job, and those they enqueue, until none is due; return what ran, in order.

    Events are delivered, too, by routes to functions, to queues of ours and to sinks of your own; those for brokers
    stay. What is paused does not run. `ahead` runs as if that time had passed, for delayed and retried jobs and for
    ticks. Schedules that the application declares are stored first, and what ticks they owe then is enqueued.
    The hooks of `on_start` run before the first job, and end after the last; `given` has a test's own instead.
    A handler's exception is raised after the attempt is recorded; `raise_errors=False` leaves it to the outcome.
    Not inside a running event loop: `arun_due`.
    Inside Django's tests it refuses a database other than theirs; `own_database=True` says that it is for tests, too.
    """
    run = partial(arun_due, app, ahead=ahead, raise_errors=raise_errors, limit=limit, own_database=own_database)
    return app.store.run_async(_run_and_close(app, run))


async def _run_and_close(app: Holdfast, run: Callable[[], Awaitable[list[Ran]]]) -> list[Ran]:
    try:
        return await run()
    finally:
        for store in app.stores:
            store.forget_loop()


async def arun_due(
    app: Holdfast,
    *,
    ahead: Duration = 0,
    raise_errors: bool = True,
    limit: int = MOST_JOBS,
    own_database: bool = False,
) -> list[Ran]:
    """The async twin of `run_due`."""
    if not own_database:
        await acheck_database(app)
    if app.context.declared_schedules():
        await app.async_schedules()
    hooks = app.context.hooks
    hooks.check((kind, handler.signature) for kind, handler in app.handlers.items())
    resources = hooks.resources()
    before = app.store.now
    wait = timedelta(seconds=seconds(ahead, "ahead"))
    app.store.now = before if not wait else (before or datetime.now(UTC)) + wait
    try:
        await resources.start()
        return await _Inline(app, raise_errors, limit, resources.values).run()
    finally:
        await resources.stop(HOOKS_END_SECONDS)
        app.store.now = before


@contextmanager
def given(app: Holdfast, resources: Mapping[Any, Any]) -> Iterator[None]:
    """Give handlers these instead of what hooks give, by annotation: `with given(hf, {httpx.AsyncClient: fake}): …`.

    The hooks that give them do not run, in `run_due` and in workers that are made inside the block.
    Raises: ConfigError for what no hook gives and no handler asks for.
    """
    instead = app.context.hooks.instead
    known = {hook.gives for hook in app.context.hooks.all}
    known.update(hint for handler in app.handlers.values() for hint in handler.signature.given.values())
    for hint in resources:
        if hint not in known:
            raise ConfigError("given", "must name what an on_start hook gives, or a handler asks for", told_hint(hint))
    before = dict(instead)
    instead.update(resources)
    try:
        yield
    finally:
        instead.clear()
        instead.update(before)


def skip(app: Holdfast, *, raise_errors: bool = True, own_database: bool = False, **time: float) -> list[Ran]:
    """Let time pass for the application, `skip(hf, days=1)`, and run what is due then; return what ran, in order.

    time: what `timedelta` takes. From the first call on the application's clock stands still and moves by `skip` alone.
    Not inside a running event loop: `askip`.
    """
    run = partial(askip, app, raise_errors=raise_errors, own_database=own_database, **time)
    return app.store.run_async(_run_and_close(app, run))


async def askip(app: Holdfast, *, raise_errors: bool = True, own_database: bool = False, **time: float) -> list[Ran]:
    """The async twin of `skip`."""
    app.store.now = (app.store.now or datetime.now(UTC)) + timedelta(**time)
    return await arun_due(app, raise_errors=raise_errors, own_database=own_database)


def replay(
    app: Holdfast,
    history: RunHandle[Any] | History | Mapping[str, Any] | str | bytes | Path,
    version: int | None = None,
) -> Replayed:
    """Check a recorded history of a run against the code of today; no step is made, and nothing is written.

    history: the path or the text of a file that `holdfast runs export` has written, or a run: `hf.run("order-1")`.
    version: check it against this version of its workflow, by default against the run's own.
    Raises: NonDeterminism, when the code does something else than was recorded; a run would be stuck with it.
    """
    found = history.export() if isinstance(history, RunHandle) else History.read(history)
    return replay_history(served(app.handlers, found, version), found)


class _Inline:
    """One round of `run_due`."""

    def __init__(self, app: Holdfast, raise_errors: bool, limit: int, given: Mapping[Any, Any]) -> None:
        self._app = app
        self._raise = raise_errors
        self._left = limit
        threads = Threads(1, "holdfast-inline") if not app.store.joins else _TestsOwnThread(app.store)
        self._executors: dict[str, BaseExecutor] = {
            "handler": Executor(app.context, "inline", threads),
            "bulk": BulkExecutor(app.context, "inline", threads),
            "run": RunExecutor(app.context, "inline", threads),
            "relay": RelayExecutor(app.context, "inline", threads),
        }
        for executor in self._executors.values():
            executor.given = given
        self._breakers = Breakers("inline", app.events.emit, lambda: None)
        # Deliveries to what is in this process, by their kinds, and where they come from.
        self._relays = {one.queue: self._relay(one) for one in app.context.routes if _is_at_hand(one.sink)}
        self._handlers: dict[str, Registration[..., Any]] = {
            **app.handlers,
            **{kind: one.handlers[kind] for kind, one in self._relays.items()},
        }
        # Claimed together with a batch that is run, and not part of it.
        self._beside: list[Work] = []
        # What is stored of queues.
        self._settings: dict[str, QueueSettings] = {}
        self._leases = {kind: round(handler.options.lease * 1000) for kind, handler in self._handlers.items()}

    def _relay(self, route: Route) -> RouteSource:
        return RouteSource(Delivery(route), self._breakers.of(route.sink), floors=False)

    async def run(self) -> list[Ran]:
        ran: list[Ran] = []
        await self._tick()
        await self._app.store.arun(runs.tell())
        await self._ring()
        try:
            while works := await self._next():
                ended = await self._attempt(works)
                ran += [_ran(one, await self._result(one)) for one in ended]
        finally:
            for sink in self._breakers.sinks:
                await sink.close()
            if self._beside:
                back = [PutBack(work.lease.id, work.lease.fence, None, 1) for work in self._beside]
                await self._app.store.arun(jobs.settle(back))
        return ran

    async def _ring(self) -> None:
        """Tell runs of the results of their remote steps that are there."""
        for engine in self._app.context.engines.values():
            await engine.aprepare()
            await self._app.store.arun(remote.ring(engine.transport))

    async def _tick(self) -> None:
        """Do the ticks that are due, where the application has schedules."""
        store = self._app.store
        due = await store.arun(schedules.coming()) if self._app.context.schedules else []
        for one in due:
            while one.seconds <= 0 and (ticked := await store.arun(schedules.tick(one.name))) is not None:
                for event in told("inline", ticked):
                    self._app.events.emit(event)

    async def _next(self) -> list[Work]:
        """Claim the next job, and what a bulk handler would take along with it."""
        if not self._leases:
            return []
        if self._beside:
            return self._batch(self._beside)
        if self._left <= 0:
            raise RuntimeError("run_due stopped: jobs keep enqueueing jobs; raise limit if they are meant to")
        paused = Paused.of(await self._app.store.arun(jobs.pauses()))
        # A sink that is down is not called again: its deliveries stay as they are.
        down = {kind for kind, one in self._relays.items() if one.breaker.is_open}
        leases = {kind: lease for kind, lease in self._leases.items() if kind not in paused.kinds | down}
        queues = sorted(await self._queues() - paused.queues)
        self._settings = {name: one.settings for name, one in (await self._app.store.arun(self._declaring())).items()}
        works = await self._claim(queues, leases, 1) if leases and queues else []
        more = min(self._left, works[0].handler.size - 1) if works else 0
        if more > 0:
            kind = works[0].handler.kind
            works += await self._claim(queues, {kind: leases[kind]}, more)
        return self._batch(works)

    async def _queues(self) -> set[str]:
        """Name the queues of the handlers, and those in which something is due."""
        late = await self._app.store.arun(admin.oldest_pending())
        return {handler.options.queue for handler in self._handlers.values()} | {lag.queue for lag in late}

    async def _claim(self, queues: list[str], leases: dict[str, int], limit: int) -> list[Work]:
        """Claim jobs that may run; behind what waits for parents, or is to be cancelled, there may be more."""
        while True:
            claimed = await self._claim_any(queues, leases, limit)
            found = bool(claimed)
            self._left -= len(claimed)
            if any(map(jobs.has_parents, claimed)):
                claimed = await self._app.store.arun(jobs.meet(claimed))
            works = [self._work(lease) for lease in claimed if not await self._stopped(lease)]
            if works or not found or self._left <= 0:
                return works

    async def _claim_any(self, queues: list[str], leases: dict[str, int], limit: int) -> list[Lease]:
        plain = [name for name in queues if name not in self._settings or self._settings[name].is_plain]
        claimed = await self._app.store.arun(jobs.claim(plain, limit=limit, worker="inline", leases=leases))
        for name in queues:
            if name not in plain and not claimed:
                # One at a time, as order wants it; what a rate does not let start now is not due.
                claiming = lines.claim(name, self._settings[name], limit=1, worker="inline", leases=leases)
                claimed = (await self._app.store.arun(claiming)).leases
        return claimed

    async def _stopped(self, lease: Lease) -> bool:
        """End a job that was asked to stop before it ran."""
        stop = lease.cancel_requested
        handler = self._app.handlers.get(lease.kind)
        if not isinstance(stop, str) and handler is not None and handler.executor == "run":
            # It hears of that itself, and cleans up.
            return False
        if stop:
            await self._app.store.arun(jobs.settle([Finish(lease.id, lease.fence, "cancelled")]))
        return bool(stop)

    def _declaring(self) -> Flow[dict[str, lines.Stored]]:
        return lines.declare({name: one.settings for name, one in self._app.context.queues.items()})

    def _work(self, lease: Lease) -> Work:
        handler = self._handlers[lease.kind]
        keep = self._app.queue_options(lease.queue).keep_done > 0
        source: Source = self._relays.get(lease.kind, OURS)
        return Work(lease, handler, keep, time.monotonic(), source, self._executors[handler.executor])

    def _batch(self, works: list[Work]) -> list[Work]:
        """Take what runs in one call; the rest, which was tried before or is to run alone, is next."""
        if not works:
            return []
        executor: Any = works[0].executor
        batch = [work for work in works if executor.goes_with(works[0], work)][: executor.batch_of(works[0])]
        self._beside = [work for work in works if work not in batch]
        return batch

    async def _attempt(self, works: list[Work]) -> Sequence[Ended]:
        ends = await set_right(self._app.store.arun, Outcomes("inline", self._app.events), await self._marked(works))
        writes = [ended.write for ended in ends if ended.write is not None]
        if writes:
            await self._app.store.arun(jobs.settle(writes))
        self._app.context.waits.ended([ended.work.lease.job_id for ended in ends])
        for ended in ends:
            if ended.event is not None:
                self._app.events.emit(ended.event)
        if self._raise:
            for error in filter(None, (ended.error for ended in ends)):
                raise error
        return ends

    async def _marked(self, works: list[Work]) -> Sequence[Ended]:
        """Attempt works; one that broke the test's own transaction by its failure is undone, and can be recorded."""
        store = self._app.store
        leave = await store.on_its_thread(store.mark) if store.joins else None
        failed = True
        try:
            executor: Any = works[0].executor
            batched = executor.batch_limit > 1
            ends: list[Ended] = await executor.attempt_batch(works) if batched else [await executor.attempt(works[0])]
            failed = any(ended.error is not None for ended in ends) and not any(ended.work.settled for ended in ends)
        finally:
            if leave is not None:
                await store.on_its_thread(partial(leave, failed))
        return ends

    async def _result(self, ended: Ended) -> Any:
        """Read the result that was stored: a handler that completed its job by itself may return another, or none."""
        try:
            return (await self._app.store.arun(admin.show(ended.work.lease.job_id))).result
        except JobNotFound:
            # Its queue keeps nothing of done jobs.
            write, job = ended.write, ended.work.job
            if isinstance(write, Finish):
                return None if write.result is None else decode_value(write.result)
            return None if job is None else job.result


class _TestsOwnThread(Threads):
    """Runs errands where the test runs: its transaction is that thread's, and no other sees what is in it."""

    def __init__(self, store: Store) -> None:
        super().__init__(1, "holdfast-inline")
        self._store = store

    def run(self, errand: Errand) -> None:
        going = asyncio.ensure_future(self._store.on_its_thread(errand.run))
        going.add_done_callback(lambda done: None if done.cancelled() else errand.settle(done.result()))


def _is_at_hand(sink: Sink) -> bool:
    """Tell whether a sink is a function, a queue of ours, or a class of the test's own: nothing that needs a broker."""
    return isinstance(sink, Function | Jobs) or not type(sink).__module__.startswith(f"{sinks.__name__}.")


def _ran(ended: Ended, result: Any) -> Ran:
    lease = ended.work.lease
    # No event: nobody listens to it.
    outcome = _written(ended.write) if ended.event is None else _OUTCOMES.get(type(ended.event), "done")
    return Ran(lease.job_id, lease.kind, outcome, result, None if ended.error is None else words(ended.error))


def _written(write: End | None) -> str:
    if isinstance(write, Park):
        return "waiting"
    if isinstance(write, PutBack):
        return "snoozed" if write.attempts_back else "retried"
    return write.outcome if isinstance(write, Finish) else "done"


_OUTCOMES: dict[type[events.Event], str] = {
    events.JobDone: "done",
    events.JobRetried: "retried",
    events.JobSnoozed: "snoozed",
    events.JobDead: "dead",
    events.JobCancelled: "cancelled",
    events.JobExpired: "cancelled",
    events.LeaseWasLost: "lost",
    events.RunParked: "waiting",
    events.RunStuck: "stuck",
}


def enqueued(app: Holdfast, job: Handler[..., Any] | str | None = None, *, tx: Any = None) -> list[JobView]:
    """List the pending jobs, of one handler or kind, oldest first; `tx` looks inside the test's own transaction."""
    with _advising("enqueued()", "aenqueued()"):
        return app.store.run(_pending(job)) if tx is None else app.store.run_in(tx, _pending(job))


async def aenqueued(app: Holdfast, job: Handler[..., Any] | str | None = None, *, tx: Any = None) -> list[JobView]:
    """The async twin of `enqueued`."""
    with _advising("aenqueued()", "enqueued()"):
        return await (app.store.arun(_pending(job)) if tx is None else app.store.arun_in(tx, _pending(job)))


def assert_enqueued(
    app: Holdfast, job: Handler[..., Any] | str, *, times: int | None = None, tx: Any = None, **arguments: Any
) -> None:
    """Assert that a job of this handler or kind waits with these arguments (others may be there too).

    `times` asks for an exact count. The failure lists what is there instead. A kind or an argument that is misspelt
    fails as well, also with times=0.
    """
    __tracebackhide__ = True
    with _advising("assert_enqueued()", "aassert_enqueued()"):
        _compare(app, enqueued(app, job, tx=tx), _kind(job), times, arguments)


async def aassert_enqueued(
    app: Holdfast, job: Handler[..., Any] | str, *, times: int | None = None, tx: Any = None, **arguments: Any
) -> None:
    """The async twin of `assert_enqueued`: for async connections and sessions as `tx`."""
    __tracebackhide__ = True
    with _advising("aassert_enqueued()", "assert_enqueued()"):
        _compare(app, await aenqueued(app, job, tx=tx), _kind(job), times, arguments)


@contextmanager
def _advising(call: str, use: str) -> Iterator[None]:
    """Name the twin of the call that the test made, where a connection is of the other colour."""
    try:
        yield
    except WrongColour as error:
        raise WrongColour(call, use) from error.__cause__


def _kind(job: Handler[..., Any] | str | None) -> str | None:
    return job.kind if isinstance(job, Handler) else job


def _pending(job: Handler[..., Any] | str | None) -> Flow[list[JobView]]:
    return admin.list_jobs(admin.Filter(states=("pending",), kind=_kind(job)), limit=1000, newest=False)


def _spelt(app: Holdfast, kind: str, arguments: Iterable[str]) -> None:
    """Fail for what no job can be: with times=0 a misspelt name would prove nothing."""
    __tracebackhide__ = True
    handler = app.handlers.get(kind)
    if handler is None:
        near = get_close_matches(kind, app.handlers, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(app.handlers) or 'none'}"
        rest = f"For jobs of other programs look at enqueued(hf, {kind!r})."
        raise AssertionError(f"{kind!r} is not the kind of a handler of this application; {hint} {rest}")
    takes = list(handler.signature.traits)
    if strange := [name for name in arguments if name not in takes]:
        near = get_close_matches(strange[0], takes, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes) or 'no arguments'}"
        raise AssertionError(f"{kind} takes no argument {strange[0]!r}; {hint}")


def _compare(
    app: Holdfast, pending: list[JobView], kind: str | None, times: int | None, arguments: dict[str, Any]
) -> None:
    __tracebackhide__ = True
    if kind is not None and (not pending or kind in app.handlers):
        _spelt(app, kind, arguments)
    payloads = [decode_value(view.payload) for view in pending]
    matching = [p for p in payloads if all(name in p and p[name] == value for name, value in arguments.items())]
    wanted = len(matching) == times if times is not None else bool(matching)
    if wanted:
        return
    asked = "at least once" if times is None else f"{times} times"
    there = "\n".join(f"  {payload}" for payload in payloads) or "  (nothing)"
    raise AssertionError(f"expected {kind} with {arguments} {asked}; found {len(matching)} among the pending:\n{there}")
