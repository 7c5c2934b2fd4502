"""`holdfast migrate`: the tables, and nothing behind anybody's back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.foreign import Shared, open_source
from holdfast.cli.render import Column, print_json, print_table
from holdfast.cli.shared import (
    Exit,
    Failure,
    connection_options,
    current,
    json_option,
    missing_file,
    open_store,
    store_option,
)
from holdfast.errors import SchemaMismatch
from holdfast.foreign import views
from holdfast.store import migrate as flows

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.store.migrate import Migration


@click.group()
def migrate() -> None:
    """Create the tables and bring them to this version.

    \b
    Example:
      holdfast migrate plan --url postgresql://app@db/shop
      holdfast migrate apply --url postgresql://app@db/shop
    """


@migrate.command()
@store_option
@connection_options
@json_option
def plan(as_json: bool) -> None:
    """List what `apply` would run.

    \b
    Example:
      holdfast migrate plan --url sqlite:///shop.db
    """
    if current().foreign:
        with open_source(tables=False) as shared:
            absent = shared.store.run_once(views.missing(shared.source))
        if as_json:
            print_json({"store": shared.name, "table": table} for table in absent)
        else:
            print_table([Column("table", whole=True)], [(table,) for table in absent], empty=_complete(shared))
        return
    with open_store(tables=False) as store:
        at, todo = _version(store), _pending(store)
    if as_json:
        print_json({"number": m.number, "name": m.name, "statements": len(m.statements)} for m in todo)
    elif not todo:
        click.echo(f"Nothing to run: the tables are at version {at}.")
    else:
        rows = [(m.name, len(m.statements)) for m in todo]
        print_table([Column("migration", whole=True), Column("statements", right=True)], rows)


@migrate.command()
@store_option
@connection_options
def apply() -> None:
    """Run what is still to run, one migrator at a time; with --store, make the tables that other languages share.

    On PostgreSQL and SQLite all of it commits, or none.

    \b
    Example:
      holdfast migrate apply --url sqlite:///shop.db
      holdfast migrate apply --store pdo:jobs --url sqlite:///shop.db
    """
    if current().foreign:
        with open_source(tables=False, create=True) as shared:
            absent = shared.store.run_once(views.missing(shared.source))
            shared.source.create_schema()
            for table in absent:
                click.echo(f"created {table}")
            if not absent:
                click.echo(_complete(shared))
        return
    with open_store(tables=False) as store:
        with flows.explained(store.dialect.name):
            ran = store.run_once(flows.apply(store.migrations))
        for migration in ran:
            click.echo(f"applied {migration.name}")
        if not ran:
            click.echo(f"Nothing to run: the tables are at version {_version(store)}.")


@migrate.command()
@click.option("--from", "start", metavar="N", default="0", help="Begin after version N, or after `current`.")
@store_option
@connection_options
def sql(start: str) -> None:
    """Print the SQL instead of running it, for a database that only its administrators may change.

    It reads nothing from the database unless you say `--from current`.

    \b
    Example:
      holdfast migrate sql --url postgresql://app@db/shop --from 1 > next.sql
    """
    if current().foreign:
        with open_source(tables=False, create=True) as shared:
            click.echo("\n\n".join(f"{statement};" for statement in shared.source.tables.queries.created_by()))
        return
    with open_store(tables=False) as store:
        known = store.migrations
        after = _start(start, store, known[-1].number)
        todo = [migration for migration in known if migration.number > after]
        if not todo:
            click.echo(f"Nothing to run after version {after}.", err=True)
            return
        click.echo(script(store, todo))


def _start(said: str, store: Store, newest: int) -> int:
    if said == "current":
        return _version(store)
    if not said.isdecimal() or int(said) > newest:
        raise click.BadParameter(f"{said!r} is not a version: 0 to {newest}, or `current`", param_hint="--from")
    return int(said)


def script(store: Store, todo: list[Migration]) -> str:
    """Write migrations as one script that leaves the same database as `apply`."""
    queries = store.dialect.queries
    lines = ["begin;"]
    if todo[0].number == 1:
        create = [each for each in queries["schema_create"] if each.startswith("create")]
        lines += [f"{statement};" for statement in (*create, *queries["meta_create"])]
    for migration in todo:
        lines += [f"\n-- {migration.name}", migration.sql.rstrip()]
        lines += [f"{each.replace(':version', repr(str(migration.number)))};" for each in queries["version_write"]]
    return "\n".join([*lines, "commit;"])


@migrate.command()
@store_option
@connection_options
def check() -> None:
    """Tell whether the tables fit this version of holdfast: exit code 0, or 3 with what to run.

    \b
    Example:
      holdfast migrate check --url postgresql://app@db/shop && start-the-service
    """
    if current().foreign:
        with open_source() as shared:
            click.echo(_complete(shared))
        return
    with open_store(tables=False) as store:
        at, todo = _version(store), _pending(store)
        if at == 0:
            raise Failure(f"{_absent(store)} Run `holdfast migrate apply`.", Exit.SCHEMA, _database())
        if todo:
            raise SchemaMismatch(at, todo[-1].number)
        click.echo(f"The tables are at version {at}, which this holdfast needs.")


def _complete(shared: Shared) -> str:
    return f"Nothing to run: {' and '.join(shared.source.tables.queries.tables)} are there."


def _absent(store: Store) -> str:
    if where := missing_file(store):
        return f"There is no database file {where}."
    return "The database has no Holdfast tables under this prefix."


def _database() -> str:
    url = current().url
    return f"the database in use is {url}" if url else ""


def _version(store: Store) -> int:
    return 0 if missing_file(store) else store.run_once(flows.version())


def _pending(store: Store) -> list[Migration]:
    return store.migrations if missing_file(store) else store.run_once(flows.pending(store.migrations))
