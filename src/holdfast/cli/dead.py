"""`holdfast dead`: the dead letters: what failed for good, in groups, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from holdfast import admin
from holdfast.cli.groups import Group
from holdfast.cli.jobs import filter_options, show_job, told_of
from holdfast.cli.looking import after_option, far_option, tell_of_more
from holdfast.cli.meant import Meant, meant_of, until_now
from holdfast.cli.render import Column, age, error_line, plural, print_json, print_notes, print_table
from holdfast.cli.shared import Exit, Failure, confirm, connection_options, json_option, named_route, together
from holdfast.cli.stores import Opened, acting_options, open_desk, store_option
from holdfast.life.letters import LETTERS_PER_COMMIT, discard_all, replay_all
from holdfast.life.listing import Replays, Wanted
from holdfast.outbox import Route, redirect
from holdfast.values.views import JobView


@click.group(cls=Group)
def dead() -> None:
    """Look at dead letters, replay them, discard them.

    \b
    Example:
      holdfast dead groups --app shop:hf
      holdfast dead replay --kind send_receipt --group 3f9c2a7d51e08b64 --app shop:hf
    """


def letters(since: datetime | None, until: datetime | None, **said: Any) -> Wanted:
    return Wanted(finished_after=since, finished_before=until, **said)


@dead.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(1, admin.LONGEST_LIST), default=50, show_default=True)
@after_option
@far_option
@store_option
@connection_options
@json_option
def list_command(limit: int, after: str | None, far: bool, as_json: bool, **said: Any) -> None:
    """List dead letters, the newest first. --since and --until go by when they died.

    It looks at the newest 20,000 dead letters, and says so where there are more; --all goes on.

    \b
    Example:
      holdfast dead list --kind send_receipt --since 1d --app shop:hf
      holdfast dead list --store pdo:jobs --app shop:hf
    """
    with open_desk() as at:
        found, stopped = list[JobView](), None
        if at.desk.can("letters"):
            found, stopped = at.looked(at.desk.letters, letters(**said), limit, after, newest=True, far=far)
        told = _told(at)
    shown = [job.id for job in found]
    if as_json:
        print_json(job.to_dict() | at.label for job in found)
        print_notes(told)
        return tell_of_more(shown, limit, stopped, "dead letters")
    now = datetime.now(UTC)
    rows = [(j.id, j.kind, j.queue, f"{age(now - (j.finished_at or now))} ago", _error(j.last_error)) for j in found]
    columns = [Column("id", whole=True, ids=True), Column("kind"), Column("queue", spare=True)]
    columns += [Column("died", whole=True), Column("error")]
    print_table(columns, rows, empty="no dead letters found")
    print_notes(told)
    return tell_of_more(shown, limit, stopped, "dead letters")


def _told(at: Opened) -> list[str]:
    """Say which other desks hold dead letters. A list of nothing is not an error, but a person wants to know why."""
    told = [f"{name}: {words}; --store {name} lists them" for name, words in told_of(at, ("dead",)) if words]
    return told if at.desk.can("letters") else [*told, f"{at.desk.name} {at.desk.refusals['letters']}"]


def _error(error: dict[str, Any] | None) -> str:
    return "" if error is None else error_line(error.get("type"), error.get("message"))


@dead.command()
@filter_options
@click.option("--limit", type=click.IntRange(1, admin.LONGEST_LIST), default=50, show_default=True)
@store_option
@connection_options
@json_option
def groups(limit: int, as_json: bool, **said: Any) -> None:
    """Group dead letters by kind and like errors, the largest group first.

    The id of a group stands for the error: kinds that fail alike share it. Give --kind beside --group to mean one line.
    Counted are the newest 100,000 dead letters; of a sharded application, those of each shard.

    \b
    Example:
      holdfast dead groups --since 1d --app shop:hf
    """
    with open_desk() as at:
        found = at.run(at.desk.groups(letters(**said), limit)) if at.desk.can("letters") else []
        told = _told(at)
    if as_json:
        print_json(group.to_dict() | at.label for group in found)
        return print_notes(told)
    now = datetime.now(UTC)
    rows = [
        (g.group, g.count, g.kind, f"{age(now - g.last_at)} ago", error_line(g.error_type, g.error_message))
        for g in found
    ]
    columns = [Column("group", whole=True), Column("count", whole=True, right=True)]
    columns += [Column("kind"), Column("last"), Column("error")]
    print_table(columns, rows, empty="no dead letters found")
    print_notes(told)


@dead.command()
@click.argument("job_id", metavar="ID")
@store_option
@connection_options
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show one dead letter: its payload and the error of every attempt.

    \b
    Example:
      holdfast dead show 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
    """
    show_job(job_id, as_json, dead=True)


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what replay and discard share."""
    return together(filter_options, acting_options("dead letter"))(command)


@dead.command()
@bulk_options
@click.option("--to", metavar="ROUTE", help="Send deliveries of events by this route of the application instead.")
def replay(
    everything: bool,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    as_json: bool,
    to: str | None,
    **said: Any,
) -> None:
    """Send dead letters back to their queue: no attempts counted, due now, errors kept.

    Each replay is counted on the job and leaves an audit line. More than one needs --yes or a yes on the terminal. A
    job whose unique key a live job holds stays where it is. With --to, dead deliveries of events go by another route:
    each becomes a new delivery of the same event, and the letter is gone.

    \b
    Example:
      holdfast dead replay --kind send_receipt --since 2h --dry-run --app shop:hf
      holdfast dead replay --kind send_receipt --group 3f9c2a7d51e08b64 --yes --app shop:hf
      holdfast dead replay --store pdo:jobs --id 17 --app shop:hf
      holdfast dead replay --event order.created --queue route:orders --to backup --yes --app shop:hf
    """
    _check_meant(everything, said)
    route = None if to is None else named_route(to)
    wanted = letters(**said) if route is None else letters(**said, outbox=True)
    with open_desk() as at:
        wanted = at.whole(wanted)
        at.desk.require("replay")
        wanted, meant = _matched(at, wanted, limit)
        if not dry_run and meant.most > 1:
            confirm(f"Replay {meant.words}{at.of}?", yes)
        if route is None:
            done = _replay(at, wanted, meant, at.actor(actor), dry_run)
        else:
            done = Replays(_redirect(at, wanted, route, meant, at.actor(actor), dry_run))
    if as_json:
        told = {"dry_run": dry_run, "replayed": done.ids, "conflicts": done.conflicts} | at.label
        told |= _at_least(dry_run, meant)
        print_json([told if done.rows is None else told | {"rows": list(done.rows.values())}])
    else:
        click.echo(_said("replay", len(done.ids), dry_run, meant))
        for why in done.reasons.values():
            click.echo(why, err=True)
    if done.conflicts and not done.ids:
        raise click.exceptions.Exit(Exit.CONFLICT)


@dead.command()
@bulk_options
def discard(
    everything: bool, limit: int | None, dry_run: bool, yes: bool, actor: str | None, as_json: bool, **said: Any
) -> None:
    """Delete dead letters for good. The audit keeps kind, queue and last error of each.

    It asks first; without a terminal it needs --yes.

    \b
    Example:
      holdfast dead discard --error 'no such customer' --until 30d --dry-run --app shop:hf
      holdfast dead discard --id 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --yes --app shop:hf
    """
    _check_meant(everything, said)
    wanted = letters(**said)
    with open_desk() as at:
        wanted = at.whole(wanted)
        at.desk.require("discard")
        wanted, meant = _matched(at, wanted, limit)
        if not dry_run:
            confirm(f"Delete {meant.words}{at.of} for good?", yes)
        gone = _discard(at, wanted, meant, at.actor(actor), dry_run)
    if as_json:
        print_json([{"dry_run": dry_run, "discarded": gone} | at.label | _at_least(dry_run, meant)])
    else:
        click.echo(_said("discard", len(gone), dry_run, meant))


def _check_meant(everything: bool, said: dict[str, Any]) -> None:
    """Refuse filters that do not say which: to say nothing is not to say everything."""
    if not everything and not any(said.values()):
        hint = "give a filter (--group, --kind, --queue, --error, --since, --id, …), or --all"
        raise Failure("which dead letters?", Exit.USAGE, hint)
    if everything and any(said.values()):
        raise Failure("--all and a filter contradict each other", Exit.USAGE, "leave one of them out")


def _matched(at: Opened, wanted: Wanted, limit: int | None) -> tuple[Wanted, Meant]:
    """Say which letters are meant, those that are there now, and how many."""
    if not at.label:
        wanted = replace(wanted, finished_before=until_now(at.store, wanted.finished_before))
    count = at.run(at.desk.count_letters(wanted))
    if not count:
        _no_match(at, wanted)
    if at.label:
        meant = count if limit is None else min(count, limit)
        return wanted, Meant(meant, plural(meant, "dead letter"))
    return wanted, meant_of(count, limit, "dead letter")


def _at_least(dry_run: bool, meant: Meant) -> dict[str, bool]:
    """Say for JSON that there may be more than a dry run names, only where it is so."""
    return {"at_least": True} if dry_run and not meant.is_counted else {}


def _said(verb: str, count: int, dry_run: bool, meant: Meant) -> str:
    return f"would {verb} {meant.told(count, 'dead letter')}" if dry_run else f"{verb}ed {plural(count, 'dead letter')}"


def _no_match(at: Opened, wanted: Wanted) -> NoReturn:
    if len(wanted.ids) == 1 and wanted == Wanted(ids=wanted.ids, finished_before=wanted.finished_before):
        job = at.run(at.desk.show(wanted.ids[0], dead=True))
        raise Failure(f"job {job.id} is {job.state}, not a dead letter", Exit.CONFLICT)
    raise Failure("no dead letter matches", Exit.NOT_FOUND, f"`holdfast dead list{at.option}` shows what there is")


def _replay(at: Opened, wanted: Wanted, meant: Meant, actor: str, dry_run: bool) -> Replays:
    if dry_run:
        return at.run(at.desk.replay(wanted, meant.foreseen, actor, True))
    return at.run_all(replay_all(at.desk, wanted, meant.most, actor))


def _redirect(at: Opened, wanted: Wanted, to: Route, meant: Meant, actor: str, dry_run: bool) -> list[str]:
    """Send dead deliveries by another route, in chunks."""
    if at.label:
        raise Failure("--to is for deliveries of events, and those are our own jobs", Exit.USAGE, "leave out --store")
    filter, buckets = admin.Filter(**(vars(wanted) | {"states": ("dead",)})), at.store.options.buckets
    if dry_run:
        return at.run(redirect(filter, to, meant.foreseen, actor, buckets=buckets, dry_run=True))
    gone: list[str] = []
    while len(gone) < meant.most:
        size = min(LETTERS_PER_COMMIT, meant.most - len(gone))
        chunk = at.run(redirect(filter, to, size, actor, buckets=buckets))
        if not chunk:
            break
        gone += chunk
    return gone


def _discard(at: Opened, wanted: Wanted, meant: Meant, actor: str, dry_run: bool) -> list[str]:
    if dry_run:
        return at.run(at.desk.discard(wanted, meant.foreseen, actor, True))
    return at.run_all(discard_all(at.desk, wanted, meant.most, actor))
