"""What can be wrong with schedules, for `doctor`. Nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

from holdfast.errors import ConfigError
from holdfast.flow import Steps, flow
from holdfast.life.findings import Finding
from holdfast.schedules.definition import Stored
from holdfast.schedules.people import listed
from holdfast.schedules.syncing import prints_of
from holdfast.values.words import age, plural

# Every worker looks each few seconds, so a tick that is later than this has nobody to do it.
LATE = timedelta(seconds=60)


@flow
def examine(live: Sequence[dict[str, Any]]) -> Steps[list[Finding]]:
    """Find schedules that do not tick, or whose jobs nobody runs; `live` is what live workers say about themselves."""
    stored = yield from listed().start()
    kinds = {kind for info in live for kind in info.get("kinds", ())}
    queues = {queue for info in live for queue in info.get("queues", ())}
    found = [finding for one in stored for finding in _of(one, live, kinds, queues)]
    ticking = [one for one in stored if one.paused_at is None]
    if found or not stored:
        return found
    paused = f", {len(stored) - len(ticking)} paused" if len(ticking) < len(stored) else ""
    return [Finding("schedules", "ok", f"{plural(len(stored), 'schedule')}{paused}, none is late")]


def _of(
    one: Stored, live: Sequence[dict[str, Any]], kinds: Collection[str], queues: Collection[str]
) -> Iterator[Finding]:
    if one.paused_at is not None:
        return
    named = f"schedule {one.name}"
    late = one.now - one.next_at
    if late > LATE:
        do = "start a worker, any does its ticks: `holdfast worker APP`; if one runs, its log names the trouble"
        yield Finding("schedules", "problem", f"{named}: its tick is {age(late)} late", do)
    if one.last_at is not None and one.last_at > one.now + LATE:
        seen = f"{named}: its last tick lies {age(one.last_at - one.now)} ahead: the database's clock was put back"
        do = f"if it is to tick again before then: `holdfast schedules resume {one.name}`"
        yield Finding("schedules", "warning", seen, do)
    yield from _unreadable(one, named)
    yield from _unserved(one, named, live, kinds, queues)
    others = [info for info in live if prints_of(info).get(one.name, one.fingerprint) != one.fingerprint]
    if others:
        seen = f"{named}: {plural(len(others), 'live worker')} declare it otherwise than it is stored"
        do = "finish the deployment, or let one declaration count: `holdfast schedules sync APP`"
        yield Finding("schedules", "warning", seen, do)


def _unreadable(one: Stored, named: str) -> Iterator[Finding]:
    try:
        one.timetable.first_after(one.now)
    except ConfigError as error:
        yield Finding("schedules", "problem", f"{named}: {error}", "correct it, or remove it: `holdfast schedules`")


def _unserved(
    one: Stored, named: str, live: Sequence[dict[str, Any]], kinds: Collection[str], queues: Collection[str]
) -> Iterator[Finding]:
    if live and one.kind not in kinds:
        do = "start a worker whose application has that handler, or remove the schedule"
        yield Finding("schedules", "warning", f"{named}: no live worker handles its kind {one.kind}", do)
    elif live and one.queue not in queues:
        do = f"start one: `holdfast worker APP --queues {one.queue}`"
        yield Finding("schedules", "warning", f"{named}: no live worker serves its queue {one.queue}", do)
