"""Durable runs: register workflows, start runs, signal them and look at them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast.app.controlling import Controls
from holdfast.bound import Bound
from holdfast.errors import ConfigError, Conflict, DatabaseBusy, DatabaseUnavailable
from holdfast.events import JobsEnqueued
from holdfast.flow import Flow, notifying
from holdfast.runs import STATUSES, RunFilter, RunView, named, runs
from holdfast.store import Shards
from holdfast.store.sharded import Within
from holdfast.store.trips import Asked, Trips, value_of
from holdfast.values.ids import LOWEST_ID, new_id, new_ids
from holdfast.values.options import HandlerOptions, only_options, switch
from holdfast.values.payload import encode_value
from holdfast.values.retry import DAY, Duration, Retry, without_exceptions
from holdfast.values.rows import OUTCOMES
from holdfast.values.shards import beside, root_of, stamp_of, stamped
from holdfast.values.spelling import spelt
from holdfast.workflows import (
    History,
    NewRun,
    Reuse,
    Run,
    RunHandle,
    Started,
    Starts,
    Workflow,
    WorkflowDecorator,
    before,
    replay,
    served,
    start,
)

P = ParamSpec("P")
R = TypeVar("R")
New = list[tuple[Workflow[..., Any], str | None, Bound]]
_TAKES = ("name", "version", "queue", "retry", "timeout", "lease", "concurrency", "priority", "key")


class DeclaresWorkflows:
    """What applications and registries share: workflows."""

    @overload
    def workflow(self, fn: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "runs",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        lease: Duration = 30,
        concurrency: int | None = None,
        priority: int = 0,
        key: str | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "runs",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        lease: Duration = 30,
        concurrency: int | None = None,
        priority: int = 0,
        key: str | None = None,
        **strange: object,
    ) -> Any:
        """Register a function whose runs survive crashes and restarts: `@hf.workflow` or `@hf.workflow(version=2, …)`.

        It takes its run first, `async def fulfil(run: Run, order_id: int)`, and reaches the world through that alone.
        name: by default the function's own. version: raise it when the order of its operations changes, and keep the
        older body with `@fulfil.version(1)` until its runs are over. retry: how many deaths of a worker without any
        progress a run outlives, and how late it is taken up again. timeout: the longest that a whole run may take.
        lease, queue, concurrency, priority, key: as in `hf.job`; the queue is "runs" by default.
        """
        only_options("hf.workflow()", strange, _TAKES)
        policy = without_exceptions(retry or Retry(), "what a run's body raises ends it; give them to its steps")
        options = HandlerOptions(queue, policy, lease, timeout, concurrency, priority, "alone", key)
        decorator = WorkflowDecorator(cast(Starts, self), name, version, options)
        return decorator if fn is None else decorator(fn)


class Runs(DeclaresWorkflows, Controls):
    """The face by which an application has durable runs."""

    def run(self, id: str, workflow: str | None = None) -> RunHandle[Any]:
        """Return a handle on a run: wait for it, look at it, signal it, cancel it.

        id: what it was started with, or the id of its job. workflow: where several workflows have a run of this id.
        """
        return RunHandle(self, id, workflow)

    @spelt
    def signal(
        self,
        run: str | RunHandle[Any],
        name: str,
        payload: Any = None,
        *,
        tx: Any = None,
        idempotency_key: str | None = None,
        window: Duration = DAY,
    ) -> bool:
        """Send a run a signal: `hf.signal("order-1", "approved", {"by": "ada"}, tx=session)`.

        It waits in the run's inbox until the run asks for it with `run.signal(name)`, by each name in the order in
        which they were sent. tx: it is sent if and only if that transaction of yours commits.
        idempotency_key: within `window`, a second signal to this run with it is not sent; False is returned.
        Raises: RunNotFound; RunFinished for a run that is over.
        """
        return self._handle(run).signal(name, payload, tx=tx, idempotency_key=idempotency_key, window=window)

    @spelt
    async def asignal(
        self,
        run: str | RunHandle[Any],
        name: str,
        payload: Any = None,
        *,
        tx: Any = None,
        idempotency_key: str | None = None,
        window: Duration = DAY,
    ) -> bool:
        """The async twin of `signal`."""
        handle = self._handle(run)
        return await handle.asignal(name, payload, tx=tx, idempotency_key=idempotency_key, window=window)

    def _handle(self, run: str | RunHandle[Any]) -> RunHandle[Any]:
        return run if isinstance(run, RunHandle) else self.run(run)

    @spelt
    def runs(
        self,
        *,
        workflow: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        waits_for: str | None = None,
        attribute: tuple[str, Any] | None = None,
        limit: int = 100,
    ) -> list[RunView]:
        """List runs, the newest first: `hf.runs(workflow="fulfil", status="waiting", attribute=("stage", "paid"))`.

        status: pending, running, waiting, stuck, done, dead or cancelled. kind: one version, "fulfil@2". waits_for: a
        part of what a run waits for, "signal:approved". attribute: what it says of itself by `run.set`.
        """
        return self.store.run(runs(_wanted(workflow, kind, status, waits_for, attribute), limit))

    @spelt
    async def aruns(
        self,
        *,
        workflow: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        waits_for: str | None = None,
        attribute: tuple[str, Any] | None = None,
        limit: int = 100,
    ) -> list[RunView]:
        """The async twin of `runs`."""
        return await self.store.arun(runs(_wanted(workflow, kind, status, waits_for, attribute), limit))

    # What handles fork and migrate runs with

    def forked(
        self, history: History, at: str, id: str | None, version: int | None
    ) -> tuple[NewRun, Workflow[..., Any]]:
        """Make the rows of a run that begins in the middle of another, which the code fits. Raises: NonDeterminism."""
        workflow = served(self.handlers, history, version)
        kept = [row for row in history.rows if row.seq in {one.seq for one in before(history, at)}]
        replay(workflow, msgspec.structs.replace(history, rows=kept, status="pending"))
        bound = Bound(msgspec.json.encode(history.arguments).decode(), workflow.bound_like())
        job_id = beside(history.job_id, new_id())
        return workflow.new_run(id or f"{history.run}~{new_id()[-8:]}", bound, job_id=job_id), workflow

    def migrated(self, history: History, version: int) -> str:
        """Make sure that the code of a version fits what was recorded, and name it.

        Raises: NonDeterminism; Conflict for a run that is over.
        """
        workflow = served(self.handlers, history, version)
        if history.status in OUTCOMES:
            raise Conflict(f"Run {history.run} is {history.status}: there is nothing left to go on with other code.")
        replay(workflow, history)
        return workflow.kind

    # What workflows start their runs with

    def start_runs(self, new: New, tx: Any, notify: bool | None, reuse: Reuse) -> list[RunHandle[Any]]:
        """Start runs that `bind` made."""
        shards = self.shards
        there = {} if shards is None else shards.go(_places(shards, new))
        rows, work = self._starting(new, notify, reuse, self.within_reach(tx), there)
        store = self._store_of([row.job for row in rows], tx)
        answers = store.run(work) if tx is None else store.run_in(tx, work, _named(new))
        started = self._started(new, rows, answers, tx)
        if self._lookout.is_due(tx):
            self._lookout.look(tx)
        return started

    async def astart_runs(self, new: New, tx: Any, notify: bool | None, reuse: Reuse) -> list[RunHandle[Any]]:
        """The async twin of `start_runs`."""
        shards = self.shards
        there = {} if shards is None else await shards.ago(_places(shards, new))
        rows, work = self._starting(new, notify, reuse, await self.awithin_reach(tx), there)
        store = await self._astore_of([row.job for row in rows], tx)
        answers = await (store.arun(work) if tx is None else store.arun_in(tx, work, _named(new)))
        started = self._started(new, rows, answers, tx)
        if self._lookout.is_due(tx):
            await self._lookout.alook(tx)
        return started

    def _starting(
        self, new: New, notify: bool | None, reuse: Reuse, within: Within | None, there: Mapping[str | None, int]
    ) -> tuple[list[NewRun], Flow[list[Started]]]:
        ids = new_ids(len(new)) if within is None else []
        if within is not None:
            # Those that are there already belong where they are; `start` finds them.
            beside = [stamped(LOWEST_ID, there[key]) for _, key, _ in new if key in there]
            likes = [
                bound.like._replace(key=bound.like.key or (None if key is None else root_of(key)))
                for _, key, bound in new
                if key not in there
            ]
            drawn = iter(within.new_ids(likes, beside))
            ids = [stamped(new_id(), there[key]) if key in there else next(drawn) for _, key, _ in new]
        hooked = self._hooked([bound for _, _, bound in new], ids)
        rows = [
            workflow.new_run(key, bound, job_id=job_id)
            for (workflow, key, _), bound, job_id in zip(new, hooked, ids, strict=True)
        ]
        return rows, notifying(start(rows, reuse=reuse), switch(notify, "notify"))

    def _started(self, new: New, rows: list[NewRun], answers: list[Started], tx: Any) -> list[RunHandle[Any]]:
        handles: list[RunHandle[Any]] = [
            RunHandle(self, row.key, row.workflow, answer.job_id, answer.created, workflow.returns)
            for (workflow, _, _), row, answer in zip(new, rows, answers, strict=True)
        ]
        added = [row.job for row, answer in zip(rows, answers, strict=True) if answer.created]
        if added and self.events.wants(JobsEnqueued):
            kinds, queues = [job.kind for job in added], [job.queue for job in added]
            in_tx = tx is not None or self.store.open_tx() is not None
            self.events.emit(JobsEnqueued([job.id for job in added], kinds, in_tx, queues))
        if tx is None:
            self.context.wake_workers()
        return handles


def _wanted(
    workflow: str | None,
    kind: str | None,
    status: str | None,
    waits_for: str | None,
    attribute: tuple[str, Any] | None,
) -> RunFilter:
    if status is not None and status not in STATUSES:
        raise ConfigError("status", f"must be one of {', '.join(STATUSES)}", status)
    said = None if attribute is None else (attribute[0], encode_value(attribute[1], "attribute"))
    return RunFilter(workflow, kind, status, waits_for, said)


def _places(shards: Shards, new: New) -> Trips[dict[str | None, int]]:
    """Find runs of these ids that are there already, in another shard than their ids say.

    Keys may have gone to another shard since they were started; a child is where its parent is, and a run with a key
    where that belongs.
    """
    yield from shards.within(None)
    known = shards.known
    moved = known is not None and known.version > 1
    keys = [key for _, key, bound in new if key is not None and (moved or "/" in key or bound.like.key is not None)]
    if not keys or known is None:
        return {}
    # Where they may be: a shard that has nothing to do with them costs them nothing when it is away.
    likely = {number for key in keys for number in shards.order(known, key)[:2]}
    # The children of runs whose ids were drawn are where those say.
    stamps = {key: stamp_of(root_of(key)) for key in keys if "/" in key}
    found: dict[str | None, int] = {key: stamp for key, stamp in stamps.items() if stamp is not None}
    answers = yield [Asked(store, Flow("named", lambda: named(keys))) for store in shards.stores]
    for number, answer in enumerate(answers):
        if not isinstance(answer, DatabaseUnavailable | DatabaseBusy) or number in likely:
            found |= dict.fromkeys(value_of(answer), number)
    return found


def _named(new: New) -> str:
    return new[0][0].kind if new else "nothing"
