"""`holdfast prune`: delete finished jobs whose time is over, in chunks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli.app_argument import AppArgument
from holdfast.cli.parse import DURATION
from holdfast.cli.render import age, plural, print_json
from holdfast.cli.shared import Exit, Failure, confirm, connection_options, current, json_option, load_app
from holdfast.cli.stores import Opened, open_desk, store_option
from holdfast.life.listing import Kept
from holdfast.observe import COUNTED, shown
from holdfast.values.rows import OUTCOMES, Outcome

if TYPE_CHECKING:
    from holdfast.flow import Flow

# How many rows of which part were, or would be, deleted, and how old they must be for it.
Pruned = dict[tuple[Kept, timedelta], int]


@click.command(short_help="Delete finished jobs whose time is over.")
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@click.option(
    "--older-than",
    type=DURATION,
    help="Delete what finished longer ago than this: 7d, 12h.  [default: each queue's retention]",
)
@click.option("--outcome", "outcomes", type=click.Choice(OUTCOMES), multiple=True, help="Only this; may be repeated.")
@click.option("--queue", help="Only this queue.")
@click.option("--chunk", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Rows per transaction.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
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
    only by retention or when you name them. Idempotency keys past their window go too, and, with APP and no filter,
    audit lines older than its audit_retention. What foreign tables keep of it goes by age alone.

    \b
    Example:
      holdfast prune shop:hf
      holdfast prune --older-than 7d --outcome done --url postgresql://app@db/shop
      holdfast prune --older-than 30d --outcome dead --store pdo:jobs --app shop:hf
    """
    wanted = set(outcomes) or (set(OUTCOMES) if older_than is None else {"done", "cancelled"})
    current().app = app_name or current().app_name
    with open_desk("nothing") as at:
        at.desk.require("prune")
        older_of = _by_retention(at) if older_than is None else lambda part: older_than
        at.schema.require()
        found = [part for part in at.run(at.desk.kept()) if part.outcome in wanted and queue in (None, part.queue)]
        parts = [(part, older_of(part)) for part in found]
        due: Pruned = {}
        if dry_run or older_than is not None:
            due = {(part, older): at.run(at.desk.count_older(part, older)) for part, older in parts}
        if older_than is not None and not dry_run and any(due.values()):
            meant = _told(due.values(), at.label)
            confirm(f"Delete {meant}{at.of} older than {age(older_than)}?", yes)
        deleted = due if dry_run else {(part, older): _delete(at, part, older, chunk) for part, older in parts}
        keys = 0 if dry_run else _delete_keys(at, chunk)
        audit = _prune_audit(at, chunk, dry_run) if older_than is None and not outcomes and queue is None else None
    _report(deleted, keys, audit, dry_run, as_json, at.label)


def _told(counts: Collection[int], label: dict[str, str]) -> str:
    """Say how many finished jobs would go: of our own, no more than a limit are counted in a queue."""
    least = "at least " if any(_is_limit(count, label) for count in counts) else ""
    return least + plural(sum(min(count, COUNTED) if least else count for count in counts), "finished job")


def _jobs(count: int, dry_run: bool, label: dict[str, str]) -> dict[str, int | bool]:
    """Return the number for JSON; that there are more is said only where it is so."""
    return {"jobs": COUNTED, "at_least": True} if dry_run and _is_limit(count, label) else {"jobs": count}


def _lines(count: int, dry_run: bool) -> dict[str, int]:
    """Return the number of audit lines for JSON, as `_jobs`."""
    return {"audit_lines": COUNTED, "at_least": True} if dry_run and count > COUNTED else {"audit_lines": count}


def _is_limit(count: int, label: dict[str, str]) -> bool:
    return not label and count > COUNTED


def _by_retention(at: Opened) -> Callable[[Kept], timedelta]:
    """Go by what the application says of its queues, where no age is given."""
    name = current().app
    if not at.desk.has_retention:
        why = f"nothing says how long {at.desk.name} keeps what is finished"
        raise Failure(why, Exit.USAGE, "give --older-than 30d --outcome dead")
    if not name:
        raise Failure("nothing says what to delete", Exit.USAGE, "give APP to go by its retention, or --older-than 7d")
    holdfast = load_app(name)
    return lambda part: timedelta(seconds=holdfast.queue_options(part.queue).keeps(part.outcome))


def _delete(at: Opened, part: Kept, older: timedelta, chunk: int) -> int:
    make = at.desk.prune
    return _in_chunks(at, lambda: make(part, older, limit=chunk), chunk, f"{part.outcome} in {part.queue}")


def _delete_keys(at: Opened, chunk: int) -> int:
    make = at.desk.prune_keys
    return _in_chunks(at, lambda: make(limit=chunk), chunk, "idempotency keys")


def _prune_audit(at: Opened, chunk: int, dry_run: bool) -> tuple[timedelta, int]:
    """Delete audit lines by the retention that the application says, or count them."""
    older = timedelta(seconds=load_app(current().app or "").context.audit_retention)
    if dry_run:
        counting = at.desk.count_audit(older)
        return older, 0 if counting is None else at.run(counting)
    make = at.desk.prune_audit
    return older, _in_chunks(at, lambda: make(older, limit=chunk), chunk, "audit lines")


def _in_chunks(at: Opened, make: Callable[[], Flow[int] | None], chunk: int, what: str) -> int:
    total, removed = 0, chunk
    # One transaction a chunk, so that no lock is held for long; a chunk that is not full is the last.
    while removed >= chunk and (work := make()) is not None:
        removed = at.run(work)
        total += removed
        if sys.stderr.isatty() and total:
            click.echo(f"\r{what}: {total:,} deleted", nl=False, err=True)
    if sys.stderr.isatty() and total:
        click.echo(err=True)
    return total


def _report(
    deleted: Pruned,
    keys: int,
    audit: tuple[timedelta, int] | None,
    dry_run: bool,
    as_json: bool,
    label: dict[str, str],
) -> None:
    if as_json:
        print_json(
            part._asdict() | {"older_than": older} | _jobs(count, dry_run, label) | label
            for (part, older), count in deleted.items()
        )
        print_json([{"older_than": audit[0]} | _lines(audit[1], dry_run)] if audit is not None else [])
        return
    verb = "would delete" if dry_run else "deleted"
    for (part, older), count in deleted.items():
        if count:
            number = shown(count) if dry_run and _is_limit(count, label) else f"{count:,}"
            click.echo(f"{verb} {number} {part.outcome} in {part.queue}, older than {age(older)}")
    if keys:
        click.echo(f"deleted {plural(keys, 'idempotency key')} past their window")
    if audit is not None and audit[1]:
        least = "at least " if dry_run and audit[1] > COUNTED else ""
        lines = plural(_lines(audit[1], dry_run)["audit_lines"], "audit line")
        click.echo(f"{verb} {least}{lines} older than {age(audit[0])}")
    if not any(deleted.values()) and not keys and not (audit and audit[1]):
        click.echo("nothing to delete")
