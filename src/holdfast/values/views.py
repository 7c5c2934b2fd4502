"""Rows as people see them, in lists, on the command line and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.values.expires import expiry_of
from holdfast.values.rows import Outcome, State, WorkerStatus


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A row of the worker registry."""

    id: str
    status: WorkerStatus
    started_at: datetime
    seen_at: datetime
    silent_for: timedelta
    info: dict[str, Any]

    @property
    def is_gone(self) -> bool:
        """Whether it has stopped, or died."""
        return self.status in ("stopped", "dead")


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as people see it, live or finished.

    `payload` is the stored text; headers, progress, result and errors are decoded, and stay text where they are no
    JSON. `group` is the fingerprint of a dead letter's last error.
    """

    id: str
    state: State | Outcome
    queue: str
    kind: str
    priority: int
    attempts: int
    max_attempts: int
    fence: int
    key: str | None
    unique: str | None
    payload: str
    headers: dict[str, str] | None
    progress: Any
    result: Any
    errors: list[dict[str, Any]]
    available_at: datetime
    created_at: datetime
    leased_at: datetime | None
    lease_expires_at: datetime | None
    leased_by: str | None
    finished_at: datetime | None
    group: str | None
    replays: int
    cancel_requested: bool
    lapses: int = 0
    # What a parked job waits for.
    waits_for: str | None = None

    @property
    def last_error(self) -> dict[str, Any] | None:
        return self.errors[-1] if self.errors else None

    @property
    def expires_at(self) -> datetime | None:
        """From when on no attempt of it begins."""
        return expiry_of(self.headers, self.created_at)

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON: times as ISO 8601, the payload as the value it holds."""
        expires = self.expires_at
        told = {"payload": decoded(self.payload), "expires_at": None if expires is None else iso(expires)}
        return plain(self) | told


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many jobs of one kind a queue holds; `pending` is `due` (available now) plus `scheduled`.

    `waiting` jobs are due when they are woken; those that wait with a deadline are among the scheduled.
    """

    queue: str
    kind: str
    pending: int
    due: int
    scheduled: int
    leased: int
    done: int
    dead: int
    cancelled: int
    waiting: int = 0

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a queue is behind: its due jobs, and for how many seconds the oldest has been due."""

    queue: str
    due: int
    oldest_seconds: float

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one kind with like errors; error and sample are those of the latest."""

    group: str | None
    kind: str
    count: int
    queues: list[str]
    error_type: str | None
    error_message: str | None
    first_at: datetime
    last_at: datetime
    sample_id: str

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """What somebody did to a job by hand."""

    at: datetime
    action: str
    job_id: str | None
    actor: str | None
    detail: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


def decoded(text: str | None) -> Any:
    """Read stored JSON; what is not JSON comes back as it is, because people must be able to look at it."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def error_records(text: str | None) -> list[dict[str, Any]]:
    """Read the stored errors of a job; what is not an error record becomes the message of one."""
    stored = decoded(text)
    found: list[Any] = stored if isinstance(stored, list) else [stored]  # pyright: ignore[reportUnknownVariableType]
    return [
        _BLANK | one if isinstance(one, dict) else _BLANK | {"message": str(one)} for one in found if one is not None
    ]


_BLANK: dict[str, Any] = {
    "attempt": 0,
    "type": "",
    "message": "",
    "traceback": "",
    "worker": "",
    "started_at": "",
    "failed_at": "",
}


def plain(row: Any) -> dict[str, Any]:
    """Write a row of the kinds above as a dict of JSON values."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: iso(value) if isinstance(value, datetime) else value for name, value in values.items()}


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
