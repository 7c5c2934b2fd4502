"""`holdfast schedules`: jobs that come again and again: see when, add, pause, run now, remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast import schedules as flows
from holdfast.cli.app_argument import AppArgument, AppCommand, app_named
from holdfast.cli.enqueue import bind_words
from holdfast.cli.groups import Group
from holdfast.cli.parse import DURATION, payload_of, texts_of
from holdfast.cli.render import Column, age, moment, plural, print_fields, print_json, print_notes, print_table
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    connection_options,
    current,
    did_you_mean,
    in_options,
    json_option,
    load_app,
    open_store,
    require_tables,
)
from holdfast.cli.stores import plain_app
from holdfast.errors import ConfigError, ScheduleNotFound
from holdfast.schedules import CATCH_UPS, CatchUp, Schedule, Stored
from holdfast.schedules.syncing import prints_of
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.worker import registry

RUNS_SHOWN = 5


@click.group(cls=Group)
def schedules() -> None:
    """See and change the schedules: jobs that come again and again.

    \b
    Example:
      holdfast schedules list --app shop:hf
      holdfast schedules trigger nightly --app shop:hf
    """


@schedules.command("list")
@click.argument("name", required=False)
@click.option("--runs", type=click.IntRange(1, 100), default=RUNS_SHOWN, show_default=True, help="Next runs to show.")
@connection_options
@json_option
def list_command(name: str | None, runs: int, as_json: bool) -> None:
    """List the schedules with their next runs, or show one with all that it is.

    \b
    Example:
      holdfast schedules list --app shop:hf
      holdfast schedules list nightly --runs 10 --app shop:hf
    """
    with _open_for(name) as store:
        found = store.run(flows.listed(name))
    only_declared = [] if name else [one for one in _declared() if one not in {stored.name for stored in found}]
    if as_json:
        print_json(one.to_dict() | {"next_runs": _runs(one, runs)} for one in found)
    elif found and name is not None:
        _print_one(found[0], runs)
    elif found or not only_declared:
        _print_all(found)
    if only_declared:
        print_notes([_not_stored(only_declared)])


def _declared() -> list[str]:
    """Name the schedules in the code of the application, where --app says which one that is."""
    name = current().app_name
    return list(load_app(name).context.declared_schedules()) if name else []


def _not_stored(names: Iterable[str]) -> str:
    how = f"start a worker, or run `holdfast schedules sync {current().app_name}`"
    return f"declared, and not stored yet: {', '.join(names)}. To store them, {how}"


@contextmanager
def _open_for(name: str | None) -> Iterator[Store]:
    """Open the store; where no schedule has this name, say which one may be meant, or that it is not stored yet."""
    declared = _declared()
    with open_store() as store:
        try:
            yield store
        except ScheduleNotFound as error:
            stored = [one.name for one in store.run(flows.listed())]
            near = did_you_mean(error.schedule, sorted({*stored, *declared}))
            hint = _not_stored([error.schedule]) if error.schedule in declared else near
            raise Failure(str(error), Exit.NOT_FOUND, hint) from error


def _runs(one: Stored, count: int) -> list[Any]:
    """Tell the next ticks, as far as they can be worked out on this machine."""
    try:
        return one.upcoming(count)
    except ConfigError:
        return [] if one.paused_at else [one.next_at]


def _print_all(found: list[Stored]) -> None:
    columns = [Column("name", whole=True), Column("when", whole=True), Column("kind")]
    columns += [Column("queue", spare=True), Column("next", whole=True), Column("last", whole=True)]
    rows = [(one.name, one.timetable, one.kind, one.queue, _next(one), _last(one)) for one in found]
    print_table(columns, rows, empty="no schedules: declare one with hf.schedule(…), or `holdfast schedules add`")


def _next(one: Stored) -> str:
    return "paused" if one.paused_at is not None else moment(one.next_at)


def _last(one: Stored) -> str:
    return "never" if one.last_at is None else f"{age(datetime.now(UTC) - one.last_at)} ago"


def _print_one(one: Stored, runs: int) -> None:
    print_fields(
        [
            ("name", one.name),
            ("when", one.timetable),
            ("kind", one.kind),
            ("queue", one.queue),
            ("payload", one.payload),
            ("options", one.options),
            ("catch up", one.catch_up),
            ("paused", moment(one.paused_at)),
            ("last", moment(one.last_at) or "never"),
            ("set by", one.declared_by),
            ("changed", moment(one.changed_at)),
        ]
    )
    for number, run in enumerate(_runs(one, runs)):
        click.echo(f"{'next' if number == 0 else '':8}  {moment(run)}")


@schedules.command()
@click.argument("name")
@click.argument("kind")
@click.argument("payload", metavar="[JSON | - | NAME=VALUE...]", nargs=-1)
@click.option("--cron", help='When: minute hour day month weekday, such as "0 2 * * *".')
@click.option("--every", type=DURATION, help="Or how often: 90s, 15m, 1h.")
@click.option("--timezone", help="The time zone of --cron, such as Europe/Berlin.  [default: UTC]")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), default="one", show_default=True, help="For missed ticks.")
@click.option("--queue", help="Another queue than the handler's.")
@click.option("--priority", type=int, help="-100 to 100; higher runs first.  [default: the handler's, or 0]")
@click.option("--delay", type=DURATION, help="Run no earlier than this after each tick.")
@click.option("--expires", type=DURATION, help="Do not begin a job later than this after its tick; it is cancelled.")
@click.option("--key", help="The ordering key, such as order:9182.")
@click.option("--unique", help="Add nothing while a job of this kind with this unique key lives.")
@click.option(
    "--max-attempts", type=int, help="Attempts before a job becomes a dead letter.  [default: the handler's, or 5]"
)
@click.option("--no-check", is_flag=True, help="Allow a kind that --app does not handle.")
@click.option("--replace", is_flag=True, help="Let it take the place of another definition.")
@actor_option
@connection_options
@json_option
def add(
    name: str,
    kind: str,
    payload: tuple[str, ...],
    cron: str | None,
    every: timedelta | None,
    timezone: str | None,
    catch_up: CatchUp,
    delay: timedelta | None,
    no_check: bool,
    replace: bool,
    actor: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Add a schedule: at each tick, one job of KIND with these arguments.

    With --app the arguments are checked against the handler, which also says the queue and the attempts. Workers of any
    application on this database do the ticks; they see a new schedule within five seconds.

    \b
    Example:
      holdfast schedules add nightly report day=yesterday --cron "0 2 * * *" --timezone Europe/Berlin --app shop:hf
      holdfast schedules add sweep clean_up --every 15m --catch-up skip --app shop:hf
    """
    if (cron is None) == (every is None):
        hint = 'such as --cron "0 2 * * *", or --every 15m'
        raise Failure("when is it to run? Give either --cron or --every", Exit.USAGE, hint)
    if every is not None and timezone is not None:
        raise Failure("--timezone belongs to --cron; --every counts in UTC", Exit.USAGE, "leave --timezone out")
    arguments = payload_of(payload)
    app = current().application()
    check = app is not None and not no_check
    with in_options(), app or plain_app() as holdfast:
        bound = bind_words(holdfast, kind, arguments, texts_of(payload), check=check, run_after=delay, **said)
        made = Schedule.of(name, bound.new_job(""), cron=cron, every=every, timezone=timezone, catch_up=catch_up)
        require_tables(holdfast.store)
        what = holdfast.store.run(flows.add(made, actor_name(actor), over=replace))
        [stored] = holdfast.store.run(flows.listed(name))
    _tell(as_json, name, what, stored.next_at)


@schedules.command()
@click.argument("name")
@actor_option
@connection_options
@json_option
def pause(name: str, actor: str | None, as_json: bool) -> None:
    """Stop a schedule's ticks until it is resumed, through restarts and deployments.

    Jobs that it has added already are not touched.

    \b
    Example:
      holdfast schedules pause nightly --app shop:hf
    """
    with _open_for(name) as store:
        store.run(flows.pause(name, actor_name(actor)))
    _tell(as_json, name, "paused")


@schedules.command()
@click.argument("name")
@actor_option
@connection_options
@json_option
def resume(name: str, actor: str | None, as_json: bool) -> None:
    """Let a schedule tick from now on. Ticks that came in the pause are not made up for.

    One that is not paused starts over from now, too: for a schedule that ran ahead with a clock that was wrong.

    \b
    Example:
      holdfast schedules resume nightly --app shop:hf
    """
    with _open_for(name) as store:
        stored = store.run(flows.resume(name, actor_name(actor)))
    _tell(as_json, name, "resumed", stored.next_at)


@schedules.command()
@click.argument("name")
@actor_option
@connection_options
@json_option
def trigger(name: str, actor: str | None, as_json: bool) -> None:
    """Add a schedule's job now and print its id. Its next tick stays where it is; a paused one stays paused.

    \b
    Example:
      holdfast schedules trigger nightly --app shop:hf
    """
    with _open_for(name) as store:
        added = store.run(flows.trigger(name, new_id(), actor_name(actor)))
    if as_json:
        return print_json([{"name": name, "id": added.id, "created": added.created}])
    click.echo(added.id)
    if not added.created:
        click.echo("nothing added: a job with its unique key is there already", err=True)


@schedules.command()
@click.argument("name")
@actor_option
@connection_options
@json_option
def remove(name: str, actor: str | None, as_json: bool) -> None:
    """Delete a schedule. Jobs that it has added stay.

    Take it out of the code first: an application that declares it stores it again when its next worker starts.

    \b
    Example:
      holdfast schedules remove nightly --app shop:hf
    """
    with _open_for(name) as store:
        store.run(flows.remove(name, actor_name(actor)))
        live = [one for one in store.run(registry.workers()) if not one.is_gone and name in prints_of(one.info)]
    _tell(as_json, name, "removed")
    if live:
        declare = f"{plural(len(live), 'live worker')} declare {name}: it comes back when one of that version starts"
        print_notes([declare])


@schedules.command(cls=AppCommand)
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@actor_option
@connection_options
@json_option
def sync(app_name: str | None, actor: str | None, as_json: bool) -> None:
    """Store the schedules that APP declares, as a step of a deployment.

    Workers do this by themselves when they start. Here it counts at once, whatever other versions of the application
    declare. Schedules that APP does not declare are left alone.

    \b
    Example:
      holdfast schedules sync shop:hf
    """
    app_name = app_named("schedules sync", app_name)
    with load_app(app_name) as holdfast:
        require_tables(holdfast.store)
        declared = holdfast.context.declared_schedules().values()
        answer = holdfast.store.run(flows.sync(declared, actor=actor_name(actor)))
    if as_json:
        return print_json({"name": name, "what": what} for name, what in answer.items())
    for name, what in answer.items():
        click.echo(f"{name}: {what}")
    if not answer:
        click.echo(f"{app_name} declares no schedules", err=True)


def _tell(as_json: bool, name: str, what: str, next_at: datetime | None = None) -> None:
    if as_json:
        return print_json([{"name": name, "what": what} | ({} if next_at is None else {"next_at": next_at})])
    click.echo(f"{name}: {what}" if next_at is None else f"{name}: {what}; next run {moment(next_at)}")
