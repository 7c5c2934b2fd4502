"""`holdfast shards`: the shards of an application, and how they stand."""

from __future__ import annotations

import shutil
import sys

import click

from holdfast.cli import shard_changes
from holdfast.cli.groups import Group
from holdfast.cli.render import Column, print_json, print_table
from holdfast.cli.shared import connection_options, hidden, json_option, typed
from holdfast.cli.stores import open_shards
from holdfast.store.standing import ShardView, look

MOVING = ("moving in", "moving out")
# What the other columns take of the width of a terminal.
BESIDE_URL = 45


@click.group(cls=Group)
def shards() -> None:
    """See the shards of an application, and let keys go to others.

    \b
    Example:
      holdfast shards list --app shop:hf
      holdfast shards add 2 --app shop:hf
    """


@shards.command("list")
@connection_options
@json_option
def list_command(as_json: bool) -> None:
    """List the shards: where each is, how many buckets of keys it has, what moves, its live jobs.

    A shard that does not answer is down, with the reason below the list. Buckets that move in came from another shard,
    which may have live jobs of them still; those that move out are such jobs, seen from there.

    \b
    Example:
      holdfast shards list --app shop:hf
      holdfast shards list --shards 'postgresql://app@db1/shop postgresql://app@db2/shop' --json
    """
    with open_shards() as opened:
        found = opened.go(look(opened))
    if as_json:
        print_json(hidden_in(one) for one in found)
        return
    moving = any(one.moving_in or one.moving_out for one in found)
    columns = [Column("shard", whole=True), Column("where", whole=True), Column("state", whole=True)]
    columns += [Column(name, right=True) for name in ("buckets", *(MOVING if moving else ()), "live", "map")]
    print_table(columns, (_row(one, moving) for one in found))
    for one in found:
        if one.error is not None:
            click.echo(f"shard {one.shard} ({one.where}): {typed(hidden(one.error))}", err=True)
    known = next((one.map for one in found if one.map is not None), None)
    if known is not None and (why := known.left_out(len(found))):
        click.echo(f"note: {why}", err=True)


def hidden_in(one: ShardView) -> dict[str, object]:
    told = one.to_dict()
    return told | {"error": None if one.error is None else hidden(one.error)}


def _row(one: ShardView, moving: bool) -> tuple[object, ...]:
    moves = (one.moving_in, one.moving_out) if moving else ()
    told = ("" if number is None else f"{number:,}" for number in (one.buckets, *moves, one.live, one.version))
    return (one.shard, _short(one.where), _state(one), *told)


def _state(one: ShardView) -> str:
    if one.error is not None:
        return "down"
    if one.said is not None and one.said != one.shard:
        return f"is shard {one.said}, listed as {one.shard}"
    return one.state or "unknown"


def _short(where: str) -> str:
    """Cut a URL from the left on a terminal: its end is what tells shards apart."""
    room = max(shutil.get_terminal_size().columns - BESIDE_URL, 20) if sys.stdout.isatty() else len(where)
    return where if len(where) <= room else f"…{where[1 - room :]}"


for command in (shard_changes.add_command, shard_changes.drain_command, shard_changes.move_command):
    shards.add_command(command)
