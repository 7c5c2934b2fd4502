"""Sessions: how a statement reaches each shape of driver.

What to send is worked out once (`calls`); a session only sends it in its colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.dialects.base import Compiled, Dialect, Style, first_column, rows_of
from holdfast.errors import HoldfastError
from holdfast.flow import Rows, Session, Statement

Clock = Callable[[], Any]
Args = Any


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


class Calls:
    """The driver calls behind one statement, in order; `found` passes a statement's first column to the next one."""

    def __init__(self, dialect: Dialect, statement: Statement, style: Style, now: Any) -> None:
        self.parts = dialect.compiled(statement, style)
        self.row_wise = statement.name in dialect.row_wise
        self.params = dialect.bind(statement, now)
        self.rows_in = self._bound_rows(dialect, statement) if self.row_wise else []
        self.by_name = style in ("named", "pyformat")

    def _bound_rows(self, dialect: Dialect, statement: Statement) -> list[dict[str, Any]]:
        """Bind each row of the batch as the dialect binds single parameters, all at one time."""
        rows = rows_of(statement.batch or {})
        return [dialect.bind(Statement(statement.name, statement.params | row), self.params.get("now")) for row in rows]

    def args(self, part: Compiled) -> Args:
        return self.params if self.by_name else part.positional(self.params)

    def many(self, part: Compiled) -> list[Args]:
        return self.rows_in if self.by_name else [part.positional(row) for row in self.rows_in]

    def feed(self, rows: Rows) -> None:
        self.params["found"] = first_column(rows)


class DbapiSession:
    """A sync connection with DB-API cursors: sqlite3, psycopg, PyMySQL, Django's."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Any], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        rows: Rows = ()
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            cursor = self.cursor()
            try:
                for part in calls.parts:
                    if calls.row_wise:
                        cursor.executemany(part.sql, calls.many(part))
                    else:
                        cursor.execute(part.sql, calls.args(part))
                    rows = cursor.fetchall() if part.returns else ()
                    calls.feed(rows)
            finally:
                cursor.close()
        return rows


class SqlalchemySession:
    """A sync SQLAlchemy connection, spoken to in its driver's own style."""

    def __init__(self, dialect: Dialect, connection: Any, style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        rows: Rows = ()
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            for part in calls.parts:
                args: Any = calls.many(part) if calls.row_wise else calls.args(part)
                if not calls.by_name:
                    args = [tuple(row) for row in args] if calls.row_wise else tuple(args)
                result = self.connection.exec_driver_sql(part.sql, args)
                rows = result.fetchall() if part.returns else ()
                calls.feed(rows)
        return rows


class AsyncDbapiSession:
    """An async connection with DB-API cursors: psycopg's AsyncConnection, aiosqlite."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Awaitable[Any]], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = ()
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            cursor = await self.cursor()
            try:
                for part in calls.parts:
                    if calls.row_wise:
                        await cursor.executemany(part.sql, calls.many(part))
                    else:
                        await cursor.execute(part.sql, calls.args(part))
                    rows = await cursor.fetchall() if part.returns else ()
                    calls.feed(rows)
            finally:
                await cursor.close()
        return rows


class AsyncpgSession:
    """An asyncpg connection; its own cache keeps statements prepared."""

    def __init__(self, dialect: Dialect, connection: Any, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = ()
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, "dollar", self.clock())
            for part in calls.parts:
                rows = await self.connection.fetch(part.sql, *part.positional(calls.params))
                calls.feed(rows)
        return rows


class GreenSession:
    """An async SQLAlchemy connection: a sync session on it runs inside its greenlet."""

    def __init__(self, run_sync: Callable[..., Awaitable[Any]], inner: Session) -> None:
        self.run_sync = run_sync
        self.inner = inner

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = await self.run_sync(lambda _: self.inner.run(statement))
        return rows
