"""Sessions: how a statement reaches each shape of driver.

What to send is worked out once (`calls`); a session only sends it in its colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, NamedTuple

from holdfast.dialects.base import Compiled, Dialect, Style, rows_of
from holdfast.errors import HoldfastError
from holdfast.flow import Row, Rows, Session, Statement

Clock = Callable[[], Any]
Args = Any
Level = tuple[int, Any, str, Any]

# Below every urgency that a job can have.
LOWEST = -32_768


@contextmanager
def translated(dialect: Dialect) -> Iterator[None]:
    """Raise a driver's errors as ours, with the driver's as the cause."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        ours = dialect.translate(error)
        if ours is None:
            raise
        raise ours from error


class Call(NamedTuple):
    """What to hand to the driver: one statement with its arguments, or with those of many rows."""

    sql: str
    args: Args
    many: bool
    returns: bool


class Calls:
    """The driver calls behind one statement, in order; whoever makes them says what each one gave (`feed`)."""

    def __init__(self, dialect: Dialect, statement: Statement, style: Style, now: Any) -> None:
        self.rows: Rows = ()
        self._dialect = dialect
        self._parts = dialect.compiled(statement, style)
        self._by_name = style in ("named", "pyformat")
        self._params = dialect.bind(statement, now)
        self._many = self._bound_rows(statement) if statement.name in dialect.row_wise else None

    def _bound_rows(self, statement: Statement) -> list[dict[str, Any]]:
        """Bind each row of the batch as the dialect binds single parameters, all at one time."""
        rows, now = rows_of(statement.batch or {}), self._params.get("now")
        return [self._dialect.bind(Statement(statement.name, statement.params | row), now) for row in rows]

    def __iter__(self) -> Iterator[Call]:
        parts = iter(self._parts)
        for part in parts:
            if part.hops:
                yield from self._taken(part, next(parts))
            else:
                yield self._call(part)
                if not part.returns:
                    continue
            if not self.rows:
                return
            self._params["found"] = self._dialect.found(self.rows)

    def _taken(self, hop: Compiled, take: Compiled) -> Iterator[Call]:
        """Take from the most urgent level that is due, whatever queue has it, then from the next, until enough."""
        taken: list[Row] = []
        levels: list[Level] = []
        for queue in self._params["queues"]:
            yield from self._hopped(hop, levels, queue, LOWEST)
        while levels and self._params["limit"] > 0:
            urgency, _, queue, due = heappop(levels)
            if due:
                self._params |= {"queue": queue, "urgency": urgency}
                yield self._call(take)
                taken += self.rows
                self._params["limit"] -= len(self.rows)
            if self._params["limit"] > 0:
                yield from self._hopped(hop, levels, queue, urgency)
        self.rows = taken

    def _hopped(self, hop: Compiled, levels: list[Level], queue: str, after: int) -> Iterator[Call]:
        self._params |= {"queue": queue, "urgency": after}
        yield self._call(hop)
        for urgency, first, due in self.rows:
            heappush(levels, (urgency, first, queue, due))

    def _call(self, part: Compiled) -> Call:
        if self._many is not None:
            rows = self._many if self._by_name else [tuple(part.positional(row)) for row in self._many]
            return Call(part.sql, rows, True, part.returns)
        if self._by_name:
            return Call(part.sql, self._params, False, part.returns)
        if self._dialect.spreads_lists:
            sql, values = part.spread(self._params)
            return Call(sql, tuple(values), False, part.returns)
        return Call(part.sql, tuple(part.positional(self._params)), False, part.returns)

    def feed(self, rows: Rows) -> None:
        self.rows = rows


class DbapiSession:
    """A sync connection with DB-API cursors: sqlite3, psycopg, PyMySQL, Django's."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Any], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            cursor = self.cursor()
            try:
                for call in calls:
                    (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
                    if call.returns:
                        calls.feed(cursor.fetchall())
            finally:
                cursor.close()
        return calls.rows


class SqlalchemySession:
    """A sync SQLAlchemy connection, spoken to in its driver's own style."""

    def __init__(self, dialect: Dialect, connection: Any, style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            for call in calls:
                result = self.connection.exec_driver_sql(call.sql, call.args)
                if call.returns:
                    calls.feed(result.fetchall())
        return calls.rows


class AsyncDbapiSession:
    """An async connection with DB-API cursors: psycopg's AsyncConnection, aiosqlite."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Awaitable[Any]], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            cursor = await self.cursor()
            try:
                for call in calls:
                    await (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
                    if call.returns:
                        calls.feed(await cursor.fetchall())
            finally:
                await cursor.close()
        return calls.rows


class AsyncpgSession:
    """An asyncpg connection; its own cache keeps statements prepared."""

    def __init__(self, dialect: Dialect, connection: Any, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, "dollar", self.clock())
            for call in calls:
                calls.feed(await self.connection.fetch(call.sql, *call.args))
        return calls.rows


class GreenSession:
    """An async SQLAlchemy connection: a sync session on it runs inside its greenlet."""

    def __init__(self, run_sync: Callable[..., Awaitable[Any]], inner: Session) -> None:
        self.run_sync = run_sync
        self.inner = inner

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = await self.run_sync(lambda _: self.inner.run(statement))
        return rows
