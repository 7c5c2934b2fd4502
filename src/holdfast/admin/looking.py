"""Look at the newest jobs without ever reading all of them: a list with a horizon, and the audit in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from holdfast.admin.jobs import ALL, LIVE_STATES, Filter, audit
from holdfast.admin.reading import view_of
from holdfast.flow import Steps, ask, flow, text_of
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
    def merged(cls, limit: int, looks: Sequence[Look]) -> Look:
        """Make one look of those at several shards: it ends where the first of them does."""
        ended = [look for look in looks if look.more is not None]
        first = max(ended, key=lambda look: look.more or "", default=None)
        end = "" if first is None else first.more or ""
        rows = sorted((row for look in looks for row in look.rows), key=lambda row: row.id, reverse=True)
        found = [row for row in rows if row.id >= end]
        if len(found) >= limit:
            return cls(found[:limit], found[limit - 1].id)
        return cls(found) if first is None else cls(found, end, first.at_horizon)


def _looked(filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int = WINDOW) -> Every[Look]:
    return Every(partial(Look.merged, limit), ids=filter.ids)


@placed_by(_looked)
@flow
def newest(filter: Filter = ALL, limit: int = 50, after: str | None = None, window: int = WINDOW) -> Steps[Look]:
    """Read jobs that fit, the newest first, among the next `window` live and `window` finished ones behind `after`.

    Dead letters are found whatever their age: they have an index of their own. The same goes for jobs by their ids.
    """
    given = filter.params() | {"newest": True}
    if after is not None:
        given["older_than"] = parse_id(after)
    horizon = None
    if not filter.ids and set(filter.states) != {"dead"} and filter.group is None:
        horizon = yield from _horizon(filter, after, window)
    if horizon is not None:
        given["newer_than"] = horizon
    rows = yield from ask("jobs_list", alone=True, limit=limit, **given)
    found = [view_of(row) for row in rows]
    if len(found) == limit:
        return Look(found, found[-1].id)
    if horizon is None:
        return Look(found)
    # The job at the horizon was not looked at, so the next look begins just before it.
    return Look(found, str(UUID(int=UUID(horizon).int + 1)), at_horizon=True)


def _horizon(filter: Filter, after: str | None, window: int) -> Steps[str | None]:
    live = bool(filter.states) and not set(filter.states) - set(LIVE_STATES)
    behind = None if after is None else parse_id(after)
    rows = yield from ask("jobs_horizon", alone=True, window=window, older_than=behind, only_live=live or None)
    return text_of(rows[0][0]) if rows else None


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
