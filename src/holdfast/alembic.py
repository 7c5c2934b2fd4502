"""Holdfast's tables in the migrations of an application that uses Alembic.

`include_object` and `include_name` go to `context.configure` in env.py, so that autogenerate leaves these tables alone;
`upgrade` and `downgrade` are called in migration scripts. What the tables are belongs to `store`;
Alembic itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigError
from holdfast.store import callers, migrate
from holdfast.store.dialects import DIALECTS, SCHEMA_VERSION, Dialect, dialect_named
from holdfast.store.dialects.base import tables_of
from holdfast.store.migrate import Migration
from holdfast.values.options import StoreOptions
from holdfast.values.retry import whole

IncludeObject = Callable[[Any, str | None, str, bool, Any], bool]
IncludeName = Callable[[str | None, str, Any], bool]

# Where the versions that earlier scripts of one offline run have reached are kept.
_REACHED = "holdfast_versions"


def include_object_for(
    *, prefix: str = "holdfast", schema: str | None = None, include_object: IncludeObject | None = None
) -> IncludeObject:
    """Make an `include_object` for tables with a prefix or schema of their own.

    prefix, schema: as in `Holdfast(…)`. include_object: one of yours, which is asked about everything else.
    """
    ours = _tables(prefix, schema)

    def include(object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        # A schema on the search path is reported as none.
        if type_ == "table" and name in ours and object.schema in (None, schema):
            return False
        return include_object is None or include_object(object, name, type_, reflected, compare_to)

    return include


def include_name_for(
    *, prefix: str = "holdfast", schema: str | None = None, include_name: IncludeName | None = None
) -> IncludeName:
    """Make an `include_name`, which spares Alembic to read what the tables are like; see `include_object_for`."""
    ours = _tables(prefix, schema)

    def include(name: str | None, type_: str, parent_names: Any) -> bool:
        if type_ == "table" and name in ours and parent_names.get("schema_name") in (None, schema):
            return False
        return include_name is None or include_name(name, type_, parent_names)

    return include


def _tables(prefix: str, schema: str | None) -> set[str]:
    StoreOptions(prefix=prefix, schema=schema)
    return {f"{prefix}_{table}" for dialect in DIALECTS for table in tables_of(dialect)}


include_object: IncludeObject = include_object_for()
"""Leave Holdfast's tables alone: for `context.configure(include_object=…)`, where they have the usual prefix."""
include_name: IncludeName = include_name_for()
"""Do not even look at them: for `context.configure(include_name=…)`, beside `include_object`."""


def upgrade(op: Any, *, to: int, since: int = 0, prefix: str = "holdfast", schema: str | None = None) -> list[str]:
    """Bring Holdfast's tables to a version, on the connection of an Alembic migration; name the migrations that ran.

    op: Alembic's `op`. to: the version, which `holdfast migrate plan` names; where the tables are at it or past it,
    nothing runs. since: for `--sql` alone, the version before. prefix, schema: as in `Holdfast(…)`.
    Commits: with Alembic's transaction; on MySQL and MariaDB each statement by itself.
    Raises: ConfigError for a version that this holdfast does not know; what `holdfast migrate apply` raises.
    """
    _known(to, "to", 1)
    _known(since, "since", 0)
    context = op.get_context()
    dialect = _dialect(context, prefix, schema)
    known = [Migration(*entry) for entry in dialect.migrations()]
    if context.as_sql:
        reached: dict[str, int] = context.opts.setdefault(_REACHED, {})
        after = max(since, reached.get(dialect.table("meta"), 0))
        todo = [migration for migration in known if after < migration.number <= to]
        reached[dialect.table("meta")] = max(after, to)
        for statement in migrate.written(dialect.queries, todo):
            context.impl.static_output(statement)
    else:
        with migrate.explained(all_or_nothing=dialect.migrates_as_one):
            todo = callers.run_ddl(op.get_bind(), dialect, migrate.apply(known, to))
    return [migration.name for migration in todo]


def downgrade(op: Any, *, to: int = 0, prefix: str = "holdfast", schema: str | None = None) -> None:
    """Drop Holdfast's tables, with every job in them, on the connection of an Alembic migration.

    There is no way back from one version to another: `to` is 0. Let the `downgrade` of later scripts do nothing.
    Commits: as `upgrade`.
    """
    if to != 0:
        rule = "must be 0, which drops the tables: there is no way from a version to the one before; do nothing instead"
        raise ConfigError("to", rule, to)
    context = op.get_context()
    dialect = _dialect(context, prefix, schema)
    statements = migrate.dropping(dialect.table(name) for name in dialect.tables)
    if context.as_sql:
        for statement in statements:
            context.impl.static_output(f"{statement};")
    else:
        callers.run_ddl(op.get_bind(), dialect, migrate.drop(statements))


def _known(version: int, field: str, least: int) -> None:
    try:
        whole(version, field, least, SCHEMA_VERSION)
    except ConfigError as error:
        rule = f"must be a version that this holdfast knows, from {least} to {SCHEMA_VERSION}"
        raise ConfigError(field, rule, version) from error


def _dialect(context: Any, prefix: str, schema: str | None) -> Dialect:
    return dialect_named(callers.database_of(context.dialect.name), StoreOptions(prefix=prefix, schema=schema))
