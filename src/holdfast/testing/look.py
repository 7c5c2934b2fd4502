"""Reading rows as they are, so that a test need not trust the flows under test."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.flow import Flow, Rows, Steps, flow, run_text
from holdfast.store import Store
from holdfast.values.rows import when

T = TypeVar("T")


class Do(Protocol):
    """Run a flow on the store in the test's colour, `again` after a failed try; return its value or raise."""

    def __call__(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None, /) -> T: ...


class Live(NamedTuple):
    """A row of the live table."""

    id: str
    queue: str
    kind: str
    state: str
    fence: int
    attempts: int
    max_attempts: int
    priority: int
    available_at: datetime
    created_at: datetime
    leased_at: datetime | None
    lease_expires_at: datetime | None
    leased_by: str | None
    cancel_requested: bool
    key: str | None
    bucket: int | None
    unique_key: str | None
    lease_ms: int | None
    payload: str
    headers: str | None
    progress: str | None
    errors: list[dict[str, Any]]
    began: bool
    lapses: int
    waits_for: str | None
    followers: int | None


class Over(NamedTuple):
    """A row of the finished table."""

    id: str
    queue: str
    kind: str
    outcome: str
    fence: int
    attempts: int
    max_attempts: int
    priority: int
    available_at: datetime
    created_at: datetime
    leased_at: datetime | None
    finished_at: datetime
    leased_by: str | None
    key: str | None
    bucket: int | None
    unique_key: str | None
    lease_ms: int | None
    fingerprint: str | None
    payload: str
    headers: str | None
    progress: str | None
    result: str | None
    errors: list[dict[str, Any]]
    followers: int | None


_LIVE = """
select id, queue, kind, state, fence, attempts, max_attempts, priority, available_at, created_at,
       leased_at, lease_expires_at, leased_by, cancel_requested, key, bucket, unique_key, lease_ms,
       cast(payload as text), cast(headers as text), cast(progress as text), cast(errors as text),
       began, lapses, waits_for, followers
  from holdfast_jobs
 order by id"""

_OVER = """
select id, queue, kind, outcome, fence, attempts, max_attempts, priority, available_at, created_at,
       leased_at, finished_at, leased_by, key, bucket, unique_key, lease_ms, fingerprint,
       cast(payload as text), cast(headers as text), cast(progress as text), cast(result as text), cast(errors as text),
       followers
  from holdfast_finished
 order by id"""

_KEYS = "select scope, key, job_id from holdfast_keys order by scope, key"


class Look:
    """What is in the tables now."""

    def __init__(self, do: Do, store: Store) -> None:
        self._do = do
        self._store = store

    def live(self) -> list[Live]:
        """Read every live job, in the order of ids."""
        return [Live(*_clean(Live, row)) for row in self.rows(_LIVE)]

    def over(self) -> list[Over]:
        """Read every finished job, in the order of ids."""
        return [Over(*_clean(Over, row)) for row in self.rows(_OVER)]

    def key_rows(self) -> list[tuple[str, str, str]]:
        """Read every idempotency key: scope, key, job."""
        return [(scope, key, str(job_id)) for scope, key, job_id in self.rows(_KEYS)]

    def change(self, sql: str) -> None:
        """Run SQL text that writes, as a hand does."""
        self.rows(sql)

    def rows(self, sql: str) -> Rows:
        """Run SQL text that names tables as `holdfast_…`."""
        if self._store.dialect.name == "mysql":
            # JSON is text already, which MySQL would not cast to; and `key` is a reserved word there.
            sql = re.sub(r"\bkey\b", "`key`", re.sub(r"cast\((\w+) as text\)", r"\1", sql))
        return self._do(_read(self._store.dialect.place(sql)))


@flow
def _read(sql: str) -> Steps[Rows]:
    return (yield from run_text("look", sql))


def _clean(shape: type[Any], row: Any) -> list[Any]:
    return [_READ.get(name, _same)(value) for name, value in zip(shape._fields, row, strict=True)]


def _same(value: Any) -> Any:
    return value


def _time(value: Any) -> datetime | None:
    return None if value is None else when(value)


def _errors(value: str | None) -> list[dict[str, Any]]:
    return [] if value is None else msgspec.json.decode(value, type=list[dict[str, Any]])


_TIMES = ("available_at", "created_at", "leased_at", "lease_expires_at", "finished_at")
_READ: dict[str, Callable[[Any], Any]] = {
    "id": str,
    "errors": _errors,
    "began": bool,
    "cancel_requested": bool,
    **dict.fromkeys(_TIMES, _time),
}
