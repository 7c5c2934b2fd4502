"""Ticks, as flows: which schedules are due, and one tick with its jobs in one transaction.

All who have seen a schedule's revision may try to move it on, and one succeeds: that, and not who is asked to do it, is
why each tick adds one job. All workers look; chance spreads them, so that most find the work done.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast import jobs
from holdfast.flow import Steps, ask, flow
from holdfast.schedules.definition import Stored
from holdfast.values.rows import Enqueued, when

# A tick that is no later than this was not missed: a worker was busy, or the database changed hands.
GRACE = timedelta(seconds=60)
# How many missed ticks catch_up="all" makes up for, the newest; and how many of them one transaction carries.
MOST_CAUGHT_UP = 1_000
TICKS_PER_COMMIT = 100
_INSTANT = timedelta(microseconds=1)


class Coming(NamedTuple):
    """A schedule that is not paused, and in how many seconds it ticks; below zero it is due."""

    name: str
    seconds: float


class Skipped(NamedTuple):
    """Ticks that the policy leaves out: the first, the last, and how many there are, counted to MOST_CAUGHT_UP."""

    first: datetime
    last: datetime
    number: int


class Plan(NamedTuple):
    """What one transaction does for a schedule that is due."""

    ticks: list[datetime]
    skipped: Skipped | None
    next_at: datetime


class Ticked(NamedTuple):
    """What one transaction did: the jobs of ticks, the ticks left out, and how late the newest tick was in seconds."""

    schedule: Stored
    jobs: list[tuple[datetime, Enqueued]]
    skipped: Skipped | None
    late: float


@flow
def coming(limit: int = 100) -> Steps[list[Coming]]:
    """Read which schedules tick next, the most overdue first."""
    rows = yield from ask("schedules_first", limit=limit, alone=True)
    return [Coming(name, (when(next_at) - when(now)).total_seconds()) for name, next_at, now in rows]


@flow
def tick(name: str) -> Steps[Ticked | None]:
    """Do what a schedule's policy asks for, if it is due and nobody else was quicker; None otherwise.

    Commits: its own; the move to the next tick and the jobs, or neither.
    Raises: ConfigError when the row cannot be understood here, such as a time zone that this machine does not know:
    the tick is left to a worker that can.
    After a crash: before commit the schedule is as due as before, and the next worker does it; after it the tick is
    over, and a repeat finds the schedule moved on.
    """
    rows = yield from ask("schedules_list", name=name, look=True)
    if not rows:
        return None
    seen = Stored.of(rows[0])
    plan = plan_of(seen)
    if plan is None:
        return None
    new = [seen.job_at(moment) for moment in plan.ticks]
    last = plan.ticks[-1] if plan.ticks else None
    moved = yield from ask("schedule_tick", name=name, revision=seen.revision, next_at=plan.next_at, last_at=last)
    if not moved:
        return None
    added = yield from jobs.enqueue_many(new)
    newest = last or (plan.skipped.last if plan.skipped else seen.next_at)
    late = (seen.now - newest).total_seconds()
    return Ticked(seen, list(zip(plan.ticks, added, strict=True)), plan.skipped, late)


def plan_of(seen: Stored) -> Plan | None:
    """Say which ticks a schedule owes and which of them its policy lets run; None if none is due.

    The stored tick is owed even where it is not on the timetable: the definition was changed since, not the debt.
    """
    now, owed = seen.now, seen.next_at
    if seen.paused_at is not None or owed > now:
        return None
    timetable = seen.timetable
    most = MOST_CAUGHT_UP if seen.catch_up == "all" else 1
    ticks = [owed, *timetable.newest(owed, now, most)][-most:]
    if seen.catch_up == "skip" and now - ticks[-1] > GRACE:
        ticks = []
    chunk, rest = ticks[:TICKS_PER_COMMIT], ticks[TICKS_PER_COMMIT:]
    skipped = None if chunk and chunk[0] == owed else _skipped(seen, chunk[0] - _INSTANT if chunk else now)
    return Plan(chunk, skipped, rest[0] if rest else timetable.first_after(now))


def _skipped(seen: Stored, until: datetime) -> Skipped:
    timetable, first = seen.timetable, seen.next_at
    last = timetable.newest(first, until, 1) or [first]
    return Skipped(first, last[-1], 1 + timetable.count(first, until, MOST_CAUGHT_UP - 1))
