"""Registering: handlers, bulk handlers, queues, and what is called around attempts and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from holdfast.app.batching import Batches
from holdfast.bulk import Bulk, BulkDecorator, BulkHandler, Registrar
from holdfast.context import Around, Middleware
from holdfast.errors import ConfigError
from holdfast.events import Event
from holdfast.handlers import Handler, name_for, vacant
from holdfast.job import Job
from holdfast.resources import Hook, Hooks
from holdfast.telling import check_event
from holdfast.values.options import Commit, HandlerOptions, kind_name, only_options
from holdfast.values.reserved import unreserved
from holdfast.values.retry import Duration, Retry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Callable[..., Any])


class Declares:
    """What applications and registries share: handlers, bulk handlers, and hooks of the worker's start."""

    handlers: dict[str, Handler[..., Any]]
    _start_hooks: Hooks

    def on_start(self, fn: F) -> F:
        """Run a function when a worker starts, and give handlers what it returns or yields, by annotation.

        `async def client() -> AsyncIterator[httpx.AsyncClient]: …` has what handlers get that ask for it:
        `async def fetch(job: Job, url: str, client: httpx.AsyncClient = GIVEN)`. What follows the `yield` runs when the
        worker stops, the last hook's first. A hook may ask for what hooks before it give. `def` or `async def`, plain
        or with a `yield`; one that is not async runs on a thread. Each worker runs all of them, each process for
        itself; what one raises keeps the worker from starting (HookFailed).
        Raises: ConfigError for one that gives what another gives already.
        """
        self._start_hooks.add(Hook(fn))
        return fn

    @overload
    def job(self, fn: Callable[Concatenate[Job, P], R], /) -> Handler[P, R]: ...
    @overload
    def job(self, fn: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def job(
        self,
        *,
        kind: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        lease: Duration = 30,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        priority: int = 0,
        commit: Commit = "alone",
        key: str | None = None,
    ) -> JobDecorator: ...
    def job(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        kind: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        lease: Duration = 30,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        priority: int = 0,
        commit: Commit = "alone",
        key: str | None = None,
        **strange: object,
    ) -> Any:
        """Register a function as the handler of a kind of job: `@hf.job` or `@hf.job(queue="mail", …)`.

        kind: the name in the database, by default the function's own. queue, priority: for its jobs unless they say
        otherwise. retry: how often and how late failed attempts run again. lease: how long a worker may be silent
        before another takes over; it is renewed while the handler runs. timeout: the longest one attempt may take.
        concurrency: how many of this kind one worker runs at once. commit: "together" lets `job.transaction()` share
        its transaction with other jobs that run at the same time, each undone alone if it fails. key: what a job is
        about, made of its arguments: `key="order:{order_id}"`.
        """
        only_options("hf.job()", strange, ("kind", *(each.name for each in fields(HandlerOptions))))
        options = HandlerOptions(queue, retry or Retry(), lease, timeout, concurrency, priority, commit, key)
        decorator = JobDecorator(cast(Registrar, self), kind, options)
        return decorator if fn is None else decorator(fn)

    @overload
    def bulk(self, fn: Callable[[list[T], Bulk], R], /) -> BulkHandler[T, R]: ...
    @overload
    def bulk(self, fn: Callable[[list[T]], R], /) -> BulkHandler[T, R]: ...
    @overload
    def bulk(
        self,
        *,
        size: int = 200,
        linger: Duration = 0,
        item: str | None = None,
        kind: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        lease: Duration = 30,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        priority: int = 0,
    ) -> BulkDecorator: ...
    def bulk(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        size: int = 200,
        linger: Duration = 0,
        item: str | None = None,
        kind: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        lease: Duration = 30,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        priority: int = 0,
        **strange: object,
    ) -> Any:
        """Register a function that takes many jobs at once: `async def index(pages: list[Page], bulk: Bulk)`.

        Each job has one item; `index.enqueue(page)` adds one. A call takes what is due, up to `size` items; with fewer
        it waits up to `linger` seconds for more, by default not at all. An attempt that follows a failed one takes a
        tenth of that, and a job's last one that job alone. The handler returns None (all are done) or a list with the
        result or outcome of each item; what it raises is a failure of each.
        `bulk.transaction()` commits the effects and completions of all. Middlewares and `around_handler`, which are
        about one job, are not called: wrap the function instead.
        item: the item's name in the payload, by default that of the parameter. timeout: for one call.
        concurrency: how many calls one worker makes at once. The other options are those of `job`.
        """
        takes = ("size", "linger", "item", "kind", "queue", "retry", "lease", "timeout", "concurrency", "priority")
        only_options("hf.bulk()", strange, takes)
        options = HandlerOptions(
            queue=queue,
            retry=retry or Retry(),
            lease=lease,
            timeout=timeout,
            concurrency=concurrency,
            priority=priority,
        )
        decorator = BulkDecorator(cast(Registrar, self), kind, options, size, item, linger)
        return decorator if fn is None else decorator.register(fn)


class Registers(Declares, Batches):
    """The face by which an application says what runs its jobs."""

    def middleware(self, fn: Middleware) -> Middleware:
        """Wrap every attempt: `async def fn(job, call_next): return await call_next(job)`. The first is outermost."""
        self.context.middlewares.append(fn)
        return fn

    def around_handler(self, make: Around) -> Around:
        """Enter `make(job)`, a `with` block, around every call of a handler, where the handler runs.

        That is the handler's own thread for a `def` handler: the place for what belongs to a thread, such as the
        connections of an ORM. For an async one it is the event loop, which must not be blocked. It is inside all
        middlewares and the time-out; the first is outermost. What it raises is a failed attempt.
        """
        if not callable(make):
            raise ConfigError("around_handler", "must be a function that takes a job and returns a `with` block", make)
        self.context.around_handlers.append(make)
        return make

    @overload
    def on(self, kind: type[E], subscriber: Callable[[E], None]) -> None: ...
    @overload
    def on(self, kind: type[E]) -> Callable[[Callable[[E], None]], Callable[[E], None]]: ...
    def on(self, kind: type[E], subscriber: Callable[[E], None] | None = None) -> Any:
        """Call `subscriber` for each event of this class or below it; without one, `@hf.on(JobDead)` decorates it."""
        if subscriber is not None:
            return self.events.subscribe(kind, subscriber)
        check_event(kind)

        def subscribe(fn: Callable[[E], None]) -> Callable[[E], None]:
            self.events.subscribe(kind, fn)
            return fn

        return subscribe


class JobDecorator:
    """What `@hf.job(…)` returns: applied to a function, it registers it and keeps its types."""

    def __init__(self, app: Registrar, kind: str | None, options: HandlerOptions) -> None:
        self._app = app
        self._kind = kind
        self._options = options

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Handler[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Handler[..., Any]:
        kind = kind_name(name_for(fn, self._kind, "hf.job"))
        unreserved(self._options.queue, "queue")
        vacant(self._app.handlers, kind, fn)
        handler: Handler[..., Any] = Handler(self._app, fn, kind, self._options)
        self._app.handlers[kind] = handler
        return handler
