"""`holdfast shards add`, `drain` and `move`: keys go to other shards while all runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click

from holdfast.admin.recording import record
from holdfast.cli import dealing
from holdfast.cli.render import print_json
from holdfast.cli.shared import (
    actor_name,
    actor_option,
    confirm,
    connection_options,
    in_options,
    json_option,
)
from holdfast.cli.stores import open_shards
from holdfast.flow import Flow
from holdfast.store import Shards, growing
from holdfast.store.trips import Trips
from holdfast.values.ids import bucket as bucket_of
from holdfast.values.shards import ShardMap

_MOVES = (
    "Jobs that are there run there; new jobs of a key wait in its new shard until its line in the old one is empty, so "
    "that order holds. `holdfast shards list` shows what still moves."
)


class Asked(NamedTuple):
    """What each change takes."""

    dry_run: bool
    yes: bool
    as_json: bool
    actor: str | None


def change(
    opened: Shards,
    action: str,
    question: str,
    plan: Callable[[ShardMap], ShardMap],
    trips: Callable[[Flow[None]], Trips[ShardMap]],
    asked: Asked,
    **about: Any,
) -> None:
    """Show what would move, ask, change the map, and note it in the audit."""
    known = opened.go(opened.map())
    planned = plan(known)
    moved = len(planned.moving)
    if not asked.dry_run:
        confirm(f"{question} {moved:,} of {known.buckets:,} buckets of keys move.", asked.yes)
        line = (None, about | {"buckets": moved})
        audit = Flow("audit", lambda: record(f"shards_{action}", actor_name(asked.actor), [line]))
        planned = opened.go(trips(audit))
    shares = {str(shard): count for shard, count in planned.shares().items()}
    if asked.as_json:
        told = {"dry_run": asked.dry_run, "version": planned.version, "moving": moved, "buckets": shares, **about}
        print_json([told])
        return
    verb = "would move" if asked.dry_run else "move now"
    click.echo(f"{moved:,} of {known.buckets:,} buckets {verb}; then the shards have")
    for shard, count in shares.items():
        click.echo(f"  shard {shard}: {count:,} buckets")
    if not asked.dry_run:
        click.echo("`holdfast shards list` shows when all of them have arrived.")


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what each change takes."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only tell what would move."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        json_option,
        actor_option,
        connection_options,
    ):
        command = option(command)
    return command


@click.command("add", epilog=_MOVES)
@click.argument("shard", type=int)
@change_options
def add_command(shard: int, dry_run: bool, yes: bool, as_json: bool, actor: str | None) -> None:
    """Give SHARD, which has no keys yet, its part of them.

    First name it at the end of shards= in the application, run `holdfast migrate apply` with that from one place, which
    makes its tables, and then deploy it everywhere.

    \b
    Example:
      holdfast shards add 2 --app shop:hf
    """
    with open_shards() as opened, in_options():
        growing.check_number(opened, shard)
        question = f"Give shard {shard} its part of the keys?"
        trips = partial(dealing.add, opened, shard, actor=actor_name(actor))
        asked = Asked(dry_run, yes, as_json, actor)
        change(opened, "add", question, lambda known: known.with_shard(shard), trips, asked, shard=shard)


@click.command("drain", epilog=_MOVES)
@click.argument("shard", type=int)
@change_options
def drain_command(shard: int, dry_run: bool, yes: bool, as_json: bool, actor: str | None) -> None:
    """Give the keys of SHARD to the others, and no new work to it.

    Workers go on with what is there, jobs for later and runs that wait included. Once `holdfast shards list` shows no
    live jobs in it, and what it keeps of finished ones is not needed any more, nothing is lost with it. Shards behind
    it in shards= keep their numbers, so leave its place there.

    \b
    Example:
      holdfast shards drain 1 --app shop:hf
    """
    with open_shards() as opened, in_options():
        growing.check_drained(opened, shard)
        question = f"Drain shard {shard}?"
        trips = partial(growing.drain, opened, shard)
        asked = Asked(dry_run, yes, as_json, actor)
        change(opened, "drain", question, lambda known: known.without_shard(shard), trips, asked, shard=shard)


@click.command("move", epilog=_MOVES)
@click.option("--key", "keys", multiple=True, help="Move the bucket that this key is in; repeatable.")
@click.option("--bucket", "buckets", type=int, multiple=True, help="Move this bucket; repeatable.")
@click.option("--to", "shard", type=int, required=True, help="The shard that they go to.")
@change_options
def move_command(
    keys: tuple[str, ...],
    buckets: tuple[int, ...],
    shard: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str | None,
) -> None:
    """Give buckets of keys to a shard by hand, such as that of one large customer.

    A key moves with all others of its bucket. On Citus, a whole schema is moved to another node by the engine itself:
    `select citus_schema_move('holdfast_2', 'node', 5432)`, and nothing needs to be done here.

    \b
    Example:
      holdfast shards move --key customer:7 --to 2 --app shop:hf
    """
    if not keys and not buckets:
        raise click.UsageError("Name what to move: --key or --bucket.")
    with open_shards() as opened, in_options():
        growing.check_number(opened, shard)
        parts = sorted({*buckets, *(bucket_of(key, opened.options.buckets) for key in keys)})
        growing.check_buckets(opened, parts)
        question = f"Move {len(parts):,} buckets to shard {shard}?"
        trips = partial(growing.move, opened, parts, shard)
        asked = Asked(dry_run, yes, as_json, actor)
        change(opened, "move", question, lambda known: known.moved(parts, shard), trips, asked, shard=shard)
