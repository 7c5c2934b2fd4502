"""What can be wrong with the database around the jobs, as flows for `doctor`. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from holdfast.flow import Steps, ask, flow
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import when
from holdfast.values.views import plain

Holder = Literal["session", "prepared", "slot"]


@dataclass(frozen=True, slots=True)
class LongTransaction:
    """What keeps dead rows from being cleaned away: an open transaction, a prepared one, or a replication slot.

    `name` is the session's user, the prepared transaction's id or the slot's name. `age` is in seconds, where it is
    known; `xmin_age` tells how many transactions ago the snapshot was taken.
    """

    holder: Holder
    name: str
    pid: int | None
    age: float | None
    state: str | None
    application: str | None
    query: str | None
    query_started_at: datetime | None
    xmin_age: int | None

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The size of a table; PostgreSQL counts rows by estimate, SQLite knows neither dead rows nor bytes by table.

    SQLite adds a line "(file)": its bytes, and as dead rows the pages that are free.
    """

    table: str
    live_rows: int | None
    dead_rows: int | None
    last_autovacuum: datetime | None
    total_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Listener:
    """A worker's listening session; `quiet` is the time since its last statement, which a probe keeps short."""

    pid: int
    state: str | None
    address: str | None
    connected_at: datetime
    quiet: float | None

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Standbys:
    """How a server is replicated. Commits wait for `synchronous` of its standbys if `waits` is true.

    Of `hidden` ones the role may not see whether they are synchronous: it lacks pg_monitor.
    """

    read_only: bool
    waits: bool
    following: int
    synchronous: int
    hidden: int

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@flow
def clock() -> Steps[datetime]:
    """Read the database's time."""
    [[now]] = yield from ask("clock", alone=True)
    return when(now)


@flow
def long_transactions(older_than: Duration = 60.0, xids: int = 100_000) -> Steps[list[LongTransaction]]:
    """Find what holds old snapshots in this database, the oldest first.

    Sessions and prepared transactions count from `older_than` seconds on; slots, and standbys that send feedback, from
    `xids` transactions on. Without the role pg_monitor, PostgreSQL hides the transactions of other users.
    """
    older_ms = round(seconds(older_than, "older_than") * 1000)
    rows = yield from ask("long_transactions", alone=True, older_ms=older_ms, xids=xids)
    return [
        LongTransaction(holder, name, pid, _float(age), state, application, query, _when(started), xmin_age)
        for holder, name, pid, age, state, application, query, started, xmin_age in rows
    ]


@flow
def table_health() -> Steps[list[TableHealth]]:
    """Read how large Holdfast's tables are, and how many dead rows they carry."""
    rows = yield from ask("table_health", alone=True)
    return [TableHealth(table, live, dead, _when(vacuumed), size) for table, live, dead, vacuumed, size in rows]


@flow
def missing_indexes() -> Steps[list[str]]:
    """Name the indexes that the migrations made and that are gone or not valid."""
    rows = yield from ask("missing_indexes", alone=True)
    return [row[0] for row in rows]


@flow
def listener_state() -> Steps[list[Listener]]:
    """Read which workers listen for wake-ups in this database."""
    rows = yield from ask("listeners", alone=True)
    return [Listener(pid, state, address, when(since), _float(quiet)) for pid, state, address, since, quiet in rows]


@flow
def standbys() -> Steps[Standbys | None]:
    """Read how the server is replicated; None where that is not looked at."""
    rows = yield from ask("standbys", alone=True)
    return Standbys(*rows[0]) if rows else None


@flow
def database_file() -> Steps[str | None]:
    """Read the path of the file that holds the tables; None where a server or the memory does."""
    [[path]] = yield from ask("database_file", alone=True)
    return path or None


def _when(stored: Any) -> datetime | None:
    return None if stored is None else when(stored)


def _float(number: Any) -> float | None:
    return None if number is None else float(number)
