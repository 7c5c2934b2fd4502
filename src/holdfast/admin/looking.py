"""Look at jobs and at the audit without ever reading all of them at once: lists with a horizon, bounded counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter

from holdfast.admin.jobs import ALL, LONGEST_LIST, STATES, Filter, audit
from holdfast.admin.reading import view_of
from holdfast.admin.windows import WINDOW as WINDOW
from holdfast.admin.windows import behind, horizon
from holdfast.flow import Flow, Steps, ask, flow, text_of
from holdfast.life import merging
from holdfast.life.windows import Look as Look
from holdfast.observe import COUNTED
from holdfast.placing import Every, on_every, placed_by
from holdfast.values.ids import LOWEST_ID, is_id, parse_id
from holdfast.values.retry import whole
from holdfast.values.rows import when
from holdfast.values.views import AuditLine, JobView

# One action by hand writes no more lines than this with one time.
LINES_AT_ONCE = 1_000
_TICK = timedelta(microseconds=1)


def newest(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int | None = None
) -> Flow[Look[JobView]]:
    """Look at jobs, the newest first."""
    return look(filter, limit, after, window)


def _looked(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int | None = None, newest: bool = True
) -> Every[Look[JobView]]:
    return Every(partial(Look.merged, attrgetter("id"), limit, newest), ids=filter.ids)


@placed_by(_looked)
@flow
def look(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int | None = None, newest: bool = True
) -> Steps[Look[JobView]]:
    """Read jobs that fit, by their age, among the next `window` live and `window` finished ones behind `after`.

    window: `WINDOW`, if none is given.
    Where dead letters alone are asked for, it is the next `window` of these, and on PostgreSQL of their group, if one
    is asked for: they have indexes of their own. Jobs by their ids are found in any case.
    """
    given = filter.params() | ({"newest": True} if newest else {})
    begin, end = ("older_than", "newer_than") if newest else ("newer_than", "older_than")
    if after is not None:
        given[begin] = parse_id(after)
    edge = yield from horizon(filter, given, WINDOW if window is None else window, newest)
    if edge is not None:
        given[end] = edge
    if "only_dead" in given:
        rows = yield from ask("letters_list", alone=True, limit=limit, **given)
    else:
        rows = yield from ask("jobs_list", alone=True, limit=limit, **given)
    found = [view_of(row) for row in rows]
    if len(found) == limit:
        return Look(found, found[-1].id)
    return Look(found) if edge is None else Look(found, behind(edge, newest), at_horizon=True)


def _named(filter: Filter, limit: int, window: int | None = None) -> Every[list[str]]:
    return Every(partial(merging.page_by, str, limit, True), ids=filter.ids)


@placed_by(_named)
@flow
def finished_ids(filter: Filter, limit: int, window: int | None = None) -> Steps[list[str]]:
    """Name the newest finished jobs that fit, among the newest `window` of them; `WINDOW`, if none is given.

    Of dead letters, where these alone are asked for, it is the newest `window` of those.
    """
    given = filter.params()
    edge = yield from horizon(filter, given, WINDOW if window is None else window, newest=True, finished=True)
    bound = {} if edge is None else {"newer_than": edge}
    return [text_of(row[0]) for row in (yield from ask("finished_ids", alone=True, limit=limit, **given | bound))]


def _counted(filter: Filter = ALL, most: int = COUNTED + 1) -> Every[int]:
    return Every(partial(merging.summed_to, most), ids=filter.ids)


@placed_by(_counted)
@flow
def count_found(filter: Filter = ALL, most: int = COUNTED + 1) -> Steps[int]:
    """Count the jobs that fit, no further than to `most`, in looks at a bounded number each."""
    given, count = filter.params(), 0
    while True:
        edge = yield from horizon(filter, given, WINDOW, newest=False)
        bound = {} if edge is None else {"older_than": edge}
        asked = given | bound | {"most": most - count}
        if "only_dead" in given:
            [[found]] = yield from ask("letters_count", alone=True, **asked)
        else:
            [[found]] = yield from ask("jobs_count", alone=True, **asked)
        count = min(most, count + int(found))
        if edge is None or count == most:
            return count
        given["newer_than"] = behind(edge, newest=False)


def _page(filter: Filter = ALL, limit: int = 50, after: str | None = None, newest: bool = True) -> Every[list[JobView]]:
    return merging.page_of_jobs(limit, newest, filter.ids)


@placed_by(_page)
@flow
def list_jobs(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, newest: bool = True
) -> Steps[list[JobView]]:
    """Read live and finished jobs as one list by id, which is by age; `after` is the last id of the page before.

    It goes on until there are enough, in as many looks as it takes, each at a bounded number of jobs.
    """
    found: list[JobView] = []
    most = whole(limit, "limit", 1, LONGEST_LIST)
    while True:
        seen = yield from look(filter, most - len(found), after, newest=newest).start()
        found += seen.rows
        if seen.more is None or len(found) == most:
            return found
        after = seen.more


@on_every(merging.in_all)
@flow
def ids_from(beginning: str) -> Steps[list[str]]:
    """List the ids that begin so, two at most from each shard: lists go by ids, so the first ones after it are enough.

    A whole id is given back, whether there is such a job or not.
    """
    if is_id(beginning):
        return [beginning]
    seen = yield from look(ALL, 2, beginning + LOWEST_ID[len(beginning) :], window=2, newest=False).start()
    return [job.id for job in seen.rows if job.id.startswith(beginning)]


def _ended(filter: Filter = ALL, limit: int = 50, window: int = WINDOW) -> Every[list[JobView]]:
    return Every(partial(_latest_of, limit), ids=filter.ids)


def _latest_of(limit: int, answers: Sequence[Sequence[JobView]]) -> list[JobView]:
    jobs = [job for found in answers for job in found]
    return sorted(jobs, key=lambda job: (job.finished_at or job.created_at, job.id), reverse=True)[:limit]


@placed_by(_ended)
@flow
def latest(filter: Filter = ALL, limit: int = 50, window: int = WINDOW) -> Steps[list[JobView]]:
    """Read the jobs that ended last, the latest first: of each queue and outcome, among the latest `window`."""
    given = {name: value for name, value in filter.params().items() if name not in ("states", "queue")}
    found: list[list[JobView]] = []
    for outcome, queue in (yield from ask("prune_queues", alone=True)):
        if text_of(outcome) in (filter.states or STATES) and filter.queue in (None, text_of(queue)):
            rows = yield from ask(
                "finished_latest", outcome=outcome, queue=queue, window=window, limit=limit, alone=True, **given
            )
            found.append([view_of(row) for row in rows])
    return _latest_of(limit, found)


def _paged(
    limit: int = 50, before: datetime | None = None, actor: str | None = None
) -> Every[tuple[list[AuditLine], datetime | None]]:
    return Every(partial(merging.audit_pages, limit))


@placed_by(_paged)
@flow
def audit_page(
    limit: int = 50, before: datetime | None = None, actor: str | None = None
) -> Steps[tuple[list[AuditLine], datetime | None]]:
    """Read audit lines, the latest first, and the time before which the next page begins; None at the end.

    Lines of one moment stay on one page, so that none of them is left out between two. What somebody did is looked for
    among the next `WINDOW` lines: a page may hold few of them, or none, and not be the last.
    """
    edge = None
    if actor is not None:
        rows = yield from ask("audit_horizon", alone=True, window=WINDOW, before=before)
        edge = when(rows[0][0]) if rows else None
    lines = yield from audit(limit=limit, since=edge, before=before, actor=actor).start()
    if len(lines) < limit:
        return lines, edge
    last = lines[-1].at
    together = yield from audit(limit=LINES_AT_ONCE, since=last, before=last + _TICK, actor=actor).start()
    return [line for line in lines if line.at > last] + together, last
