"""How tables are made and checked: our own by numbered migrations, foreign ones where they are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from holdfast.cli.render import Column
from holdfast.cli.sharding import parts, where_of
from holdfast.cli.shared import Exit, Failure, current, failure_of, missing_file, require_tables
from holdfast.errors import ForeignTablesMissing, HoldfastError, SchemaMismatch
from holdfast.store import founding, migrate

if TYPE_CHECKING:
    from holdfast.foreign import ForeignSource
    from holdfast.store import Shards, Store
    from holdfast.store.migrate import Migration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is still to be made: as JSON, and as a table."""

    items: list[dict[str, Any]]
    columns: list[Column]
    rows: list[tuple[object, ...]]


class Schema(Protocol):
    """A set of tables as `migrate` sees it."""

    def require(self) -> None:
        """Raise unless the tables are there, in this version."""

    def require_database(self) -> None:
        """Raise unless the database can be looked at without making anything."""

    def plan(self) -> Plan:
        """List what `apply` would run."""

    def complete(self) -> str:
        """Say that nothing is to run."""

    def apply(self) -> Iterator[str]:
        """Make what is missing, and say what was made."""

    def script(self, start: str) -> str:
        """Write SQL that does the same, from a version on; empty where nothing is to run."""

    def check(self) -> str:
        """Say that the tables fit. Raises: as `require`, with what to run."""


class OurSchema:
    """Holdfast's own tables."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def require(self) -> None:
        require_tables(self._store)

    def require_database(self) -> None:
        """Nothing: `doctor` and `migrate` tell a missing file and a missing table by themselves."""

    def plan(self) -> Plan:
        todo = self._pending()
        items = [{"number": m.number, "name": m.name, "statements": len(m.statements)} for m in todo]
        columns = [Column("migration", whole=True), Column("statements", right=True)]
        return Plan(items, columns, [(m.name, len(m.statements)) for m in todo])

    def complete(self) -> str:
        return f"Nothing to run: the tables are at version {self.version()}."

    def applied(self) -> list[str]:
        """Make what is missing, all of it, and say what was made."""
        return list(self.apply())

    def apply(self) -> Iterator[str]:
        with migrate.explained(all_or_nothing=self._store.dialect.migrates_as_one):
            ran = self._store.run_once(migrate.apply(self._store.migrations))
        for migration in ran:
            yield f"applied {migration.name}"

    def script(self, start: str) -> str:
        known = self._store.migrations
        after = self._start(start, known[-1].number)
        todo = [migration for migration in known if migration.number > after]
        if not todo:
            click.echo(f"Nothing to run after version {after}.", err=True)
            return ""
        return script(self._store, todo)

    def check(self) -> str:
        at, todo = self.version(), self._pending()
        if at == 0:
            raise Failure(f"{self._absent()} Run `holdfast migrate apply`.", Exit.SCHEMA, _database(self._store))
        if todo:
            raise SchemaMismatch(at, todo[-1].number)
        return f"The tables are at version {at}, which this holdfast needs."

    def _start(self, said: str, newest: int) -> int:
        if said == "current":
            return self.version()
        if not said.isdecimal() or int(said) > newest:
            raise click.BadParameter(f"{said!r} is not a version: 0 to {newest}, or `current`", param_hint="--from")
        return int(said)

    def _absent(self) -> str:
        if where := missing_file(self._store):
            return f"There is no database file {where}."
        return "The database has no Holdfast tables under this prefix."

    def version(self) -> int:
        """Read the version of the tables; 0 where there are none."""
        return 0 if missing_file(self._store) else self._store.run_once(migrate.version())

    def _pending(self) -> list[Migration]:
        known = self._store.migrations
        return known if missing_file(self._store) else self._store.run_once(migrate.pending(known))


class ShardedSchema:
    """Holdfast's own tables in each shard, and what says which shard is which."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._each = [(name, OurSchema(store)) for name, store in parts(shards)]
        # Those that may be made anew although they have keys.
        self.new: Collection[int] = ()

    def require(self) -> None:
        require_tables(self._shards)

    def require_database(self) -> None:
        """Nothing, as for one database: a shard that does not answer is told, and the others are looked at."""

    def plan(self) -> Plan:
        plans = {name: _told(name, schema.plan) for name, schema in self._each}
        items = [item | {"shard": number} for number, one in enumerate(plans.values()) for item in one.items]
        columns = [Column("shard", whole=True), *self._each[0][1].plan().columns]
        return Plan(items, columns, [(number, *row) for number, one in enumerate(plans.values()) for row in one.rows])

    def complete(self) -> str:
        at = sorted({_told(name, schema.version) for name, schema in self._each})
        return f"Nothing to run: the tables of {len(self._each)} shards are at version {', '.join(map(str, at))}."

    def apply(self) -> Iterator[str]:
        with founding.making(self._shards, self.new):
            for name, schema in self._each:
                yield from (f"{name}: {line}" for line in _told(name, schema.applied))
            known = self._shards.go(self._shards.set_up())
        if why := known.left_out(len(self._each)):
            click.echo(f"note: {why}", err=True)

    def script(self, start: str) -> str:
        texts = [(name, schema.script(start)) for name, schema in self._each]
        told = [f"-- {name}, {where_of(store)}" for name, store in parts(self._shards)]
        written = [f"{head}\n{text}" for head, (_, text) in zip(told, texts, strict=True) if text]
        last = "-- `holdfast migrate apply` then tells each shard its number; it makes no tables that are there."
        return "\n\n".join([*written, last]) if written else ""

    def check(self) -> str:
        for name, schema in self._each:
            _told(name, schema.check)
        self._shards.go(self._shards.map())
        needed = self._shards.schema_version
        return f"The tables of {len(self._each)} shards are at version {needed}, which this holdfast needs."


def _told(name: str, work: Callable[[], T]) -> T:
    """Do something with one shard. Raises: Failure, which names it."""
    try:
        return work()
    except Failure as error:
        raise Failure(f"{name}: {error.message}", Exit(error.exit_code), error.hint) from error
    except HoldfastError as error:
        failed = failure_of(error)
        raise Failure(f"{name}: {failed.message}", Exit(failed.exit_code), failed.hint, failed.trace) from error


def script(store: Store, todo: list[Migration]) -> str:
    """Write migrations as one script that leaves the same database as `apply`."""
    return "\n".join(["begin;", *migrate.written(store.dialect.queries, todo), "commit;"])


def _database(store: Store) -> str:
    return f"the database in use is {where_of(store)}" if current().url else ""


class ForeignSchema:
    """Tables that programs in other languages share, and may have made."""

    def __init__(self, source: ForeignSource, store: Store) -> None:
        self._source = source
        self._store = store

    def require(self) -> None:
        if missing := self._missing():
            raise ForeignTablesMissing(self._source.name, missing)

    def require_database(self) -> None:
        self._missing()

    def _missing(self) -> list[str]:
        """Name the missing tables. Asks once: a person waits, and sees at once that the database is down."""
        if absent := missing_file(self._store):
            make = f"`holdfast migrate apply --store {self._source.name}` creates it"
            raise Failure(f"there is no database file {absent}", Exit.SCHEMA, make)
        return self._store.run_once(self._source.desk.missing())

    def plan(self) -> Plan:
        absent = self._missing()
        items = [{"store": self._source.name, "table": table} for table in absent]
        return Plan(items, [Column("table", whole=True)], [(table,) for table in absent])

    def complete(self) -> str:
        return f"Nothing to run: {' and '.join(self._source.tables.queries.tables)} are there."

    def apply(self) -> Iterator[str]:
        absent = self._store.run_once(self._source.desk.missing())
        self._source.create_schema()
        for table in absent:
            yield f"created {table}"

    def script(self, start: str) -> str:
        queries = self._store.dialect.catalogue(self._source.tables.queries.surface)
        return "\n\n".join(f"{statement};" for statement in queries.creating())

    def check(self) -> str:
        self.require()
        self._store.run_once(self._source.check())
        return self.complete()
