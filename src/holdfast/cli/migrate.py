"""`holdfast migrate`: the tables, and nothing behind anybody's back."""

from __future__ import annotations

import click

from holdfast.cli.groups import Group
from holdfast.cli.render import print_json, print_table
from holdfast.cli.schemas import ShardedSchema
from holdfast.cli.shared import Exit, Failure, connection_options, in_options, json_option
from holdfast.cli.stores import open_desk, store_option


@click.group(cls=Group)
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
    with open_desk("nothing") as at:
        todo = at.schema.plan()
        if as_json:
            print_json(todo.items)
        elif todo.rows:
            print_table(todo.columns, todo.rows)
        else:
            click.echo(at.schema.complete())


@migrate.command()
@click.option(
    "--new-shard", "new_shards", type=int, multiple=True, help="Make this shard anew, empty, although it has keys."
)
@store_option
@connection_options
def apply(new_shards: tuple[int, ...]) -> None:
    """Run what is still to run, one migrator at a time; with --store, make these foreign tables.

    On PostgreSQL and SQLite all of it commits, or none. A shard that has keys and is not there is not made anew, unless
    --new-shard names it: its jobs may be in a file that was moved, or in a backup.

    \b
    Example:
      holdfast migrate apply --url sqlite:///shop.db
      holdfast migrate apply --store pdo:jobs --url sqlite:///shop.db
    """
    with open_desk("nothing") as at, in_options():
        if new_shards:
            if not isinstance(at.schema, ShardedSchema):
                raise Failure("--new-shard: there are no shards", Exit.USAGE)
            at.schema.new = new_shards
        made = list(at.schema.apply())
        for line in made or [at.schema.complete()]:
            click.echo(line)


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
    with open_desk("nothing") as at:
        if text := at.schema.script(start):
            click.echo(text)


@migrate.command()
@store_option
@connection_options
def check() -> None:
    """Tell whether the tables fit this version of holdfast: exit code 0, or 3 with what to run.

    \b
    Example:
      holdfast migrate check --url postgresql://app@db/shop && start-the-service
    """
    with open_desk("nothing") as at:
        click.echo(at.schema.check())
