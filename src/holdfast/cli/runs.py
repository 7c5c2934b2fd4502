"""`holdfast runs`: durable runs: see them and their timelines, signal, cancel and resume them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import runs as flows
from holdfast.cli.render import Column, moment, print_fields, print_json, print_table
from holdfast.cli.shared import actor_name, actor_option, connection_options, json_option, open_store
from holdfast.errors import ConfigError
from holdfast.runs import STATUSES, Recorded, RunFilter, RunView
from holdfast.values.rows import when
from holdfast.workflows import force, letter, resume, stop_letter

_COLUMNS = (Column("RUN", whole=True), Column("KIND"), Column("STATUS"), Column("WAITS FOR"), Column("STARTED"))
_STUCK = (Column("RUN", whole=True), Column("KIND"), Column("SINCE"), Column("WHY"))
_TIMELINE = (
    Column("#", right=True),
    Column("WHAT", whole=True),
    Column("KIND"),
    Column("AT"),
    Column("TOOK", right=True),
    Column("ATTEMPT", right=True),
    Column("WORKER"),
    Column("VALUE"),
)
workflow_option = click.option("--workflow", help="Whose run it is, where several workflows have one of this id.")


@click.group()
def runs() -> None:
    """See durable runs; signal, cancel and resume them.

    \b
    Example:
      holdfast runs list --status waiting --app shop:hf
      holdfast runs show order-1 --app shop:hf
    """


@runs.command("list")
@click.option("--workflow", help="Only runs of this workflow.")
@click.option("--kind", help="Only runs of this version, such as fulfil@2.")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs that are so.")
@click.option("--waits-for", help="Only runs that wait for this, such as signal:approved.")
@click.option("--attribute", metavar="NAME=VALUE", help="Only runs that say this of themselves; the value is JSON.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@connection_options
@json_option
def list_command(attribute: str | None, limit: int, as_json: bool, **wanted: str | None) -> None:
    """List runs, the newest first.

    \b
    Example:
      holdfast runs list --workflow fulfil --attribute stage='"shipped"' --app shop:hf
    """
    said = None if attribute is None else _attribute(attribute)
    with open_store() as store:
        found = store.run(flows.runs(RunFilter(attribute=said, **wanted), limit))
    _print_runs(found, as_json)


@runs.command("stuck")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@connection_options
@json_option
def stuck_command(limit: int, as_json: bool) -> None:
    """List the runs that cannot go on with the code that is there, and why.

    \b
    Example:
      holdfast runs stuck --app shop:hf
    """
    with open_store() as store:
        found = store.run(flows.runs(RunFilter(status="stuck"), limit))
    if as_json:
        print_json(map(msgspec.to_builtins, found))
    else:
        rows = [(view.id, view.kind or "", moment(view.stuck_at), view.stuck or "") for view in found]
        print_table(_STUCK, rows, "no run is stuck")


@runs.command("show")
@click.argument("run")
@workflow_option
@connection_options
@json_option
def show_command(run: str, workflow: str | None, as_json: bool) -> None:
    """Show one run with its timeline: what its body was told, in this order.

    \b
    Example:
      holdfast runs show order-1 --app shop:hf
    """
    with open_store() as store:
        view, rows = store.run(flows.timeline(run, workflow))
    if as_json:
        print_json([msgspec.to_builtins(view) | {"history": [row._asdict() for row in rows]}])
        return
    said = [(name, msgspec.json.encode(value).decode()) for name, value in view.attributes.items()]
    print_fields([*_fields(view), *said])
    click.echo()
    print_table(_TIMELINE, map(_line, rows), "nothing is recorded yet")


@runs.command("signal")
@click.argument("run")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--idempotency-key", help="A second signal to this run with it is not sent, for a day.")
@workflow_option
@connection_options
def signal_command(run: str, name: str, payload: str | None, idempotency_key: str | None, workflow: str | None) -> None:
    """Send a run a signal; the payload is JSON.

    \b
    Example:
      holdfast runs signal order-1 approved '{"by": "ada"}' --app shop:hf
    """
    sent = letter(name, None if payload is None else _json(payload), idempotency_key)
    with open_store() as store:
        new = store.run(flows.send(run, sent, workflow), lambda: flows.send(run, sent, workflow, fresh=False))
    click.echo(f"signal {name} was sent to {run}" if new else f"signal {name} had been sent to {run} before")


@runs.command("cancel")
@click.argument("run")
@click.option("--force", "forced", is_flag=True, help="End it and its children at once; no code of theirs runs.")
@workflow_option
@connection_options
def cancel_command(run: str, forced: bool, workflow: str | None) -> None:
    """Ask a run to stop: its body may clean up, and its children are asked, too.

    \b
    Example:
      holdfast runs cancel order-1 --app shop:hf
    """
    stop = stop_letter()
    with open_store() as store:
        if forced:
            ended = store.run(force(run, workflow))
            click.echo(f"{run} was ended" + (f", with {ended - 1} below it" if ended > 1 else ""))
            return
        store.run(flows.send(run, stop, workflow), lambda: flows.send(run, stop, workflow, fresh=False))
    click.echo(f"{run} was asked to stop")


@runs.command("resume")
@click.argument("run")
@workflow_option
@connection_options
@actor_option
def resume_command(run: str, workflow: str | None, actor: str | None) -> None:
    """Let a dead run go on: the step whose failure ended it is made again.

    \b
    Example:
      holdfast runs resume order-1 --app shop:hf
    """
    with open_store() as store:
        store.run(resume(run, actor_name(actor), workflow))
    click.echo(f"{run} goes on")


def _line(row: Recorded) -> tuple[object, ...]:
    """Say what a row of the journal tells, for the timeline."""
    kind = row.kind if row.ok or row.kind == "attempt" else f"{row.kind} failed"
    took = "" if row.took_ms is None else f"{row.took_ms} ms"
    return row.seq, row.key, kind, moment(when(row.at)), took, row.attempt, row.worker or "", _short(row)


def _short(row: Recorded) -> str:
    value = row.value or ""
    return value if len(value) <= 60 else f"{value[:59]}…"


def _fields(view: RunView) -> list[tuple[str, object]]:
    return [
        ("run", view.id),
        ("job", view.job_id),
        ("kind", view.kind),
        ("status", view.status),
        ("waits for", view.waits_for),
        ("due", moment(view.due_at)),
        ("stuck", view.stuck),
        ("parent", view.parent),
        ("started", moment(view.created_at)),
        ("ended", moment(view.ended_at)),
    ]


def _print_runs(found: list[RunView], as_json: bool) -> None:
    if as_json:
        print_json(map(msgspec.to_builtins, found))
    else:
        rows = [
            (view.id, view.kind or view.workflow, view.status, view.waits_for or "", moment(view.created_at))
            for view in found
        ]
        print_table(_COLUMNS, rows, "no runs found")


def _attribute(given: str) -> tuple[str, str]:
    name, sign, value = given.partition("=")
    if not sign:
        raise ConfigError("--attribute", "must be NAME=VALUE, with a value in JSON", given)
    return name, msgspec.json.encode(_json(value)).decode()


def _json(given: str) -> Any:
    try:
        return msgspec.json.decode(given)
    except msgspec.MsgspecError as error:
        raise ConfigError("payload", "must be JSON; a text has quotes around it", given) from error
