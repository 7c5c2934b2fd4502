"""`holdfast demo`: all of it on SQLite, in under a minute."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.command(short_help="Watch it work, and count that nothing is lost.")
@click.option("--url", help="A database to run it on, in tables of its own.  [default: a SQLite file of its own]")
@click.option("--orders", type=click.IntRange(1, 1_000_000), help="How many orders to place.")
@click.option("--workers", type=click.IntRange(1, 64), help="How many worker processes to run.")
def demo(**said: str | int | None) -> None:
    """Watch orders, workers, a killed worker, retries and a dead letter, and count that nothing is lost.

    \b
    Example:
      holdfast demo
      holdfast demo --orders 20000 --workers 4
    """
    from holdfast.demo import run

    options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    sys.exit(run(**options))
