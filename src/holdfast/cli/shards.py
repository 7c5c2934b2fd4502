"""`holdfast shards`: the shards of an application, and how they stand."""

from __future__ import annotations

import click

from holdfast.cli import shard_changes
from holdfast.cli.render import Column, print_json, print_table
from holdfast.cli.shared import connection_options, hidden, json_option
from holdfast.cli.stores import open_shards
from holdfast.store.standing import ShardView, look


@click.group()
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

    A shard that does not answer is listed with the reason. Buckets that move in came from another shard, which may have
    live jobs of them still; those that move out are such jobs, seen from there.

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
    columns = [Column("shard", whole=True), Column("where"), Column("state", whole=True)]
    columns += [Column(name, right=True) for name in ("buckets", "moving in", "moving out", "live")]
    columns += [Column("map", right=True), Column("reached")]
    print_table(columns, map(_row, found))


def hidden_in(one: ShardView) -> dict[str, object]:
    told = one.to_dict()
    return told | {"error": None if one.error is None else hidden(one.error)}


def _row(one: ShardView) -> tuple[object, ...]:
    numbers = (one.buckets, one.moving_in, one.moving_out, one.live, one.version)
    shown = ("" if number is None else f"{number:,}" for number in numbers)
    return (one.shard, one.where, one.state or "unknown", *shown, "yes" if one.error is None else hidden(one.error))


for command in (shard_changes.add_command, shard_changes.drain_command, shard_changes.move_command):
    shards.add_command(command)
