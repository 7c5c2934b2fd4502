"""`holdfast relay`: deliver an application's events until told to stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from holdfast.cli.app_argument import AppArgument
from holdfast.cli.logs import log_options
from holdfast.cli.parse import DURATION
from holdfast.cli.shared import connection_options
from holdfast.cli.worker import Serving, prepared, queue_names, serve, watch_options, watching_of


@click.command(short_help="Deliver an application's events.")
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@click.option("--routes", help="Serve only these, comma-separated.  [default: all that the application has]")
@click.option("--concurrency", type=click.IntRange(1, 100_000), help="Calls of sinks at once.  [default: 20]")
@click.option("--poll", type=DURATION, help="The longest pause between two looks at the outbox.  [default: 1]")
@click.option("--drain", type=DURATION, default="30", show_default=True, help="Time to finish at a stop.")
@click.option("--processes", type=click.IntRange(1, 512), default=1, show_default=True, help="For more cores.")
@click.option("--name", help="What the worker's id begins with.  [default: the host's name]")
@click.option("--no-notify", is_flag=True, help="Wake by polling alone.")
@watch_options
@log_options
@connection_options
def relay(
    app_name: str | None,
    routes: str | None,
    processes: int,
    http: str | None,
    heartbeat_file: Path | None,
    **said: Any,
) -> None:
    """Deliver the events of APP's routes, and run none of its jobs. APP is module:attribute, as in shop:hf.

    It is a worker for routes only; `holdfast worker` serves both, and --no-relay there leaves the events to this one.
    Any number of relays may run. A broker that is away is tried again and again; no event loses an attempt by that.
    SIGTERM or Ctrl-C: calls under way may finish for --drain seconds. Whatever kills it, another relay takes over.

    \b
    Example:
      holdfast relay shop:hf
      holdfast relay shop:hf --routes orders,audit --processes 2
    """
    watching = watching_of(http, heartbeat_file)
    holdfast, options = prepared("relay", app_name, said)
    named = None if routes is None else queue_names(routes, "--routes")
    serve(Serving(holdfast.stores, partial(holdfast.relay, named)), processes, options, watching)
