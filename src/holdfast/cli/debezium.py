"""`holdfast debezium`: the table that Debezium takes events from, a connector's settings, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.app.capturing import Capture
from holdfast.cli.groups import Group
from holdfast.cli.parse import DURATION, MOMENT
from holdfast.cli.render import age, plural, print_json
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    json_option,
    named_app,
    open_store,
)


@click.group(cls=Group, short_help="Events that Debezium takes, and the way back.")
def debezium() -> None:
    """Have Debezium take events from a table of APP, and hand them over to routes again.

    APP says which events those are: hf.debezium("order.#").

    \b
    Example:
      holdfast debezium create --app shop:hf
      holdfast debezium config --name shop --app shop:hf > connector.json
      holdfast debezium hand-over --slot shop --dry-run --app shop:hf
    """


def _declared() -> tuple[Holdfast, Capture]:
    """Load the application, and what it says of the table. Raises: Failure where it says nothing."""
    app = named_app("It says which events are captured.")
    if app.capture is None:
        hint = 'declare it in its code: hf.debezium("order.#")'
        raise Failure("the application has no table for Debezium", Exit.USAGE, hint)
    return app, app.capture


@contextmanager
def _captured() -> Iterator[Capture]:
    """Give the application's table, on the database that was named."""
    app, capture = _declared()
    with open_store() as store:
        yield Capture(store, app.context.routes.taking, capture.table)


@debezium.command()
@connection_options
def sql() -> None:
    """Print the statements that make the table, for those who run them by other means.

    \b
    Example:
      holdfast debezium sql --app shop:hf
    """
    _, capture = _declared()
    for statement in capture.ddl:
        click.echo(f"{statement};")


@debezium.command()
@connection_options
def create() -> None:
    """Make the table if it is not there.

    \b
    Example:
      holdfast debezium create --app shop:hf
    """
    with _captured() as capture:
        capture.create_schema()
        click.echo(f"the table {capture.table.table} is there")


@debezium.command()
@click.option("--name", default="holdfast", show_default=True, help="Of the connector, its slot and its publication.")
@click.option(
    "--topic", default="${routedByValue}", show_default=True, help="Where ${routedByValue} is the event's aggregate."
)
@connection_options
def config(name: str, topic: str) -> None:
    """Print a connector's settings, as Kafka Connect's REST interface takes them.

    With them Debezium sends the records that our own Kafka sink would send in binary mode. What you have to fill in
    says FILL-IN.

    \b
    Example:
      holdfast debezium config --name shop --topic 'shop.${routedByValue}' --app shop:hf
    """
    _, capture = _declared()
    settings = capture.connector(name, topic)
    click.echo(json.dumps({"name": settings.pop("name"), "config": settings}, indent=2))


@debezium.command("hand-over")
@click.option("--since", type=MOMENT, help="Written from this time on: 2h for two hours ago, or 2026-05-01T12:30.")
@click.option("--until", type=MOMENT, help="Written before this time.")
@click.option("--slot", help="PostgreSQL: what the connector of this slot has not confirmed. It must be stopped.")
@click.option("--publication", help="Of the slot.  [default: the slot's name]")
@click.option("--limit", type=click.IntRange(1), help="At most this many, the oldest first.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@connection_options
@json_option
def hand_over(dry_run: bool, yes: bool, actor: str | None, as_json: bool, **said: Any) -> None:
    """Make deliveries by the routes that APP has today of events in the table, and delete them there.

    They keep their ids, so that receivers which deduplicate take each once. An event that no route takes stays. Each
    event leaves an audit line. It asks first; without a terminal it needs --yes.

    \b
    Example:
      holdfast debezium hand-over --slot shop --dry-run --app shop:hf
      holdfast debezium hand-over --since 2h --yes --app shop:hf
    """
    if not any((said["since"], said["until"], said["slot"])):
        raise Failure("which events?", Exit.USAGE, "give --since, --until, or --slot on PostgreSQL")
    with _captured() as capture:
        meant = capture.hand_over(dry_run=True, **said)
        if meant and not dry_run:
            confirm(f"Hand {plural(len(meant), 'event')} over to routes?", yes)
            meant = capture.hand_over(actor=actor_name(actor), **said)
    if as_json:
        return print_json(one | {"dry_run": dry_run} for one in meant)
    word = "would hand over" if dry_run else "handed over"
    click.echo(f"{word} {plural(len(meant), 'event')}")
    return None


@debezium.command()
@click.option("--older-than", type=DURATION, required=True, help="Delete what was written longer ago than this: 7d.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
def prune(older_than: timedelta, dry_run: bool, yes: bool) -> None:
    """Delete old rows of the table, whether the connector has taken them or not: it needs them no more than a moment.

    \b
    Example:
      holdfast debezium prune --older-than 7d --yes --app shop:hf
    """
    with _captured() as capture:
        count = capture.count(older_than)
        if not dry_run and count:
            confirm(f"Delete {plural(count, 'row')} older than {age(older_than)}?", yes)
            count = capture.prune(older_than)
    click.echo(f"{'would delete' if dry_run else 'deleted'} {plural(count, 'row')}")
