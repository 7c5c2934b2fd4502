"""Attempts of runs: load the journal, drive the body, and make an end of what it came to."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast import events, runs
from holdfast.bound import Bound, continuing
from holdfast.context import Context
from holdfast.errors import DatabaseBusy, DatabaseUnavailable, RunFinished, RunNotFound
from holdfast.flow import Flow, Steps, flow
from holdfast.runs import RUN_HEADER, STUCK, Recorded
from holdfast.store import Store
from holdfast.values.failure import words
from holdfast.values.ids import new_id
from holdfast.values.payload import decode_value
from holdfast.values.rows import Continued, Park, when
from holdfast.worker.begins import Begins
from holdfast.worker.checkpoint_writer import CheckpointWriter
from holdfast.worker.db_clock import DbClock, read_clock
from holdfast.worker.handler_executor import Executor
from holdfast.worker.handler_threads import Threads
from holdfast.worker.run_driver import PAUSE_SECONDS, RunDriver
from holdfast.worker.run_verdicts import Broken, Lost, Over, Parked, Stuck, Verdict
from holdfast.worker.step_calls import StepCalls
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


class RunExecutor(Executor):
    """Runs workflows for one worker and store. A slot is taken only while something of a run is under way."""

    def __init__(
        self, context: Context, worker: str, threads: Threads, begins: Begins | None = None, store: Store | None = None
    ) -> None:
        super().__init__(context, worker, threads, begins, store)
        self.clock = DbClock(self._store)
        self.writer = CheckpointWriter(self.insist, worker, self.clock)
        self.calls = StepCalls(self._store, threads, worker)
        self.payload_limit = self._store.options.payload_limit
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

    async def stop_run(self, key: str, workflow: str) -> None:
        """Ask a child to stop; one that is over already needs nothing."""
        letter = stop_letter()
        with suppress(RunFinished, RunNotFound):
            await self.insist(runs.send(key, letter, workflow, fresh=False))

    async def _attempt(self, work: Work) -> Ended:
        work.started = time.monotonic()
        if self._context.events.wants(events.JobStarted):
            about = self._outcomes.about(work)
            started = events.JobStarted(*about, source=work.source.name, waited=work.waited())
            self._variables.copy().run(self._context.events.emit, started)
        try:
            arguments = work.handler.signature.decode(work.lease.payload, work.handler.kind)
        except BaseException as error:
            # The payload will read no better the next time.
            return self._outcomes.dead(work, error)
        try:
            loaded = await self._loaded(work)
            verdict = await self._driven(work, loaded, arguments)
        except BaseException as error:
            return self._outcomes.read(self._outcomes.raised, work, error)
        return await self._ended(work, verdict, loaded)

    async def _loaded(self, work: Work) -> Loaded:
        """Read what is there of a run; one that was never claimed before has an empty journal."""
        lease = work.lease
        if not self.clock.known:
            self.clock.learn((await self.insist(read_clock())).timestamp())
        headers: dict[str, str] = {} if lease.headers is None else decode_value(lease.headers)
        key = headers.get(RUN_HEADER)
        if key is None:
            await self.insist(adopt(lease.job_id, _workflow(work).workflow))
        if lease.fence <= 1:
            return Loaded(key or lease.job_id, [])
        head, rows = await self.insist(_load(lease.job_id))
        return Loaded(head.key if head is not None else lease.job_id, rows, head is not None and head.stuck is not None)

    async def _driven(self, work: Work, loaded: Loaded, arguments: dict[str, Any]) -> Verdict:
        lease, workflow = work.lease, _workflow(work)
        body = Body(lease.job_id, self.clock.now)
        run = Run(body, loaded.key, lease.job_id, workflow.workflow, workflow.number)
        driver = RunDriver(self, lease, body, _children_of(loaded.key, lease.job_id))
        loop = asyncio.get_running_loop()
        loop.call_soon(driver.begin, loaded.rows, _making(work, run, arguments), self._variables.copy())
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
                await asyncio.wait([driver.verdict])
                return driver.verdict.result()
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
                for job_id, names in (await self.insist(runs.news(list(asked)))).items():
                    if asked[job_id].wants(names):
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


@flow
def _load(job_id: str) -> Steps[tuple[runs.Head | None, list[Recorded]]]:
    head = yield from runs.head(job_id).start()
    return head, (yield from runs.journal(job_id).start())


@flow
def _stop_one(job_id: str, request: str) -> Steps[None]:
    yield from runs.asked_to_stop([job_id], [request])


def _workflow(work: Work) -> Workflow[..., Any]:
    handler: Any = work.handler
    return handler  # type: ignore[no-any-return]


def _children_of(key: str, job_id: str) -> Callable[[Operation], NewRun]:
    def new_run(op: Operation) -> NewRun:
        workflow: Workflow[..., Any] = op.fn
        return workflow.new_run(f"{key}/{op.key}", op.args[0], (job_id, op.key))

    return new_run


def _making(work: Work, run: Run, arguments: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    workflow = _workflow(work)
    limit = workflow.options.timeout
    deadline = None if limit is None else when(work.lease.created_at).timestamp() + limit
    injected = {**arguments, str(workflow.signature.injected): run}
    call: Callable[[], Any] = lambda: workflow.fn(**injected)  # noqa: E731 - it has no name of its own
    return lambda: bodied(run, call, deadline, limit)
