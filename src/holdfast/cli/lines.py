"""`holdfast lines`: the keys of queues with lines that are at work, and how to stop and start them."""

from __future__ import annotations

import click

from holdfast import admin
from holdfast.cli.groups import Group
from holdfast.cli.render import Column, moment, plural, print_json, print_table
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    json_option,
    open_store,
)
from holdfast.store import Store

MOST_STARTED = 10_000


@click.group(cls=Group)
@connection_options
def lines() -> None:
    """List, stop and start the lines of keys.

    \b
    Example:
      holdfast lines list --stopped --app shop:hf
      holdfast lines start orders order:9182 --app shop:hf
    """


@lines.command("list")
@click.option("--queue", help="Only this queue.")
@click.option("--key", help="Only this key.")
@click.option("--stopped", is_flag=True, help="Only lines that stand still.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@connection_options
@json_option
def list_command(queue: str | None, key: str | None, stopped: bool, limit: int, as_json: bool) -> None:
    """List the keys that have something leased or waiting. Idle keys have no line.

    \b
    Example:
      holdfast lines list --queue orders --json --app shop:hf
    """
    with open_store() as store:
        found = store.run(admin.list_lines(queue, key, stopped=stopped, limit=limit))
    if as_json:
        print_json(line.to_dict() for line in found)
        return
    columns = [Column("queue", whole=True), Column("key", whole=True), Column("held"), Column("waiting")]
    columns += [Column("stopped"), Column("for job", whole=True)]
    rows = [(f.queue, f.key, f.held, f.waiting, moment(f.stopped_at), f.stopped_for or "") for f in found]
    print_table(columns, rows, empty="no lines: nothing of a queue with lines is leased or waits")


@lines.command()
@click.argument("queue")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@actor_option
@connection_options
@json_option
def stop(queue: str, keys: tuple[str, ...], actor: str | None, as_json: bool) -> None:
    """Let lines stand still: what runs ends, and what is due or comes later waits until they are started.

    \b
    Example:
      holdfast lines stop orders order:9182 --app shop:hf
    """
    with open_store() as store:
        done = store.run(admin.stop_lines(queue, keys, actor_name(actor)))
    _report("stopped", queue, done, as_json)


@lines.command()
@click.argument("queue")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every stopped line of the queue.")
@click.option("--dry-run", is_flag=True, help="Tell which, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@connection_options
@json_option
def start(
    queue: str, keys: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, actor: str | None, as_json: bool
) -> None:
    """Let stopped lines go on. A dead letter that stopped one stays where it is.

    \b
    Example:
      holdfast lines start orders order:9182 --app shop:hf
      holdfast lines start orders --all --dry-run --app shop:hf
    """
    if bool(keys) == everything:
        raise Failure("which lines?", Exit.USAGE, "give keys, or --all for every stopped line of the queue")
    with open_store() as store:
        stopped = _stopped(store, queue)
        meant = [key for key in stopped if everything or key in keys]
        if not meant:
            hint = f"`holdfast lines list --stopped --queue {queue}` shows what is"
            raise Failure("no such line is stopped", Exit.NOT_FOUND, hint)
        if not dry_run and everything:
            confirm(f"Start {plural(len(meant), 'line')} of {queue}?", yes)
        done = meant if dry_run else store.run(admin.start_lines(queue, meant, actor_name(actor)))
    _report("would start" if dry_run else "started", queue, done, as_json)


def _stopped(store: Store, queue: str) -> list[str]:
    found = store.run(admin.list_lines(queue, stopped=True, limit=MOST_STARTED))
    return [line.key for line in found]


def _report(what: str, queue: str, keys: list[str], as_json: bool) -> None:
    if as_json:
        print_json([{"queue": queue, "done": what, "keys": keys}])
    else:
        click.echo(f"{what} {plural(len(keys), 'line')} of {queue}{': ' if keys else ''}{', '.join(keys)}")
