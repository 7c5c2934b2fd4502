"""Migrations as flows: explicit, numbered, one line for all dialects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.errors import Conflict, DatabaseBusy, SchemaMismatch, SchemaMissing
from holdfast.flow import Rows, Steps, ask, flow, run_text
from holdfast.store.catalogue import Query


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema, as SQL with prefix and schema filled in."""

    number: int
    title: str
    statements: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.number:04}_{self.title}"

    @property
    def renames(self) -> bool:
        """Tell whether it makes a table anew and gives it the old one's name."""
        return any(" rename to " in statement for statement in self.statements)

    @property
    def sql(self) -> str:
        return "".join(f"{statement};\n\n" for statement in self.statements)


@flow
def version() -> Steps[int]:
    """Read the schema version; 0 where Holdfast has no tables yet."""
    [[present]] = yield from ask("meta_present", alone=True)
    if not present:
        return 0
    return _version((yield from ask("version_read", alone=True)))


@flow
def pending(known: Sequence[Migration]) -> Steps[list[Migration]]:
    """List the migrations that are still to run, in order.

    Raises: SchemaMismatch when the database is ahead of this library.
    """
    [[present]] = yield from ask("meta_present", alone=True)
    return _todo((yield from ask("version_read", alone=True)) if present else (), known)


def _todo(read: Rows, known: Sequence[Migration], to: int | None = None) -> list[Migration]:
    at, newest = _version(read), known[-1].number
    if at > newest and to is None:
        raise SchemaMismatch(at, newest)
    return [migration for migration in known if at < migration.number <= (to or newest)]


def _version(read: Rows) -> int:
    return int(read[0][0]) if read else 0


@flow
def apply(known: Sequence[Migration], to: int | None = None) -> Steps[list[Migration]]:
    """Run what is still to run, under a lock that lets one migrator in at a time.

    to: the version to stop at; tables that are past it are left as they are.
    Commits: its own; where the database can roll back DDL (PostgreSQL, SQLite) all or nothing.
    Raises: Conflict when something of the application's stands in the way of a table that has to be made anew (SQLite);
    SchemaMismatch when the database is ahead of this library; DatabaseBusy when another migrator is at work, or
    another transaction holds one of the tables for long (PostgreSQL).
    After a crash: nothing happened, or the version tells how far it came; run it again.
    """
    # A look first: a role that may create nothing needs no privilege where nothing is to be done.
    [[present]] = yield from ask("meta_present", look=True)
    if present and _todo((yield from ask("version_read", look=True)), known, to) == []:
        return []
    [[granted]] = yield from ask("schema_lock")
    if granted == 0:
        raise DatabaseBusy("lock_timeout", "another migrator is at work")
    yield from ask("schema_patience")
    yield from ask("schema_create")
    yield from ask("meta_create")
    todo = _todo((yield from ask("version_read")), known, to)
    if any(migration.renames for migration in todo):
        obstacles = [str(row[0]) for row in (yield from ask("schema_obstacles"))]
        if obstacles:
            raise Conflict(
                f"A migration makes the table of live jobs anew, and these refer to it: {', '.join(obstacles)}. "
                "Drop them, or what refers to it in them, migrate, and make them again. Nothing was changed."
            )
    for migration in todo:
        for statement in migration.statements:
            yield from run_text(migration.name, statement)
        yield from ask("version_write", version=str(migration.number))
    yield from ask("schema_unlock")
    return todo


def written(queries: Mapping[str, Query], todo: Sequence[Migration]) -> list[str]:
    """Write migrations as statements that leave the same tables as `apply`; a comment names each migration."""
    lines: list[str] = []
    if todo and todo[0].number == 1:
        create = [each for each in queries["schema_create"].parts if each.startswith("create")]
        lines += [f"{statement};" for statement in (*create, *queries["meta_create"].parts)]
    for migration in todo:
        lines += [f"\n-- {migration.name}", migration.sql.rstrip()]
        number = repr(str(migration.number))
        lines += [f"{each.replace(':version', number)};" for each in queries["version_write"].parts]
    return lines


def dropping(tables: Iterable[str]) -> list[str]:
    """Write statements that drop tables."""
    return [f"drop table if exists {table}" for table in tables]


@flow
def drop(statements: Sequence[str]) -> Steps[None]:
    """Run the statements of `dropping`, while no migrator is at work.

    Commits: its own; where the database can roll back DDL (PostgreSQL, SQLite) all or nothing.
    After a crash: run it again.
    """
    [[granted]] = yield from ask("schema_lock")
    if granted == 0:
        raise DatabaseBusy("lock_timeout", "another migrator is at work")
    for statement in statements:
        yield from run_text("drop", statement)
    yield from ask("schema_unlock")


@contextmanager
def explained(*, all_or_nothing: bool) -> Iterator[None]:
    """Say what a migration could not wait for any longer: the database names neither the table nor its holder.

    `all_or_nothing` is the dialect's `migrates_as_one`.
    """
    try:
        yield
    except DatabaseBusy as error:
        if error.reason != "lock_timeout":
            raise
        held = "another transaction holds one of Holdfast's tables, or another migrator is at work."
        kept = "Nothing was changed." if all_or_nothing else "What ran before stays."
        cure = "End the long transaction (`holdfast doctor` names it) and run it again."
        raise DatabaseBusy("lock_timeout", f"{held} {kept} {cure}") from error


@flow
def check(expected: int) -> Steps[None]:
    """Make sure that the tables have the version this library was written for.

    Raises: SchemaMissing, SchemaMismatch; both say what to run.
    """
    found = yield from version()
    if found == 0:
        raise SchemaMissing()
    if found != expected:
        raise SchemaMismatch(found, expected)
