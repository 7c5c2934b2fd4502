"""`holdfast jobs`: look at jobs, live and finished, and act on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from holdfast import admin
from holdfast.admin import JobsDesk
from holdfast.cli.audit import print_audit
from holdfast.cli.controls import cancel, change
from holdfast.cli.family import print_family
from holdfast.cli.follow import Change, Follower, changed_at, looks
from holdfast.cli.groups import Group
from holdfast.cli.looking import after_option, far_option, tell_of_more
from holdfast.cli.parse import DURATION, MOMENT, ROW_ID
from holdfast.cli.render import (
    Column,
    age,
    clean,
    error_line,
    moment,
    one_line,
    plain,
    print_fields,
    print_json,
    print_notes,
    print_table,
)
from holdfast.cli.schemas import OurSchema
from holdfast.cli.shared import (
    actor_option,
    connection_options,
    current,
    failure_of,
    in_options,
    json_option,
    require_tables,
    together,
)
from holdfast.cli.stores import Opened, open_desk, plain_app, store_option
from holdfast.cli.waiting import waited
from holdfast.errors import Conflict, DatabaseUnavailable, ForeignTablesMissing, JobNotFound, NotSupported
from holdfast.life.desk import Capability
from holdfast.life.listing import Family, Wanted
from holdfast.observe import shown
from holdfast.values.views import JobView

F = TypeVar("F", bound=Callable[..., Any])

# What a line beside our own list says of the other desks.
TOLD_COUNTS = ("due", "scheduled", "waiting", "leased", "stale", "unread")


@click.group(cls=Group)
def jobs() -> None:
    """Look at jobs, wait for them, retry, cancel and change them.

    \b
    Example:
      holdfast jobs list --app shop:hf --state pending
      holdfast jobs show 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
    """


def filter_options(command: F) -> F:
    """Add the filters that jobs and dead letters share."""
    return together(
        click.option("--queue", help="Only this queue."),
        click.option("--kind", help="Only this kind."),
        click.option("--key", help="Only this ordering key."),
        click.option(
            "--group", help="Only dead letters of this group, whatever their kind; see `holdfast dead groups`."
        ),
        click.option("--event", help="Only deliveries of events of this type."),
        click.option("--error", help="Only where the last error (type: message) holds this text."),
        click.option("--since", type=MOMENT, help="From this time on: 2h for two hours ago, or 2026-05-01T12:30."),
        click.option("--until", type=MOMENT, help="Before this time."),
        click.option("--id", "ids", type=ROW_ID, multiple=True, help="Only this id; may be repeated."),
    )(command)


@jobs.command("list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    shell_complete=lambda _ctx, _param, begun: [state for state in admin.STATES if state.startswith(begun)],
    multiple=True,
    help=f"Only this: {', '.join(admin.STATES)}, as far as the store has them; may be repeated.",
)
@filter_options
@click.option("--worker", help="Only jobs that this worker holds or held last.")
@click.option("--limit", type=click.IntRange(1, admin.LONGEST_LIST), default=50, show_default=True)
@after_option
@click.option("--oldest", is_flag=True, help="The oldest first.")
@far_option
@store_option
@connection_options
@json_option
def list_command(
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: str | None,
    oldest: bool,
    far: bool,
    as_json: bool,
    **said: Any,
) -> None:
    """List jobs, live and finished, the newest first. --since and --until go by when they were enqueued.

    It looks at the newest 20,000 live and as many finished jobs, and says so where there are more; --all goes on.
    What an application's foreign tables hold is told beside it; --store lists one of them instead.

    \b
    Example:
      holdfast jobs list --state leased --queue mail --app shop:hf
      holdfast jobs list --store pdo:jobs --url mysql://app@db/shop
      holdfast jobs list --since 1h --json --url sqlite:///shop.db | jq -r .id
    """
    wanted = Wanted(created_after=since, created_before=until, **said)
    with open_desk() as at, in_options():
        found, stopped = at.looked(at.desk.rows, wanted, limit, after, not oldest, far)
        told = [f"{name}: {words or 'empty'}; --store {name} lists it" for name, words in told_of(at, TOLD_COUNTS)]
    print_jobs(found, as_json, **at.label)
    print_notes(told)
    tell_of_more([job.id for job in found], limit, stopped)


def told_of(at: Opened, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Count what the other desks hold, in words: their rows are in no list of this one."""
    return [(other.desk.name, _counted(other, names)) for other in at.others]


def _counted(at: Opened, names: tuple[str, ...]) -> str:
    try:
        counts = at.look(at.desk.counts())
    except ForeignTablesMissing as error:
        return f"there is no table {' and no '.join(error.tables)}"
    except DatabaseUnavailable as error:
        return f"not counted: {one_line(error)}"
    sums = {name: sum(getattr(count, name) for count in counts) for name in names}
    # Our own finished jobs are counted up to a limit.
    write = shown if at.desk.has_retention else "{:,}".format
    return ", ".join(f"{write(number)} {name}" for name, number in sums.items() if number)


def print_jobs(found: list[JobView], as_json: bool, **beside: str) -> None:
    """Print jobs as a table; as JSON with what stands beside each."""
    if as_json:
        print_json(job.to_dict() | beside for job in found)
        return
    print_table(*job_table(found, datetime.now(UTC)), empty="no jobs found")


def job_table(found: list[JobView], now: datetime) -> tuple[list[Column], list[list[str]]]:
    """Lay out jobs as columns and rows. Where there is little room, why a job failed is worth more than its queue."""
    cells = {
        Column("id", whole=True, ids=True): [job.id for job in found],
        Column("state", whole=True): [job.state for job in found],
        Column("kind"): [job.kind for job in found],
        Column("queue", spare=5): [job.queue for job in found],
        Column("try", right=True): [f"{job.attempts}/{job.max_attempts}" for job in found],
        Column("age", whole=True, right=True, spare=4): [age(now - job.created_at) for job in found],
    }
    sometimes = {
        Column("next", whole=True, right=True, spare=2): [_next(job, now) for job in found],
        Column("expires", whole=True, right=True, spare=3): [_expires(job, now) for job in found],
        Column("last error", spare=1): [_last(job) for job in found],
    }
    # Where none of the jobs has one, the column would be empty.
    cells |= {column: values for column, values in sometimes.items() if any(values)}
    return list(cells), [list(row) for row in zip(*cells.values(), strict=True)]


def _next(job: JobView, now: datetime) -> str:
    """Say in what time a job may run; nothing where it is due already, or waits for something else."""
    return age(now - job.available_at) if job.state == "pending" and job.available_at > now else ""


def _expires(job: JobView, now: datetime) -> str:
    at = job.expires_at
    return "" if at is None else age(now - at) if at > now else f"{age(now - at)} ago"


def _last(job: JobView) -> str:
    error = job.last_error if job.state in ("pending", "leased", "waiting", "dead") else None
    return "" if error is None else error_line(error.get("type"), error.get("message"))


@jobs.command()
@click.argument("job_id", metavar="ID")
@store_option
@connection_options
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show one job: payload, attempts with their errors, what comes before and after it, and what was done by hand.

    \b
    Example:
      holdfast jobs show 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
    """
    show_job(job_id, as_json)


def show_job(job_id: str, as_json: bool, dead: bool = False) -> None:
    with open_desk() as at:
        job = at.run(at.desk.show(at.whole_id(job_id), dead=dead))
        lines = at.run(at.desk.audit(job.id, dead=dead))
        reading = at.desk.family(job)
        family = Family() if reading is None else at.run(reading)
        shard = at.shard_of(job)
    if as_json:
        related = {} if reading is None else asdict(family)
        print_json([job.to_dict() | shard | related | {"audit": [line.to_dict() for line in lines]} | at.label])
        return
    _print_job(job, shard)
    print_family(family)
    print_audit(lines)


def _print_job(job: JobView, shard: dict[str, int]) -> None:
    print_fields([*_fields(job), *shard.items()])
    for error in job.errors:
        _print_error(error)


def _fields(job: JobView) -> list[tuple[str, object]]:
    return [
        ("id", job.id),
        ("state", f"{job.state}, asked to stop" if job.cancel_requested else job.state),
        ("kind", job.kind),
        ("queue", job.queue),
        ("payload", job.payload),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("lapses", job.lapses or None),
        ("replays", job.replays or None),
        ("priority", job.priority or None),
        ("key", job.key),
        ("unique", job.unique),
        ("headers", job.headers or None),
        ("enqueued", moment(job.created_at)),
        ("due", moment(job.available_at) if job.state == "pending" else None),
        ("expires", moment(job.expires_at)),
        ("waits for", job.waits_for),
        ("worker", job.leased_by),
        ("started", moment(job.leased_at)),
        ("lease ends", moment(job.lease_expires_at)),
        ("finished", moment(job.finished_at)),
        ("progress", job.progress),
        ("result", job.result),
        ("group", job.group),
    ]


def _print_error(error: dict[str, Any]) -> None:
    where = f" on {clean(error['worker'])}" if error.get("worker") else ""
    click.echo(f"\nattempt {clean(error.get('attempt'))} failed at {clean(_at(error.get('failed_at')))}{where}")
    click.echo(f"  {clean(error.get('type'))}: {one_line(error.get('message'), 2000)}")
    if error.get("code") is not None:
        click.echo(f"  code: {one_line(error['code'], 2000)}")
    for line in str(error.get("traceback") or "").splitlines():
        # Spaces at the start matter in a traceback; what a terminal would obey does not.
        click.echo(f"    {line[: len(line) - len(line.lstrip())]}{clean(line)}")


def _at(stored: object) -> str:
    """Write a time that an error keeps as its text; what is not a time stays as it is."""
    try:
        return moment(datetime.fromisoformat(str(stored)))
    except ValueError:
        return str(stored)


@jobs.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@actor_option
@store_option
@connection_options
def retry(job_ids: tuple[str, ...], actor: str | None) -> None:
    """Run jobs again as soon as possible: pending and waiting ones now, dead and cancelled ones from the start.

    \b
    Example:
      holdfast jobs retry 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --app shop:hf
    """
    said = {"due": "is due now", "replayed": "is back in its queue"}
    act("retry", job_ids, actor, said)


jobs.add_command(cancel)
jobs.add_command(change)


def act(what: Capability, job_ids: tuple[str, ...], actor: str | None, said: dict[str, str]) -> None:
    """Do the same to each job; the ones it does not apply to are told, and the first of them gives the exit code."""
    refused: list[Exception] = []
    with open_desk() as at:
        at.desk.require(what)
        who, do = at.actor(actor), getattr(at.desk, what)
        # All of them before the first is acted on: one that could be several is refused, and nothing was done.
        for job_id in [at.whole_id(word) for word in job_ids]:
            try:
                click.echo(f"{job_id} {said[at.run(do(job_id, who))]}")
            except (JobNotFound, Conflict) as error:
                refused.append(error)
    for other in refused[1:]:
        failure_of(other).show()
    if refused:
        raise refused[0]


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--timeout", type=DURATION, help="Wait no longer than this (0 looks once); by default for ever.")
@store_option
@connection_options
def wait(job_id: str, timeout: timedelta | None) -> None:
    """Wait until a job has ended, and print its result as JSON.

    Ends with 0 when it is done, 8 when it is dead, 9 when it was cancelled, 10 when the time is over.

    \b
    Example:
      holdfast jobs wait 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f --timeout 30s --app shop:hf
    """
    if store := current().named:
        raise NotSupported(store, "wait", "keeps no results here; `holdfast jobs show` looks at a row.")
    app = current().application()
    if app is None:
        app = plain_app()
        # Nobody says here which queues keep nothing of done jobs.
        app.context.waits.knows_queues = False
    with app:
        require_tables(app.store)
        at = Opened(JobsDesk(), app.store, OurSchema(app.store))
        print_json([waited(app, at.whole_id(job_id), timeout)])


@jobs.command()
@filter_options
@click.option("--interval", type=DURATION, default="1", show_default=True, help="Time between two looks.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Begin with this many of the last jobs.",
)
@click.option("--for", "duration", type=DURATION, help="Stop after this time.")
@store_option
@connection_options
@json_option
def tail(interval: timedelta, lines: int | None, duration: timedelta | None, as_json: bool, **said: Any) -> None:
    """Follow jobs as they are enqueued, claimed and finished, until Ctrl-C.

    It looks every --interval, so a state that lasts less than that may be missed; the end of a job is not. With
    --store, a row that left its table is told as gone.

    \b
    Example:
      holdfast jobs tail --queue mail --app shop:hf
    """
    said["created_after"], said["created_before"] = said.pop("since"), said.pop("until")
    follower = Follower(Wanted(**said))
    with suppress(KeyboardInterrupt), open_desk() as at:
        for _ in looks(interval, duration):
            changed = follower.look(at)
            for change in changed[-lines:] if lines is not None else changed:
                _print_change(change, as_json, at.label)
            lines = None


def _print_change(change: Change, as_json: bool, label: dict[str, str]) -> None:
    job, state = change
    if as_json:
        print_json([plain(job.to_dict() | {"state": state} | label)])
        return
    what = job.last_error if job.state in ("dead", "pending") else None
    error = f"  {clean(what.get('type'))}: {one_line(what.get('message'), 60)}" if what else ""
    at = (datetime.now(UTC) if state == "gone" else changed_at(job)).astimezone().strftime("%H:%M:%S")
    tries = f"{job.attempts}/{job.max_attempts}"
    click.echo(f"{at}  {state:9}  {job.id}  {clean(job.queue)}/{clean(job.kind)}  {tries}{error}")
