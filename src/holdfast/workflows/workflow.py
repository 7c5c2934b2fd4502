"""Workflows: functions that runs call, in all their versions, and the typed ways to start them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

import msgspec

from holdfast.bound import Bound
from holdfast.errors import ConfigError
from holdfast.handlers import Application, Handler, Using, name_for, vacant
from holdfast.runs import RUN_HEADER
from holdfast.values.ids import new_id
from holdfast.values.options import EnqueueKeywords, HandlerOptions, kind_name, text
from holdfast.values.payload import Signature, decode_value
from holdfast.values.retry import whole
from holdfast.values.rows import NewJob
from holdfast.values.shards import beside
from holdfast.workflows.handle import RunHandle, Running
from holdfast.workflows.operations import digest_of, type_of
from holdfast.workflows.run import Run
from holdfast.workflows.starting import NewRun, Reuse

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

RUN_KEY_LENGTH = 200
# What `start` takes for itself.
_TAKEN = ("id", "tx", "notify", "reuse")


class Starts(Running, Application, Protocol):
    """An application that workflows are registered on."""

    handlers: dict[str, Handler[..., Any]]

    def start_runs(
        self, new: list[tuple[Workflow[..., Any], str | None, Bound]], tx: Any, notify: bool | None, reuse: Reuse
    ) -> list[RunHandle[Any]]: ...

    async def astart_runs(
        self, new: list[tuple[Workflow[..., Any], str | None, Bound]], tx: Any, notify: bool | None, reuse: Reuse
    ) -> list[RunHandle[Any]]: ...


class Workflow(Handler[P, R_co]):
    """A function that runs call, in one version. Jobs of its kind, `fulfil@2`, are runs, however they are enqueued."""

    executor = "run"

    def __init__(self, app: Starts, fn: Callable[..., Any], name: str, version: int, options: HandlerOptions) -> None:
        if not inspect.iscoroutinefunction(fn):
            raise ConfigError(name, "a workflow must be an `async def` function", fn)
        signature = Signature.of(fn, Run)
        if signature.injected is None:
            rule = f"a workflow takes its run first, as in `async def {name}(run: Run, order_id: int)`"
            raise ConfigError(name, rule, str(inspect.signature(fn)))
        if signature.given:
            rule = "a workflow reaches the world by its steps: ask for it there, with `= GIVEN`"
            raise ConfigError(f"parameter {next(iter(signature.given))} of {name}", rule, str(inspect.signature(fn)))
        if taken := [each for each in _TAKEN if each in signature.traits]:
            raise ConfigError(name, f"a workflow has no parameter {taken[0]}, which start() takes for itself", taken[0])
        super().__init__(app, fn, f"{name}@{version}", options, signature)
        self.starts = app
        self.workflow = name
        self.number = version
        self.returns = type_of(fn)
        # What starts are of: the version that was registered as the workflow itself.
        self.current: Workflow[..., Any] = self

    def join(self, app: Application, kind: str) -> None:
        super().join(app, kind)
        self.starts = cast(Starts, app)
        self.workflow = kind.rpartition("@")[0]

    def version(self, number: int) -> VersionDecorator:
        """Keep the body of an older version for the runs that were started with it: `@fulfil.version(1)`."""
        return VersionDecorator(self, whole(number, "version", 1, 1_000_000))

    def start(
        self,
        *args: Any,
        id: str | None = None,
        tx: Any = None,
        notify: bool | None = None,
        reuse: Reuse = "never",
        **kwargs: Any,
    ) -> RunHandle[R_co]:
        """Start a run, once for this id: a second start finds the first run, as long as that is kept.

        id: what the run is called, by default a new UUID. tx: the run is there if and only if that transaction of yours
        commits. notify: as in `Handler.using`. reuse: "finished" lets a run that is over give its id to the new one.
        Raises: Conflict, when the run is there with other arguments; InvalidPayload.
        """
        [handle] = self.starts.start_runs([(self, id, self.bound(self._like, args, kwargs))], tx, notify, reuse)
        return handle

    async def astart(
        self,
        *args: Any,
        id: str | None = None,
        tx: Any = None,
        notify: bool | None = None,
        reuse: Reuse = "never",
        **kwargs: Any,
    ) -> RunHandle[R_co]:
        """The async twin of `start`."""
        [handle] = await self.starts.astart_runs([(self, id, self.bound(self._like, args, kwargs))], tx, notify, reuse)
        return handle

    def using(
        self, *, tx: Any = None, notify: bool | None = None, **options: Unpack[EnqueueKeywords]
    ) -> UsingRun[P, R_co]:
        """Say something about the runs to start: `fulfil.using(priority=10).start(order_id=1)`; see `Handler.using`."""
        said = super().using(tx=tx, notify=notify, **options)
        return UsingRun(self, said.like, tx, notify)

    def start_many(
        self,
        runs: Mapping[str, Bound] | Iterable[Bound],
        *,
        tx: Any = None,
        notify: bool | None = None,
        reuse: Reuse = "never",
    ) -> list[RunHandle[R_co]]:
        """Start many runs at once, all or none: `fulfil.start_many({"order-1": fulfil.bind(order_id=1), …})`.

        Without ids, in a list, each gets a new one. The other arguments are those of `start`.
        """
        return self.starts.start_runs(self._each(runs), tx, notify, reuse)

    async def astart_many(
        self,
        runs: Mapping[str, Bound] | Iterable[Bound],
        *,
        tx: Any = None,
        notify: bool | None = None,
        reuse: Reuse = "never",
    ) -> list[RunHandle[R_co]]:
        """The async twin of `start_many`."""
        return await self.starts.astart_runs(self._each(runs), tx, notify, reuse)

    def _each(self, runs: Mapping[str, Bound] | Iterable[Bound]) -> list[tuple[Workflow[..., Any], str | None, Bound]]:
        named = cast(Mapping[str, object], runs).items() if isinstance(runs, Mapping) else None
        given: Iterable[tuple[str | None, object]] = ((None, one) for one in runs) if named is None else named
        new: list[tuple[Workflow[..., Any], str | None, Bound]] = []
        for key, bound in given:
            if not isinstance(bound, Bound) or bound.kind != self.kind:
                raise ConfigError("runs", f"must be made by {self.workflow}.bind(…)", bound)
            new.append((self, key, bound))
        return new

    def bound_like(self) -> NewJob:
        """Return the row that all jobs of this version share."""
        return self._like

    def new_run(
        self, key: str | None, bound: Bound, parent: tuple[str, str] | None = None, job_id: str | None = None
    ) -> NewRun:
        """Make the rows of a run; job_id: of its job, where that is not drawn here."""
        job_id = job_id or (new_id() if parent is None else beside(parent[0], new_id()))
        key = run_key(job_id if key is None else key)
        own: dict[str, str] = {} if bound.like.headers is None else decode_value(bound.like.headers)
        headers = msgspec.json.encode(own | {RUN_HEADER: key}).decode()
        job = bound.new_job(job_id)._replace(headers=headers)
        return NewRun(job, self.workflow, key, digest_of(bound.payload), *(parent or (None, None)))


class UsingRun(Using[P], Generic[P, R_co]):
    """A workflow with something said about the runs to come: `fulfil.using(run_after=60).start(…)`."""

    def __init__(self, workflow: Workflow[P, R_co], like: NewJob, tx: Any, notify: bool | None) -> None:
        super().__init__(workflow, like, tx, notify)
        self._workflow = workflow

    def start(self, *args: Any, id: str | None = None, reuse: Reuse = "never", **kwargs: Any) -> RunHandle[R_co]:
        """Start a run, once for this id, as `Workflow.start` does."""
        new = self._new(id, args, kwargs)
        [handle] = self._workflow.starts.start_runs([new], self._tx, self._notify, reuse)
        return handle

    async def astart(self, *args: Any, id: str | None = None, reuse: Reuse = "never", **kwargs: Any) -> RunHandle[R_co]:
        """The async twin of `start`."""
        new = self._new(id, args, kwargs)
        [handle] = await self._workflow.starts.astart_runs([new], self._tx, self._notify, reuse)
        return handle

    def _new(
        self, id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Workflow[..., Any], str | None, Bound]:
        return self._workflow, id, self._workflow.bound(self.like, args, kwargs)


def run_key(key: object) -> str:
    """Check the id of a run."""
    return text(key, "id", RUN_KEY_LENGTH)


class VersionDecorator:
    """What `@fulfil.version(1)` returns: applied to a function, it registers it for the runs of that version."""

    def __init__(self, workflow: Workflow[..., Any], version: int) -> None:
        self._workflow = workflow
        self._version = version

    def __call__(self, fn: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]:
        current = self._workflow.current
        older: Any = register(current.starts, fn, current.workflow, self._version, replace(current.options))
        older.current = current
        return older  # type: ignore[no-any-return]


def register(
    app: Starts, fn: Callable[..., Any], name: str, version: int, options: HandlerOptions
) -> Workflow[..., Any]:
    """Register a function as one version of a workflow."""
    name = kind_name(name)
    if "@" in name:
        raise ConfigError("name", "must not have @ in it, which stands before the version", name)
    found: Workflow[..., Any] = Workflow(app, fn, name, version, options)
    vacant(app.handlers, kind_name(found.kind), fn, "version", "each version of a workflow has one function")
    app.handlers[found.kind] = found
    return found


class WorkflowDecorator:
    """What `@hf.workflow(…)` returns: applied to a function, it registers it and keeps its types."""

    def __init__(self, app: Starts, name: str | None, version: int, options: HandlerOptions) -> None:
        self._app = app
        self._name = name
        self._version = whole(version, "version", 1, 1_000_000)
        self._options = options

    def __call__(self, fn: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]:
        name = name_for(fn, self._name, "hf.workflow", "name")
        made: Any = register(self._app, fn, name, self._version, self._options)
        return made  # type: ignore[no-any-return]
