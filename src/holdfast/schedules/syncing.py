"""Declared schedules and stored ones: which declaration takes effect, also while two versions of an application run.

Additive: what others declared is left alone, and nothing is ever removed. Of two definitions of one name the newest
counts, which is the one that nobody has stored before. A definition that was replaced comes back only once no live
worker declares the one that replaced it, as after a rollback; so a worker of the old version that restarts in the
middle of a deployment changes nothing. What a person or a deployment has said stays until something new is declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.admin import recording
from holdfast.errors import DatabaseBusy
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.schedules.definition import DeclaredBy, Schedule
from holdfast.schedules.timetable import Timetable
from holdfast.values.rows import when
from holdfast.values.views import decoded

Synced = Literal["created", "changed", "same", "kept"]
# How many definitions that were replaced a schedule remembers.
MOST_REPLACED = 20
# A worker that gave no beat for this long is taken for gone, as the registry takes it.
SILENT = timedelta(seconds=60)


class Declared(NamedTuple):
    """What decides whether a declaration takes effect: the columns of `schedules_declared` in their order."""

    name: str
    revision: int
    fingerprint: str
    replaced: str
    declared_by: DeclaredBy
    cron: str | None
    every_ms: int | None
    timezone: str
    next_at: Any
    last_at: Any

    @property
    def before(self) -> list[str]:
        """The fingerprints of definitions that were replaced, the latest last."""
        found = decoded(self.replaced)
        return [str(one) for one in found] if isinstance(found, list) else []

    def next_for(self, schedule: Schedule, now: datetime) -> datetime:
        """Say when it ticks next by another definition.

        What is due already is still owed, and an unchanged timetable goes on where it is. Otherwise it is the first
        tick from now on: a change of cron or time zone makes up for nothing.
        """
        next_at = when(self.next_at)
        if next_at <= now or Timetable(self.cron, self.every_ms, self.timezone) == schedule.timetable:
            return next_at
        return schedule.timetable.first_after(now if self.last_at is None else max(now, when(self.last_at)))


@flow
def sync(
    declared: Iterable[Schedule], by: DeclaredBy = "sync", *, create: bool = True, actor: str | None = None
) -> Steps[dict[str, Synced]]:
    """Store what an application declares, and tell of each schedule what became of it.

    "kept" says that another definition of this name stays in effect. A worker's word (`by`) can lose to that of
    others; a deployment's ("sync") counts at once. Without `create`, only schedules that are there are looked at. With
    an `actor`, changes are recorded in the audit.
    Commits: its own, all or none. After a crash: nothing happened; safe to repeat, and a repeat finds all the same.
    """
    wanted = {one.name: one for one in sorted(declared, key=lambda one: one.name)}
    if not wanted:
        return {}
    [[clock]] = yield from ask("clock", look=True)
    now = when(clock)
    rows = yield from ask("schedules_declared", names=list(wanted), look=True)
    stored = {text_of(row[0]): Declared(*row) for row in rows}
    answer: dict[str, Synced] = {}
    for name, one in wanted.items():
        seen = stored.get(name)
        if seen is not None and seen.fingerprint == one.fingerprint:
            answer[name] = "same"
        elif seen is None:
            if create:
                answer[name] = yield from _create(one, by, now)
        else:
            answer[name] = yield from _change(one, seen, by, now)
    changed = [name for name, what in answer.items() if what in ("created", "changed")]
    if actor is not None:
        about = [{"schedule": name, "what": answer[name], "when": str(wanted[name].timetable)} for name in changed]
        yield from recording.record("schedule_sync", actor, [(None, each) for each in about])
    return answer


def _create(one: Schedule, by: DeclaredBy, now: datetime) -> Steps[Synced]:
    if not (yield from store_new(one, by, now)):
        raise changing(one.name)
    return "created"


def _change(one: Schedule, seen: Declared, by: DeclaredBy, now: datetime) -> Steps[Synced]:
    was_replaced = by == "worker" and one.fingerprint in seen.before
    if was_replaced and (seen.declared_by != "worker" or (yield from _is_declared(seen))):
        return "kept"
    if not (yield from replace(one, seen, by, now)):
        raise changing(one.name)
    return "changed"


def store_new(one: Schedule, by: DeclaredBy, now: datetime) -> Steps[bool]:
    """Add a schedule; False if there is one of this name."""
    next_at = one.timetable.first_after(now)
    rows = yield from ask("schedule_add", **one.columns(), next_at=next_at, declared_by=by)
    return bool(rows)


def replace(one: Schedule, seen: Declared, by: DeclaredBy, now: datetime) -> Steps[bool]:
    """Let a definition take the place of the one that was seen; False if the row has changed since."""
    before = [each for each in (*seen.before, seen.fingerprint) if each != one.fingerprint][-MOST_REPLACED:]
    rows = yield from ask(
        "schedule_change",
        **one.columns(),
        next_at=seen.next_for(one, now),
        replaced=msgspec.json.encode(before).decode(),
        declared_by=by,
        revision=number_of(seen.revision),
    )
    return bool(rows)


def _is_declared(seen: Declared) -> Steps[bool]:
    """Tell whether a live worker declares the stored definition."""
    rows = yield from ask("schedules_live", silent_ms=int(SILENT.total_seconds() * 1000))
    return any(prints_of(decoded(text_of(row[0]))).get(text_of(seen.name)) == seen.fingerprint for row in rows)


def prints_of(info: object) -> Mapping[str, Any]:
    """Read which definitions a worker declares from what it says about itself: fingerprints by name."""
    found = info.get("schedules") if isinstance(info, dict) else None
    return found if isinstance(found, dict) else {}


def fingerprints(declared: Iterable[Schedule]) -> dict[str, str]:
    """Write what `prints_of` reads."""
    return {one.name: one.fingerprint for one in declared}


def changing(name: str) -> DatabaseBusy:
    """Say that somebody else changed a schedule at the same moment: the whole is run again."""
    return DatabaseBusy("busy", f"schedule {name} was changed by another at the same moment")


def declared_rows(names: Sequence[str]) -> Steps[list[Declared]]:
    """Read what decides about these names."""
    rows = yield from ask("schedules_declared", names=list(names))
    return [Declared(*row) for row in rows]
