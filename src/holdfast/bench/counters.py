"""What a server counts: transactions that wrote, bytes of its log, row versions that died, statements, CPU time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.bench.cpu import mysql_seconds, postgres_seconds
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions

# The ids of transactions and the position of the log are exact at once; the counts of rows come when a connection ends.
POSTGRES = """
select pg_snapshot_xmax(pg_current_snapshot())::text::numeric, pg_current_wal_insert_lsn() - '0/0',
       (select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables)
"""
POSTGRES_CALLS = "select coalesce(sum(calls), 0) from pg_stat_statements"
MYSQL = "show global status where variable_name in ('Handler_commit', 'Innodb_lsn_current', 'Questions')"
# How long a connection that was closed may take to hand its counts in.
HAND_IN = 0.1


@dataclass(frozen=True, slots=True)
class Counts:
    """Readings of one moment; None where this server does not tell."""

    commits: float | None = None
    log_bytes: float | None = None
    dead_rows: float | None = None
    statements: float | None = None
    server_us: float | None = None

    def since(self, before: Counts) -> dict[str, float]:
        told = {name: (getattr(before, name), getattr(self, name)) for name in self.__slots__}
        return {name: float(now - then) for name, (then, now) in told.items() if then is not None and now is not None}


class Counters(Protocol):
    late: bool
    """Whether counts come only when a connection ends."""

    async def read(self) -> Counts:
        """Read the counters; sides that worked should have disconnected before."""

    def close(self) -> None: ...


class NoCounters:
    """SQLite counts nothing, and what it does is done by the worker's process."""

    late = False

    async def read(self) -> Counts:
        return Counts(server_us=0.0)

    def close(self) -> None:
        pass


class PostgresCounters:
    """Statements are counted where pg_stat_statements is loaded: `make bench` loads it."""

    late = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        loaded = connection.execute("show shared_preload_libraries").fetchone()[0]
        self._calls = "pg_stat_statements" in loaded
        if self._calls:
            connection.execute("create extension if not exists pg_stat_statements")

    async def read(self) -> Counts:
        await asyncio.sleep(HAND_IN)
        commits, log, dead = map(float, self._connection.execute(POSTGRES).fetchone())
        calls = float(self._connection.execute(POSTGRES_CALLS).fetchone()[0]) if self._calls else None
        return Counts(commits, log, dead, calls, _us(postgres_seconds(self._connection)))

    def close(self) -> None:
        self._connection.close()


class MysqlCounters:
    """What the whole server did; nobody else should be at work on it."""

    late = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self) -> Counts:
        told = {name: float(value) for name, value in self._connection.execute(MYSQL).fetchall()}
        used = _us(mysql_seconds(self._connection))
        return Counts(told.get("Handler_commit"), told.get("Innodb_lsn_current"), None, told.get("Questions"), used)

    def close(self) -> None:
        self._connection.close()


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def counters_for(url: str) -> Counters:
    dialect = dialect_for(url, StoreOptions())
    if dialect.name == "postgres":
        return PostgresCounters(dialect.connect(url))
    return MysqlCounters(dialect.connect(url)) if dialect.name == "mysql" else NoCounters()
