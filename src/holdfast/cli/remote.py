"""Remote steps on the command line: `holdfast runs redispatch`, and what `doctor` says of them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast import remote as flows
from holdfast.cli.render import print_json
from holdfast.cli.shared import actor_name, actor_option, connection_options, json_option, open_store
from holdfast.cli.stores import transport_named
from holdfast.errors import ConfigError, StoreError
from holdfast.life.findings import Finding
from holdfast.remote import OpenDispatch
from holdfast.store import Store
from holdfast.values.words import plural
from holdfast.workflows import redispatch_by_hand

# Every worker that serves runs looks after dispatches about once a second, so by then nobody does.
UNWATCHED_MS = 60_000
OFTEN = 3
READ = 1_000


@click.command("redispatch")
@click.argument("run")
@click.argument("key", required=False)
@click.option("--workflow", help="Whose run it is, where several workflows have one of this id.")
@connection_options
@actor_option
@json_option
def redispatch_command(run: str, key: str | None, workflow: str | None, actor: str | None, as_json: bool) -> None:
    """Have the remote steps that a run waits for sent again, or the one with this key; a worker does so in a moment.

    \b
    Example:
      holdfast runs redispatch order-1 remote:pipeline.extract --app shop:hf
    """
    with open_store() as store:
        keys = store.run(redispatch_by_hand(run, key, workflow, actor_name(actor)))
    if as_json:
        print_json([{"run": run, "keys": keys}])
    else:
        click.echo(f"{', '.join(keys)} of {run} will be sent again")


def examined(store: Store) -> Iterator[Finding]:
    """Find dispatches that nobody looks after, with those that are lost, and those that get lost again and again."""
    found = store.run(flows.open_dispatches(UNWATCHED_MS, OFTEN, READ))
    unwatched = [one for one in found if one.unwatched]
    for engine in sorted({one.engine for one in unwatched}):
        mine = [one for one in unwatched if one.engine == engine]
        lost = _lost(store, engine)
        gone = f"; {lost:,} of them lost: neither a task nor a result is there" if lost else ""
        seen = f"{_counted(mine)} engine {engine}, and no worker looks after it{gone}. The oldest is {_named(mine[0])}"
        do = f"start a worker for runs whose application has hf.remote_engine(…) with the name {engine}"
        yield Finding("remote", "problem", seen, do)
    often = [one for one in found if one.lost >= OFTEN]
    if often:
        seen = f"{_counted(often)} engine {often[0].engine} and got lost again and again: {_named(often[0])}"
        do = "see who else deletes from its tables: an engine with the same prefix, or a worker that stalls"
        yield Finding("remote", "warning", seen, do)
    if not found:
        yield Finding("remote", "ok", "every remote step that a run waits for is looked after")


def _counted(found: list[OpenDispatch]) -> str:
    if len(found) == READ:
        return f"{READ:,} or more remote steps wait for"
    return plural(len(found), "remote step waits for", "remote steps wait for")


def _named(one: OpenDispatch) -> str:
    return f"{one.key} of run {one.run}"


def _lost(store: Store, engine: str) -> int:
    """Count dispatches of which neither row is there, where the engine's tables are called by its name."""
    try:
        return store.run(flows.missing(engine, transport_named(store, engine), READ))
    except (ConfigError, StoreError):
        # Messages, or tables of another name: from here nobody can tell.
        return 0
