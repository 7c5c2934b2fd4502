"""`holdfast runs`: durable runs: lists and timelines, signals, cancels, forks, migrations, histories."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import msgspec

from holdfast import runs as flows
from holdfast.admin import shard_of
from holdfast.app import Holdfast
from holdfast.cli.groups import Group
from holdfast.cli.looking import after_option, far_option, looked, tell_of_more
from holdfast.cli.remote import redispatch_command
from holdfast.cli.render import Column, moment, plural, print_fields, print_json, print_table
from holdfast.cli.run_lines import migrated, replayed
from holdfast.cli.shared import (
    Exit,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    json_option,
    named_app,
    open_store,
    require_tables,
)
from holdfast.errors import ConfigError
from holdfast.runs import LIVE, STATUSES, RunFilter, RunView, drawn
from holdfast.store import Shards
from holdfast.workflows import export, force, letter, resume, send_by_hand, stop

_COLUMNS = (
    *(Column("run", whole=True), Column("kind"), Column("status", whole=True), Column("waits for")),
    Column("started", whole=True, spare=1),
)
_STUCK = (Column("run", whole=True), Column("kind"), Column("since", whole=True, spare=1), Column("why"))
workflow_option = click.option("--workflow", help="Whose run it is, where several workflows have one of this id.")


@click.group(cls=Group)
def runs() -> None:
    """See durable runs; signal, cancel, resume, fork, migrate them.

    \b
    Example:
      holdfast runs list --status waiting --app shop:hf
      holdfast runs show order-1 --app shop:hf
    """


runs.add_command(redispatch_command)


@runs.command("list")
@click.option("--workflow", help="Only runs of this workflow.")
@click.option("--kind", help="Only runs of this version, such as fulfil@2.")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs that are so.")
@click.option("--waits-for", help="Only runs that wait for this, such as signal:approved.")
@click.option("--attribute", metavar="NAME=VALUE", help="Only runs that say this of themselves; the value is JSON.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@after_option
@far_option
@connection_options
@json_option
def list_command(
    attribute: str | None, limit: int, after: str | None, far: bool, as_json: bool, **wanted: str | None
) -> None:
    """List runs, the newest first. --after takes the id of a run's job.

    By workflow, kind, or an attribute that very many runs have, it looks at the newest 20,000 runs, or with --status at
    those that ended so, and says so where there are more; --all goes on.

    \b
    Example:
      holdfast runs list --workflow fulfil --attribute stage='"shipped"' --app shop:hf
    """
    said = None if attribute is None else _attribute(attribute)
    with open_store() as store:
        found, stopped = looked(store, partial(flows.look, RunFilter(attribute=said, **wanted)), limit, after, far)
    _print_runs(found, as_json)
    tell_of_more([view.job_id for view in found], limit, stopped, "runs")


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
        shard = {"shard": store.run(shard_of(view.job_id))} if isinstance(store, Shards) else {}
    if as_json:
        print_json([msgspec.to_builtins(view) | shard | {"history": [row._asdict() for row in rows]}])
        return
    said = [(name, msgspec.json.encode(value).decode()) for name, value in view.attributes.items()]
    print_fields([*_fields(view), *shard.items(), *said])
    click.echo()
    for line in drawn(view, rows):
        click.echo(line)


@runs.command("signal")
@click.argument("run")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--idempotency-key", help="A second signal to this run with it is not sent, for a day.")
@workflow_option
@connection_options
@actor_option
@json_option
def signal_command(
    run: str,
    name: str,
    payload: str | None,
    idempotency_key: str | None,
    workflow: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Send a run a signal; the payload is JSON.

    \b
    Example:
      holdfast runs signal order-1 approved '{"by": "ada"}' --app shop:hf
    """
    given = None if payload is None else _json(payload)
    with open_store() as store:
        sent = letter(name, given, idempotency_key, limit=store.options.payload_limit)
        new = store.run(send_by_hand(run, sent, workflow, actor_name(actor)))
    said = f"signal {name} was sent to {run}" if new else f"signal {name} had been sent to {run} before"
    _tell(as_json, said, run=run, signal=name, sent=new)


@runs.command("cancel")
@click.argument("run")
@click.option("--force", "forced", is_flag=True, help="End it and its children at once; no code of theirs runs.")
@workflow_option
@connection_options
@actor_option
@json_option
def cancel_command(run: str, forced: bool, workflow: str | None, actor: str | None, as_json: bool) -> None:
    """Ask a run to stop: its body may clean up, and its children are asked, too.

    \b
    Example:
      holdfast runs cancel order-1 --app shop:hf
    """
    who = actor_name(actor)
    with open_store() as store:
        if forced:
            ended = store.run(force(run, workflow, who))
            below = f", with {ended - 1} below it" if ended > 1 else ""
            _tell(as_json, f"{run} was ended{below}", run=run, ended=ended)
            return
        store.run(stop(run, workflow, who), lambda: stop(run, workflow, who, fresh=False))
    _tell(as_json, f"{run} was asked to stop", run=run, asked=True)


@runs.command("resume")
@click.argument("run")
@workflow_option
@connection_options
@actor_option
@json_option
def resume_command(run: str, workflow: str | None, actor: str | None, as_json: bool) -> None:
    """Let a dead run go on: the step whose failure ended it is made again.

    \b
    Example:
      holdfast runs resume order-1 --app shop:hf
    """
    with open_store() as store:
        store.run(resume(run, actor_name(actor), workflow))
    _tell(as_json, f"{run} goes on", run=run, resumed=True)


@runs.command("fork")
@click.argument("run")
@click.option("--at", "key", required=True, help="What is recorded before this key is kept; the rest is done anew.")
@click.option("--id", "new", help="What the new run is called.  [default: the id with ~ and a number behind it]")
@click.option("--version", type=click.IntRange(1), help="Run it with the code of this version.  [default: the run's]")
@workflow_option
@connection_options
@actor_option
@json_option
def fork_command(
    run: str,
    key: str,
    new: str | None,
    version: int | None,
    workflow: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Start another run that begins in the middle of one, over or not; children that have ended are kept.

    What was recorded before the key is copied, and replayed dry first: nothing is started where the code does not fit.

    \b
    Example:
      holdfast runs fork order-1 --at charge_card --id order-1-again --app shop:hf
    """
    with named_app("The code of the workflow is needed.") as app:
        require_tables(app.store)
        handle = app.run(run, workflow).fork(key, id=new, version=version, actor=actor_name(actor))
    _tell(as_json, f"{handle.id} was started from {run}, before {key}", run=handle.id, source=run, at=key)


@runs.command("migrate")
@click.argument("ids", metavar="[RUN...]", nargs=-1)
@click.option("--to", "version", type=click.IntRange(1), required=True, help="The version to go on with.")
@click.option("--kind", help="All runs of this version that are not over, such as fulfil@1.")
@click.option("--dry-run", is_flag=True, help="Only replay, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before all runs of --kind go on.")
@workflow_option
@connection_options
@actor_option
@json_option
def migrate_command(
    ids: tuple[str, ...],
    version: int,
    kind: str | None,
    dry_run: bool,
    yes: bool,
    workflow: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Let runs go on with the code of another version, each after a dry replay of what it has recorded.

    A run that the code does not fit, that a worker holds or that is over stays as it is, and is told.

    Ends with 0; with 6 when a run stays as it is.

    \b
    Example:
      holdfast runs migrate order-1 --to 2 --app shop:hf
      holdfast runs migrate --kind fulfil@1 --to 2 --dry-run --app shop:hf
    """
    if bool(ids) == bool(kind):
        raise ConfigError("RUN", "name runs, or all of a version with --kind", kind)
    with named_app("The code of both versions is needed.") as app:
        require_tables(app.store)
        live = [] if kind is None else _live(app, kind)
        if live and not dry_run:
            confirm(f"Let {plural(len(live), 'run')} of {kind} go on with version {version}?", yes)
        handles = [app.run(one.id, one.workflow) for one in live] or [app.run(one, workflow) for one in ids]
        told = [migrated(handle, version, None if dry_run else actor_name(actor), dry_run) for handle in handles]
    if as_json:
        print_json(told)
    elif told:
        for one in told:
            click.echo(f"{one['run']} {one['why'] or ('would go on' if dry_run else 'goes on') + f' as @{version}'}")
    else:
        click.echo("no runs found")
    if any(one["why"] for one in told):
        raise click.exceptions.Exit(Exit.CONFLICT)


def _live(app: Holdfast, kind: str) -> list[RunView]:
    """Find the runs of one version that are not over: by status, because those that are over may be very many."""
    found = [one for status in LIVE for one in app.runs(kind=kind, status=status, limit=10_000)]
    return list({one.job_id: one for one in found}.values())


@runs.command("export")
@click.argument("run")
@workflow_option
@connection_options
@json_option
def export_command(run: str, workflow: str | None, as_json: bool) -> None:
    """Write a run with its arguments and its journal as JSON, for `holdfast runs replay` and for tests.

    Arguments, results and signals are in it as they are: keep it where such data may be.

    \b
    Example:
      holdfast runs export order-1 --app shop:hf > tests/histories/order-1.json
    """
    with open_store() as store:
        found = store.run(export(run, workflow))
    if as_json:
        print_json([msgspec.to_builtins(found)])
    else:
        click.echo(found.to_json())


@runs.command("replay")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--version", type=click.IntRange(1), help="Check against the code of this version.  [default: the run's]")
@connection_options
@json_option
def replay_command(files: tuple[str, ...], version: int | None, as_json: bool) -> None:
    """Check recorded histories against the code that is there; nothing is done and nothing is written.

    Ends with 0; with 6 when the code does something else than was recorded.

    \b
    Example:
      holdfast runs replay tests/histories/*.json --app shop:hf
    """
    app = named_app("Its code is what is checked.")
    told = [replayed(app, file, version) for file in files]
    if as_json:
        print_json(told)
    else:
        for one in told:
            click.echo(f"{one['file']}: {one['why'] or one['found']}")
    if any(one["why"] for one in told):
        raise click.exceptions.Exit(Exit.CONFLICT)


def _tell(as_json: bool, said: str, **found: object) -> None:
    if as_json:
        print_json([found])
    else:
        click.echo(said)


def _fields(view: RunView) -> list[tuple[str, object]]:
    return [
        ("run", view.id),
        ("job", view.job_id),
        ("kind", view.kind),
        ("status", view.status),
        ("waits for", _waits_for(view)),
        ("due", moment(view.due_at)),
        ("stuck", view.stuck),
        ("parent", view.parent),
        ("started", moment(view.created_at)),
        ("ended", moment(view.ended_at)),
    ]


def _waits_for(view: RunView) -> str | None:
    """Tell what a run waits for; one that is stuck waits for code that fits, and `stuck` says why."""
    return None if view.status == "stuck" else view.waits_for


def _print_runs(found: list[RunView], as_json: bool) -> None:
    if as_json:
        print_json(map(msgspec.to_builtins, found))
    else:
        rows = [
            (view.id, view.kind or view.workflow, view.status, _waits_for(view) or "", moment(view.created_at))
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
