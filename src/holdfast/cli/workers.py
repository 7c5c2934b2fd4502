"""`holdfast workers`: who works, who fell silent, and how to let them go."""

from __future__ import annotations

import click

from holdfast.cli.groups import Group
from holdfast.cli.render import Column, age, plain, plural, print_json, print_table
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    confirm,
    connection_options,
    did_you_mean,
    json_option,
    open_store,
)
from holdfast.life.listing import Drained
from holdfast.store import Shards
from holdfast.values.views import WorkerInfo
from holdfast.worker import draining, registry
from holdfast.worker.registry import status_of, up


@click.group(cls=Group, invoke_without_command=True)
@connection_options
@json_option
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List the workers, or drain some.

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
        shards = len(store.stores) if isinstance(store, Shards) else 1
    if as_json:
        print_json(plain(worker) | {"status": status_of(worker)} for worker in known)
        return
    columns = [Column("id", whole=True), Column("status", whole=True)]
    columns += [Column("last beat"), Column("up"), Column("queues"), *([Column("shards")] if shards > 1 else [])]
    rows = [
        (w.id, status_of(w), f"{age(w.silent_for)} ago", age(up(w)), _queues(w.info), *_shards(w.info, shards))
        for w in known
    ]
    print_table(columns, rows, empty="no workers: start one with `holdfast worker APP`")


def _shards(info: dict[str, object], count: int) -> tuple[str, ...]:
    """Name the shards that a worker serves; nothing where it is one store."""
    served = info.get("shards")
    part = isinstance(served, list) and len(served) < count
    return () if count == 1 else (", ".join(map(str, served)) if part and isinstance(served, list) else "all",)


def _queues(info: dict[str, object]) -> str:
    queues = info.get("queues")
    return ", ".join(map(str, queues)) if isinstance(queues, list) else ""


@workers.command()
@click.argument("worker_ids", metavar="[ID...]", nargs=-1)
@click.option("--host", help="All workers that run on this host.")
@click.option("--dry-run", is_flag=True, help="Tell which, and ask nobody.")
@click.option("--yes", is_flag=True, help="Do not ask before draining several by --host.")
@actor_option
@connection_options
@json_option
def drain(
    worker_ids: tuple[str, ...], host: str | None, dry_run: bool, yes: bool, actor: str | None, as_json: bool
) -> None:
    """Ask workers to claim no more, finish what they run, and stop.

    Each hears of it at its next beat, within ten seconds, gives back what it has not begun, lets its handlers finish
    for its drain time, and ends with 0; nothing here starts it again. An audit line is left for each.

    Ends with 0, also for one that drains already; with 5 when there is no such worker, with 6 when it has stopped or
    is dead.

    \b
    Example:
      holdfast workers drain web1-4821-7f3a --app shop:hf
      holdfast workers drain --host web1 --dry-run --app shop:hf
    """
    if bool(worker_ids) == (host is not None):
        raise Failure("which workers?", Exit.USAGE, "give their ids, or --host; `holdfast workers` lists them")
    named = worker_ids or None
    with open_store() as store:
        known = {worker.id: worker for worker in store.run(registry.workers())}
        answer = store.run(draining.drain(named, host, None, dry_run=True))
        if host is not None and not answer.asked and not answer.left:
            hosts = {str(worker.info.get("host")) for worker in known.values() if not worker.is_gone}
            hint = did_you_mean(host, sorted(hosts)) or "`holdfast workers --json` shows their hosts"
            raise Failure(f"no worker runs on {host!r}", Exit.NOT_FOUND, hint)
        if not dry_run and answer.asked:
            if host is not None and len(answer.asked) > 1:
                confirm(f"Drain {plural(len(answer.asked), 'worker')} on {host}?", yes)
            done = store.run(draining.drain(answer.asked, None, actor_name(actor)))
            answer = Drained(done.asked, answer.left | done.left)
    _tell_drained(answer, known, dry_run, as_json)


def _tell_drained(answer: Drained, known: dict[str, WorkerInfo], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json([{"dry_run": dry_run} | answer.to_dict()])
    for worker in () if as_json else answer.asked:
        click.echo(f"would drain {worker}" if dry_run else f"{worker} is asked to drain")
    refused: list[Failure] = []
    for worker, why in answer.left.items():
        if why == "draining":
            click.echo(f"{worker} drains already", err=True)
        elif why in ("stopped", "dead"):
            seen = f": last beat {age(known[worker].silent_for)} ago" if worker in known else ""
            refused.append(Failure(f"{worker} is {why} already{seen}", Exit.CONFLICT))
        else:
            hint = did_you_mean(worker, known) or "`holdfast workers` lists them"
            refused.append(Failure(f"there is no worker {worker!r}", Exit.NOT_FOUND, hint))
    for other in refused[1:]:
        other.show()
    if refused:
        raise refused[0]
