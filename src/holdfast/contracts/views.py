"""What people see of foreign tables: counts, rows, dead letters, and what looks wrong. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from holdfast.contracts.durable_transport import DurableTables, Task
from holdfast.contracts.envelope import Malformed, read
from holdfast.contracts.pdo import PdoTables, Stored, decoded
from holdfast.contracts.pdo_dead import Failed
from holdfast.flow import Flow, Steps, flow
from holdfast.model import JobView, Outcome, State, plain

# What the tables hold more of than this is listed by its first so many.
LONGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class ForeignCount:
    """How many rows a foreign queue holds; `oldest_seconds` is how long the first ready one has waited.

    ready: may be claimed. waiting: delayed. leased: held by a worker of any language. stale: its holder is silent for
    longer than the lease. dead: dead letters. unread: results that no engine has taken.
    """

    source: str
    queue: str
    ready: int = 0
    waiting: int = 0
    leased: int = 0
    stale: int = 0
    dead: int = 0
    unread: int = 0
    oldest_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class ForeignFinding:
    """One thing that was looked at, as `doctor` shows it."""

    source: str
    check: str
    severity: Literal["ok", "warning", "problem"]
    seen: str
    do: str = ""


class Shown(Protocol):
    """What both kinds of source have for these views."""

    @property
    def name(self) -> str: ...
    @property
    def tables(self) -> PdoTables | DurableTables: ...


def overview(source: Shown) -> Flow[list[ForeignCount]]:
    """Count the rows of each queue of a source."""
    tables = source.tables
    return _pdo_counts(source.name, tables) if isinstance(tables, PdoTables) else _task_counts(source.name, tables)


def list_rows(source: Shown, *, limit: int = 50, after: str | None = None) -> Flow[list[JobView]]:
    """Read rows that wait or run; `after` is the last id of the page before."""
    tables = source.tables
    if isinstance(tables, PdoTables):
        return _pdo_rows(tables, min(limit, LONGEST_LIST), int(after or 0))
    return _task_rows(tables, min(limit, LONGEST_LIST), after or "")


def list_failed(source: Shown, *, limit: int = 50, after: str | None = None) -> Flow[list[JobView]]:
    """Read dead letters; there are none where an engine keeps its own."""
    tables = source.tables
    return _failed_rows(tables, min(limit, LONGEST_LIST), int(after or 0))


@flow
def _pdo_counts(name: str, tables: PdoTables) -> Steps[list[ForeignCount]]:
    now = yield from tables.now()
    rows = yield from tables.ask("counts", at=tables.stamp(now), stale=tables.stale(now))
    dead = {decoded(queue): int(count) for queue, count in (yield from tables.ask("failed_counts"))}
    counts = {}
    for queue, ready, waiting, reserved, stale, oldest in rows:
        since = tables.moment(oldest)
        seconds = None if since is None else max(0.0, (now - since).total_seconds())
        counts[decoded(queue)] = ForeignCount(
            name,
            decoded(queue),
            ready=int(ready),
            waiting=int(waiting),
            leased=int(reserved),
            stale=int(stale),
            dead=dead.pop(decoded(queue), 0),
            oldest_seconds=seconds,
        )
    counts |= {queue: ForeignCount(name, queue, dead=count) for queue, count in dead.items()}
    return [counts[queue] for queue in sorted(counts)]


@flow
def _task_counts(name: str, tables: DurableTables) -> Steps[list[ForeignCount]]:
    now = yield from tables.now()
    rows = yield from tables.ask("counts", stale=now - tables.lease_ms)
    counts = []
    for grp, free, put_off, held, stale, oldest in rows:
        seconds = None if oldest is None else max(0, now - int(oldest)) / 1000
        counts.append(ForeignCount(name, grp, int(free), int(put_off), int(held), int(stale), oldest_seconds=seconds))
    [[unread, oldest]] = yield from tables.ask("unread")
    if unread:
        waiting = max(0, now - int(oldest)) / 1000
        counts.append(ForeignCount(name, "(results)", unread=int(unread), oldest_seconds=waiting))
    return counts


@flow
def _pdo_rows(tables: PdoTables, limit: int, after: int) -> Steps[list[JobView]]:
    now = yield from tables.now()
    rows = yield from tables.ask("rows", after=after, limit=limit)
    return [_pdo_view(tables, Stored.of(row), now) for row in rows]


def _pdo_view(tables: PdoTables, row: Stored, now: datetime) -> JobView:
    leased_at = None if row.reserved_at is None else tables.moment(row.reserved_at)
    return _view(
        str(row.id),
        "pending" if row.reserved_at is None else "leased",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts + (row.reserved_at is not None),
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        available_at=tables.moment(row.available_at) or now,
        created_at=tables.moment(row.created_at) or now,
        leased_at=leased_at,
        lease_expires_at=None if leased_at is None else leased_at + timedelta(seconds=tables.retry_after),
    )


@flow
def _failed_rows(tables: PdoTables | DurableTables, limit: int, after: int) -> Steps[list[JobView]]:
    if isinstance(tables, DurableTables):
        return []
    now = yield from tables.now()
    rows = yield from tables.ask("failed", after=after, limit=limit)
    return [_failed_view(tables, Failed.of(row), now) for row in rows]


def _failed_view(tables: PdoTables, row: Failed, now: datetime) -> JobView:
    failed_at = tables.moment(row.failed_at) or now
    letter = _letter(row.payload)
    error = {
        "attempt": row.attempts,
        "type": str(letter.get("exception") or row.reason),
        "message": str(letter.get("error") or ""),
        "reason": row.reason,
        "failed_at": failed_at.astimezone(UTC).isoformat(),
    }
    return _view(
        str(row.id),
        "dead",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts,
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        errors=[error],
        available_at=tables.moment(row.created_at) or now,
        created_at=tables.moment(row.created_at) or now,
        finished_at=failed_at,
    )


def _letter(payload: str) -> Mapping[str, Any]:
    try:
        body = read(payload).body
    except Malformed as flaw:
        body = flaw.body or {}
    letter = body.get("dead_letter")
    return letter if isinstance(letter, dict) else {}


@flow
def _task_rows(tables: DurableTables, limit: int, after: str) -> Steps[list[JobView]]:
    rows = yield from tables.ask("rows", after=after, limit=limit)
    return [_task_view(tables, Task(*row)) for row in rows]


def _task_view(tables: DurableTables, task: Task) -> JobView:
    claimed_at = None if task.claimed_at is None or task.claimed_by is None else _moment(task.claimed_at)
    return _view(
        task.step_id,
        "pending" if claimed_at is None else "leased",
        queue=task.grp,
        kind=task.name,
        attempts=task.attempt,
        max_attempts=task.attempt,
        payload="null" if task.input is None else task.input,
        key=task.run_id,
        available_at=_moment(task.created_at),
        created_at=_moment(task.created_at),
        leased_at=claimed_at,
        lease_expires_at=None if claimed_at is None else claimed_at + timedelta(milliseconds=tables.lease_ms),
        leased_by=task.claimed_by,
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)


_VIEW: dict[str, Any] = {
    "priority": 0,
    "fence": 0,
    "key": None,
    "unique": None,
    "headers": None,
    "progress": None,
    "result": None,
    "errors": [],
    "leased_at": None,
    "lease_expires_at": None,
    "leased_by": None,
    "finished_at": None,
    "group": None,
    "replays": 0,
    "cancel_requested": False,
}


def _view(row_id: str, state: State | Outcome, **fields: Any) -> JobView:
    return JobView(**(_VIEW | {"errors": []} | fields | {"id": row_id, "state": state}))


@flow
def examine(source: Shown, lag: float = 60.0) -> Steps[list[ForeignFinding]]:
    """Look for what is wrong with a source's rows: no worker, vanished workers, no engine, dead letters."""
    counts = yield from overview(source)
    found = [finding for count in counts for finding in _findings(count, lag)]
    return found or [ForeignFinding(source.name, "foreign", "ok", f"{sum(c.ready for c in counts)} rows ready")]


def _findings(count: ForeignCount, lag: float) -> list[ForeignFinding]:
    found = []
    late = count.oldest_seconds is not None and count.oldest_seconds > lag
    where = f"{count.source} {count.queue}"
    if count.ready and late:
        seen = f"{where}: {count.ready} ready, the oldest for {count.oldest_seconds:.0f} s"
        found.append(("lag", "warning", seen, "start a worker with handlers for this queue, or more of them"))
    if count.unread and late:
        seen = f"{where}: {count.unread} unread, the oldest for {count.oldest_seconds:.0f} s"
        found.append(("results", "problem", seen, "start the engine that dispatched these steps, on this prefix"))
    if count.stale:
        seen = f"{where}: {count.stale} held by workers that are silent"
        found.append(("stale", "warning", seen, "a worker takes them over; if they stay, none serves this queue"))
    if count.dead:
        seen = f"{where}: {count.dead} dead letters"
        found.append(("dead", "warning", seen, "look at their reasons; replay or discard them"))
    return [ForeignFinding(count.source, *each) for each in found]  # type: ignore[arg-type]


__all__ = ["ForeignCount", "ForeignFinding", "examine", "list_failed", "list_rows", "overview"]
