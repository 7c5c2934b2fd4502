"""Peers of the contracts in plain SQL, statement by statement as the contracts say, on a connection of their own."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from holdfast.store import Store
from holdfast.store.catalogue import compile_statement
from holdfast.store.connections import Link

STAMP = "%Y-%m-%d %H:%M:%S"


class SqlPeer:
    """A connection in autocommit mode."""

    def __init__(self, store: Store) -> None:
        self.link: Link = store.open()

    def run(self, sql: str, **params: Any) -> tuple[list[Any], int]:
        """Run one statement; return its rows and how many it affected."""
        compiled = compile_statement(sql, self.link.dialect.style)
        named = self.link.dialect.style in ("named", "pyformat")
        cursor = self.link.raw.cursor()
        cursor.execute(compiled.sql, params if named else compiled.positional(params))
        rows = list(cursor.fetchall()) if cursor.description else []
        return rows, cursor.rowcount

    def close(self) -> None:
        with suppress(Exception):
            self.link.close()


class OptimisticPeer(SqlPeer):
    """Reserves as the PHP transport does: look for the oldest ready row, update it under the same condition."""

    def look(self, now: datetime, retry_after: int = 90) -> int | None:
        rows, _ = self.run(
            "select id from jobs where queue = 'default' and available_at <= :now "
            "and (reserved_at is null or reserved_at <= :stale) order by id limit 1",
            now=now.strftime(STAMP),
            stale=(now - timedelta(seconds=retry_after)).strftime(STAMP),
        )
        return int(rows[0][0]) if rows else None

    def take(self, row_id: int, now: datetime, retry_after: int = 90) -> bool:
        _, affected = self.run(
            "update jobs set reserved_at = :now where id = :id and (reserved_at is null or reserved_at <= :stale)",
            id=row_id,
            now=now.strftime(STAMP),
            stale=(now - timedelta(seconds=retry_after)).strftime(STAMP),
        )
        return affected == 1

    def reserve(self, now: datetime) -> int | None:
        for _ in range(16):
            row_id = self.look(now)
            if row_id is None:
                return None
            if self.take(row_id, now):
                return row_id
        return None


class SkippingPeer(SqlPeer):
    """Claims tasks as the workers of the durable transport do: lock, stamp, commit."""

    def claim(self, grp: str, now_ms: int, limit: int = 10, lease_ms: int = 30_000) -> list[str]:
        self.link.tell("begin")
        rows, _ = self.run(
            "select step_id from durable_transport_tasks "
            "where grp = :grp and (claimed_at is null or claimed_at < :stale) "
            "order by created_at limit :limit for update skip locked",
            grp=grp,
            stale=now_ms - lease_ms,
            limit=limit,
        )
        for (step_id,) in rows:
            self.run(
                "update durable_transport_tasks set claimed_by = 'peer', claimed_at = :now where step_id = :id",
                id=step_id,
                now=now_ms,
            )
        self.link.tell("commit")
        return [step_id for (step_id,) in rows]
