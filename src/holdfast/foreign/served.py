"""`hf.foreign`: tables that programs in other languages share, served by the ordinary worker beside ordinary jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from holdfast.context import Context
from holdfast.errors import ConfigError, ForeignTablesMissing, QueryFailed, SchemaMissing, UniqueViolation
from holdfast.flow import Flow
from holdfast.foreign import views
from holdfast.foreign.durable import flows as durable_transport
from holdfast.foreign.durable.flows import DurableTables, Takes
from holdfast.foreign.loader import load, name_of
from holdfast.foreign.pdo import dead as pdo_dead
from holdfast.foreign.pdo import flows as pdo
from holdfast.foreign.pdo.flows import Backoff as Delays
from holdfast.foreign.pdo.flows import PdoTables, Stamps, Unknown
from holdfast.handlers import Registration
from holdfast.life.expiry import Backoff
from holdfast.life.source import Renewed, Settled, Source
from holdfast.values.options import HandlerOptions, text
from holdfast.values.retry import LONGEST_LEASE, Duration, Retry, seconds
from holdfast.values.rows import Finish, Lease, PutBack

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CREATE_TRIES = 20
CREATE_PAUSE = 0.05
PRUNE_CHUNK = 500


class ForeignHandler(Registration[P, R]):
    """A handler whose jobs come from foreign tables. It has no `enqueue`: they are published or dispatched there."""


class Foreign:
    """The foreign tables of one application; `sources` is what its workers serve."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, tuple[object, PdoQueue | DurableSteps]] = {}

    @property
    def sources(self) -> list[PdoQueue | DurableSteps]:
        return [source for _, source in self._made.values()]

    def pdo(
        self,
        table: str = "jobs",
        failed_table: str | None = None,
        queue: str = "default",
        queues: Sequence[str] | None = None,
        retry_after: int = 90,
        timezone: str = "UTC",
        max_attempts: int = 3,
        backoff: Sequence[Duration] = (1, 5, 15),
        unknown: Unknown = "fail",
    ) -> PdoQueue:
        """Serve the tables of InitPHP Queue's PDO transport, on MySQL, MariaDB or SQLite.

        queue: for what is published without one. queues: those to serve, in this order; by default `queue` alone.
        retry_after, timezone: as the PHP processes have them; all programs on the tables must agree.
        max_attempts, backoff: when a failed message is tried again, in seconds; the last delay repeats.
        unknown: what becomes of a message that no handler takes: fail (an attempt), delete, release (for later),
        dead_letter.
        """
        name_of(table, "table", 52)
        failed = name_of(failed_table or f"{table}_failed", "failed_table", 60)
        if failed.lower() == table.lower():
            raise ConfigError("failed_table", "must be another table than the queue's", failed)
        name = f"pdo:{table}"
        names = {"foreign_jobs": table, "foreign_jobs_reserve_idx": f"{table}_reserve_idx", "foreign_failed": failed}
        tables = PdoTables(
            load(self._context.store.dialect, "pdo", name, names),
            queue,
            retry_after,
            timezone,
            Delays.of(max_attempts, backoff),
            unknown,
        )
        served = _names([queue] if queues is None else queues, "queues")
        return self._once(name, (tables, served), lambda: PdoQueue(self._context, name, tables, served))

    def durable(
        self, prefix: str = "durable", partition: str | None = None, lease: Duration = 30, max_losses: int = 3
    ) -> DurableSteps:
        """Serve the remote steps of a durable engine, on PostgreSQL, MySQL or MariaDB.

        prefix, partition: as the engine has them. lease: how long a worker may be silent before another takes over; all
        workers on the tables must agree. max_losses: how many workers may vanish with one attempt before it fails.
        """
        tasks = f"{name_of(prefix, 'prefix', 39)}_transport_tasks"
        name = f"durable:{prefix}" + (f"@{partition}" if partition else "")
        names = {
            "foreign_tasks": tasks,
            "foreign_results": f"{prefix}_transport_results",
            "foreign_index": f"{tasks}_grp_idx",
            "foreign_lock": tasks,
        }
        queries = load(self._context.store.dialect, "durable", name, names)
        lease_ms = round(seconds(lease, "lease", at_least=1.0, at_most=LONGEST_LEASE) * 1000)
        tables = DurableTables(queries, partition, lease_ms, max_losses)
        return self._once(name, tables, lambda: DurableSteps(self._context, name, tables))

    def _once(self, name: str, settings: object, make: Callable[[], T]) -> T:
        """Make one source for one set of tables: asked for again, it is the same object, or an error."""
        if name not in self._made:
            self._made[name] = (settings, make())  # type: ignore[assignment]
        known, source = self._made[name]
        if known != settings:
            raise ConfigError(name, "is served already, with other settings; keep the object and use it again", name)
        return source  # type: ignore[return-value]


def _names(values: Sequence[str], field: str) -> tuple[str, ...]:
    if isinstance(values, str) or not values:
        raise ConfigError(field, "must be a list of at least one name", values)
    return tuple(text(value, field, 255) for value in values)


class _Source:
    """What both kinds share: handlers, and flows run on the application's store in either colour."""

    tables: PdoTables | DurableTables
    ours = False

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self.name = name
        self._handlers: dict[str, ForeignHandler[..., Any]] = {}
        self.handlers: Mapping[str, ForeignHandler[..., Any]] = self._handlers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _register(self, kind: str, fn: Callable[P, R], options: HandlerOptions) -> ForeignHandler[P, R]:
        if kind in self.handlers:
            raise ConfigError(kind, f"has a handler on {self.name} already", kind)
        handler: ForeignHandler[P, R] = ForeignHandler(fn, kind, options)
        self._check(handler)
        self._handlers[kind] = handler
        return handler

    # Flows on the application's store. Our own tables are none of their business, so neither is how to make those.

    def _run(self, work: Flow[T]) -> T:
        with self._naming():
            return self._context.store.run(work)

    async def _arun(self, work: Flow[T]) -> T:
        with self._naming():
            return await self._context.store.arun(work)

    def _run_in(self, tx: Any, work: Flow[T], what: str) -> T:
        with self._naming():
            return self._context.store.run_in(tx, work, what)

    async def _arun_in(self, tx: Any, work: Flow[T], what: str) -> T:
        with self._naming():
            return await self._context.store.arun_in(tx, work, what)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except SchemaMissing as error:
            raise ForeignTablesMissing(self.name, self.tables.queries.tables) from error

    def check(self) -> Flow[None]:
        """Raise ForeignTablesMissing unless the tables are there."""
        return views.check(self)

    def _check(self, handler: ForeignHandler[..., Any]) -> None:
        """Refuse a handler that these tables cannot serve."""

    def _busy(self, leases: Mapping[str, int]) -> frozenset[str]:
        """Name the kinds that have a handler, but no room in this worker now."""
        return frozenset(self.handlers) - leases.keys()

    def executor(self, kind: str) -> str:
        return "handler"

    def begin(self, lease: Lease) -> None:
        """Nothing: the contract counts attempts as it does, and its tables have no place for more."""

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> None:
        """Nothing: a claim takes over what its holder left."""

    def release_strays(self, worker: str, known: Sequence[Lease]) -> None:
        """Nothing: what a lost reply to a claim left behind waits for the end of its lease."""


class PdoQueue(_Source):
    """The queue tables of PHP programs: serve their messages (`handler`) and send them some (`publish`)."""

    def __init__(self, context: Context, name: str, tables: PdoTables, queues: Sequence[str]) -> None:
        super().__init__(context, name)
        self.tables: PdoTables = tables  # pyright: ignore[reportIncompatibleVariableOverride]
        self.queues = queues
        self._stamps = Stamps()

    def handler(
        self, urn: str, *, timeout: Duration | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[P, R]], ForeignHandler[P, R]]:
        """Register a function for a urn: it takes keys of `data` as arguments, checked by its annotations.

        Keys that it does not take are ignored. `job: Job` is injected; `job.headers` has trace_id, message_id and lang.
        timeout, concurrency: as for `@hf.job`. Retries are the queue's.
        """
        text(urn, "urn", 255)
        lease = self.tables.lease_ms / 1000
        options = HandlerOptions(retry=self.tables.backoff, lease=lease, timeout=timeout, concurrency=concurrency)
        return lambda fn: self._register(urn, fn, options)

    # For applications

    def create_schema(self) -> None:
        """Make both tables if they are not there."""
        self._run(pdo.create_schema(self.tables))

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        await self._arun(pdo.create_schema(self.tables))

    def publish(
        self,
        urn: str,
        data: Mapping[str, Any],
        *,
        queue: str | None = None,
        delay: Duration = 0,
        trace_id: str | None = None,
        tx: Any = None,
    ) -> int:
        """Add a message and return the row's id; `tx` is the caller's connection, as everywhere.

        Raises: InvalidPayload, PayloadTooLarge (65,535 bytes with its envelope).
        """
        work = self._publishing(urn, data, queue, delay, trace_id)
        if tx is not None:
            return self._run_in(tx, work, urn)
        return self._published(self._run(work))

    async def apublish(
        self,
        urn: str,
        data: Mapping[str, Any],
        *,
        queue: str | None = None,
        delay: Duration = 0,
        trace_id: str | None = None,
        tx: Any = None,
    ) -> int:
        """The async twin of `publish`."""
        work = self._publishing(urn, data, queue, delay, trace_id)
        if tx is not None:
            return await self._arun_in(tx, work, urn)
        return self._published(await self._arun(work))

    def _publishing(
        self, urn: str, data: Mapping[str, Any], queue: str | None, delay: Duration, trace_id: str | None
    ) -> Flow[int]:
        # Made here and not in the flow: a repeated flow must not give the message another id.
        envelope = pdo.message(self.tables, urn, data, queue, trace_id)
        return pdo.publish(self.tables, envelope, queue or self.tables.queue, seconds(delay, "delay"))

    def _published(self, row_id: int) -> int:
        self._context.wake_workers()
        return row_id

    def replay(self, failed_id: int, *, tx: Any = None) -> int:
        """Put a dead letter back into its queue and return the new row's id. Raises: JobNotFound, Conflict."""
        work = pdo_dead.replay(self.tables, failed_id)
        if tx is not None:
            return self._run_in(tx, work, f"the replay of {failed_id}")
        return self._published(self._run(work))

    async def areplay(self, failed_id: int, *, tx: Any = None) -> int:
        """The async twin of `replay`."""
        work = pdo_dead.replay(self.tables, failed_id)
        if tx is not None:
            return await self._arun_in(tx, work, f"the replay of {failed_id}")
        return self._published(await self._arun(work))

    def discard(self, failed_id: int) -> None:
        """Delete a dead letter for good. Raises: JobNotFound."""
        self._run(pdo_dead.discard(self.tables, failed_id))

    async def adiscard(self, failed_id: int) -> None:
        """The async twin of `discard`."""
        await self._arun(pdo_dead.discard(self.tables, failed_id))

    def prune(self, older: Duration) -> int:
        """Delete dead letters older than `older` and return how many; each chunk commits by itself."""
        age = timedelta(seconds=seconds(older, "older"))
        total, pruned = 0, PRUNE_CHUNK
        while pruned == PRUNE_CHUNK:
            pruned = self._run(pdo_dead.prune(self.tables, age, limit=PRUNE_CHUNK))
            total += pruned
        return total

    async def aprune(self, older: Duration) -> int:
        """The async twin of `prune`."""
        age = timedelta(seconds=seconds(older, "older"))
        total, pruned = 0, PRUNE_CHUNK
        while pruned == PRUNE_CHUNK:
            pruned = await self._arun(pdo_dead.prune(self.tables, age, limit=PRUNE_CHUNK))
            total += pruned
        return total

    # For the worker: the protocol of `holdfast.life.source.Source`

    def claim(self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True) -> Flow[list[Lease]]:
        takes = {urn: self.handlers[urn].signature.traits for urn in leases}
        return pdo.reserve(self.tables, self.queues, takes, limit, self._busy(leases))

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return pdo.renew(self.tables, leases, self._stamps)

    def settle(self, finishes: Sequence[Finish], returns: Sequence[PutBack], worker: str) -> Flow[Settled]:
        return pdo.settle(self.tables, finishes, returns, self._stamps)

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        return pdo.complete(self.tables, lease, self._stamps)


class DurableSteps(_Source):
    """The remote steps that a durable engine dispatches: serve them (`step`)."""

    def __init__(self, context: Context, name: str, tables: DurableTables) -> None:
        super().__init__(context, name)
        self.tables: DurableTables = tables  # pyright: ignore[reportIncompatibleVariableOverride]
        self._takes: dict[str, Takes] = {}

    def step(
        self, name: str, *, timeout: Duration | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[P, R]], ForeignHandler[P, R]]:
        """Register a function for a step: it takes the step's input as its one argument, or none.

        `job: Job` is injected; `job.headers` has run_id, seq and step_id. What it returns is the step's output. An
        exception is a failure that the engine may retry; `Fatal` is one that it does not.
        """
        self.tables.group(name)
        lease = self.tables.lease_ms / 1000
        options = HandlerOptions(retry=Retry(max_attempts=1), lease=lease, timeout=timeout, concurrency=concurrency)
        return lambda fn: self._register(name, fn, options)

    def _check(self, handler: ForeignHandler[..., Any]) -> None:
        self._takes[handler.kind] = _takes(handler)

    def create_schema(self) -> None:
        """Make both tables if they are not there, beside other programs that may be doing so at this moment."""
        for name in ("create_tasks", "create_results", "create_index"):
            for again in range(CREATE_TRIES):
                try:
                    self._run(durable_transport.create_table(self.tables, name))
                    break
                except (UniqueViolation, QueryFailed) as error:
                    _raise_unless_raced(error, again)
                    time.sleep(CREATE_PAUSE)

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        for name in ("create_tasks", "create_results", "create_index"):
            for again in range(CREATE_TRIES):
                try:
                    await self._arun(durable_transport.create_table(self.tables, name))
                    break
                except (UniqueViolation, QueryFailed) as error:
                    _raise_unless_raced(error, again)
                    await asyncio.sleep(CREATE_PAUSE)

    # For the worker: the protocol of `holdfast.life.source.Source`

    def claim(self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True) -> Flow[list[Lease]]:
        takes = {step: self._takes[step] for step in leases}
        return durable_transport.claim(self.tables, takes, limit, worker, self._busy(leases))

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return durable_transport.renew(self.tables, leases, worker)

    def settle(self, finishes: Sequence[Finish], returns: Sequence[PutBack], worker: str) -> Flow[Settled]:
        return durable_transport.settle(self.tables, finishes, returns, worker)

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        return durable_transport.complete(self.tables, lease, result, worker)


def _takes(handler: ForeignHandler[..., Any]) -> Takes:
    signature = handler.signature
    names = list(signature.traits)
    if len(names) > 1:
        raise ConfigError(handler.kind, "a step takes one input: at most one parameter beside `job: Job`", names)
    return Takes(names[0], names[0] in signature.defaults) if names else Takes()


def _raise_unless_raced(error: UniqueViolation | QueryFailed, again: int) -> None:
    """Let a creator that lost a race try again: the other one's table is not visible yet, or half there."""
    raced = isinstance(error, UniqueViolation) or any(words in error.detail for words in _RACED)
    if not raced or again == CREATE_TRIES - 1:
        raise error


_RACED = ("already exists", "concurrently updated", "Duplicate key name")


# Holds both to the protocol, for type checkers.
_KINDS: tuple[type[Source], ...] = (PdoQueue, DurableSteps)
