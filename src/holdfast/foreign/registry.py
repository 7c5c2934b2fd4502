"""`hf.foreign`: the foreign tables of one application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.context import Context
from holdfast.errors import ConfigError
from holdfast.flow import Surface
from holdfast.foreign.airlock.flows import AirlockTables, FullJitter
from holdfast.foreign.airlock.outbox import AirlockOutbox
from holdfast.foreign.durable.flows import DurableTables
from holdfast.foreign.durable.steps import DurableSteps
from holdfast.foreign.pdo.flows import Backoff, PdoTables, Unknown
from holdfast.foreign.pdo.queue import PdoQueue
from holdfast.foreign.queries import Queries, name_of
from holdfast.store import Store
from holdfast.values.options import Part, text
from holdfast.values.retry import LONGEST_LEASE, Duration, seconds

T = TypeVar("T")
Tables = PdoQueue | DurableSteps | AirlockOutbox


class Foreign:
    """The foreign tables of one application; `sources` is what its workers serve."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, tuple[object, Tables]] = {}

    @property
    def sources(self) -> list[Tables]:
        return [source for _, source in self._made.values()]

    def served_on(self, store: Store, part: Part = "all") -> list[Tables]:
        """List the tables in one database for which there are handlers, routes, or either."""
        here = [source for source in self.sources if source.store is store]
        return [one for one in here if any(_is_part(one, kind, part) for kind in one.handlers)]

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
        *,
        url: str | None = None,
        name: str | None = None,
    ) -> PdoQueue:
        """Serve the tables of InitPHP Queue's PDO transport, on MySQL, MariaDB or SQLite.

        url: the database of the tables, where that is not the application's own. name: what follows `pdo:` in events
        and in --store, by default the table's name; for tables of one name in several databases.
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
        store, name = self._context.stores.at(url), f"pdo:{_named(name, table)}"
        names = {"foreign_jobs": table, "foreign_jobs_reserve_idx": f"{table}_reserve_idx", "foreign_failed": failed}
        tables = PdoTables(
            self._queries(store, "foreign/pdo", name, names, (table, failed)),
            queue,
            retry_after,
            timezone,
            Backoff.of(max_attempts, backoff),
            unknown,
        )
        served = _names([queue] if queues is None else queues, "queues")
        return self._once(name, store, (tables, served), lambda: PdoQueue(self._context, name, tables, served, store))

    def durable(
        self,
        prefix: str = "durable",
        partition: str | None = None,
        lease: Duration = 30,
        max_losses: int = 3,
        *,
        url: str | None = None,
        name: str | None = None,
    ) -> DurableSteps:
        """Serve the remote steps of a durable engine, on PostgreSQL, MySQL or MariaDB.

        url: the database of the tables, where that is not the application's own. name: what follows `durable:` in
        events and in --store, by default the prefix, with the partition; for tables of one name in several databases.
        prefix, partition: as the engine has them. lease: how long a worker may be silent before another takes over; all
        workers on the tables must agree. max_losses: how many workers may vanish with one attempt before it fails.
        """
        tasks = f"{name_of(prefix, 'prefix', 39)}_transport_tasks"
        results = f"{prefix}_transport_results"
        store = self._context.stores.at(url)
        name = f"durable:{_named(name, prefix + (f'@{partition}' if partition else ''))}"
        names = {
            "foreign_tasks": tasks,
            "foreign_results": results,
            "foreign_index": f"{tasks}_grp_idx",
            "foreign_lock": tasks,
        }
        queries = self._queries(store, "foreign/durable", name, names, (tasks, results))
        lease_ms = round(seconds(lease, "lease", at_least=1.0, at_most=LONGEST_LEASE) * 1000)
        tables = DurableTables(queries, partition, lease_ms, max_losses)
        return self._once(name, store, tables, lambda: DurableSteps(self._context, name, tables, store))

    def airlock(
        self,
        table: str = "airlock_messages",
        meta: str = "airlock_meta",
        lease: Duration = 30,
        max_attempts: int = 8,
        first_delay: Duration = 1,
        max_delay: Duration = 300,
        max_batch_bytes: int = 10_485_760,
        *,
        url: str | None = None,
        name: str | None = None,
    ) -> AirlockOutbox:
        """Drain the outbox table of Airlock, a library for Node, on PostgreSQL; its own relay may run beside ours.

        url: the database of the tables, where that is not the application's own. name: what follows `airlock:` in
        events and in --store, by default the table's name; for tables of one name in several databases.
        table, meta: what the tables are called. lease: how long a worker may be silent before another takes over.
        max_attempts, first_delay, max_delay: when a failed message is tried again: after any time up to the first
        delay, then up to twice as much, and so on up to the last. max_batch_bytes: payloads that one claim may hold.
        """
        name_of(table, "table", 44)
        names = {"foreign_messages": table, "foreign_meta": name_of(meta, "meta", 63), "foreign_lock": table}
        # As Airlock calls them: those of airlock_messages begin with idx_airlock_.
        base = table.removesuffix("_messages") or table
        names |= {f"foreign_{what}": f"idx_{base}_{what}" for what in ("due", "failed", "processed", "partition")}
        names["foreign_idem"] = f"uq_{base}_idem"
        store, name = self._context.stores.at(url), f"airlock:{_named(name, table)}"
        queries = self._queries(store, "foreign/airlock", name, names, (table, meta))
        lease_ms = round(seconds(lease, "lease", at_least=1.0, at_most=LONGEST_LEASE) * 1000)
        retry = FullJitter(max_attempts=max_attempts, first_delay=first_delay, max_delay=max_delay)
        tables = AirlockTables(queries, lease_ms, retry, max_batch_bytes)
        return self._once(name, store, tables, lambda: AirlockOutbox(self._context, name, tables, store))

    def _queries(self, store: Store, room: str, name: str, names: dict[str, str], tables: tuple[str, ...]) -> Queries:
        """Say where the queries of foreign tables are.

        Raises: ConfigError when these tables are not served on this database.
        """
        surface = Surface(room, name, tuple(names.items()))
        store.dialect.catalogue(surface)
        return Queries(surface, tables)

    def _once(self, name: str, store: Store, settings: object, make: Callable[[], T]) -> T:
        """Make one source for one set of tables: asked for again, it is the same object, or an error."""
        if name not in self._made:
            self._made[name] = (settings, make())  # type: ignore[assignment]
        known, source = self._made[name]
        if source.store is not store:
            raise ConfigError(name, "is served already, in another database; give one of the two another name=", name)
        if known != settings:
            raise ConfigError(name, "is served already, with other settings; keep the object and use it again", name)
        return source  # type: ignore[return-value]


def _is_part(source: Tables, kind: str, part: Part) -> bool:
    return part == "all" or (source.executor(kind) == "relay") is (part == "routes")


def _named(said: str | None, otherwise: str) -> str:
    return otherwise if said is None else name_of(said, "name", 60)


def _names(values: Sequence[str], field: str) -> tuple[str, ...]:
    if isinstance(values, str) or not values:
        raise ConfigError(field, "must be a list of at least one name", values)
    return tuple(text(value, field, 255) for value in values)
