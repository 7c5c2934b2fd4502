"""`holdfast routes`: where an application's events go, and how to hold a route up."""

from __future__ import annotations

from typing import Any

import click

from holdfast import admin, jobs
from holdfast.cli.groups import Group
from holdfast.cli.names import unknown
from holdfast.cli.pauses import Asked, Told
from holdfast.cli.render import Column, age, print_json, print_notes, print_table
from holdfast.cli.shared import (
    actor_option,
    connection_options,
    current,
    json_option,
    load_app,
    named_app,
    open_store,
)
from holdfast.outbox import Route
from holdfast.values.reserved import ROUTE_PREFIX, route_of


@click.group(cls=Group)
def routes() -> None:
    """List an application's routes, pause and resume them.

    \b
    Example:
      holdfast routes list --app shop:hf
      holdfast routes pause orders --reason 'the broker is being moved' --app shop:hf
    """


@routes.command("list")
@connection_options
@json_option
def list_command(as_json: bool) -> None:
    """List the routes that APP declares: what they take, where it goes, what is due.

    \b
    Example:
      holdfast routes list --json --app shop:hf
    """
    declared = list(named_app("Routes are declared in its code.").context.routes)
    with open_store() as store:
        lags = {one.queue: one for one in store.run(admin.oldest_pending())}
        paused = {one.name: one for one in store.run(jobs.pauses()) if one.scope == "queue"}
    told = [_told(one, lags.get(one.queue), paused.get(one.queue)) for one in declared]
    if as_json:
        return print_json(told)
    rows = [
        (
            one["route"],
            one["pattern"],
            one["sink"],
            one["due"],
            "" if one["oldest_seconds"] is None else age(one["oldest_seconds"]),
            "yes" if one["paused"] else "",
        )
        for one in told
    ]
    columns = [Column("route", whole=True), *map(Column, ("takes", "sink")), Column("due", right=True)]
    print_table([*columns, Column("oldest"), Column("paused")], rows, empty="the application declares no routes")
    return None


def _told(route: Route, lag: Any, pause: Any) -> dict[str, Any]:
    return {
        "route": route.name,
        "queue": route.queue,
        "pattern": str(route.pattern),
        "sink": repr(route.sink),
        "due": 0 if lag is None else lag.due,
        "oldest_seconds": None if lag is None else lag.oldest_seconds,
        "paused": None if pause is None else pause.to_dict(),
    }


@routes.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--reason", help="Why, for those who find it paused.")
@click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")
@actor_option
@connection_options
@json_option
def pause(names: tuple[str, ...], reason: str | None, dry_run: bool, actor: str | None, as_json: bool) -> None:
    """Have relays claim nothing of routes, until they are resumed. Events go on being published, and wait.

    \b
    Example:
      holdfast routes pause orders --reason 'the broker is being moved' --app shop:hf
    """
    asked = _asked(names, dry_run, actor)
    with open_store() as store:
        notes = unknown(store, asked.meant, _declared())
        told = asked.pause(store, reason)
    _print(told, as_json)
    print_notes(notes)


@routes.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")
@actor_option
@connection_options
@json_option
def resume(names: tuple[str, ...], dry_run: bool, actor: str | None, as_json: bool) -> None:
    """Let relays claim from routes again.

    \b
    Example:
      holdfast routes resume orders --app shop:hf
    """
    asked = _asked(names, dry_run, actor)
    with open_store() as store:
        notes = unknown(store, asked.unpaused(store), _declared())
        told = asked.resume(store)
    _print(told, as_json)
    print_notes(notes)


def _declared() -> set[str]:
    """Name the queues of the routes that the application declares, where --app says which one that is."""
    app = current().app_name
    return {route.queue for route in load_app(app).context.routes} if app else set()


def _asked(names: tuple[str, ...], dry_run: bool, actor: str | None) -> Asked:
    return Asked.of(tuple(ROUTE_PREFIX + name.removeprefix(ROUTE_PREFIX) for name in names), (), dry_run, actor)


def _print(told: list[Told], as_json: bool) -> None:
    if as_json:
        print_json({"route": route_of(one.name)} | one.to_dict() for one in told)
        return
    for one in told:
        click.echo(str(one))
