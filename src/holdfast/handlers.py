"""Handlers: functions that jobs run, and the typed ways to enqueue them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.flow import Pattern
from holdfast.job import Job
from holdfast.jobs.enqueueing import pattern_of
from holdfast.values.ids import bucket
from holdfast.values.options import EnqueueOptions, HandlerOptions, StoreOptions, switch
from holdfast.values.payload import Signature, encode_value
from holdfast.values.rows import Enqueued, NewJob

P = ParamSpec("P")
R = TypeVar("R")


class Application(Protocol):
    """What a handler needs of the application that it is registered on."""

    options: StoreOptions

    def enqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued: ...

    async def aenqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued: ...


class Bound(NamedTuple):
    """A job that is ready to be enqueued: its checked payload, and the row it becomes but for the id."""

    payload: str
    like: NewJob
    pattern: Pattern | None = None

    @property
    def kind(self) -> str:
        return self.like.kind

    def new_job(self, job_id: str) -> NewJob:
        """Make the row; each call makes another job."""
        _, queue, kind, _, *rest = self.like
        return tuple.__new__(NewJob, (job_id, queue, kind, self.payload, *rest))


def likeness(kind: str, said: EnqueueOptions, usual: HandlerOptions, buckets: int) -> NewJob:
    """Make the row that all jobs share about which the same was said; id and payload are still to come."""
    return NewJob(
        id="",
        queue=said.queue or usual.queue,
        kind=kind,
        payload="",
        headers=encode_value(said.headers, "headers") if said.headers else None,
        priority=usual.priority if said.priority is None else said.priority,
        run_at=said.at,
        delay_ms=round((said.delay or 0) * 1000),
        max_attempts=said.max_attempts or usual.retry.max_attempts,
        lease_ms=None if said.lease is None else round(said.lease * 1000),
        key=said.key,
        bucket=None if said.key is None else bucket(said.key, buckets),
        unique=said.unique,
        idempotency_key=said.idempotency_key,
        window_ms=round(said.window * 1000),
    )


class Using(Generic[P]):
    """A handler with something said about the jobs to come: `send.using(key="order:1").enqueue(…)`."""

    def __init__(self, handler: Handler[P, Any], like: NewJob, tx: Any, notify: bool | None) -> None:
        self._handler = handler
        self._like = like
        self._tx = tx
        self._notify = notify

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """Check the arguments and return a job for `enqueue_many`."""
        return self._handler.bound(self._like, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Check the arguments and add the job."""
        return self._handler.app.enqueue_bound(self.bind(*args, **kwargs), self._tx, self._notify)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """The async twin of `enqueue`."""
        return await self._handler.app.aenqueue_bound(self.bind(*args, **kwargs), self._tx, self._notify)


class Handler(Generic[P, R]):
    """A function that jobs of one kind run. Calling it calls the function; `enqueue` makes a job of the call."""

    def __init__(self, app: Application, fn: Callable[..., R], kind: str, options: HandlerOptions) -> None:
        self.app = app
        self.fn = fn
        self.kind = kind
        self.options = options
        self.signature = Signature.of(fn, Job)
        self._like = self.like(EnqueueOptions())
        self._pattern = pattern_of(self._like)
        self.is_async = inspect.iscoroutinefunction(fn)
        # Nothing but a coroutine to run: no time-out, and it does not ask for its job.
        self.is_plain = _makes_coroutines(fn) and options.timeout is None and self.signature.injected is None
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise ConfigError(kind, "a handler must be a plain function or a coroutine function, not a generator", fn)
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<Handler {self.kind}>"

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.fn(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """Check the arguments and return a job for `enqueue_many`."""
        return self.bound(self._like, args, kwargs, self._pattern)

    def bound(
        self, like: NewJob, args: tuple[Any, ...], kwargs: dict[str, Any], pattern: Pattern | None = None
    ) -> Bound:
        return Bound(self.signature.encode(self.kind, args, kwargs, self.app.options.payload_limit), like, pattern)

    def like(self, said: EnqueueOptions) -> NewJob:
        """Make the row of jobs about which this was said."""
        return likeness(self.kind, said, self.options, self.app.options.buckets)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Check the arguments and add the job, in a transaction of its own."""
        return self.app.enqueue_bound(self.bound(self._like, args, kwargs, self._pattern))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """The async twin of `enqueue`."""
        return await self.app.aenqueue_bound(self.bound(self._like, args, kwargs, self._pattern))

    def using(
        self,
        *,
        tx: Any = None,
        queue: str | None = None,
        priority: int | None = None,
        run_after: datetime | timedelta | float | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        window: timedelta | float | None = None,
        unique: str | None = None,
        max_attempts: int | None = None,
        lease: timedelta | float | None = None,
        headers: Mapping[str, str] | None = None,
        notify: bool | None = None,
    ) -> Using[P]:
        """Say something about the jobs to enqueue.

        tx: the caller's connection or session; the job is visible if and only if that transaction commits.
        priority: -100 to 100, higher first. run_after: a delay, or a datetime with a time zone.
        key: what the job is about, for order and partitioning.
        idempotency_key: within `window` (a day by default), a second enqueue finds the first job and adds none.
        unique: at most one live (waiting or running) job of this kind per text.
        lease: for this job alone; the handler's otherwise.
        notify: whether workers hear of it at commit (PostgreSQL); the store's setting by default. A transaction that
        is to be prepared for a two-phase commit needs False: the job is found by polling then.
        """
        options = EnqueueOptions(
            queue=queue,
            priority=priority,
            run_after=run_after,
            key=key,
            idempotency_key=idempotency_key,
            unique=unique,
            max_attempts=max_attempts,
            headers=headers,
            **{name: value for name, value in (("window", window), ("lease", lease)) if value is not None},
        )
        return Using(self, self.like(options), tx, switch(notify, "notify"))


def _makes_coroutines(fn: Any) -> bool:
    """Tell whether a call gives a coroutine for sure: a function may only be marked as one, and give any awaitable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return isinstance(fn, types.FunctionType | types.MethodType) and bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
