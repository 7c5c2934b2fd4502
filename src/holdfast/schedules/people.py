"""What people do with schedules, as flows: list, add, pause, resume, trigger, remove.

Every action writes an audit line in the transaction that changes the schedule.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast import jobs
from holdfast.admin import recording
from holdfast.errors import Conflict, ScheduleNotFound
from holdfast.flow import Steps, ask, flow, number_of
from holdfast.schedules.definition import Schedule, Stored
from holdfast.schedules.syncing import changing, declared_rows, replace, store_new
from holdfast.values.rows import Enqueued, when


@flow
def listed(name: str | None = None) -> Steps[list[Stored]]:
    """Read the schedules, or one of them, in the order of their names.

    Raises: ScheduleNotFound, when one was named that is not there.
    """
    given: dict[str, Any] = {} if name is None else {"name": name}
    rows = yield from ask("schedules_list", alone=True, **given)
    if name is not None and not rows:
        raise ScheduleNotFound(name)
    return [Stored.of(row) for row in rows]


@flow
def add(schedule: Schedule, actor: str | None, *, over: bool = False) -> Steps[Literal["created", "changed", "same"]]:
    """Store a schedule by hand; `over` lets it take the place of another definition of the same name.

    Commits: its own. Raises: Conflict when there is another definition and `over` was not said.
    After a crash: nothing happened; safe to repeat, and a repeat finds the same.
    """
    [[clock]] = yield from ask("clock")
    now = when(clock)
    there = yield from declared_rows([schedule.name])
    if there and there[0].fingerprint == schedule.fingerprint:
        return "same"
    if there and not over:
        raise Conflict(
            f"Schedule {schedule.name} is there already, with another definition. Replace it (--replace), or choose "
            "another name."
        )
    storing = replace(schedule, there[0], "hand", now) if there else store_new(schedule, "hand", now)
    if not (yield from storing):
        raise changing(schedule.name)
    yield from _record("add", schedule.name, actor, when=str(schedule.timetable), kind=schedule.kind)
    return "changed" if there else "created"


@flow
def pause(name: str, actor: str | None) -> Steps[None]:
    """Stop a schedule's ticks until it is resumed, through restarts and deployments.

    Commits: its own. Raises: ScheduleNotFound; Conflict when it is paused already.
    After a crash: nothing happened; safe to repeat.
    """
    seen = yield from _one(name)
    if seen.paused_at is not None:
        raise Conflict(f"Schedule {name} is paused already, since {seen.paused_at:%Y-%m-%d %H:%M:%S} UTC.")
    if not (yield from ask("schedule_pause", name=name, revision=number_of(seen.revision))):
        raise changing(name)
    yield from _record("pause", name, actor)


@flow
def resume(name: str, actor: str | None) -> Steps[Stored]:
    """Let a schedule tick from now on: what was missed in the pause stays missed.

    One that is not paused starts over from now, too: that is for a schedule that has run ahead with a wrong clock.
    Commits: its own. Raises: ScheduleNotFound; ConfigError when its timetable cannot be read here.
    After a crash: nothing happened; safe to repeat.
    """
    seen = yield from _one(name)
    next_at = seen.timetable.first_after(seen.now)
    if not (yield from ask("schedule_resume", name=name, revision=number_of(seen.revision), next_at=next_at)):
        raise changing(name)
    yield from _record("resume", name, actor)
    return seen._replace(next_at=next_at, paused_at=None)


@flow
def trigger(name: str, job_id: str, actor: str | None) -> Steps[Enqueued]:
    """Add a schedule's job now, paused or not; its next tick stays where it is.

    Commits: its own. Raises: ScheduleNotFound; ConfigError when the row cannot be understood here.
    After a crash: before commit nothing happened; a repeat with the same id adds nothing.
    """
    seen = yield from _one(name)
    added = yield from jobs.enqueue(seen.job_of(job_id))
    yield from _record("trigger", name, actor, added.id, created=added.created)
    return added


@flow
def remove(name: str, actor: str | None) -> Steps[None]:
    """Delete a schedule; jobs that it has added stay. What declares it in code stores it again at its next start.

    Commits: its own. Raises: ScheduleNotFound. After a crash: nothing happened; a repeat after a lost reply finds
    nothing.
    """
    if not (yield from ask("schedule_remove", name=name)):
        raise ScheduleNotFound(name)
    yield from _record("remove", name, actor)


def _one(name: str) -> Steps[Stored]:
    rows = yield from ask("schedules_list", name=name)
    if not rows:
        raise ScheduleNotFound(name)
    return Stored.of(rows[0])


def _record(action: str, name: str, actor: str | None, job_id: str | None = None, **detail: Any) -> Steps[None]:
    yield from recording.record(f"schedule_{action}", actor, [(job_id, {"schedule": name} | detail)])
