"""`holdfast worker`: run an application's jobs until told to stop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.cli.app_argument import AppArgument, app_named
from holdfast.cli.logs import log_options, set_up_logging, tell_of_ends
from holdfast.cli.names import declared_queues
from holdfast.cli.parse import DURATION
from holdfast.cli.schemas import ForeignSchema
from holdfast.cli.shared import (
    Exit,
    Failure,
    connection_options,
    current,
    did_you_mean,
    in_options,
    load_app,
    require_tables,
)
from holdfast.errors import ConfigError, DatabaseUnavailable
from holdfast.store import Store, Stores

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.worker import Worker
    from holdfast.worker.monitor import Watching

log = logging.getLogger("holdfast")
F = TypeVar("F", bound=Callable[..., Any])


def watch_options(command: F) -> F:
    """Add the options that say how workers are watched."""
    for option in (
        click.option(
            "--heartbeat-file", type=click.Path(path_type=Path, dir_okay=False), help="Touch this while alive."
        ),
        click.option("--http", metavar="[HOST:]PORT", help="Answer /metrics, /livez and /readyz there."),
    ):
        command = option(command)
    return command


@click.command(short_help="Run an application's jobs.")
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@click.option("--queues", help="Serve only these, comma-separated.  [default: all that the handlers name]")
@click.option("--concurrency", type=click.IntRange(1, 100_000), help="Attempts at once.  [default: 20]")
@click.option(
    "--lease",
    type=DURATION,
    help="The lease of every kind, whatever its handler says.  [default: the handler's, or 30s]",
)
@click.option("--poll", type=DURATION, help="The longest pause between two looks at the queues.  [default: 1]")
@click.option("--drain", type=DURATION, default="30", show_default=True, help="Time to finish at a stop.")
@click.option("--processes", type=click.IntRange(1, 512), default=1, show_default=True, help="For more cores.")
@click.option("--name", help="What the worker's id begins with.  [default: the host's name]")
@click.option("--ring", is_flag=True, default=None, help="Share keys with other workers of the ring, by bucket.")
@click.option("--serve-shards", help="Serve only these shards, by number, comma-separated.  [default: all]")
@click.option("--no-receive", is_flag=True, help="Leave the messages of brokers to other workers.")
@click.option("--no-relay", is_flag=True, help="Leave the events of routes to other workers.")
@click.option("--no-notify", is_flag=True, help="Wake by polling alone.")
@click.option("--reload", "reload_", is_flag=True, help="Start again when a Python file changes: for development.")
@click.option(
    "--reload-dir",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Watch this folder with --reload; may be repeated.  [default: the current one]",
)
@watch_options
@log_options
@connection_options
def worker(
    app_name: str | None,
    queues: str | None,
    serve_shards: str | None,
    lease: timedelta | None,
    processes: int,
    no_receive: bool,
    no_relay: bool,
    http: str | None,
    heartbeat_file: Path | None,
    reload_: bool,
    folders: tuple[Path, ...],
    **said: Any,
) -> None:
    """Run APP's jobs, and deliver the events of its routes. APP is module:attribute, as in shop:hf.

    SIGTERM or Ctrl-C: it claims no more, gives back what it has not begun, lets handlers finish for --drain seconds,
    then releases the rest. A second signal stops it at once. Whatever kills it, another worker takes over its jobs when
    their leases end.

    \b
    Example:
      holdfast worker shop:hf --queues mail,reports --concurrency 50
      holdfast worker shop:hf --processes 4 --log-json --http 9464
      holdfast worker shop:hf --import shop.jobs --reload
    """
    watching = watching_of(http, heartbeat_file)
    parent = _reloading(app_name, folders, processes, said) if reload_ or folders else None
    holdfast, options = prepared("worker", app_name, said)
    if parent is not None:
        options["parent"] = parent
    if lease is not None:
        for handler in holdfast.handlers.values():
            handler.options = replace(handler.options, lease=lease.total_seconds())
    if no_receive:
        options["receive"] = False
    if serve_shards is not None:
        options["shards"] = _numbers(serve_shards, holdfast.stores.whole)
    if queues is not None:
        options["queues"] = queue_names(queues)
        _warn_of_unknown(options["queues"], declared_queues(holdfast))
    serve(Serving(holdfast.stores, partial(holdfast.worker, relay=not no_relay)), processes, options, watching)


def _reloading(app_name: str | None, folders: tuple[Path, ...], processes: int, said: dict[str, Any]) -> int:
    """Become the parent of workers that start again after changes; return in each of them, with the parent's id."""
    from holdfast.cli.reload import DRAIN_SECONDS, Reloader, parent_of_this, python_files

    if processes > 1:
        raise click.BadParameter("--reload is for one process", param_hint="--processes")
    app_named("worker", app_name)
    said["drain"] = min(said["drain"], timedelta(seconds=DRAIN_SECONDS))
    if (parent := parent_of_this()) is not None:
        return parent
    watched = folders or (Path.cwd(),)
    # A framework's own command has imported the application by now.
    return Reloader(lambda: python_files(watched), afresh=current().program is not None).run()


def prepared(command: str, app_name: str | None, said: dict[str, Any]) -> tuple[Holdfast, dict[str, Any]]:
    """Set up logging, load the application and check its tables; return it with the options for its worker."""
    name = app_named(command, app_name)
    if said.pop("no_notify"):
        os.environ["HOLDFAST_NOTIFY"] = "false"
    # A framework has set up its logging before.
    before = [] if current().program else list(logging.getLogger().handlers)
    holdfast = load_app(name)
    # Behind the import: what the application says of its own logging counts.
    is_set_up = logging.getLogger().handlers != before
    set_up_logging(said.pop("log_level"), said.pop("log_json"), said.pop("log_config"), is_set_up=is_set_up)
    tell_of_ends(holdfast)
    for store in holdfast.stores:
        _check_tables(holdfast, store)
    return holdfast, {option: value for option, value in said.items() if value is not None}


class Serving(NamedTuple):
    """An application as its processes need it: its databases, and what makes a worker of it."""

    stores: Stores
    worker: Callable[..., Worker]


def watching_of(http: str | None, heartbeat_file: Path | None) -> Watching:
    """Read where workers answer for themselves, and the file that they touch."""
    from holdfast.worker.monitor import Watching, address

    with in_options():
        return Watching(None if http is None else address(http), heartbeat_file)


def serve(app: Serving, processes: int, options: dict[str, Any], watching: Watching) -> None:
    """Run workers until a signal comes, and end with their exit code."""
    from holdfast.worker.process import main

    if watching.wanted:
        options["watching"] = watching
    with in_options():
        code = main(app, processes=processes, **options)
    sys.exit(code)


def _check_tables(holdfast: Holdfast, store: Store) -> None:
    """Raise unless the tables are there that a worker needs in a database of the application.

    A database other than its own may be away: the worker serves the others and waits for it.
    """
    # On a store of its own: forked processes must not share the application's connections.
    with closing(Store(store.url, store.options)) as apart:
        is_home = store is holdfast.store
        if is_home:
            require_tables(apart)
        if not apart.in_memory:
            with nullcontext() if is_home else suppress(DatabaseUnavailable):
                for source in holdfast.foreign.served_on(store):
                    ForeignSchema(source, apart).require()


def queue_names(text: str, option: str = "--queues") -> list[str]:
    """Split a,b and refuse empty names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} has an empty name", param_hint=option)
    return names


def _numbers(text: str, whole: Store) -> list[int]:
    """Split 0,2. Raises: Failure for a shard that there is not."""
    from holdfast.worker.joints import served_shards

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} must be numbers, as in 0,2", param_hint="--serve-shards")
    try:
        return served_shards([int(part) for part in parts], whole)
    except ConfigError as error:
        raise Failure(f"--serve-shards: {error.rule}", Exit.USAGE) from error


def _warn_of_unknown(queues: list[str], declared: set[str]) -> None:
    """Warn of queues that the code does not speak of: jobs may come from elsewhere, or the name is misspelt."""
    for name in queues:
        if name not in declared:
            hint = did_you_mean(name, sorted(declared))
            log.warning("queue %s is not declared, and no handler has it%s", name, hint and f"; {hint}")
