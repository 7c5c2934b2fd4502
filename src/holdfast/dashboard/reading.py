"""What the overview tells: how far queues are behind, dead letters, workers, and what is wrong. Nothing here writes.

`holdfast top` shows the same in a terminal, so nothing here needs jinja2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast import admin, jobs, observe, schedules
from holdfast.dashboard.setting import Setting
from holdfast.dashboard.standing import how_they_stand
from holdfast.dashboard.talk import Talk, look
from holdfast.errors import HoldfastError, StoreError
from holdfast.life import merging
from holdfast.life.findings import Finding
from holdfast.observe import COUNTED, History
from holdfast.store import Shards
from holdfast.store.standing import ShardView, Standing, absence, standing, views
from holdfast.values.pauses import Pause
from holdfast.values.views import DeadGroup, WorkerInfo, plain
from holdfast.values.words import age, one_line, plural
from holdfast.worker import registry
from holdfast.worker.registry import status_of

GROUPS_SHOWN = 8
# How long what was read serves everybody; what costs more is read more seldom, by its own measure.
DEPTH_SECONDS, GROUPS_SECONDS, WORKERS_SECONDS, FINDINGS_SECONDS, HISTORY_SECONDS = 1.0, 3.0, 1.0, 15.0, 4.0
SHARDS_SECONDS = 5.0
# Which times people may look at, in seconds; the finest serves those who have just begun.
PERIODS = {"2m": 120, "1h": 3_600, "8h": 8 * 3_600, "1d": 86_400, "7d": 7 * 86_400}
NEWEST, USUAL = "2m", "1h"
FINE_STEP = 10
LAG_SECONDS = 60.0
STOPPED_READ = 20
# Without a shard or a worker every queue is late.
_CAUSES = ("shards", "workers")
_WORST = {"problem": 0, "warning": 1, "ok": 2}


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue as it is now; a number above `COUNTED` says only that there are more.

    due: could run now. scheduled: due later. leased: workers hold them. oldest_seconds: how long the first is due.
    """

    queue: str
    due: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    oldest_seconds: float | None = None
    paused: Pause | None = None

    @property
    def capped(self) -> bool:
        return self.due > COUNTED

    def to_dict(self) -> dict[str, Any]:
        return plain(self) | {"paused": None if self.paused is None else self.paused.to_dict()}


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it, as it was at one moment; rate: attempts that were done a second, where a worker has told."""

    at: datetime
    queues: list[QueueNow]
    groups: list[DeadGroup]
    workers: list[WorkerInfo]
    findings: list[Finding]
    rate: float | None = None
    shards: list[ShardView] = field(default_factory=list[ShardView])

    @property
    def due(self) -> int:
        return sum(min(one.due, COUNTED) for one in self.queues)

    @property
    def due_capped(self) -> bool:
        return any(one.capped for one in self.queues)

    @property
    def leased(self) -> int:
        return sum(one.leased for one in self.queues)

    @property
    def oldest_seconds(self) -> float | None:
        return max((one.oldest_seconds for one in self.queues if one.oldest_seconds is not None), default=None)

    @property
    def dead(self) -> int:
        return sum(min(one.dead, COUNTED) for one in self.queues)

    @property
    def dead_capped(self) -> bool:
        return any(one.dead > COUNTED for one in self.queues)

    @property
    def trouble(self) -> list[Finding]:
        """What needs somebody, the worst first, and causes before what follows; dead letters have their groups."""
        found = [one for one in self.findings if one.severity != "ok" and one.check != "dead-letters"]
        return sorted(found, key=lambda one: (_WORST[one.severity], one.check not in _CAUSES))

    def alive(self) -> list[WorkerInfo]:
        return [one for one in self.workers if status_of(one) == "alive"]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "at": self.at.isoformat(),
            "due": self.due,
            "oldest_seconds": self.oldest_seconds,
            "leased": self.leased,
            "dead": self.dead,
            "rate": self.rate,
            "queues": [one.to_dict() for one in self.queues],
            "dead_groups": [one.to_dict() for one in self.groups],
            "workers": [_worker(one) for one in self.workers],
            "findings": [plain(one) for one in self.trouble],
        } | ({"shards": [one.to_dict() for one in self.shards]} if self.shards else {})


def _worker(one: WorkerInfo) -> dict[str, Any]:
    return plain(one) | {"silent_for": one.silent_for.total_seconds(), "status": status_of(one)}


def overview(setting: Setting) -> Talk[Overview]:
    """Read what the overview shows; parts of it may be some seconds old."""
    queues = yield from queues_now(setting)
    groups = yield from dead_groups(setting)
    workers = yield from workers_now(setting)
    findings = yield from findings_now(setting)
    recent = yield from history(setting, NEWEST)
    shards = yield from shards_now(setting)
    return Overview(datetime.now(UTC), queues, groups, workers, findings, rate_of(recent), shards)


def history(setting: Setting, period: str) -> Talk[History]:
    """Read what happened in one of the `PERIODS`."""

    def read() -> Talk[History]:
        step = FINE_STEP if period == NEWEST else None
        return look(setting.store, observe.history(PERIODS[period], step))

    return setting.shared.read(("history", period), HISTORY_SECONDS, read)


def rate_of(recent: History) -> float | None:
    """Say how many attempts were done a second of late; the newest slot is left out, because it is not over."""
    told = recent.points[-4:-1]
    if not any(point.kinds for point in recent.points):
        return None
    return sum(point.figures().ended.get("done", 0) for point in told) / sum(point.seconds for point in told)


def queues_now(setting: Setting) -> Talk[list[QueueNow]]:
    """Tell of each queue that has something due, is paused, or is served by a live worker."""
    return setting.shared.read("queues", DEPTH_SECONDS, lambda: _queues(setting))


def _queues(setting: Setting) -> Talk[list[QueueNow]]:
    depths = (yield from look(setting.store, observe.sample())).queues
    pauses = yield from look(setting.store, jobs.pauses())
    paused = {one.name: one for one in pauses if one.scope == "queue"}
    served = {queue for one in (yield from workers_now(setting)) for queue in queues_of(one) if not one.is_gone}
    found = []
    for name in sorted({*depths, *paused, *served}):
        depth = depths.get(name, observe.Depth())
        numbers = (depth.due, depth.scheduled, depth.leased, depth.dead, depth.oldest)
        found.append(QueueNow(name, *numbers, paused.get(name)))
    return sorted(found, key=lambda one: (-(one.oldest_seconds or 0.0), one.queue))


def queues_of(worker: WorkerInfo) -> list[str]:
    """Name the queues that a worker says it serves."""
    said = worker.info.get("queues")
    return [str(one) for one in said] if isinstance(said, list) else []


def dead_groups(setting: Setting) -> Talk[list[DeadGroup]]:
    def read() -> Talk[list[DeadGroup]]:
        return look(setting.store, admin.dead_groups(limit=GROUPS_SHOWN))

    return setting.shared.read("groups", GROUPS_SECONDS, read)


def workers_now(setting: Setting) -> Talk[list[WorkerInfo]]:
    def read() -> Talk[list[WorkerInfo]]:
        return look(setting.store, registry.workers())

    return setting.shared.read("workers", WORKERS_SECONDS, read)


def findings_now(setting: Setting) -> Talk[list[Finding]]:
    """Examine what `doctor` examines of rows, workers, schedules and foreign tables."""
    return setting.shared.read("findings", FINDINGS_SECONDS, lambda: _examined(setting))


def _examined(setting: Setting) -> Talk[list[Finding]]:
    found: list[Finding] = []
    workers = yield from workers_now(setting)
    alive = [one for one in workers if status_of(one) == "alive"]
    served = registry.served(alive)
    shards = setting.store if isinstance(setting.store, Shards) else None
    if shards is not None:
        found += yield from _of_shards(setting, shards, served)
    for place in setting.places.values():
        if shards is not None and not place.name:
            continue
        try:
            seen = yield from look(place.store, place.desk.examine(LAG_SECONDS, served=served))
        except StoreError as error:
            seen = [Finding(place.name or "jobs", "warning", f"could not be looked at: {one_line(error)}")]
        found += [Finding(place.name, one.severity, one.seen, one.do) for one in seen] if place.name else seen
    found += _of_workers(workers, alive)
    found += _of_lines((yield from look(setting.store, admin.list_lines(stopped=True, limit=STOPPED_READ))))
    if shards is None or not (yield from shards_now(setting))[0].away:
        found += yield from look(setting.store, schedules.examine([one.info for one in alive]))
    return found


def shards_now(setting: Setting) -> Talk[list[ShardView]]:
    """Tell how the shards of the application stand; none where it has one database."""
    shards = setting.store
    if not isinstance(shards, Shards):
        return []
    return (yield from setting.shared.read("shards", SHARDS_SECONDS, lambda: _standing(shards)))


def _standing(shards: Shards) -> Talk[list[ShardView]]:
    answers: list[Standing | Exception] = []
    for store in shards.stores:
        try:
            answers.append(absence(store) or (yield from look(store, standing())))
        except HoldfastError as error:
            answers.append(error)
    return views(shards, answers)


def _of_shards(setting: Setting, shards: Shards, served: Mapping[str, Collection[str]]) -> Talk[list[Finding]]:
    """Examine the jobs of each shard that answers; what is wrong with one alone names it."""
    found: dict[int, list[Finding]] = {}
    stand = yield from shards_now(setting)
    for number, store in enumerate(shards.stores):
        if stand[number].error is not None:
            continue
        try:
            found[number] = yield from look(store, setting.places[""].desk.examine(LAG_SECONDS, served=served))
        except StoreError as error:
            found[number] = [Finding("jobs", "warning", f"could not be looked at: {one_line(error)}")]
    return [*how_they_stand(stand), *merging.findings_by_shard(found)]


def _of_lines(stopped: Sequence[admin.LineView]) -> list[Finding]:
    """Tell of lines that stand still; their keys are told on the pages of queues, as far as they may be seen."""
    if not stopped:
        return []
    first = stopped[0]
    count = f"{STOPPED_READ} or more lines" if len(stopped) == STOPPED_READ else plural(len(stopped), "line")
    count += " stands still" if len(stopped) == 1 else " stand still"
    why = "for a dead letter" if first.stopped_for else "by hand"
    seen = f"{count}; the first is of queue {first.queue}, stopped {why}, with {first.waiting:,} waiting"
    do = "replay or discard what stopped it, or start the line: `holdfast lines list --stopped` names them"
    return [Finding("queues", "warning", seen, do)]


def _of_workers(workers: list[WorkerInfo], alive: list[WorkerInfo]) -> list[Finding]:
    silent = [one for one in workers if status_of(one) == "silent"]
    found = [
        Finding(
            "workers", "warning", f"{one.id} has been silent for {age(one.silent_for)}", "see whether it still runs"
        )
        for one in silent
    ]
    if not alive:
        found.append(Finding("workers", "problem", "no worker is alive", "start one: `holdfast worker APP`"))
    return found
