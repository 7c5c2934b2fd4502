"""`holdfast queues`: what is stored of queues, and how to change their order and limits, pause and resume them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast import admin, jobs, lines
from holdfast.cli.app_argument import AppArgument, AppCommand, app_named
from holdfast.cli.groups import Group
from holdfast.cli.names import declared_queues, unknown
from holdfast.cli.parse import DURATION
from holdfast.cli.pauses import Asked, Told
from holdfast.cli.render import Column, moment, print_json, print_notes, print_table
from holdfast.cli.shard_queues import differences, stored_by_shard, whole_of
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    current,
    json_option,
    load_app,
    open_store,
    together,
)
from holdfast.store import Shards, Store
from holdfast.values.pauses import Pause
from holdfast.values.queues import QueueSettings, Rate

# Only the annotations know what they convert to: at run time the class takes no parameter.
if TYPE_CHECKING:
    _AnyType = click.ParamType[Any]
else:
    _AnyType = click.ParamType

NONE = "none"
F = TypeVar("F", bound=Callable[..., Any])


class Number(_AnyType):
    """A whole number, or `none`."""

    name = "number|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value == NONE:
            return value
        if not re.fullmatch(r"[0-9]+", str(value), re.ASCII):
            self.fail(f"{value!r} is not a whole number; `none` takes the limit away", param, ctx)
        return int(value)


class RateText(_AnyType):
    """`100/1s`, `5/1m`, or `none`."""

    name = "count/time|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Rate) or value == NONE:
            return value
        count, slash, per = str(value).partition("/")
        if not slash or not re.fullmatch(r"[0-9]+", count, re.ASCII):
            self.fail(f"{value!r} is not a rate: write 100/1s or 5/1m, or `none` to take it away", param, ctx)
        return Rate(int(count), DURATION.convert(per, param, ctx))


NUMBER, RATE, YES_NO = Number(), RateText(), click.Choice(["yes", "no"])


@click.group(cls=Group, invoke_without_command=True)
@connection_options
@json_option
@click.pass_context
def queues(ctx: click.Context, as_json: bool) -> None:
    """List queues, change their limits, pause them.

    \b
    Example:
      holdfast queues --app shop:hf
      holdfast queues pause mail --reason 'the provider is down' --app shop:hf
      holdfast queues set stripe --concurrency 5 --rate 50/1s --app shop:hf
    """
    if ctx.invoked_subcommand is None:
        list_queues(as_json)


@queues.command("list")
@connection_options
@json_option
def list_command(as_json: bool) -> None:
    """List queues with order or limits, and what is paused. With --app also what the code says otherwise.

    \b
    Example:
      holdfast queues list --json --app shop:hf
    """
    list_queues(as_json)


def list_queues(as_json: bool) -> None:
    said = declared()
    with open_store() as store:
        there, paused = store.run(lines.stored()), store.run(jobs.pauses())
        differ = list(differences(stored_by_shard(store)))
    queues = {one.name: one for one in paused if one.scope == "queue"}
    kinds = [one for one in paused if one.scope == "kind"]
    names = sorted({*there, *said, *queues})
    for line in differ:
        click.echo(f"{line}; what was said last is listed. `queues set` or `queues adopt` stores one for all", err=True)
    if as_json:
        print_json(_as_json(name, there.get(name), said.get(name), queues.get(name)) for name in names)
        print_json({"kind": one.name, "paused": one.to_dict()} for one in kinds)
        return
    columns = [
        Column("queue", whole=True),
        Column("stored"),
        Column("held", spare=True),
        Column("changed by", spare=True),
        Column("the code says"),
        Column("paused"),
    ]
    rows = [_as_row(name, there.get(name), said.get(name), queues.get(name)) for name in names]
    print_table(columns, rows, empty="no queue has order or limits: say them with hf.queue(…), or with `queues set`")
    for one in kinds:
        click.echo(str(one))


def _as_row(name: str, one: lines.Stored | None, said: QueueSettings | None, pause: Pause | None) -> tuple[str, ...]:
    nothing = ("plain" if said is None else "nothing yet", "", "")
    shown = (str(one.settings), str(one.held), one.changed_by or "") if one else nothing
    other = said is not None and (one is None or said != one.settings)
    since = "" if pause is None else " ".join(filter(None, ("since", moment(pause.since), _by(pause))))
    return (name, *shown, str(said) if other else "", since)


def _by(pause: Pause) -> str:
    by = f"by {pause.by}" if pause.by else ""
    return f"{by}: {pause.reason}" if pause.reason else by


def _as_json(name: str, one: lines.Stored | None, said: QueueSettings | None, pause: Pause | None) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "settings": None} if one is None else one.to_dict()
    told["said"] = None if said is None else said.to_dict()
    return told | {"paused": None if pause is None else pause.to_dict()}


def declared() -> dict[str, QueueSettings]:
    """Return what the code of the application says, where one is named."""
    name = current().app_name
    known = load_app(name).context.queues if name else {}
    return {queue: one.settings for queue, one in known.items() if not one.settings.is_plain}


@queues.command("set", short_help="Change the order and limits of a queue.")
@click.argument("name", metavar="QUEUE")
@click.option("--ordered", type=click.Choice(["yes", "no", "commit"]), help="Jobs of one key one after the other.")
@click.option("--on-retry", type=click.Choice(["hold", "pass"]), help="What a failed job does to its key.")
@click.option("--on-dead", type=click.Choice(["go_on", "stop"]), help="What a dead letter does to its key.")
@click.option("--concurrency", type=NUMBER, help="Jobs of the queue at once.")
@click.option("--rate", type=RATE, help="Starts in a time: 100/1s.")
@click.option("--fair", type=YES_NO, help="Keys take turns.")
@click.option("--key-concurrency", type=NUMBER, help="Jobs of each key at once.")
@click.option("--key-rate", type=RATE, help="Starts of each key in a time.")
@click.option("--across", type=click.Choice(["one", "split"]), help="With shards: what each of them has of the limits.")
@click.option("--dry-run", is_flag=True, help="Tell what would be stored, and change nothing.")
@actor_option
@connection_options
@json_option
def set_command(name: str, dry_run: bool, actor: str | None, as_json: bool, **said: Any) -> None:
    """Change what is stored of a queue. Workers go by it within about a second; nothing is restarted.

    What is not named stays as it is; `none` takes a limit away. What runs already counts for a new limit. What waited
    for its turn in a queue that is not ordered any more is made due.

    \b
    Example:
      holdfast queues set stripe --concurrency 5 --rate 50/1s --app shop:hf
      holdfast queues set stripe --rate none --app shop:hf
      holdfast queues set orders --ordered yes --on-dead stop --dry-run --app shop:hf
    """
    given = {option: _value(value) for option, value in said.items() if value is not None}
    if not given:
        raise Failure("nothing says what to change", Exit.USAGE, "give an option, such as --concurrency 5")
    with open_store() as store:
        if given.get("ordered") == "commit":
            store.dialect.require_commit_order()
        # Before the change: what is stored of a queue makes it known.
        notes = unknown(store, [("queue", name)], declared_queues(load_app(app)) if (app := current().app_name) else ())
        whole = whole_of(store, name)
        before, now = store.run(admin.change_queue(name, given, actor_name(actor), dry_run, whole))
        notes += _of_each_shard(store, name, now)
    _report({name: (whole or before, now)}, dry_run, as_json)
    print_notes(notes)


def _of_each_shard(store: Store, name: str, now: QueueSettings) -> list[str]:
    """Warn of limits that each shard has whole, because the jobs of the queue are not kept in one of them."""
    kept = (said := declared().get(name)) is not None and said.is_limited
    if not isinstance(store, Shards) or not now.is_limited or now.is_split or kept:
        return []
    said_by = (
        "the code says of no limit" if current().app_name else "without --app nobody knows if the code says of one"
    )
    return [f"{said_by}, so jobs of {name} may be in all shards, and each has this limit: --across split divides it"]


def _value(value: Any) -> Any:
    return {"yes": True, "no": False, NONE: None}.get(value, value) if isinstance(value, str) else value


@queues.command(cls=AppCommand, short_help="Store what the code says of its queues.")
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Tell what would be stored, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@actor_option
@connection_options
@json_option
def adopt(
    app_name: str | None, names: tuple[str, ...], dry_run: bool, yes: bool, actor: str | None, as_json: bool
) -> None:
    """Store what APP's code says of its queues, for all of them or those named, whatever was stored before.

    \b
    Example:
      holdfast queues adopt shop:hf --dry-run
      holdfast queues adopt shop:hf stripe --yes
    """
    app_name = current().app = app_named("queues adopt", app_name)
    said = declared()
    for name in names:
        if name not in said:
            raise Failure(f"{app_name} says nothing of queue {name!r}", Exit.NOT_FOUND, f"it does of {', '.join(said)}")
    wanted = {name: one for name, one in said.items() if not names or name in names}
    with open_store() as store:
        there = store.run(lines.stored())
        differ = [name for name, one in wanted.items() if name not in there or there[name].settings != one]
        if differ and not dry_run:
            confirm(f"Store what {app_name} says of {', '.join(differ)}?", yes)
        done = {}
        for name in differ:
            change = vars(wanted[name])
            done[name] = store.run(admin.change_queue(name, change, actor_name(actor), dry_run))
    _report(done, dry_run, as_json)


def _report(done: dict[str, tuple[QueueSettings, QueueSettings]], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {"queue": name, "dry_run": dry_run, "before": before.to_dict(), "now": now.to_dict()}
            for name, (before, now) in done.items()
        )
        return
    for name, (before, now) in done.items():
        click.echo(f"{name}: {before} → {now}" + (" (not stored)" if dry_run else ""))
    if not done:
        click.echo("nothing to change: what the code says is stored", err=True)


def pause_options(command: F) -> F:
    """Add what pause and resume share: what is meant, and who does it."""
    return together(
        click.argument("names", metavar="[QUEUE]...", nargs=-1),
        click.option("--kind", "kinds", multiple=True, help="The jobs of this kind, in any queue; may be repeated."),
        click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing."),
        actor_option,
        connection_options,
        json_option,
    )(command)


@queues.command(short_help="Have workers claim nothing of queues or kinds.")
@pause_options
@click.option("--reason", help="Why, for those who find it paused.")
def pause(as_json: bool, reason: str | None, **said: Any) -> None:
    """Have all workers claim nothing of queues, or of kinds, until they are resumed; within about a second.

    Enqueues go on, and so do handlers that run. It stays through restarts. What is paused already stays as it is.

    \b
    Example:
      holdfast queues pause mail --reason 'the provider is down' --app shop:hf
      holdfast queues pause --kind send_receipt --app shop:hf
    """
    asked = Asked.of(**said)
    with open_store() as store:
        told = asked.pause(store, reason)
        notes = unknown(store, asked.meant)
    _tell(told, as_json)
    print_notes(notes)


@queues.command(short_help="Let workers claim from queues, or kinds, again.")
@pause_options
def resume(as_json: bool, **said: Any) -> None:
    """Let workers claim from queues, or jobs of kinds, again. They look at once, within about a second.

    \b
    Example:
      holdfast queues resume mail --app shop:hf
      holdfast queues resume --kind send_receipt --app shop:hf
    """
    asked = Asked.of(**said)
    with open_store() as store:
        notes = unknown(store, asked.unpaused(store))
        told = asked.resume(store)
    _tell(told, as_json)
    print_notes(notes)


def _tell(told: list[Told], as_json: bool) -> None:
    if as_json:
        print_json(one.to_dict() for one in told)
        return
    for one in told:
        click.echo(str(one))
