"""`holdfast prune`: delete finished jobs whose time is over, in chunks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from holdfast import jobs
from holdfast.cli.parse import DURATION
from holdfast.cli.render import age, plural, print_json
from holdfast.cli.shared import Exit, Failure, confirm, connection_options, current, json_option, load_app, open_store
from holdfast.values.rows import OUTCOMES, Outcome

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.flow import Flow
    from holdfast.store import Store

Part = tuple[Outcome, str, timedelta]


@click.command(short_help="Delete finished jobs whose time is over.")
@click.argument("app_name", metavar="[APP]", required=False)
@click.option("--older-than", type=DURATION, help="Delete what finished longer ago than this: 7d, 12h.")
@click.option("--outcome", "outcomes", type=click.Choice(OUTCOMES), multiple=True, help="Only this; may be repeated.")
@click.option("--queue", help="Only this queue.")
@click.option("--chunk", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Rows per transaction.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connection_options
@json_option
def prune(
    app_name: str | None,
    older_than: timedelta | None,
    outcomes: tuple[Outcome, ...],
    queue: str | None,
    chunk: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete finished jobs: by the retention that APP gives its queues, or by age.

    Workers prune by themselves; this is for databases without one, and for more than retention says. Dead letters go
    only by retention or when you name them. Idempotency keys past their window go too.

    \b
    Example:
      holdfast prune shop:hf
      holdfast prune --older-than 7d --outcome done --url postgresql://app@db/shop
    """
    wanted = set(outcomes) or (set(OUTCOMES) if older_than is None else {"done", "cancelled"})
    with _opened(app_name, older_than) as (store, holdfast):
        found = [(o, q) for o, q in store.run(jobs.prune_queues()) if o in wanted and queue in (None, q)]
        parts = [(o, q, older_than if older_than is not None else _kept(holdfast, o, q)) for o, q in found]
        due = {part: _count(store, part) for part in parts} if dry_run or older_than is not None else {}
        if older_than is not None and not dry_run and any(due.values()):
            confirm(f"Delete {plural(sum(due.values()), 'finished job')} older than {age(older_than)}?", yes)
        deleted = due if dry_run else {part: _delete(store, part, chunk) for part in parts}
        keys = 0 if dry_run else _delete_keys(store, chunk)
    _report(deleted, keys, dry_run, as_json)


@contextmanager
def _opened(app: str | None, older_than: timedelta | None) -> Iterator[tuple[Store, Holdfast | None]]:
    name = app or current().app
    if older_than is None and not name:
        raise Failure("nothing says what to delete", Exit.USAGE, "give APP to go by its retention, or --older-than 7d")
    if app:
        current().app = app
    holdfast = load_app(name) if name else None
    with open_store() as store:
        yield store, holdfast


def _kept(holdfast: Holdfast | None, outcome: Outcome, queue: str) -> timedelta:
    from holdfast.values.options import QueueOptions
    from holdfast.worker.rounds.prune import retention

    kept = holdfast.queue_options(queue) if holdfast else QueueOptions(queue)
    return timedelta(seconds=retention(kept, outcome))


def _count(store: Store, part: Part) -> int:
    from holdfast.admin import Filter, count_jobs

    outcome, queue, older = part
    before = datetime.now(UTC) - older
    return store.run(count_jobs(Filter(states=(outcome,), queue=queue, finished_before=before)))


def _delete(store: Store, part: Part, chunk: int) -> int:
    outcome, queue, older = part
    older_ms = int(older.total_seconds() * 1000)
    return _in_chunks(store, lambda: jobs.prune(outcome, queue, older_ms, limit=chunk), chunk, f"{outcome} in {queue}")


def _delete_keys(store: Store, chunk: int) -> int:
    return _in_chunks(store, lambda: jobs.prune_keys(limit=chunk), chunk, "idempotency keys")


def _in_chunks(store: Store, make: Callable[[], Flow[int]], chunk: int, what: str) -> int:
    total, removed = 0, chunk
    # One transaction a chunk, so that no lock is held for long; a chunk that is not full is the last.
    while removed >= chunk:
        removed = store.run(make())
        total += removed
        if sys.stderr.isatty() and total:
            click.echo(f"\r{what}: {total:,} deleted", nl=False, err=True)
    if sys.stderr.isatty() and total:
        click.echo(err=True)
    return total


def _report(deleted: dict[Part, int], keys: int, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"outcome": o, "queue": q, "older_than": older, "jobs": n} for (o, q, older), n in deleted.items())
        return
    verb = "would delete" if dry_run else "deleted"
    for (outcome, queue, older), count in deleted.items():
        if count:
            click.echo(f"{verb} {count:,} {outcome} in {queue}, older than {age(older)}")
    if keys:
        click.echo(f"deleted {plural(keys, 'idempotency key')} past their window")
    if not any(deleted.values()) and not keys:
        click.echo("nothing to delete")
