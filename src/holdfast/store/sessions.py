"""Sessions: how a statement reaches each shape of driver.

What to send is worked out once (`calls.py`); a session only sends it in its colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.flow import Rows, Session, Statement
from holdfast.store.calls import Calls, KeptCall, kept_calls, only_call
from holdfast.store.catalogue import Query, Style
from holdfast.store.dialects.base import Dialect

Clock = Callable[[], Any]

# What SQLAlchemy is to do with each of our statements, whatever the caller has set on connection or engine: a cursor of
# the server's takes no INSERT, and a stream is not read to its end.
ORDINARY = {"stream_results": False, "yield_per": None, "no_parameters": False}


class translated:  # noqa: N801 - reads like a function, and is a class because it is entered for every statement
    """Raise a driver's errors as ours, with the driver's as the cause."""

    __slots__ = ("_dialect",)

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise_ours(self._dialect, error)


def raise_ours(dialect: Dialect, error: Exception) -> None:
    """Raise a driver's error as ours; return if it is not the driver's."""
    ours = None if isinstance(error, HoldfastError) else dialect.translate(error)
    if ours is not None:
        raise ours from error


class DbapiSession:
    """A sync connection with DB-API cursors: sqlite3, psycopg, PyMySQL, Django's."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Any], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        # Few frames, as in `OwnSession`: a caller's connection has one for each statement.
        try:
            cursor = self.cursor()
            try:
                return self._sent(statement, cursor)
            finally:
                cursor.close()
        except Exception as error:
            raise_ours(self.dialect, error)
            raise

    def _sent(self, statement: Statement, cursor: Any) -> Rows:
        query = self.dialect.query(statement)
        if query.single:
            sql, args, returns = only_call(self.dialect, query, statement, self.style, self.clock())
            cursor.execute(sql, args)
            return self.dialect.readable(cursor.fetchall()) if returns else ()
        calls = Calls(self.dialect, statement, self.style, self.clock())
        for call in calls:
            (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
            if call.returns:
                calls.feed(cursor.fetchall())
            elif call.counted:
                calls.feed_count(cursor.rowcount)
        return calls.rows


class OwnSession(DbapiSession):
    """A sync connection of ours, which keeps its cursor: one for each statement took psycopg 40 µs of CPU.

    Written with few calls: between two waits for the server each takes 1 µs and more.
    """

    _kept: Any = None

    def run(self, statement: Statement) -> Rows:
        # An error leaves it behind, and the next statement gets a new one.
        cursor, self._kept = self._kept, None
        try:
            cursor = cursor or self.cursor()
            rows: Rows = ()
            query = self.dialect.query(statement)
            if query.single:
                sql, args, returns = only_call(self.dialect, query, statement, self.style, self.clock())
                cursor.execute(sql, args)
                if returns:
                    rows = cursor.fetchall()
            elif kept := self._kept_calls(query, statement):
                for call in kept:
                    cursor.execute(call.sql, call.filled_in(self.dialect, statement.params))
                    if call.returns:
                        rows = cursor.fetchall()
            else:
                rows = self._sent(statement, cursor)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        self._kept = cursor
        return rows

    def _kept_calls(self, query: Query, statement: Statement) -> Sequence[KeptCall]:
        """Return how a statement of several parts is sent, if that was worked out for one that is like it."""
        if statement.like is None or self.clock() is not None:
            return ()
        return kept_calls(self.dialect, query, statement, self.style)


class SqlalchemySession:
    """A sync SQLAlchemy connection, spoken to in its driver's own style."""

    def __init__(self, dialect: Dialect, connection: Any, style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            query = self.dialect.query(statement)
            if query.single:
                sql, args, returns = only_call(self.dialect, query, statement, self.style, self.clock())
                # SQLAlchemy takes a list for the arguments of many statements.
                args = tuple(args) if isinstance(args, list) else args
                result = self.connection.exec_driver_sql(sql, args, ORDINARY)
                return self.dialect.readable(result.fetchall()) if returns else ()
            calls = Calls(self.dialect, statement, self.style, self.clock())
            for call in calls:
                result = self.connection.exec_driver_sql(call.sql, call.args, ORDINARY)
                if call.returns:
                    calls.feed(result.fetchall())
                elif call.counted:
                    calls.feed_count(result.rowcount)
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
            cursor = await self.cursor()
            try:
                return await self._sent(statement, cursor)
            finally:
                await cursor.close()

    async def _sent(self, statement: Statement, cursor: Any) -> Rows:
        query = self.dialect.query(statement)
        if query.single:
            sql, args, returns = only_call(self.dialect, query, statement, self.style, self.clock())
            await cursor.execute(sql, args)
            return self.dialect.readable(await cursor.fetchall()) if returns else ()
        calls = Calls(self.dialect, statement, self.style, self.clock())
        for call in calls:
            await (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
            if call.returns:
                calls.feed(await cursor.fetchall())
            elif call.counted:
                calls.feed_count(cursor.rowcount)
        return calls.rows


class OwnAsyncSession(AsyncDbapiSession):
    """An async connection of ours, which keeps its cursor as `OwnSession` does."""

    _kept: Any = None

    async def run(self, statement: Statement) -> Rows:
        cursor, self._kept = self._kept, None
        try:
            cursor = cursor or await self.cursor()
            rows: Rows = ()
            query = self.dialect.query(statement)
            if query.single:
                sql, args, returns = only_call(self.dialect, query, statement, self.style, self.clock())
                await cursor.execute(sql, args)
                if returns:
                    rows = await cursor.fetchall()
            else:
                rows = await self._sent(statement, cursor)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        self._kept = cursor
        return rows


class AsyncpgSession:
    """An asyncpg connection; its own cache keeps statements prepared."""

    def __init__(self, dialect: Dialect, connection: Any, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        try:
            query = self.dialect.query(statement)
            if query.single:
                sql, args, _ = only_call(self.dialect, query, statement, "dollar", self.clock())
                rows: Rows = await self.connection.fetch(sql, *args)
                return rows
            calls = Calls(self.dialect, statement, "dollar", self.clock())
            for call in calls:
                rows = await self.connection.fetch(call.sql, *call.args)
                if call.returns:
                    calls.feed(rows)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        return calls.rows


class GreenSession:
    """An async SQLAlchemy connection: a sync session on it runs inside its greenlet."""

    def __init__(self, run_sync: Callable[..., Awaitable[Any]], inner: Session) -> None:
        self.run_sync = run_sync
        self.inner = inner

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = await self.run_sync(lambda _: self.inner.run(statement))
        return rows
