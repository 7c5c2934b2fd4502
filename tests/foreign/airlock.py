"""The other programs of Airlock's contract: producers in plain SQL and in Node, and a relay that claims as its own."""

import json
import uuid
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests import servers
from tests.foreign.conftest import Sql
from tests.foreign.engine import installed
from tests.foreign.peers import SqlPeer

TYPE = "order.created"


def event(event_id: str, **attributes: Any) -> dict[str, Any]:
    """The event as Airlock builds it."""
    return {
        "id": event_id,
        "source": "airlock",
        "specversion": "1.0",
        "type": TYPE,
        "time": "2026-05-01T10:00:00.123Z",
        "data": {"order": 9182},
        "datacontenttype": "application/json",
    } | attributes


def produce(sql: Sql, payload: Any = ..., table: str = "airlock_messages", **columns: Any) -> str:
    """Add a message as Airlock's producer does, with other columns where a test needs them; return its id."""
    row_id = columns.pop("id", None) or str(uuid.uuid4())
    event_type = columns.setdefault("event_type", TYPE)
    whole = event(row_id, type=event_type) if payload is ... else payload
    text = whole if isinstance(whole, str) or whole is None else json.dumps(whole)
    values = {"aggregate_type": "order", "aggregate_id": "9182", "partition_key": "9182"} | columns
    values |= {"payload": text, "payload_size": len((text or "").encode()), "id": row_id}
    kinds = {"id": "uuid", "payload": "jsonb"} | dict.fromkeys(TIMES, "timestamptz")
    marks = ", ".join(f"cast(cast(:{n} as text) as {kinds[n]})" if n in kinds else f":{n}" for n in values)
    given = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
    sql(f"insert into {table} ({', '.join(values)}) values ({marks})", **given)  # noqa: S608 - names of tests
    return row_id


TIMES = ("next_retry_at", "locked_until", "created_at", "first_attempt_at", "last_attempt_at", "processed_at")


class Found(NamedTuple):
    """What other programs see of a message."""

    status: str
    retry_count: int
    locked_by: str | None
    locked_until: datetime | None
    next_retry_at: datetime
    error_reason: str | None
    processed_at: datetime | None


def look(sql: Sql, row_id: str) -> Found:
    return Found(
        *sql.one(
            "select status, retry_count, locked_by, locked_until, next_retry_at, error_reason, processed_at "
            "from airlock_messages where id = :id::text::uuid",
            id=row_id,
        )
    )


def produced_by_node(url: str, count: int, event_type: str = TYPE, ending: str = "commit") -> dict[str, Any]:
    """Let a Node process produce events in transactions of its own; return their data by id."""
    command = ["node", "airlock.mjs", url, event_type, str(count), ending]
    lines = servers.run(command, cwd=installed()).splitlines()
    return {line["id"]: line["data"] for line in map(json.loads, lines)}


class AirlockRelay(SqlPeer):
    """Claims and finishes as Airlock's relay does by its contract; the time is what a test says it is."""

    def __init__(self, store: Any, name: str = "f6f0e3a4-relay") -> None:
        super().__init__(store)
        self.name = name

    def claim(self, now: datetime, limit: int = 100, lease: float = 30) -> list[str]:
        """Lock due rows, lease them, commit; two statements in a transaction of its own."""
        self.link.tell("begin")
        ids = self.pick(now, limit)
        if ids:
            self.run(
                "update airlock_messages set status = 'IN_FLIGHT', locked_by = :me, "
                "locked_until = :until::text::timestamptz, "
                "first_attempt_at = coalesce(first_attempt_at, :now::text::timestamptz), "
                "last_attempt_at = :now::text::timestamptz where id = any(:ids::text::uuid[])",
                me=self.name,
                now=now.isoformat(),
                until=(now + timedelta(seconds=lease)).isoformat(),
                ids="{" + ",".join(ids) + "}",
            )
        self.link.tell("commit")
        return ids

    def pick(self, now: datetime, limit: int = 100) -> list[str]:
        rows, _ = self.run(
            "select id::text from airlock_messages where status in ('PENDING', 'IN_FLIGHT') "
            "and next_retry_at <= :now::text::timestamptz "
            "and (locked_until is null or locked_until < :now::text::timestamptz) "
            "order by next_retry_at limit :limit for update skip locked",
            now=now.isoformat(),
            limit=limit,
        )
        return [row[0] for row in rows]

    def finish(self, row_id: str, now: datetime) -> bool:
        """Mark a message as processed; False where another holds it by now."""
        _, affected = self.run(
            "update airlock_messages set status = 'PROCESSED', processed_at = :now::text::timestamptz, "
            "locked_by = null, locked_until = null where id = :id::text::uuid and locked_by = :me",
            id=row_id,
            me=self.name,
            now=now.isoformat(),
        )
        return affected == 1

    def fail(self, row_id: str, now: datetime, error: str, max_retries: int = 8, delay: float = 10) -> bool:
        """Put a message back for later, or among the dead letters after its last try."""
        _, affected = self.run(
            "update airlock_messages set retry_count = retry_count + 1, error_reason = :error, locked_by = null, "
            "status = case when retry_count + 1 >= :most then 'FAILED' else 'PENDING' end, locked_until = null, "
            "next_retry_at = :next::text::timestamptz where id = :id::text::uuid and locked_by = :me",
            id=row_id,
            me=self.name,
            error=error,
            most=max_retries,
            next=(now + timedelta(seconds=delay)).isoformat(),
        )
        return affected == 1
