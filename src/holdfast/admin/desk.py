"""Our own jobs as people see them: the desk over the flows of `holdfast.admin`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import ClassVar, Literal, cast

from holdfast import runs
from holdfast.admin import cancelling, changing, examine, recording
from holdfast.admin import jobs as admin
from holdfast.admin.family import family
from holdfast.admin.jobs import LONGEST_LIST, STATES, Filter
from holdfast.admin.looking import WINDOW, count_found, ids_from, latest, look
from holdfast.admin.picking import without_ids
from holdfast.errors import ConfigError
from holdfast.flow import Flow, Series, Steps, ask, flow
from holdfast.jobs import pruning
from holdfast.life import merging
from holdfast.life.desk import Desk
from holdfast.life.findings import ANY_KIND, Finding
from holdfast.life.listing import EVERYTHING, After, Cancelled, Changed, Count, Family, Kept, Page, Replays, Wanted
from holdfast.observe import COUNTED
from holdfast.placing import Every, InTurn, Placed, on_every
from holdfast.values.changes import Change
from holdfast.values.ids import id_beginning, parse_id
from holdfast.values.rows import when
from holdfast.values.views import AuditLine, DeadGroup, JobView

_COUNTED = ("due", "scheduled", "waiting", "leased", "done", "dead", "cancelled")


class JobsDesk(Desk):
    """The jobs of one Holdfast: live and finished ones under one id, audited, kept by retention."""

    name = "jobs"
    states: ClassVar[tuple[str, ...]] = STATES
    checks: ClassVar[tuple[str, ...]] = (
        "lag",
        "pauses",
        "leases",
        "dead-letters",
        "batches",
        "outbox",
        "runs",
        "kinds",
    )
    has_retention: ClassVar[bool] = True

    @on_every(merging.queues)
    @flow
    def counts(self) -> Steps[list[Count]]:
        """Count jobs by queue; of finished ones the latest, up to a limit (`admin.counts`)."""
        by_queue: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for kind in (yield from admin.counts().start()):
            for name in _COUNTED:
                by_queue[kind.queue][name] += getattr(kind, name)
        late = {lag.queue: lag.oldest_seconds for lag in (yield from admin.oldest_pending().start())}
        return [Count(queue, **by_queue[queue], oldest_seconds=late.get(queue)) for queue in sorted(by_queue)]

    def rows(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Flow[Page]:
        last = after.id if isinstance(after, JobView) else None if after is None else typed_id(after)
        meant, size = filter_of(wanted), min(limit, LONGEST_LIST)
        return Placed(_page(meant, size, last, newest), Every(partial(merging.pages, size, newest), ids=meant.ids))

    def latest(self, wanted: Wanted = EVERYTHING, limit: int = 50) -> Flow[list[JobView]]:
        return latest(filter_of(wanted), limit)

    def letters(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Flow[Page]:
        return self.rows(_dead(wanted), limit=limit, after=after, newest=newest)

    def count_letters(self, wanted: Wanted = EVERYTHING) -> Flow[int]:
        return count_found(_dead(wanted), COUNTED + 1)

    def groups(self, wanted: Wanted = EVERYTHING, limit: int = 50) -> Flow[list[DeadGroup]]:
        return admin.dead_groups(_dead(wanted), limit)

    def show(self, row_id: str, *, dead: bool = False) -> Flow[JobView]:
        return admin.show(row_id)

    def ids_like(self, said: str) -> Flow[list[str]] | None:
        beginning = id_beginning(said)
        return None if beginning is None else ids_from(beginning)

    def family(self, row: JobView) -> Flow[Family]:
        return family(row)

    @on_every(merging.findings)
    @flow
    def examine(
        self,
        lag_seconds: float = 60.0,
        *,
        served: Collection[str] | None = None,
        only: str | None = None,
    ) -> Steps[list[Finding]]:
        handled = cast("Mapping[str, Collection[str]]", served) if isinstance(served, Mapping) else {}
        # What live workers have code for; None where there is nobody to ask, or somebody does not say.
        known = {kind for kinds in handled.values() for kind in kinds}
        kinds = None if not known or ANY_KIND in known else known
        looks: dict[str, Callable[[], Flow[list[Finding]]]] = {
            "lag": lambda: examine.lag(lag_seconds, served),
            "pauses": examine.pauses,
            "leases": examine.leases,
            "dead-letters": examine.dead_letters,
            "batches": examine.batches,
            "outbox": examine.outbox,
            "runs": lambda: examine.runs(kinds),
            "kinds": lambda: examine.kinds(handled),
        }
        found: list[Finding] = []
        for name in self.checks if only is None else (only,):
            found += yield from looks[name]().start()
        return found

    @on_every(merging.all_of)
    @flow
    def is_audited(self) -> Steps[bool]:
        yield from ()
        return True

    def audit(self, row_id: str, *, dead: bool = False, limit: int = 50) -> Flow[list[AuditLine]]:
        return admin.audit(row_id, limit)

    def retry(self, row_id: str, actor: str | None) -> Flow[Literal["due", "replayed"]]:
        return admin.retry(row_id, actor)

    def cancel(self, row_id: str, actor: str | None) -> Flow[Literal["cancelled", "requested"]]:
        return cancelling.cancel(row_id, actor)

    def cancel_all(
        self, wanted: Wanted, actor: str | None, limit: int | None = None, dry_run: bool = False
    ) -> Series[Cancelled]:
        return cancelling.cancel_all(*without_ids(filter_of(wanted)), actor, limit, dry_run)

    def change_all(
        self, wanted: Wanted, change: Change, actor: str | None, limit: int | None = None, dry_run: bool = False
    ) -> Series[Changed]:
        return changing.change_all(*without_ids(filter_of(wanted)), change, actor, limit, dry_run)

    def replay(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Flow[Replays]:
        meant, most = _dead(wanted), min(limit, LONGEST_LIST)

        def make(left: int) -> Flow[Replays]:
            return _replay(meant, left, actor, dry_run)

        return Placed(make(most), InTurn(make, most, lambda done: done.size, merging.replays, meant.ids))

    def discard(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Flow[list[str]]:
        return admin.discard(_dead(wanted), min(limit, LONGEST_LIST), actor, dry_run)

    @on_every(merging.in_all)
    @flow
    def kept(self) -> Steps[list[Kept]]:
        return [Kept(*pair) for pair in (yield from pruning.prune_queues().start())]

    @on_every(merging.summed)
    @flow
    def count_older(self, part: Kept, older: timedelta) -> Steps[int]:
        # By the clock that a prune goes by.
        [[now]] = yield from ask("clock")
        before = when(now) - older
        older_ones = Filter(states=(part.outcome,), queue=part.queue, finished_before=before)
        return (yield from admin.count_jobs(older_ones, most=COUNTED + 1).start())

    def prune(self, part: Kept, older: timedelta, *, limit: int = 1000) -> Flow[int]:
        return _prune(part, int(older.total_seconds() * 1000), limit)

    def prune_keys(self, *, limit: int = 1000) -> Flow[int]:
        return pruning.prune_keys(limit=limit)

    def count_audit(self, older: timedelta) -> Flow[int]:
        return recording.count_older(int(older.total_seconds() * 1000))

    def prune_audit(self, older: timedelta, *, limit: int = 1000) -> Flow[int]:
        return recording.prune_audit(int(older.total_seconds() * 1000), limit=limit)


def typed_id(typed: str) -> str:
    """Read the id of a job that somebody typed. Raises: ConfigError."""
    try:
        return parse_id(typed.strip().lower())
    except ConfigError as error:
        rule = f"{typed!r} is not a job id: they look like 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f"
        raise ConfigError("id", rule, typed) from error


def filter_of(wanted: Wanted) -> Filter:
    """Make a filter of our own jobs of what is wanted. Raises: ConfigError for what they cannot be asked."""
    return Filter(**(vars(wanted) | {"ids": tuple(map(typed_id, wanted.ids))}))


def _dead(wanted: Wanted) -> Filter:
    return filter_of(Wanted(**(vars(wanted) | {"states": wanted.states or ("dead",)})))


def _stays(job: str, holder: str | None) -> str:
    return f"{job} stays: {f'job {holder} holds' if holder else 'another job held'} its unique key"


@flow
def _page(meant: Filter, size: int, last: str | None, newest: bool) -> Steps[Page]:
    seen = yield from look(meant, size, last, WINDOW, newest).start()
    return Page(seen.rows, seen.more, seen.at_horizon)


@flow
def _replay(meant: Filter, limit: int, actor: str | None, dry_run: bool) -> Steps[Replays]:
    done = yield from admin.replay(meant, limit, actor, dry_run)
    return Replays(done.ids, done.conflicts, {job: _stays(job, holder) for job, holder in done.conflicts.items()})


@on_every(merging.summed)
@flow
def _prune(part: Kept, older_ms: int, limit: int) -> Steps[int]:
    """Delete one chunk of finished jobs, and of runs with their journals once no other job is left."""
    count = yield from pruning.prune(part.outcome, part.queue, older_ms, limit=limit)
    if count < limit:
        count += yield from runs.prune(part.outcome, part.queue, older_ms, limit=limit - count)
    return count
