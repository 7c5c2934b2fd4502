"""Migrations as flows: explicit, numbered, one line for all dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import DatabaseBusy, SchemaMismatch, SchemaMissing
from holdfast.flow import Steps, ask, flow, run_text


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
    def sql(self) -> str:
        return "".join(f"{statement};\n\n" for statement in self.statements)


@flow
def version() -> Steps[int]:
    """Read the schema version; 0 where Holdfast has no tables yet."""
    [[present]] = yield from ask("meta_present", alone=True)
    if not present:
        return 0
    rows = yield from ask("version_read")
    return int(rows[0][0]) if rows else 0


@flow
def pending(known: Sequence[Migration]) -> Steps[list[Migration]]:
    """List the migrations that are still to run, in order.

    Raises: SchemaMismatch when the database is ahead of this library.
    """
    at = yield from version()
    newest = known[-1].number
    if at > newest:
        raise SchemaMismatch(at, newest)
    return [migration for migration in known if migration.number > at]


@flow
def apply(known: Sequence[Migration]) -> Steps[list[Migration]]:
    """Run what is still to run, under a lock that lets one migrator in at a time.

    Commits: its own; where the database can roll back DDL (PostgreSQL, SQLite) all or nothing.
    Raises: SchemaMismatch when the database is ahead of this library.
    After a crash: nothing happened, or the version tells how far it came; run it again.
    """
    [[granted]] = yield from ask("schema_lock")
    if granted == 0:
        raise DatabaseBusy("lock_timeout", "another migrator is at work")
    yield from ask("schema_create")
    yield from ask("meta_create")
    todo = yield from pending(known)
    for migration in todo:
        for statement in migration.statements:
            yield from run_text(migration.name, statement)
        yield from ask("version_write", version=str(migration.number))
    yield from ask("schema_unlock")
    return todo


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
