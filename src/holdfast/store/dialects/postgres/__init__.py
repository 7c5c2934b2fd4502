"""PostgreSQL: asyncpg for async callers and the worker, psycopg 3 for sync ones.

Its queries do not belong here: each room has them in its folder `sql`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, NamedTuple

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.flow import AsyncSession, Rows, Statement
from holdfast.store.catalogue import Query, Rules, Style
from holdfast.store.dialects.base import MARK, Dialect, Echo, Endings, NothingEnded, PlanGone, chain, is_of
from holdfast.store.dialects.postgres.connecting import aconnect, connect
from holdfast.store.dialects.postgres.drivers import has_own_adapters, lent_class
from holdfast.store.dialects.postgres.endings import PREPARED, PostgresEndings
from holdfast.store.dialects.postgres.hosts import Hosts
from holdfast.store.dialects.postgres.waker import PostgresListener
from holdfast.store.sessions import AsyncpgSession, Clock
from holdfast.store.wakers import Emit, Opens, Wake, Waker
from holdfast.values.options import StoreOptions

_DRIVERS = ("asyncpg", "psycopg", "psycopg2", "sqlalchemy")
LONGEST_NAME = 63
_AS_TEXT = re.compile(r":(\w+)::text::\w+\[\]")
_AS_JSON = re.compile(r":(\w+)::text::jsonb\b")
_TIME_AS_TEXT = re.compile(r":(\w+)::text::timestamptz(?!\[)")
_LOST = ("08", "57P", "53300")
_REFUSED = ("28", "3D000")
# What a standby says to every write; a server that was the primary a moment ago may be one now.
READ_ONLY = "25006"
# libpq gives the server's words alone for a connection that was not made.
_REFUSAL = re.compile(
    r'FATAL: +(?:\w+ authentication failed|(?:role|database) ".*" does not exist|no pg_hba\.conf entry|'
    r'permission denied for database|role ".*" is not permitted to log in)'
)
# SQLSTATE classes that speak of the data: data exception, integrity, cardinality, limits, check option, raised by a
# trigger. All others (disk full, read-only, cancelled, no rights) may pass, and the same write may succeed then.
_DATA = ("21", "22", "23", "44", "54", "P0")
# How `finish_one` and `drop_one` fail where they find nothing.
ENDED = "holdfast_ended"
# What libpq calls PQTRANS_IDLE, PQTRANS_ACTIVE, PQTRANS_INTRANS and PQTRANS_INERROR.
_IDLE, _ACTIVE, _INSIDE = 0, 1, (2, 3)
_IN_USE = "another operation is in progress"
# asyncpg says InternalClientError ("cannot switch to state …") after the server hung up on an idle connection.
_LOST_BY_NAME = (
    "OperationalError",
    "InterfaceError",
    "ConnectionTimeout",
    "PoolTimeout",
    "InternalClientError",
    "TargetServerAttributeNotMatched",
)
# How libpq and asyncpg say that a host does not take writes, where the URL asks for one that does.
_TAKES_NO_WRITES = re.compile(
    r"session is read-only|server is in hot standby mode|<SessionAttribute\.(?:read_write|primary)"
)


class Binding(NamedTuple):
    """How a query's parameters are bound."""

    # Lists that it takes as one text, lists of JSON texts that it takes as one JSON array, and times.
    as_text: frozenset[str]
    as_json: frozenset[str]
    times: frozenset[str]
    # `-- bind: once`: what is the same in all rows of the batch is sent once, and a column of NULLs not at all. The
    # columns that it names are never NULL; of others even a single value could stand for either.
    once: frozenset[str] | None


class Postgres(Dialect):
    name: ClassVar[str] = "postgres"
    style: ClassVar[Style] = "pyformat"
    # The server, the database or the role may have another level as the default, and our flows rely on reading what was
    # committed since they began. Not said when connecting: behind a pooler the session is somebody else's next.
    begin: ClassVar[str] = "begin isolation level read committed"
    own_now: ClassVar[str] = "statement_timestamp()"
    told_now: ClassVar[str] = ":now::timestamptz"
    has_schemas: ClassVar[bool] = True
    keeps_dead_rows: ClassVar[bool] = True
    orders_commits: ClassVar[bool] = True
    notifies: ClassVar[bool] = True
    ends_holder: ClassVar[Mapping[str, str]] = {
        "session": "select pg_terminate_backend({pid})",
        "prepared": "rollback prepared '{name}'",
        "slot": "select pg_drop_replication_slot('{name}')",
    }
    cleans_table: ClassVar[str] = "vacuum (analyze) {table}"
    remakes_index: ClassVar[str] = "concurrently; drop it first if it is invalid"
    # No savepoint: SET TRANSACTION would be refused after it. The cast fails if the setting went with its transaction.
    mark: ClassVar[str] = "set local holdfast.lent = 'on'"
    insist: ClassVar[str] = (
        f"select coalesce(nullif(current_setting('holdfast.lent', true), ''), '{MARK} is gone')::boolean"
    )
    next_savepoint: ClassVar[tuple[str, ...]] = ("release savepoint holdfast_job; savepoint holdfast_job",)
    # One message with the COMMIT: 30 µs of the server's time, where a message of its own takes 100 and more.
    tidy: ClassVar[str] = (
        "reset session authorization; reset all; close all; unlisten *; discard temp; select pg_advisory_unlock_all()"
    )

    def __init__(self, options: StoreOptions) -> None:
        super().__init__(options)
        self.hosts = Hosts(self.translate)
        # A statement that notifies in passing is cheaper, and one that may go without is taken by Citus.
        self.lines = {"notifying": options.notify, "quiet": not options.notify}
        self.channel = channel_of(options)
        # Where those who wait for jobs hear of their ends.
        self.ends_channel = channel_of(options, "ends")
        if not options.schema:
            head = self.queries.written["schema_create"].head
            self.queries["schema_create"] = Query(self, "schema_create", ("select 1",), head=head)

    def place(self, sql: str) -> str:
        if self.options.schema:
            # An index is made in the schema of its table, and looked for by its name alone elsewhere.
            sql = sql.replace("drop index holdfast_", "drop index holdfast_schema.holdfast_")
        return f'"{self.options.schema}"'.join(map(super().place, sql.split("holdfast_schema")))

    def table(self, name: str) -> str:
        bare = super().table(name)
        # Quoted, because a schema may have a reserved word for its name; with a prefix before it no table has.
        return f'"{self.options.schema}".{bare}' if self.options.schema else bare

    def binding(self, statements: Sequence[str], rules: Rules) -> Binding:
        whole = "\n".join(statements)
        once = frozenset(rules["once"]) if "once" in rules else None
        as_text, as_json, times = (frozenset(one.findall(whole)) for one in (_AS_TEXT, _AS_JSON, _TIME_AS_TEXT))
        return Binding(as_text, as_json, times, once)

    def bind(self, statement: Statement, query: Query, now: Any) -> dict[str, Any]:
        binding: Binding = query.binding
        batch: dict[str, Any] = dict(statement.batch or {})
        if binding.once is not None:
            batch = {name: _short(column, name in binding.once) for name, column in batch.items()}
        notify = self.options.notify if statement.notify is None else statement.notify
        channel, ended = (self.channel, self.ends_channel) if notify else (None, None)
        bound = {"now": now, "channel": channel, "ended": ended, **statement.params, **batch}
        for name in binding.as_text:
            if bound.get(name) is not None:
                bound[name] = array_text(bound[name])
        for name in binding.as_json:
            bound[name] = json_text(bound[name])
        for name in binding.times:
            if bound.get(name) is not None:
                bound[name] = _item(bound[name])
        return bound

    def readable(self, rows: Rows) -> Rows:
        if rows and bytes in map(type, rows[0]):
            # A database in SQL_ASCII: psycopg does not read texts then. None of our columns is binary.
            return [[str(cell, "utf-8", "replace") if type(cell) is bytes else cell for cell in row] for row in rows]
        return rows

    def connect(self, url: str) -> Any:
        return connect(url, self.options, self.hosts)

    async def aconnect(self, url: str, name: str) -> Any:
        return await aconnect(url, self.options, self.hosts, name)

    def asession(self, raw: Any, clock: Clock) -> AsyncSession:
        return AsyncpgSession(self, raw, clock)

    def tell(self, raw: Any, sql: str) -> None:
        if raw.pgconn.transaction_status == _ACTIVE:
            # An unread stream holds psycopg's lock, and to wait for it is to wait for ever.
            raise errors.ConnectionInUse
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C ends the wait there. Never prepared: PostgreSQL does not prepare two commands as one.
            raw.execute(sql, prepare=False)
        else:
            _exec(raw, sql)

    def is_idle(self, raw: Any) -> bool:
        return bool(raw.pgconn.transaction_status == _IDLE)

    def ais_idle(self, raw: Any) -> bool:
        return not (raw.is_closed() or raw.is_in_transaction() or raw.changed)

    def transaction_of(self, raw: Any) -> Any:
        return raw.pgconn.transaction_status in _INSIDE or None

    def atransaction_of(self, raw: Any) -> Any:
        return raw.is_in_transaction() or None

    def cursors(self, raw: Any) -> Callable[[], Any]:
        # Plain, whatever a handler sets on the connection.
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        return partial(Cursor, raw, row_factory=tuple_row)

    def make_plain(self, raw: Any) -> None:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        raw.row_factory, raw.cursor_factory = tuple_row, Cursor

    def is_spoilt(self, raw: Any) -> bool:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        return (
            raw.row_factory is not tuple_row
            or raw.cursor_factory is not Cursor
            or not raw.autocommit
            or bool(raw._notice_handlers or raw._notify_handlers)
            or has_own_adapters(raw)
        )

    def endings(self) -> Endings:
        return PostgresEndings(self)

    def alend(self, raw: Any) -> Any:
        # asyncpg lets `tx.transaction()` make a savepoint only inside a transaction that it knows; it has no public way
        # to say so, and its own start() and commit() would take a message each.
        raw._top_xact = raw.transaction()
        return lent_class()(None, raw)

    def atake_back(self, raw: Any) -> None:
        raw._top_xact = None
        if raw._proxy is not None:
            raw._proxy.take_back()

    def echo(self, listening: Any, speaking: Any, timeout: float) -> Echo:
        channel = f"holdfast_echo_{secrets.token_hex(6)}"
        # A pooler hands out a process id of its own; the server tells the real one.
        [pid] = listening.execute("select pg_backend_pid()").fetchone()
        listening.execute(f"listen {channel}")
        # Not even doctor waits for a standby that is away: that is one of the things it is to tell.
        said = f"select pg_notify('{channel}', '')"
        speaking.execute(f"begin; set local synchronous_commit = off; {said}; commit", prepare=False)
        heard = any(True for _ in listening.notifies(timeout=timeout, stop_after=1))
        listening.execute(f"unlisten {channel}")
        return Echo(heard, bool(pid != listening.info.backend_pid))

    def encoding(self, raw: Any) -> str | None:
        [name] = raw.execute("show server_encoding").fetchone()
        return str(name)

    def waker(self, store: Opens, worker: str, wake: Wake, emit: Emit) -> Waker:
        return PostgresListener(store, self.channel, worker, wake, emit)

    def hears_ends(self, store: Opens, name: str, wake: Wake, emit: Emit) -> Waker:
        return PostgresListener(store, self.ends_channel, name, wake, emit)

    def translate(self, error: BaseException) -> HoldfastError | None:
        cause = driver_error(error)
        if cause is None:
            return None
        state = sqlstate(error) or ""
        text = " ".join(str(cause).split())
        if state == "40P01":
            return errors.DatabaseBusy("deadlock")
        if state == "40001":
            return errors.DatabaseBusy("serialisation")
        if state == "55P03":
            return errors.DatabaseBusy("lock_timeout")
        if state == "23505":
            return errors.UniqueViolation(text)
        if state in ("42P01", "3F000"):
            return errors.SchemaMissing(text)
        if state == "22P02" and f"{MARK} is gone" in text:
            return errors.TransactionEnded()
        if state == "22P02" and f"{ENDED} is 0" in text:
            return NothingEnded(text)
        if state == "26000" and PREPARED in text:
            return PlanGone(text)
        if state == "25P02":
            return errors.TransactionAborted()
        if _IN_USE in text and not state:
            return errors.ConnectionInUse()
        if state.startswith(_REFUSED) or (not state and _REFUSAL.search(text)):
            return errors.AccessRefused(text)
        if state == READ_ONLY or (not state and _TAKES_NO_WRITES.search(text)):
            return errors.ReadOnlyDatabase(text)
        if state.startswith(_LOST) or (not state and is_lost(cause)):
            return errors.DatabaseUnavailable(text)
        return errors.QueryFailed(text, data_refused=state.startswith(_DATA))


def _exec(raw: Any, sql: str) -> None:
    """Send commands by libpq alone, where no signal can come: a cursor takes 30 µs more."""
    from psycopg import OperationalError, errors, pq

    result = raw.pgconn.exec_(sql.encode())
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    if raw.pgconn.status == pq.ConnStatus.BAD:
        raise OperationalError(raw.pgconn.error_message.decode("utf-8", "replace"))
    raise errors.error_from_result(result)


def channel_of(options: StoreOptions, what: str = "wake") -> str:
    """Name a channel to listen on; one too long for PostgreSQL is cut and ends in a hash of the whole."""
    name = "_".join(part for part in (options.schema, options.prefix, what) if part)
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}_{digest}"


def array_text(items: list[Any]) -> str:
    """Write numbers, ids or times as PostgreSQL writes an array of them."""
    try:
        written = ",".join(items)
    except TypeError:
        if _NUMBERS.issuperset(map(type, items)):
            # A list of thousands, as the lanes of many queues are, is written at once.
            written = repr(items)[1:-1].replace("None", "NULL")
        else:
            written = ",".join(["NULL" if item is None else _WRITERS.get(type(item), _item)(item) for item in items])
    return f"{{{written}}}"


def json_text(items: list[str | None]) -> str | None:
    """Write JSON texts as an array of them; where there are none at all, NULL."""
    return f"[{','.join([item or 'null' for item in items])}]" if items else None


_WRITERS: dict[type, Callable[[Any], str]] = {int: str, datetime: datetime.isoformat}
_NUMBERS = frozenset({int, type(None)})


def _item(item: Any) -> str:
    return item.isoformat() if isinstance(item, datetime) else str(item)


def _short(column: list[Any], filled_in: bool) -> list[Any]:
    """Send once what is the same in all rows, and NULLs not at all: the statement fills them in."""
    first = column[0]
    if (first is not None and not filled_in) or column.count(first) < len(column):
        return column
    return [] if first is None else [first]


def driver_error(error: BaseException) -> BaseException | None:
    """Return the innermost error that a driver, or the network under it, raised."""
    ours = [e for e in chain(error) if is_of(type(e), _DRIVERS) or isinstance(e, OSError | TimeoutError)]
    return ours[-1] if ours else None


def sqlstate(error: BaseException) -> str | None:
    for one in chain(error):
        code = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(code, str):
            return code
    return None


def is_lost(error: BaseException) -> bool:
    """Tell a lost or refused connection from a wrong call; drivers give neither a SQLSTATE."""
    return isinstance(error, OSError | TimeoutError) or type(error).__name__ in _LOST_BY_NAME
