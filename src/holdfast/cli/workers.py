"""`holdfast workers`: who works, who fell silent, and how to let one go."""

from __future__ import annotations

from datetime import timedelta

import click

from holdfast.cli.render import Column, age, plain, print_json, print_table
from holdfast.cli.shared import Exit, Failure, connection_options, did_you_mean, json_option, open_store
from holdfast.values.views import WorkerInfo
from holdfast.worker import registry

# Three missed beats: a worker beats every 10 seconds.
SILENT = timedelta(seconds=30)


def status_of(worker: WorkerInfo) -> str:
    """Tell a worker that says it is there from one that only said so."""
    return "silent" if worker.status != "dead" and worker.silent_for > SILENT else worker.status


def up(worker: WorkerInfo) -> timedelta:
    """Tell how long a worker has been there: until now, or until its last beat when it may be gone."""
    until_seen = worker.seen_at - worker.started_at
    return until_seen if status_of(worker) in ("silent", "dead") else until_seen + worker.silent_for


@click.group(invoke_without_command=True)
@connection_options
@json_option
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List the workers, or drain one.

    \b
    Example:
      holdfast workers --url postgresql://app@db/shop
      holdfast workers drain web1-4821-7f3a --url postgresql://app@db/shop
    """
    if ctx.invoked_subcommand is None:
        list_workers(as_json)


@workers.command("list")
@connection_options
@json_option
def list_command(as_json: bool) -> None:
    """List the workers that the registry knows.

    \b
    Example:
      holdfast workers list --json --app shop:hf
    """
    list_workers(as_json)


def list_workers(as_json: bool) -> None:
    with open_store() as store:
        known = store.run(registry.workers())
    if as_json:
        print_json(plain(worker) | {"status": status_of(worker)} for worker in known)
        return
    columns = [Column("id", whole=True), Column("status", whole=True)]
    columns += [Column("last beat"), Column("up"), Column("queues")]
    rows = [(w.id, status_of(w), f"{age(w.silent_for)} ago", age(up(w)), _queues(w.info)) for w in known]
    print_table(columns, rows, empty="no workers: start one with `holdfast worker APP`")


def _queues(info: dict[str, object]) -> str:
    queues = info.get("queues")
    return ", ".join(map(str, queues)) if isinstance(queues, list) else ""


@workers.command()
@click.argument("worker_id", metavar="ID")
@connection_options
def drain(worker_id: str) -> None:
    """Ask a worker to claim no more, finish what it runs, and stop.

    It hears of it at its next beat, within ten seconds.

    \b
    Example:
      holdfast workers drain web1-4821-7f3a --app shop:hf
    """
    with open_store() as store:
        known = {worker.id: worker for worker in store.run(registry.workers())}
        worker = known.get(worker_id)
        if worker is None:
            hint = did_you_mean(worker_id, known) or "`holdfast workers` lists them"
            raise Failure(f"there is no worker {worker_id!r}", Exit.NOT_FOUND, hint)
        if worker.status == "dead":
            raise Failure(f"{worker_id} is dead already: last beat {age(worker.silent_for)} ago", Exit.CONFLICT)
        store.run(registry.mark(worker_id, "draining"))
    click.echo(f"{worker_id} is asked to drain")
