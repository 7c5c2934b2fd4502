"""`holdfast jobs cancel` and `holdfast jobs change`: act on live jobs, by id or by filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from holdfast.admin.cancelling import too_late
from holdfast.admin.picking import LIVE
from holdfast.cli.names import unknown
from holdfast.cli.parse import DURATION, MOMENT, POINT_IN_TIME
from holdfast.cli.render import plural, print_json, print_notes
from holdfast.cli.shared import Exit, Failure, confirm, failure_of, together
from holdfast.cli.stores import Opened, acting_options, open_desk
from holdfast.errors import ConfigError, Conflict, HoldfastError, JobNotFound
from holdfast.flow import Series
from holdfast.life.desk import Capability
from holdfast.life.listing import Cancelled, Changed, Wanted
from holdfast.values.changes import Change
from holdfast.values.ids import parse_id

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", Cancelled, Changed)


def which_options(command: F) -> F:
    """Add what says which live jobs are meant, and how the command goes about it."""
    return together(
        click.argument("job_ids", metavar="[ID...]", nargs=-1),
        click.option("--queue", help="Only this queue."),
        click.option("--kind", help="Only this kind."),
        click.option("--key", help="Only this ordering key."),
        click.option("--state", "states", type=click.Choice(LIVE), multiple=True, help="Only this; may be repeated."),
        click.option("--worker", help="Only jobs that this worker holds."),
        click.option("--error", help="Only where the last error (type: message) holds this text."),
        click.option("--since", type=MOMENT, help="Enqueued from this time on: 2h for two hours ago, or a date."),
        click.option("--until", type=MOMENT, help="Enqueued before this time."),
        acting_options("live job"),
    )(command)


@click.command()
@which_options
def cancel(**said: Any) -> None:
    """End pending and waiting jobs as cancelled, and ask the workers of leased ones to stop.

    Give ids, or filters that all must hold; filters that find more than one job need --yes or a yes on the terminal. It
    goes in chunks of 500 jobs, each committed by itself; what has ended meanwhile is left alone. Each job leaves an
    audit line, and what waits for it goes on: the line of its key, children, those who wait for its result.

    Ends with 0; with 5 when no job matches or there is no such id, with 6 when a job that was named has ended already.

    \b
    Example:
      holdfast jobs cancel 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
      holdfast jobs cancel --queue mail --kind send_receipt --until 1d --dry-run --app shop:hf
      holdfast jobs cancel --key order:9182 --yes --json --app shop:hf
    """
    asked = Which.of(said)
    with open_desk() as at:
        at.desk.require("cancel")
        who = at.actor(asked.actor)

        def act(wanted: Wanted, limit: int | None, dry_run: bool) -> Series[Cancelled]:
            return at.desk.cancel_all(wanted, who, limit, dry_run)

        answer = _acted(at, asked, act, Cancelled(), "Cancel")
    if asked.as_json:
        print_json([{"dry_run": asked.dry_run} | answer.to_dict() | at.label])
    elif asked.ids:
        _tell_each(asked.dry_run, answer)
    else:
        _tell_cancelled(asked.dry_run, answer)
    _refuse("cancel", asked, answer.left)


@click.command()
@which_options
@click.option("--priority", type=int, help="Change the priority to this: -100 to 100; higher runs first.")
@click.option("--delay", type=DURATION, help="Run no earlier than this from now: 30, 5m, 1h30m; 0 for now.")
@click.option("--at", "moment", type=POINT_IN_TIME, help="Run no earlier than this time: 2026-05-01T12:30+02:00.")
@click.option("--to-queue", help="Move to this queue.")
def change(
    priority: int | None, delay: timedelta | None, moment: datetime | None, to_queue: str | None, **said: Any
) -> None:
    """Change priority, time or queue of jobs that no worker holds.

    Give ids or filters, as for `holdfast jobs cancel`. A leased job is left alone and told; so is, where a time is
    given, a job that waits for others to end. In an ordered queue, a job with another time or queue joins the line of
    its key anew when it is due, in its place by age. The audit keeps what was there before.

    Ends with 0; with 5 when no job matches or there is no such id, with 6 when nothing could be changed, or a job that
    was named could not.

    \b
    Example:
      holdfast jobs change 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --priority 10 --app shop:hf
      holdfast jobs change --queue mail --kind newsletter --to-queue bulk --dry-run --app shop:hf
      holdfast jobs change --queue mail --state pending --delay 1h --yes --app shop:hf
    """
    asked = Which.of(said)
    if delay is not None and moment is not None:
        raise Failure("--delay and --at contradict each other", Exit.USAGE, "leave one of them out")
    if all(one is None for one in (priority, delay, moment, to_queue)):
        hint = "give --priority, --delay, --at or --to-queue"
        raise Failure("nothing says what to change", Exit.USAGE, hint)
    new = Change(priority, delay if moment is None else moment, to_queue)
    with open_desk() as at:
        at.desk.require("change")
        who = at.actor(asked.actor)

        def act(wanted: Wanted, limit: int | None, dry_run: bool) -> Series[Changed]:
            return at.desk.change_all(wanted, new, who, limit, dry_run)

        # Before the move: after it, the moved jobs themselves would be jobs of that queue.
        notes = [] if to_queue is None else unknown(at.store, [("queue", to_queue)])
        answer = _acted(at, asked, act, Changed(), "Change")
    if asked.as_json:
        print_json([{"dry_run": asked.dry_run} | answer.to_dict() | {"change": new.given()} | at.label])
    else:
        _tell_changed(asked, answer)
    print_notes(notes)
    _refuse("change", asked, answer.left)
    if answer.left and not answer.changed:
        raise click.exceptions.Exit(Exit.CONFLICT)


@dataclass(frozen=True)
class Which:
    """What the options say: ids, or a filter; and how to go about it."""

    ids: tuple[str, ...]
    wanted: Wanted
    limit: int | None
    dry_run: bool
    yes: bool
    actor: str | None
    as_json: bool

    @classmethod
    def of(cls, said: dict[str, Any]) -> Which:
        """Read the options. Raises: Failure where they do not say which jobs, or contradict each other."""
        how = {name: said.pop(name) for name in ("limit", "dry_run", "yes", "actor", "as_json")}
        ids, everything = tuple(dict.fromkeys(said.pop("job_ids"))), said.pop("everything")
        if not everything and not ids and not any(said.values()):
            # To say nothing is not to say everything.
            hint = "give ids, a filter (--queue, --kind, --key, --state, --since, …), or --all"
            raise Failure("which jobs?", Exit.USAGE, hint)
        if everything and (ids or any(said.values())):
            raise Failure("--all contradicts ids and filters", Exit.USAGE, "leave one of them out")
        said["created_after"], said["created_before"] = said.pop("since"), said.pop("until")
        return cls(ids, Wanted(**said), **how)


def _acted(at: Opened, asked: Which, act: Callable[[Wanted, int | None, bool], Series[A]], nothing: A, verb: str) -> A:
    """Look first, ask a person if it is about many, then act on those that were found, as far as they still fit."""
    words = [at.whole_id(word) for word in asked.ids]
    ids = [one for word in words if (one := _readable(word))]
    unreadable = [word for word in words if not _readable(word)]
    # Without an id that can be one, the filter alone must not be left.
    foreseen = (
        nothing if asked.ids and not ids else at.run_all(act(replace(asked.wanted, ids=tuple(ids)), asked.limit, True))
    )
    if not asked.ids and not foreseen.seen:
        raise Failure("no live job matches", Exit.NOT_FOUND, f"`holdfast jobs list{at.option}` shows what there is")
    to_do = sorted(foreseen.seen - foreseen.left.keys())
    if not asked.dry_run and to_do:
        if not asked.ids and len(to_do) > 1:
            confirm(f"{verb} {plural(len(to_do), 'job')}{at.of}?", asked.yes)
        done = at.run_all(act(replace(asked.wanted, ids=tuple(to_do)), None, False))
        foreseen = replace(done, left=foreseen.left | done.left)
    return replace(foreseen, left=foreseen.left | dict.fromkeys(unreadable, "unknown"))


def _readable(word: str) -> str | None:
    try:
        return parse_id(word.strip().lower())
    except ConfigError:
        return None


def _tell_each(dry_run: bool, answer: Cancelled) -> None:
    for job in answer.cancelled:
        click.echo(f"would cancel {job}" if dry_run else f"{job} is cancelled")
    for job in answer.requested:
        would = f"{job} runs: would ask its worker to stop it"
        click.echo(would if dry_run else f"{job} runs: its worker is asked to stop it")


def _tell_cancelled(dry_run: bool, answer: Cancelled) -> None:
    click.echo(f"{'would cancel' if dry_run else 'cancelled'} {plural(len(answer.cancelled), 'job')}")
    if answer.requested:
        ask = "would ask" if dry_run else "asked"
        click.echo(f"{ask} the workers of {plural(len(answer.requested), 'running job')} to stop")


def _tell_changed(asked: Which, answer: Changed) -> None:
    if asked.ids:
        for job in answer.changed:
            click.echo(f"would change {job}" if asked.dry_run else f"{job} is changed")
        return
    click.echo(f"{'would change' if asked.dry_run else 'changed'} {plural(len(answer.changed), 'job')}")
    for why, count in sorted(Counter(answer.left.values()).items()):
        click.echo(f"left alone: {plural(count, 'job')} ({why})", err=True)


def _refuse(what: Capability, asked: Which, left: dict[str, str]) -> None:
    """Say of each job that was named why it was left alone; the first of them gives the exit code."""
    if not asked.ids:
        return
    refused = [_error(what, job, why) for job, why in _in_order(asked.ids, left)]
    for other in refused[1:]:
        failure_of(other).show()
    if refused:
        raise refused[0]


def _in_order(words: Sequence[str], left: dict[str, str]) -> list[tuple[str, str]]:
    names = [word if word in left else _readable(word) or word for word in words]
    return [(name, left[name]) for name in names if name in left]


def _error(what: Capability, job: str, why: str) -> HoldfastError:
    if why == "unknown":
        return JobNotFound(job)
    if why == "no match":
        return Conflict(f"Job {job} is live, and is not what the filters ask for. Leave them out, or the job.")
    if why == "leased":
        return Conflict(f"Job {job} is leased and cannot be changed. A worker runs it: cancel it, or wait for its end.")
    if why in ("done", "dead", "cancelled"):
        words = too_late(why) if what == "cancel" else f"{why}. Only a job that waits can be changed."
        return Conflict(f"Job {job} is {words}")
    if why == "belongs to a route":
        return Conflict(f"Job {job} {why} and cannot be moved. Cancel it, and publish the event again.")
    return Conflict(f"Job {job} {why}, which says when it runs. Leave out the time, or cancel what it waits for.")
