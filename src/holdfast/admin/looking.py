"""Look at jobs by their age without ever reading all of them: a list with a horizon, and the audit in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from holdfast.admin.jobs import ALL, Filter, audit
from holdfast.admin.reading import view_of
from holdfast.flow import Flow, Steps, ask, flow, text_of
from holdfast.life import merging
from holdfast.placing import Every, placed_by
from holdfast.values.ids import parse_id
from holdfast.values.views import AuditLine, JobView

# Reading this many rows by primary key and sifting them takes a few dozen milliseconds.
WINDOW = 20_000
# One action by hand writes no more lines than this with one time.
LINES_AT_ONCE = 1_000
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Look:
    """The jobs that were found, the id behind which the next look begins, and whether this one ended at its horizon.

    more: None at the end. at_horizon: `more` stands where the look stopped, not behind a full page.
    """

    rows: list[JobView]
    more: str | None = None
    at_horizon: bool = False

    @classmethod
    def merged(cls, limit: int, newest: bool, looks: Sequence[Look]) -> Look:
        """Make one look of those at several shards: it ends where the first of them does."""
        ended = {look.more: look for look in looks if look.more is not None}
        end = (max if newest else min)(ended, default=None)
        rows = sorted((row for look in looks for row in look.rows), key=lambda row: row.id, reverse=newest)
        found = [row for row in rows if end is None or (row.id >= end if newest else row.id <= end)]
        if len(found) >= limit:
            return cls(found[:limit], found[limit - 1].id)
        return cls(found) if end is None else cls(found, end, ended[end].at_horizon)


def newest(filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int = WINDOW) -> Flow[Look]:
    """Look at jobs, the newest first."""
    return look(filter, limit, after, window)


def _looked(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int = WINDOW, newest: bool = True
) -> Every[Look]:
    return Every(partial(Look.merged, limit, newest), ids=filter.ids)


@placed_by(_looked)
@flow
def look(
    filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int = WINDOW, newest: bool = True
) -> Steps[Look]:
    """Read jobs that fit, by their age, among the next `window` live and `window` finished ones behind `after`.

    Dead letters are found whatever their age: they have an index of their own. The same goes for jobs by their ids.
    """
    given = filter.params() | ({"newest": True} if newest else {})
    begin, end = ("older_than", "newer_than") if newest else ("newer_than", "older_than")
    if after is not None:
        given[begin] = parse_id(after)
    horizon = None
    if not filter.ids and set(filter.states) != {"dead"} and filter.group is None:
        bounds = {name: given[name] for name in (begin, "newest", "only_live") if name in given}
        rows = yield from ask("jobs_horizon", alone=True, window=window, **bounds)
        horizon = text_of(rows[0][0]) if rows else None
    if horizon is not None:
        given[end] = horizon
    rows = yield from ask("jobs_list", alone=True, limit=limit, **given)
    found = [view_of(row) for row in rows]
    if len(found) == limit:
        return Look(found, found[-1].id)
    if horizon is None:
        return Look(found)
    # The job at the horizon was not looked at, so the next look begins just before it.
    return Look(found, str(UUID(int=UUID(horizon).int + (1 if newest else -1))), at_horizon=True)


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

    Lines of one moment stay on one page, so that none of them is left out between two.
    """
    lines = yield from audit(limit=limit, before=before, actor=actor).start()
    if len(lines) < limit:
        return lines, None
    last = lines[-1].at
    together = yield from audit(limit=LINES_AT_ONCE, since=last, before=last + _TICK, actor=actor).start()
    return [line for line in lines if line.at > last] + together, last
