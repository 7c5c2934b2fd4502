"""The worker registry as flows: who is alive, draining, stopped or dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal

from holdfast.flow import Flow, Steps, ask, flow
from holdfast.life import merging
from holdfast.life.findings import ANY_KIND
from holdfast.observe import Folded, note
from holdfast.placing import on_every
from holdfast.values.ids import new_id
from holdfast.values.payload import decode_value
from holdfast.values.rows import WorkerStatus, when
from holdfast.values.views import WorkerInfo

# Three missed beats: a worker beats every 10 seconds.
SILENT = timedelta(seconds=30)


def status_of(worker: WorkerInfo) -> str:
    """Tell a worker that says it is there from one that only said so."""
    return "silent" if not worker.is_gone and worker.silent_for > SILENT else worker.status


def up(worker: WorkerInfo) -> timedelta:
    """Tell how long a worker has been there: until now, or until its last beat when it may be gone."""
    until_seen = worker.seen_at - worker.started_at
    return until_seen if status_of(worker) in ("silent", "stopped", "dead") else until_seen + worker.silent_for


def served(alive: Iterable[WorkerInfo]) -> dict[str, set[str]]:
    """Name the queues that workers serve, each with the kinds that they handle there."""
    found: dict[str, set[str]] = defaultdict(set)
    for worker in alive:
        for queue in worker.info.get("queues", ()):
            found[queue].update(worker.info.get("kinds", (ANY_KIND,)))
    return dict(found)


def shared_kinds(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Name the kinds that workers of two applications both handle, by what the registry has of each.

    Applications are told apart by the packages of their handlers; those that have one in common are one.
    """
    packages, others = (set(info.get("packages", ())) for info in (one, other))
    if not packages or not others or packages & others:
        return []
    return sorted(set(one.get("kinds", ())) & set(other.get("kinds", ())))


def beat(worker: str, info: str, counted: Folded | None = None) -> Flow[WorkerStatus]:
    """Record a sign of life and return the status that the registry holds; a draining worker stays draining.

    What was counted since the last beat is written in the same transaction, once, however often it is repeated.
    Commits: its own. After a crash: the worker falls silent and is buried by another.
    """
    return _beat(worker, info, counted, new_id())


@flow
def _beat(worker: str, info: str, counted: Folded | None, row_id: str) -> Steps[WorkerStatus]:
    # Before the beat, which says that this row was written.
    if counted:
        yield from note(worker, counted, row_id)
    noted = row_id if counted else None
    [[status]] = yield from ask("beat", id=worker, info=info, counted=noted, alone=not counted)
    return status  # type: ignore[no-any-return]


@flow
def mark(worker: str, status: Literal["alive", "draining", "dead"]) -> Steps[bool]:
    """Set a worker's status; False when the registry does not know it.

    Commits: its own.
    """
    rows = yield from ask("worker_mark", id=worker, status=status, alone=True)
    return bool(rows)


def leave(worker: str, counted: Folded | None = None) -> Flow[bool]:
    """Note that a worker has stopped by itself; False when the registry does not know it.

    What was counted since its last beat is written in the same transaction, once, however often it is repeated.
    Commits: its own. After a crash: it falls silent, and is buried by another.
    """
    return _leave(worker, counted, new_id())


@flow
def _leave(worker: str, counted: Folded | None, row_id: str) -> Steps[bool]:
    if counted:
        yield from note(worker, counted, row_id)
    noted = row_id if counted else None
    rows = yield from ask("worker_stopped", id=worker, counted=noted, alone=not counted)
    return bool(rows)


@flow
def bury(silent: timedelta) -> Steps[list[str]]:
    """Mark workers dead that have been silent for this long, and return their ids.

    Commits: its own. Leases are not touched: they end by time, whatever the registry says.
    """
    rows = yield from ask("workers_bury", silent_ms=int(silent.total_seconds() * 1000), alone=True)
    return [row[0] for row in rows]


@flow
def forget(older: timedelta) -> Steps[int]:
    """Delete workers that are gone and were last seen longer ago than this.

    Commits: its own.
    """
    rows = yield from ask("workers_forget", older_ms=int(older.total_seconds() * 1000), alone=True)
    return len(rows)


@flow
def take_round(name: str, worker: str, lease_ms: int) -> Steps[bool]:
    """Take or keep what one worker does for all, for this long; False while it is another's.

    Commits: its own. After a crash: it is free when its time is over, and the next worker to ask takes it.
    """
    rows = yield from ask("round_take", name=name, worker=worker, lease_ms=lease_ms, alone=True)
    return bool(rows)


@on_every(merging.workers)
@flow
def workers() -> Steps[list[WorkerInfo]]:
    """Read the registry, oldest first."""
    rows = yield from ask("workers_list", alone=True)
    return [
        WorkerInfo(worker, status, when(started), when(seen), timedelta(milliseconds=int(silent)), decode_value(info))
        for worker, status, started, seen, silent, info in rows
    ]
