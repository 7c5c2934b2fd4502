"""The rows as Python sees them: plain data, no behaviour beyond reading."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

State = Literal["pending", "leased"]
Outcome = Literal["done", "dead", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = ("done", "dead", "cancelled")
WorkerStatus = Literal["alive", "draining", "dead"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Where fences and lapses stop to rise; only a row that was written by hand comes there.
LAST_FENCE = 2**63 - 1
MOST_LAPSES = 1_000_000


def when(stored: Any) -> datetime:
    """Read a stored time: a datetime, or microseconds since 1970 (SQLite, and the claims of PostgreSQL).

    What is not a time, in a row that was written by hand, is read as 1970: nobody else's row may suffer from it.
    """
    if isinstance(stored, datetime):
        return stored if stored.tzinfo else stored.replace(tzinfo=UTC)
    if not isinstance(stored, int | float | Decimal) or stored != stored:
        return _EPOCH
    try:
        return _EPOCH + timedelta(microseconds=round(stored))
    except OverflowError:
        # PostgreSQL knows infinity, and SQLite any number.
        return (datetime.max if stored > 0 else datetime.min).replace(tzinfo=UTC)


class NewJob(NamedTuple):
    """A job about to be enqueued; the id is ours, so that a repeated insert is harmless.

    The fields up to `unique` are the parameters of `enqueue` in their order, so that a batch becomes columns at once.
    """

    id: str
    queue: str
    kind: str
    payload: str
    headers: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay_ms: int = 0
    max_attempts: int = 5
    lease_ms: int | None = None
    key: str | None = None
    bucket: int | None = None
    unique: str | None = None
    idempotency_key: str | None = None
    window_ms: int = 86_400_000


class Enqueued(msgspec.Struct, frozen=True):
    """What an enqueue answers: the job's id, and whether this call created it or found it."""

    id: str
    created: bool = True


class Lease(NamedTuple):
    """A claimed job: the columns of the `claim` query in their order."""

    id: Any
    queue: str
    kind: str
    payload: str
    headers: str | None
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    fence: int
    lease_ms: int
    available_at: Any
    created_at: Any
    # Asked for while an earlier attempt had the job, and not seen by it.
    cancel_requested: Any = False
    # How many processes died while they held the job, since it last came to an end that its own handler gave it.
    lapses: int = 0

    @property
    def job_id(self) -> str:
        return str(self.id)


class Held(NamedTuple):
    """What a holder must show to write: the job and the fence of its claim."""

    id: Any
    fence: int


class Finish(NamedTuple):
    """The end of a leased job."""

    id: Any
    fence: int
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    keep: bool = True


class PutBack(NamedTuple):
    """A leased job that returns to its queue.

    `delay_ms` None keeps its place in the queue; `attempts_back` 1 gives the attempt back (release, snooze).
    `lapses` is how many processes have died with it; None: as many as before.
    """

    id: Any
    fence: int
    delay_ms: int | None = None
    attempts_back: int = 0
    error: str | None = None
    lapses: int | None = None


class Expired(NamedTuple):
    """A lease that ran out: the columns of the `reap_pick` query in their order."""

    id: Any
    queue: str
    kind: str
    fence: int
    attempt: int
    max_attempts: int
    leased_by: str | None
    leased_at: Any
    lease_expires_at: Any
    cancel_requested: Any
    # Whether the handler is known to have been called under this lease.
    began: Any
    lapses: int


class Reaped(NamedTuple):
    """What the reaper did with one expired lease."""

    id: str
    queue: str
    kind: str
    attempt: int
    leased_by: str | None
    outcome: Literal["retry", "released", "dead", "cancelled"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A row of the worker registry."""

    id: str
    status: WorkerStatus
    started_at: datetime
    seen_at: datetime
    silent_for: timedelta
    info: dict[str, Any]


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

    @property
    def last_error(self) -> dict[str, Any] | None:
        return self.errors[-1] if self.errors else None

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON: times as ISO 8601, the payload as the value it holds."""
        return plain(self) | {"payload": decoded(self.payload)}


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many jobs of one kind a queue holds; `pending` is `due` (available now) plus `scheduled`."""

    queue: str
    kind: str
    pending: int
    due: int
    scheduled: int
    leased: int
    done: int
    dead: int
    cancelled: int

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
    """Read stored JSON; what is none comes back as it is, because people must be able to look at it."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def error_records(text: str | None) -> list[dict[str, Any]]:
    """Read the stored errors of a job; what is not an error record becomes the message of one."""
    stored = decoded(text)
    found = stored if isinstance(stored, list) else [stored]
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
