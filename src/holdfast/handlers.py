"""Handlers: functions that jobs run, and the typed ways to enqueue them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from holdfast.bound import Bound as Bound
from holdfast.bound import likeness
from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.values.annotations import place_of
from holdfast.values.options import (
    USING,
    EnqueueKeywords,
    EnqueueOptions,
    HandlerOptions,
    StoreOptions,
    only_options,
    switch,
)
from holdfast.values.payload import Signature
from holdfast.values.rows import Enqueued, NewJob
from holdfast.values.templates import KeyTemplate

ONE_HANDLER = "each kind has one handler, so give this one another kind=…"
# The place of a job's key in its row; its bucket stands behind it.
_KEY = NewJob._fields.index("key")
P = ParamSpec("P")
# Covariant, so that a handler of `async def` is one of Coroutine, too: pyright gives it a class of its own.
R_co = TypeVar("R_co", covariant=True)


class Application(Protocol):
    """What a handler needs of the application that it is registered on."""

    options: StoreOptions

    def enqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued: ...

    async def aenqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued: ...


class Registration(Generic[P, R_co]):
    """A function that is registered for one kind of job: all that a worker needs to run it, without an application."""

    # What runs its jobs, as the worker's list of executors has it, how many of them one call takes at most, and for how
    # many seconds one that has fewer waits for more.
    executor = "handler"
    size = 1
    linger = 0.0
    # How many deaths of processes a job of it may have seen before it has to start alone.
    free_lapses = 0
    # Further queues that its jobs may be in: a worker that is told of no queues serves these, too.
    serves: tuple[str, ...] = ()
    # Whether its claims look again as soon as something of it is let go of.
    waits_for_room = False
    # Whether its calls wait for something, as far as a worker of this process has seen: once is for ever.
    waits: bool | None = None

    def __init__(
        self, fn: Callable[..., R_co], kind: str, options: HandlerOptions, signature: Signature | None = None
    ) -> None:
        self.fn = fn
        self.kind = kind
        self.options = options
        self.signature = signature or Signature.of(fn, Job)
        self.is_async = inspect.iscoroutinefunction(fn)
        # Nothing but a coroutine to run: no time-out, and it asks for nothing of the worker's.
        asks = self.signature.injected is not None or bool(self.signature.given)
        self.is_plain = _makes_coroutines(fn) and options.timeout is None and not asks
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise ConfigError(kind, "a handler must be a plain function or a coroutine function, not a generator", fn)
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        return self.fn(*args, **kwargs)


def name_for(fn: object, said: str | None, decorator: str, named: str = "kind") -> str:
    """Return the name of a function to be registered: what was said, or its own.

    Raises: ConfigError for what is not a function, as in `@hf.job("mail")`, and for one without a name.
    """
    if not callable(fn):
        rule = f'decorates a function, and its options are given by name, as in @{decorator}(queue="mail")'
        raise ConfigError(f"@{decorator}", rule, fn)
    own = said or getattr(fn, "__name__", None)
    if own is None:
        raise ConfigError(named, f"must be given, as in @{decorator}({named}=…): this has no name of its own", fn)
    return cast("str", own)


def vacant(
    handlers: Mapping[str, Registration[..., Any]], kind: str, fn: Any, field: str = "kind", rule: str = ONE_HANDLER
) -> None:
    """Refuse a second function for a kind, and say where the first one is. Raises: ConfigError."""
    if kind not in handlers:
        return
    first, second = place_of(handlers[kind].fn), place_of(fn)
    there = f"there is {first} already"
    if first.rpartition(" ")[2] == second.rpartition(" ")[2]:
        there = f"{there}, and {second.rpartition(' ')[0]} is the same place: is its module imported under two names?"
    raise ConfigError(field, f"{rule}; {there}", kind)


class Handler(Registration[P, R_co]):
    """A function that jobs of one kind run. Calling it calls the function; `enqueue` makes a job of the call."""

    def __init__(
        self,
        app: Application,
        fn: Callable[..., R_co],
        kind: str,
        options: HandlerOptions,
        signature: Signature | None = None,
    ) -> None:
        super().__init__(fn, kind, options, signature)
        self.app = app
        self._key = None if options.key is None else KeyTemplate(options.key, [*self.signature.traits])

    @functools.cached_property
    def _like(self) -> NewJob:
        """The row of jobs about which nothing was said. Raises: ConfigError for a registry that no application has."""
        return self.like(EnqueueOptions())

    def join(self, app: Application, kind: str) -> None:
        """Belong to an application that has included the registry; under another kind, maybe."""
        self.app = app
        self.kind = kind

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """Check the arguments and return a job for `enqueue_many`."""
        return self.bound(self._like, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Check the arguments and add the job, in a transaction of its own."""
        return self.app.enqueue_bound(self.bound(self._like, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """The async twin of `enqueue`."""
        return await self.app.aenqueue_bound(self.bound(self._like, args, kwargs))

    def using(self, *, tx: Any = None, notify: bool | None = None, **options: Unpack[EnqueueKeywords]) -> Using[P]:
        """Say something about the jobs to enqueue; an option left out, or None, is the handler's.

        tx: the caller's connection or session; the job is visible if and only if that transaction commits.
        notify: whether workers hear of it at commit (PostgreSQL); the store's setting by default. A transaction that
        is to be prepared for a two-phase commit needs False: the job is found by polling then.

        queue: another one than the handler's. priority: -100 to 100, higher first.
        run_after: a delay, or a datetime with a time zone.
        key: what the job is about, for order, limits and partitioning; instead of the one that the handler's template
        makes of the arguments.
        idempotency_key: within `window` (a day by default), a second enqueue finds the first job and adds none.
        unique: at most one live job (one that has not ended) of this kind per text.
        debounce: `Debounce(key, wait=5, max_wait=60)`: wait until calls with this key have been quiet; the last one's
        arguments and headers count. throttle: `Throttle(key, window=60)`: the first call in the window adds a job, the
        others are answered with it. expires: a time after which no attempt begins: seconds from the enqueue, or a
        datetime with a time zone; the job ends as cancelled.
        max_attempts: instead of the retry policy's. lease: for this job alone; the handler's otherwise.
        headers: text by name that travels with the job.
        """
        switch(notify, "notify")
        if not options:
            # Nothing was said about the job itself, as with tx= alone: it is like every other job of this handler.
            return Using(self, self._like, tx, notify)
        only_options("using()", options, USING)
        return Using(self, self.like(EnqueueOptions(**options)), tx, notify)

    def like(self, said: EnqueueOptions) -> NewJob:
        """Make the row of jobs about which this was said."""
        return likeness(self.kind, said, self.options, self.app.options.buckets)

    def bound(self, like: NewJob, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Check arguments and make a job like this of them."""
        payload = self.signature.encode(self.kind, args, kwargs, self.app.options.payload_limit)
        if self._key is not None and like.key is None:
            own = self._key.of(self.kind, self.signature.named, args, kwargs, self.app.options.buckets)
            # As `_replace`, in a quarter of its time.
            like = tuple.__new__(NewJob, like[:_KEY] + own + like[_KEY + 2 :])  # pyright: ignore[reportUnknownMemberType]
        # Without the frame of Bound's own `__new__`, as in `Bound.new_job`.
        return tuple.__new__(Bound, (payload, like))  # pyright: ignore[reportUnknownMemberType]


class Using(Generic[P]):
    """A handler with something said about the jobs to come: `send.using(key="order:1").enqueue(…)`."""

    def __init__(self, handler: Handler[P, Any], like: NewJob, tx: Any, notify: bool | None) -> None:
        self._handler = handler
        self.like = like
        self._tx = tx
        self._notify = notify

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """Check the arguments and return a job for `enqueue_many`."""
        return self._handler.bound(self.like, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Check the arguments and add the job."""
        bound = self._handler.bound(self.like, args, kwargs)
        return self._handler.app.enqueue_bound(bound, self._tx, self._notify)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """The async twin of `enqueue`."""
        bound = self._handler.bound(self.like, args, kwargs)
        return await self._handler.app.aenqueue_bound(bound, self._tx, self._notify)


def _makes_coroutines(fn: Any) -> bool:
    """Tell whether a call gives a coroutine for sure: a function may only be marked as one, and give any awaitable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return isinstance(fn, types.FunctionType | types.MethodType) and bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
