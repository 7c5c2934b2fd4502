"""Rows of the PHP queue tables, as tests make and read them."""

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.foreign import PdoQueue
from holdfast.values.failure import ErrorRecord
from holdfast.values.rows import Finish, Lease, PutBack
from tests.foreign.conftest import Do, Sql

URN = "urn:babel:orders:created"
STAMP = "%Y-%m-%d %H:%M:%S"
LIMIT = 65_535


def claim(do: Do, jobs: PdoQueue, limit: int = 10, worker: str = "w") -> list[Lease]:
    leases: list[Lease] = do(jobs.claim(dict.fromkeys(jobs.handlers, 1), limit, worker))
    return leases


def finish(do: Do, jobs: PdoQueue, lease: Lease, outcome: Any = "done", error: str | None = None) -> Any:
    return do(jobs.settle([Finish(lease.id, lease.fence, outcome, None, error)], "w"))


def put_back(do: Do, jobs: PdoQueue, lease: Lease, delay_ms: int | None = 0, attempts_back: int = 0) -> Any:
    return do(jobs.settle([PutBack(lease.id, lease.fence, delay_ms, attempts_back)], "w"))


def envelope(**changes: Any) -> dict[str, Any]:
    meta = {"id": "m-1", "queue": "default", "lang": "php", "schema_version": 1, "created_at": 1749132727000}
    return {"job": URN, "trace_id": "t-1", "data": {"order_id": 7}, "meta": meta, "attempts": 0} | changes


def insert(sql: Sql, body: str, now: datetime, reserved_at: str | None = None, **columns: Any) -> int:
    """Add a row as another program would."""
    at = now.strftime(STAMP)
    values = {"queue": "default", "urn": URN, "trace_id": "t-1", "attempts": 0, "available_at": at} | columns
    sql(
        "insert into jobs (queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at) "
        "values (:queue, :urn, :trace_id, :attempts, :payload, :available_at, :reserved_at, :created_at)",
        payload=body,
        reserved_at=reserved_at,
        created_at=at,
        **values,
    )
    return int(sql.one("select max(id) from jobs")[0])


def payload(sql: Sql, table: str = "jobs") -> dict[str, Any]:
    texts = {"jobs": "select payload from jobs", "jobs_failed": "select payload from jobs_failed"}
    value: dict[str, Any] = json.loads(sql.one(texts[table])[0])
    return value


def failure(message: str = "boom", name: str = "ValueError") -> str:
    now = datetime.now(UTC)
    record = ErrorRecord.of(ValueError(message), attempt=1, worker="w", started_at=now, failed_at=now)
    return record.named(name).to_json()
