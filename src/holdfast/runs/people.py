"""Runs as people look at them: lists, one with its timeline, those that are stuck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError, RunNotFound
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.life import merging
from holdfast.life.windows import WINDOW, Look, last_looked_at
from holdfast.placing import Every, placed_by, where_id_is
from holdfast.runs.checkpoints import journal
from holdfast.runs.rows import Recorded, RunView
from holdfast.values.ids import HIGHEST_ID, LOWEST_ID, parse_id
from holdfast.values.payload import decode_value
from holdfast.values.rows import when

# What people call the states of the job.
_STATUS = {"leased": "running"}
LIVE = ("pending", "running", "waiting", "stuck")
_OUTCOMES = ("done", "dead", "cancelled")
STATUSES = (*LIVE, *_OUTCOMES)
_STATES = {"running": "leased"}


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; a field without a value asks for nothing."""

    workflow: str | None = None
    kind: str | None = None
    status: str | None = None
    waits_for: str | None = None
    attribute: tuple[str, str] | None = None
    parent: str | None = None

    @property
    def states(self) -> list[str] | None:
        """The states of jobs whose runs may be of the status; None where it is none of live runs alone."""
        # A run that was parked with a deadline is pending for the database, and waiting for people.
        if self.status == "waiting":
            return ["waiting", "pending"]
        if self.status is None or self.status == "stuck" or self.status in _OUTCOMES:
            return None
        return [_STATES.get(self.status, self.status)]

    @property
    def is_live(self) -> bool:
        """Whether live runs alone can fit."""
        return bool(self.states or self.waits_for)

    @property
    def is_sifted(self) -> bool:
        """Whether runs must be looked at one after the other, because no index finds those that fit."""
        found = self.is_live or self.status == "stuck" or self.parent is not None
        return not found and (self.workflow, self.kind, self.attribute) != (None, None, None)


class Long(NamedTuple):
    """A run with a long journal."""

    id: str
    key: str
    rows: int


def _looked(
    wanted: RunFilter, limit: int = 100, after: str | None = None, window: int | None = None
) -> Every[Look[RunView]]:
    return Every(partial(Look.merged, attrgetter("job_id"), limit, True))


@placed_by(_looked)
@flow
def look(
    wanted: RunFilter, limit: int = 100, after: str | None = None, window: int | None = None
) -> Steps[Look[RunView]]:
    """Read runs that fit, the newest first, among the next `window` runs behind the one whose job has the id `after`.

    window: `WINDOW`, if none is given. Of runs that are over in one way, it is the next `window` of those.
    Runs that are not over, or stuck, or children of one run, and runs that say of themselves what no more than `window`
    runs say, are found in any case: they have indexes of their own.
    Raises: ConfigError.
    """
    asked = _asked(wanted) | ({} if after is None else {"older_than": parse_id(after)})
    end = yield from _end_of_look(wanted, asked, WINDOW if window is None else window)
    asked |= end
    views: list[RunView] = []
    while True:
        if wanted.is_live:
            rows = yield from ask("runs_live", limit=limit, alone=True, **asked)
        else:
            rows = yield from ask("runs_list", limit=limit, alone=True, **asked)
        found = [_view(row) for row in rows]
        views += [view for view in found if wanted.status in (None, view.status)]
        # What is not of the status was read, too: a page of nothing else is not the last one.
        if len(rows) < limit or len(views) >= limit:
            break
        asked["older_than"] = found[-1].job_id
    views = yield from _with_attributes(views[:limit])
    if len(views) == limit:
        return Look(views, views[-1].job_id)
    return Look(views, end.get("from_id"), at_horizon="from_id" in end)


def _asked(wanted: RunFilter) -> dict[str, Any]:
    """Say a filter as lines of the queries."""
    name, value = wanted.attribute or (None, None)
    asked = {"workflow": wanted.workflow, "kind": wanted.kind, "parent": wanted.parent}
    asked |= {"attribute": name, "value": value}
    said: dict[str, Any] = {each: what for each, what in asked.items() if what is not None}
    if wanted.is_live:
        said |= {} if wanted.waits_for is None else {"waits_for": wanted.waits_for}
        said |= {} if wanted.states is None else {"states": wanted.states}
    elif wanted.status in _OUTCOMES:
        said |= {"outcome": wanted.status, "older_than": HIGHEST_ID, "from_id": LOWEST_ID}
    else:
        said |= {"by_id": True} | ({"stuck": True} if wanted.status == "stuck" else {})
    return said


def _end_of_look(wanted: RunFilter, asked: dict[str, Any], window: int) -> Steps[dict[str, Any]]:
    """Say how a look is kept from reading all runs: by where it ends, or by what few runs say of themselves."""
    if not wanted.is_sifted:
        return {}
    if wanted.attribute is not None:
        name, value = wanted.attribute
        [[many]] = yield from ask("attributes_count", alone=True, attribute=name, value=value, most=window + 1)
        if number_of(many) <= window:
            return {"few": True}
    among = {each: asked[each] for each in ("outcome", "by_id", "older_than") if each in asked}
    last = last_looked_at((yield from ask("runs_horizon", alone=True, skipped=window - 1, **among)))
    return {} if last is None else {"from_id": text_of(last[0]), "by_id": True}


def _page(wanted: RunFilter, limit: int = 100, after: str | None = None) -> Every[list[RunView]]:
    return Every(partial(merging.page_by, attrgetter("job_id"), limit, True))


@placed_by(_page)
@flow
def runs(wanted: RunFilter, limit: int = 100, after: str | None = None) -> Steps[list[RunView]]:
    """List runs, the newest first; `after` is the id of the last job of the page before. Raises: ConfigError.

    It goes on until there are enough, in as many looks as it takes, each at a bounded number of runs.
    """
    found: list[RunView] = []
    while True:
        seen = yield from look(wanted, limit - len(found), after).start()
        found += seen.rows
        if seen.more is None or len(found) == limit:
            return found
        after = seen.more


@where_id_is
@flow
def show(key: str, workflow: str | None = None) -> Steps[RunView]:
    """Read one run by its key, or by the id of its job. Raises: RunNotFound."""
    views = yield from _by("run_key", key, workflow)
    if not views and _is_id(key):
        views = yield from _by("id", key, workflow)
    if len(views) != 1:
        raise RunNotFound(key, [view.workflow for view in views])
    [view] = yield from _with_attributes(views)
    return view


@where_id_is
@flow
def timeline(key: str, workflow: str | None = None) -> Steps[tuple[RunView, list[Recorded]]]:
    """Read a run with its journal. Raises: RunNotFound."""
    view = yield from show(key, workflow)
    return view, (yield from journal(view.job_id))


@flow
def long_journals(rows: int, limit: int = 20) -> Steps[list[Long]]:
    """List runs that are not over and have more rows in their journal than this."""
    found = yield from ask("runs_long", rows=rows, limit=limit, alone=True)
    return [Long(text_of(run), text_of(key), number_of(count)) for run, key, count in found]


@flow
def live_kinds() -> Steps[dict[str, tuple[int, int]]]:
    """Count the runs that are not over, by kind, and how many of them are due."""
    rows = yield from ask("runs_kinds", alone=True)
    return {text_of(kind): (number_of(live), number_of(due)) for kind, live, due in rows}


def _by(column: str, value: str, workflow: str | None) -> Steps[list[RunView]]:
    asked: dict[str, Any] = {column: value} | ({} if workflow is None else {"workflow": workflow})
    rows = yield from ask("runs_list", limit=2, **asked)
    return [_view(row) for row in rows]


def _is_id(key: str) -> bool:
    try:
        parse_id(key.lower())
    except ConfigError:
        return False
    return True


def _with_attributes(views: Sequence[RunView]) -> Steps[list[RunView]]:
    if not views:
        return []
    said: dict[str, dict[str, Any]] = defaultdict(dict)
    for run, name, value in (yield from ask("attributes_read", ids=sorted(view.job_id for view in views))):
        said[text_of(run)][text_of(name)] = decode_value(text_of(value))
    return [msgspec.structs.replace(view, attributes=said[view.job_id]) for view in views]


def _view(row: Sequence[Any]) -> RunView:
    job_id, workflow, key, kind, state, waits_for, stuck, parent, created_at, ended_at, attempts, due, stuck_at = row
    status = _STATUS.get(text_of(state), text_of(state)) if state is not None else "gone"
    live = status in ("pending", "running", "waiting")
    if live and stuck is not None:
        status = "stuck"
    elif status == "pending" and waits_for is not None:
        status = "waiting"
    return RunView(
        id=text_of(key),
        job_id=text_of(job_id),
        workflow=text_of(workflow),
        kind=None if kind is None else text_of(kind),
        status=status,
        waits_for=text_of(waits_for) if waits_for is not None and status in ("waiting", "stuck") else None,
        stuck=None if stuck is None else text_of(stuck),
        stuck_at=None if stuck_at is None else when(stuck_at),
        parent=None if parent is None else text_of(parent),
        created_at=when(created_at),
        ended_at=None if ended_at is None else when(ended_at),
        attempts=number_of(attempts),
        # One that waits and has no deadline is never due by itself.
        due_at=when(due) if due is not None and text_of(state) == "pending" else None,
    )
