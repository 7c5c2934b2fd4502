"""The worker registry as flows: who is alive, draining or dead."""

from __future__ import annotations

from datetime import timedelta

from holdfast.flow import Steps, ask, flow
from holdfast.values.payload import decode_value
from holdfast.values.rows import WorkerStatus, when
from holdfast.values.views import WorkerInfo


@flow
def beat(worker: str, info: str) -> Steps[WorkerStatus]:
    """Record a sign of life and return the status that the registry holds; a draining worker stays draining.

    Commits: its own. After a crash: the worker falls silent and is buried by another.
    """
    [[status]] = yield from ask("beat", id=worker, info=info, alone=True)
    return status  # type: ignore[no-any-return]


@flow
def mark(worker: str, status: WorkerStatus) -> Steps[bool]:
    """Set a worker's status; False when the registry does not know it.

    Commits: its own.
    """
    rows = yield from ask("worker_mark", id=worker, status=status, alone=True)
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
    """Delete dead workers that were last seen longer ago than this.

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


@flow
def workers() -> Steps[list[WorkerInfo]]:
    """Read the registry, oldest first."""
    rows = yield from ask("workers_list", alone=True)
    return [
        WorkerInfo(worker, status, when(started), when(seen), timedelta(milliseconds=int(silent)), decode_value(info))
        for worker, status, started, seen, silent, info in rows
    ]
