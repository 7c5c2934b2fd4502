"""Holdfast: the object an application makes once, registers its handlers on and enqueues through."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from holdfast import jobs
from holdfast.bound import Bound, EnqueueHook, check_hook, likeness, with_headers
from holdfast.bulk import Bulk, BulkDecorator, BulkHandler
from holdfast.context import Around, Context, Middleware
from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge, UnknownKind, redact
from holdfast.events import Event, JobsEnqueued, log_events
from holdfast.flow import Flow, notifying
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.jobs.enqueueing import Drawn, again
from holdfast.store import Store, Stores, migrate
from holdfast.values.ids import new_id, new_ids
from holdfast.values.options import (
    USING,
    Commit,
    EnqueueKeywords,
    EnqueueOptions,
    HandlerOptions,
    QueueOptions,
    StoreKeywords,
    StoreOptions,
    WorkerKeywords,
    kind_name,
    only_options,
    switch,
)
from holdfast.values.payload import encode_value
from holdfast.values.retry import Duration, Retry
from holdfast.values.rows import Enqueued, NewJob

if TYPE_CHECKING:
    from holdfast.foreign import Foreign
    from holdfast.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
H = TypeVar("H", bound=EnqueueHook)
# What is to be added: the rows, the work, and what to do instead of it once a first try has failed. A plain tuple,
# because one is made for every enqueue.
Adding = tuple[Sequence[NewJob], Flow[T], Callable[[], Flow[T]]]
_PAYLOAD = 'the arguments of the job go into its payload: hf.enqueue(kind, {"{name}": …})'
# What the calls that name a kind take beside kind and payload.
_TAKES = {
    "bind": ("check", *EnqueueKeywords.__annotations__),
    "enqueue": (*USING, "check"),
    "aenqueue": (*USING, "check"),
}


class Holdfast:
    """Durable work in the database at `url` (HOLDFAST_URL when left out).

    prefix, schema (PostgreSQL): of the tables' names. payload_limit: bytes that a job's arguments may take.
    pool_size: connections at most. connect_timeout: for each of them. busy_timeout: how long SQLite waits for its lock.
    notify, listen_url (PostgreSQL): whether workers hear of new jobs at once, and on which address they listen.
    prepare: False behind a PgBouncer that keeps no prepared statements. buckets: how many parts `key` is hashed into.
    An option that is left out or None comes from the environment (HOLDFAST_PREFIX and so on), else from `StoreOptions`.
    Nothing is opened before the first use, and nothing is ever migrated as a side effect (except `:memory:`).
    """

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        url = url or os.environ.get("HOLDFAST_URL")
        if not url:
            raise ConfigError("url", "give a database URL, or set HOLDFAST_URL", url)
        self.url = url
        self.options = StoreOptions.of(**options)
        self.handlers: dict[str, Handler[..., Any]] = {}
        # Its databases: its own, and those of foreign tables that are elsewhere.
        self.stores = Stores(Store(url, self.options))
        self.store = self.stores.home
        self.context = Context(self.stores)
        self.events = self.context.events
        self.events.subscribe(Event, log_events)
        self._enqueue_hooks: list[EnqueueHook] = []

    def __repr__(self) -> str:
        return f"<Holdfast {redact(self.url)}>"

    # Registering

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
        **strange: object,
    ) -> Any:
        """Register a function as the handler of a kind of job: `@hf.job` or `@hf.job(queue="mail", …)`.

        kind: the name in the database, by default the function's own. queue, priority: for its jobs unless they say
        otherwise. retry: how often and how late failed attempts run again. lease: how long a worker may be silent
        before another takes over; it is renewed while the handler runs. timeout: the longest one attempt may take.
        concurrency: how many of this kind one worker runs at once. commit: "together" lets `job.transaction()` share
        its transaction with other jobs that run at the same time, each undone alone if it fails.
        """
        only_options("hf.job()", strange, ("kind", *(each.name for each in fields(HandlerOptions))))
        options = HandlerOptions(queue, retry or Retry(), lease, timeout, concurrency, priority, commit)
        decorator = JobDecorator(self, kind, options)
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

        Each job has one item; `index.enqueue(page)` adds one. A call takes what is due, up to `size` items; an attempt
        that follows a failed one takes a tenth of that, and a job's last one that job alone. The handler returns None
        (all are done) or a list with the result or outcome of each item; what it raises is a failure of each.
        `bulk.transaction()` commits the effects and completions of all. Middlewares and `around_handler`, which are
        about one job, are not called: wrap the function instead.
        item: the item's name in the payload, by default that of the parameter. timeout: for one call.
        concurrency: how many calls one worker makes at once. The other options are those of `job`.
        """
        takes = ("size", "item", "kind", "queue", "retry", "lease", "timeout", "concurrency", "priority")
        only_options("hf.bulk()", strange, takes)
        options = HandlerOptions(
            queue=queue,
            retry=retry or Retry(),
            lease=lease,
            timeout=timeout,
            concurrency=concurrency,
            priority=priority,
        )
        decorator = BulkDecorator(self, kind, options, size, item)
        return decorator if fn is None else decorator.register(fn)

    def queue(self, name: str, *, retention: Duration | Mapping[str, Duration] | None = None) -> QueueOptions:
        """Set what belongs to a queue: how long it keeps finished jobs (0 deletes at once)."""
        self.context.queues[name] = QueueOptions.of(name, retention)
        return self.context.queues[name]

    def queue_options(self, name: str) -> QueueOptions:
        return self.context.queue_options(name)

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

    def on(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        """Call `subscriber` for each event of this class or below it."""
        self.events.subscribe(kind, subscriber)

    # Enqueueing

    def enqueue_hook(self, hook: H) -> H:
        """Call `hook(new)` for every job that is enqueued, and add the headers that it returns (None: no headers).

        `new` has `kind`, `queue` and the `headers` so far: those that the caller gave and those of hooks before it, all
        of which stay. It is called before the database is asked, in the caller's thread or event loop, and must not
        block. What it raises, the caller gets, and nothing is enqueued.
        """
        check_hook(hook)
        self._enqueue_hooks.append(hook)
        return hook

    def bind(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Bound:
        """Make a job by the name of its kind, for `enqueue_many`; options as in `Handler.using`.

        check: refuse a kind that has no handler here; False for kinds of another program.
        """
        return self._bind("bind", kind, payload, check, options)

    def _bind(
        self, call: str, kind: str, payload: Mapping[str, Any] | None, check: bool, options: EnqueueKeywords
    ) -> Bound:
        only_options(f"hf.{call}()", options, _TAKES[call], _PAYLOAD)
        handler = self.handlers.get(kind)
        said = EnqueueOptions(**options)
        arguments = dict(payload or {})
        if handler is not None:
            return handler.bound(handler.like(said), (), arguments)
        if check:
            raise UnknownKind(kind, self.handlers)
        text = encode_value(arguments, f"payload of {kind}")
        if len(text.encode()) > self.options.payload_limit:
            raise PayloadTooLarge(kind, len(text.encode()), self.options.payload_limit)
        return Bound(text, likeness(kind_name(kind), said, HandlerOptions(), self.options.buckets))

    def enqueue(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tx: Any = None,
        notify: bool | None = None,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Enqueued:
        """Add a job by the name of its kind; tx, notify and options as in `Handler.using`, check as in `bind`."""
        return self.enqueue_bound(self._bind("enqueue", kind, payload, check, options), tx, notify)

    async def aenqueue(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tx: Any = None,
        notify: bool | None = None,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Enqueued:
        """The async twin of `enqueue`."""
        return await self.aenqueue_bound(self._bind("aenqueue", kind, payload, check, options), tx, notify)

    def enqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued:
        """Add one job that `bind` made."""
        return self._run(self._adding_one(bound, notify), tx)

    async def aenqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued:
        """The async twin of `enqueue_bound`."""
        return await self._arun(self._adding_one(bound, notify), tx)

    def enqueue_many(self, bound: Iterable[Bound], *, tx: Any = None, notify: bool | None = None) -> list[Enqueued]:
        """Add many jobs at once, all or none; tx and notify as in `Handler.using`."""
        return self._run(self._adding_many(bound, notify), tx)

    async def aenqueue_many(
        self, bound: Iterable[Bound], *, tx: Any = None, notify: bool | None = None
    ) -> list[Enqueued]:
        """The async twin of `enqueue_many`."""
        return await self._arun(self._adding_many(bound, notify), tx)

    def _adding_one(self, bound: Bound, notify: bool | None) -> Adding[Enqueued]:
        if self._enqueue_hooks:
            bound = with_headers(bound, self._enqueue_hooks, self.options.payload_limit)
        new, drawn = bound.new_job(new_id()), Drawn.now()
        work = jobs.enqueue(new, fresh=True)
        if notify is None:
            return (new,), work, lambda: again(jobs.enqueue, new, drawn)
        switch(notify, "notify")
        return (new,), notifying(work, notify), lambda: notifying(again(jobs.enqueue, new, drawn), notify)

    def _adding_many(self, bound: Iterable[Bound], notify: bool | None) -> Adding[list[Enqueued]]:
        given = _all_bound(bound)
        if self._enqueue_hooks:
            given = [with_headers(one, self._enqueue_hooks, self.options.payload_limit) for one in given]
        new = [one.new_job(job_id) for one, job_id in zip(given, new_ids(len(given)), strict=True)]
        drawn = Drawn.now()
        work = notifying(jobs.enqueue_many(new, fresh=True), switch(notify, "notify"))
        return new, work, lambda: notifying(again(jobs.enqueue_many, new, drawn), notify)

    def _run(self, adding: Adding[T], tx: Any) -> T:
        new, work, instead = adding
        answer = self.store.run(work, instead) if tx is None else self.store.run_in(tx, work, _named(new))
        self._tell(new, answer, tx)
        return answer

    async def _arun(self, adding: Adding[T], tx: Any) -> T:
        new, work, instead = adding
        answer = await (self.store.arun(work, instead) if tx is None else self.store.arun_in(tx, work, _named(new)))
        self._tell(new, answer, tx)
        return answer

    def _tell(self, new: Sequence[NewJob], answer: Any, tx: Any) -> None:
        """Say what was added, and wake the workers of this process."""
        if self.events.wants(JobsEnqueued):
            ids = [each.id for each in ((answer,) if isinstance(answer, Enqueued) else answer)]
            self.events.emit(JobsEnqueued(ids, [job.kind for job in new], tx is not None))
        if tx is None:
            self.context.wake_workers()

    @cached_property
    def foreign(self) -> Foreign:
        """Tables that programs in other languages share: `hf.foreign.pdo(…)`, `hf.foreign.durable(…)`."""
        from holdfast.foreign import Foreign

        return Foreign(self.context)

    # Running

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker:
        """Make a worker for this application's handlers: `async with hf.worker(): …`, or `await hf.worker().run()`.

        queues: those to serve; by default all that the handlers name. concurrency: attempts at once.
        poll: the longest pause between two looks at the queues. drain: how long handlers may finish at a stop.
        name: what the worker's id begins with. buffer: the most jobs to claim ahead. Defaults: see `Worker`.
        """
        from holdfast.worker import Served, Worker

        only_options("hf.worker()", options, WorkerKeywords.__annotations__)
        home, *others = (Served(store, self.foreign.served_on(store)) for store in self.stores)
        also = [served for served in others if served.sources]
        return Worker(self.context, self.handlers, home.sources, also, **options)

    def migrate(self) -> list[str]:
        """Bring Holdfast's own tables to this library's version and return the names of the migrations that ran."""
        with migrate.explained(all_or_nothing=self.store.dialect.migrates_as_one):
            return [migration.name for migration in self.store.run(migrate.apply(self.store.migrations))]

    def close(self) -> None:
        """Close the connections that enqueueing opened, to every database of the application."""
        self.stores.close()

    async def aclose(self) -> None:
        """The async twin of `close`."""
        await self.stores.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing takes a thread, and a process that ends or is at its limit has none to give. The block's own error is
        # the one to hear about then; what is still open ends with the process.
        with suppress(RuntimeError):
            await self.aclose()


class JobDecorator:
    """What `@hf.job(…)` returns: applied to a function, it registers it and keeps its types."""

    def __init__(self, app: Holdfast, kind: str | None, options: HandlerOptions) -> None:
        self._app = app
        self._kind = kind
        self._options = options

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Handler[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Handler[..., Any]:
        kind = kind_name(self._kind or fn.__name__)
        if kind in self._app.handlers:
            raise ConfigError("kind", "each kind has one handler; give this one another kind=", kind)
        handler: Handler[..., Any] = Handler(self._app, fn, kind, self._options)
        self._app.handlers[kind] = handler
        return handler


def _named(new: Sequence[NewJob]) -> str:
    return new[0].kind if new else "nothing"


def _all_bound(bound: object) -> list[Bound]:
    if isinstance(bound, Bound):
        raise InvalidPayload("enqueue_many", None, "give a list of jobs; for one there is enqueue")
    given = list(cast("Iterable[object]", bound))
    for one in given:
        if not isinstance(one, Bound):
            raise InvalidPayload("enqueue_many", None, f"give handler.bind(…), not {type(one).__name__}")
    return cast("list[Bound]", given)
