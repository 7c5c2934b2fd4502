"""`holdfast outbox`: events on their way: list them, look at one, see what is behind, publish them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from holdfast import admin, jobs
from holdfast import outbox as events
from holdfast.admin.looking import ids_from
from holdfast.cli.groups import Group
from holdfast.cli.looking import after_option, far_option, looked, only_one, tell_of_more
from holdfast.cli.meant import Meant, meant_of, until_now
from holdfast.cli.parse import MOMENT, ROW_ID
from holdfast.cli.render import Column, age, error_line, plural, print_fields, print_json, print_notes, print_table
from holdfast.cli.sharding import parts
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    json_option,
    named_app,
    named_route,
    open_store,
)
from holdfast.errors import JobNotFound
from holdfast.observe import COUNTED
from holdfast.outbox import UNROUTED, DeliveryView, Route
from holdfast.store import Store
from holdfast.values.ids import id_beginning
from holdfast.values.reserved import ROUTE_PREFIX, is_route, route_of
from holdfast.worker import registry

NAMES = ("delivery", "deliveries")
# Rows per transaction: large enough to be quick, small enough to hold no lock for long.
ROWS_PER_COMMIT = 1000


@click.group(cls=Group)
def outbox() -> None:
    """Look at published events, and publish them again.

    An event is one delivery for each route that takes it. Dead deliveries are dead letters: `holdfast dead` lists,
    groups, replays and discards them, with --event for a type.

    \b
    Example:
      holdfast outbox list --type order.created --since 1h --app shop:hf
      holdfast outbox lag --app shop:hf
      holdfast outbox republish --type order.created --since 2h --dry-run --app shop:hf
    """


def _queue(route: str | None, unrouted: bool) -> str | None:
    if route is not None and unrouted:
        raise Failure("--route and --unrouted contradict each other", Exit.USAGE, "leave one of them out")
    return UNROUTED if unrouted else None if route is None else ROUTE_PREFIX + route.removeprefix(ROUTE_PREFIX)


@outbox.command("list")
@click.option("--type", "event", help="Only events of this type.")
@click.option("--route", help="Only deliveries by this route.")
@click.option("--unrouted", is_flag=True, help="Only events that no route takes.")
@click.option("--state", "states", type=click.Choice(admin.STATES), multiple=True, help="Only this; may be repeated.")
@click.option("--key", help="Only this key.")
@click.option("--since", type=MOMENT, help="Published from this time on: 2h for two hours ago, or 2026-05-01T12:30.")
@click.option("--until", type=MOMENT, help="Published before this time.")
@click.option("--limit", type=click.IntRange(1, admin.LONGEST_LIST), default=50, show_default=True)
@after_option
@click.option("--oldest", is_flag=True, help="The oldest first.")
@far_option
@connection_options
@json_option
def list_command(
    route: str | None,
    unrouted: bool,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: str | None,
    oldest: bool,
    far: bool,
    as_json: bool,
    **said: Any,
) -> None:
    """List deliveries of events, the newest first; one that is done is in the archive of its route.

    It looks at the newest 20,000 live and as many finished jobs, and says so where there are more; --all goes on.

    \b
    Example:
      holdfast outbox list --route orders --state pending --app shop:hf
      holdfast outbox list --unrouted --json --url sqlite:///shop.db | jq -r .type
    """
    queue = _queue(route, unrouted)
    wanted = admin.Filter(outbox=True, queue=queue, created_after=since, created_before=until, **said)
    with open_store() as store:
        look = partial(admin.look, wanted, newest=not oldest)
        found, stopped = looked(store, look, limit, after, far)
    rows = list(map(events.delivery_of, found))
    if as_json:
        print_json(one.to_dict() for one in rows)
    else:
        print_table(COLUMNS, map(_as_row, rows), empty="no deliveries found")
    tell_of_more([job.id for job in found], limit, stopped)


COLUMNS = [Column("id", whole=True, ids=True), Column("type"), Column("route"), Column("state", whole=True)]
COLUMNS += [Column("tries", spare=True), Column("published", spare=True), Column("error")]


def _as_row(one: DeliveryView) -> tuple[str, ...]:
    job, error = one.job, one.job.last_error
    route = "(none)" if job.queue == UNROUTED else one.route
    said = "" if error is None else error_line(error.get("type"), error.get("message"))
    type = "(no event)" if one.event is None else one.event.type
    return (job.id, type, route, job.state, str(job.attempts), f"{age(datetime.now(UTC) - job.created_at)} ago", said)


@outbox.command()
@click.argument("row_id", metavar="ID", type=ROW_ID)
@connection_options
@json_option
def show(row_id: str, as_json: bool) -> None:
    """Show an event and where it went. ID is the event's, or that of one of its deliveries.

    \b
    Example:
      holdfast outbox show 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
    """
    with open_store() as store:
        row_id = _whole_id(store, row_id)
        try:
            found = store.run(events.siblings(row_id))
        except JobNotFound:
            seen = f"there is no event {row_id}: its publish was never committed, or its routes no longer keep it"
            raise Failure(seen, Exit.NOT_FOUND, "`holdfast outbox list` shows what there is") from None
    if as_json:
        return print_json(one.to_dict() for one in found)
    first = found[0]
    if first.event is None:
        print_fields([("row", first.job.id), ("holds no event", first.job.payload)])
    else:
        attributes = [(name, value) for name, value in first.event.attributes.items() if name != "specversion"]
        print_fields([*attributes, ("data", _as_text(first.event.data)), *sorted((first.job.headers or {}).items())])
    click.echo()
    print_table(COLUMNS, map(_as_row, found))
    return None


def _whole_id(store: Store, said: str) -> str:
    beginning = id_beginning(said)
    return said if beginning is None else only_one(said, store.run(ids_from(beginning)))


def _whole_ids(store: Store, said: Sequence[str]) -> tuple[str, ...]:
    return tuple(_whole_id(store, one) for one in said)


def _as_text(data: object) -> object:
    """Write data as JSON, so that it can be copied from here; bytes stay what they are."""
    return data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False)


@outbox.command()
@connection_options
@json_option
def lag(as_json: bool) -> None:
    """Tell how far each route is behind: what is due, since when, and who serves it.

    \b
    Example:
      holdfast outbox lag --app shop:hf
    """
    with open_store() as store:
        lags = [one for one in store.run(admin.oldest_pending()) if is_route(one.queue)]
        paused = {one.name for one in store.run(jobs.pauses()) if one.scope == "queue"}
        relays = _relays(store)
    told: list[dict[str, Any]] = [
        {
            "route": None if one.queue == UNROUTED else route_of(one.queue),
            "due": one.due,
            "oldest_seconds": one.oldest_seconds,
            "paused": one.queue in paused,
            "relays": relays.get(one.queue, 0),
        }
        for one in lags
    ]
    if as_json:
        return print_json(told)
    rows = [
        (
            one["route"] or "(none takes them)",
            one["due"],
            age(one["oldest_seconds"]),
            "yes" if one["paused"] else "",
            "" if one["route"] is None else one["relays"],
        )
        for one in told
    ]
    columns = [Column("route", whole=True), Column("due", right=True), *map(Column, ("oldest", "paused", "relays"))]
    print_table(columns, rows, empty="nothing is due")
    return None


def _relays(store: Store) -> dict[str, int]:
    """Count the live workers that serve each route's queue."""
    alive = [one for one in store.run(registry.workers()) if one.status == "alive"]
    queues = [str(queue) for one in alive for queue in one.info.get("queues", ())]
    return {queue: queues.count(queue) for queue in set(queues) if is_route(queue)}


@outbox.command()
@click.option("--type", "event", help="Only events of this type.")
@click.option("--route", help="Only what went, or should have gone, by this route; it goes by that one again.")
@click.option("--unrouted", is_flag=True, help="Only events that no route took.")
@click.option("--state", "states", type=click.Choice(admin.STATES), multiple=True, help="Only this; may be repeated.")
@click.option("--key", help="Only this key.")
@click.option("--since", type=MOMENT, help="Published from this time on.")
@click.option("--until", type=MOMENT, help="Published before this time.")
@click.option("--id", "ids", type=ROW_ID, multiple=True, help="Only this delivery; may be repeated.")
@click.option("--to", help="By this route, whatever the types that it takes.  [default: all that take the event]")
@click.option(
    "--limit", type=click.IntRange(1), help="Of at most this many deliveries, the oldest first.  [default: all]"
)
@click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@connection_options
@json_option
def republish(
    route: str | None,
    unrouted: bool,
    since: datetime | None,
    until: datetime | None,
    to: str | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Publish events again, each once, by the routes that APP has today.

    They keep their ids, so that receivers which deduplicate take each once. Events that no route took leave the place
    where they waited; one that no route takes now stays. Deliveries that are live stay as they are, beside the new
    ones. Each event leaves an audit line. It asks first; without a terminal it needs --yes.

    \b
    Example:
      holdfast outbox republish --type order.created --since 2h --dry-run --app shop:hf
      holdfast outbox republish --route orders --since 2026-05-01 --until 2026-05-02 --to backup --yes --app shop:hf
      holdfast outbox republish --unrouted --yes --app shop:hf
    """
    queue = _queue(route, unrouted)
    if not any((queue, since, until, *said.values())):
        hint = "give a filter (--type, --route, --unrouted, --since, --state, --key, --id)"
        raise Failure("which events?", Exit.USAGE, hint)
    # Those that were sent on since then are kept beside them for a while.
    said["states"] = said["states"] or (("pending",) if unrouted else ())
    target = to or (None if route is None else route.removeprefix(ROUTE_PREFIX))
    untaken: set[str] = set()
    ways = _noting(_ways(target), untaken)
    with open_store() as store:
        said |= {"ids": _whole_ids(store, said["ids"]), "created_before": until_now(store, until)}
        wanted = admin.Filter(outbox=True, queue=queue, created_after=since, **said)
        meant = _matched(store, wanted, limit)
        if not dry_run:
            confirm(f"Publish the events of {meant.words} again?", yes)
        done, read = _republish(store, wanted, ways, meant, actor_name(actor), dry_run)
    if untaken:
        names = ", ".join(sorted(untaken))
        print_notes([f"no route takes {names}: declare one with hf.route(…), or name one with --to"])
    if as_json:
        return print_json(one | {"dry_run": dry_run} for one in done)
    word = "would publish" if dry_run else "published"
    of = meant.told(read, *NAMES) if dry_run else plural(read, *NAMES)
    click.echo(f"{word} {plural(len(done), 'event')} again, of {of}")
    return None


def _matched(store: Store, wanted: admin.Filter, limit: int | None) -> Meant:
    count = store.run(admin.count_found(wanted, COUNTED + 1))
    if not count:
        raise Failure("no delivery matches", Exit.NOT_FOUND, "`holdfast outbox list` shows what there is")
    return meant_of(count, limit, *NAMES)


def _ways(target: str | None) -> Callable[[str], Sequence[Route]]:
    if target is not None:
        route = named_route(target)
        return lambda type: (route,)
    return named_app("Its routes say where events go.").context.routes.taking


def _noting(ways: Callable[[str], Sequence[Route]], untaken: set[str]) -> Callable[[str], Sequence[Route]]:
    """Note the types that go no way, so that the command can say why their events stay."""

    def noted(type: str) -> Sequence[Route]:
        routes = ways(type)
        if not routes:
            untaken.add(type)
        return routes

    return noted


def _republish(
    store: Store, wanted: admin.Filter, ways: Callable[[str], Sequence[Route]], meant: Meant, actor: str, dry_run: bool
) -> tuple[list[dict[str, Any]], int]:
    """Go through the rows in chunks, each a transaction of its own; return what was published, and of how many rows."""
    # Deliveries of one event may be in several chunks.
    seen: set[str] = set()
    done: list[dict[str, Any]] = []
    most, read = meant.foreseen if dry_run else meant.most, 0
    for _, one in parts(store):
        read += _republish_in(one, wanted, ways, most - read, actor, dry_run, seen, done)
    return done, read


def _republish_in(
    store: Store,
    wanted: admin.Filter,
    ways: Callable[[str], Sequence[Route]],
    count: int,
    actor: str,
    dry_run: bool,
    seen: set[str],
    done: list[dict[str, Any]],
) -> int:
    """Go through the rows of one store; return how many it read."""
    after: str | None = None
    left = count
    while left > 0:
        chunk = events.republish(
            wanted,
            ways,
            min(ROWS_PER_COMMIT, left),
            actor,
            buckets=store.options.buckets,
            after=after,
            dry_run=dry_run,
            seen=seen,
        )
        answer = store.run(chunk)
        done += answer.events
        seen |= {str(one["event"]) for one in answer.events}
        after, left = answer.last, left - answer.read
        if after is None:
            break
    return count - left
