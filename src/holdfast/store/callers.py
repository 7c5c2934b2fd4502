"""The caller's own connection: recognise what `tx=` was given, check it, and speak to it in its driver's style.

Nothing is imported here that the application has not imported itself: an object can only be of a driver's class when
that driver is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from holdfast import errors
from holdfast.flow import AsyncSession, Session
from holdfast.store.dialects.base import Dialect, Style
from holdfast.store.dialects.charsets import acareful, careful
from holdfast.store.sessions import (
    AsyncDbapiSession,
    AsyncpgSession,
    Clock,
    DbapiSession,
    GreenSession,
    SqlalchemySession,
    translated,
)

_DATABASES = {"postgresql": "postgres", "mariadb": "mysql"}
_STYLES: dict[str, Style] = {
    "qmark": "qmark",
    "named": "named",
    "format": "format",
    "pyformat": "pyformat",
    "numeric_dollar": "dollar",
}


def session(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    """Make a sync session on the caller's connection; `what` names the work in errors."""
    if _is(tx, "sqlite3", "Connection"):
        _same(dialect, "sqlite")
        with translated(dialect):
            _sqlite_mode_ready(tx, what)
        return DbapiSession(dialect, lambda: _with_tuples(tx.cursor()), "named", clock)
    if _is(tx, "psycopg", "Connection"):
        _same(dialect, "postgres")
        _psycopg_ready(tx, what)
        return DbapiSession(dialect, _psycopg_cursor(tx), "pyformat", clock)
    if _is_mysql(tx):
        _same(dialect, "mysql")
        with translated(dialect):
            _mysql_ready(tx, what)
        return careful(DbapiSession(dialect, _mysql_cursor(tx), "format", clock), tx.character_set_name())
    if _is(tx, "sqlalchemy.orm", "Session", "scoped_session"):
        with translated(dialect), _sqlalchemy_refusals():
            connection = tx.connection()
        return _sqlalchemy(connection, dialect, clock, what)
    if _is(tx, "sqlalchemy", "Connection"):
        return _sqlalchemy(tx, dialect, clock, what)
    if _is_django(tx):
        return _django(tx, dialect, clock, what)
    if _is_async(tx):
        raise errors.WrongColour("enqueue() or complete()", "aenqueue() or acomplete()")
    raise errors.UnsupportedConnection(tx)


async def asession(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    """Make an async session on the caller's connection."""
    if _is_asyncpg(tx):
        _same(dialect, "postgres")
        _asyncpg_ready(tx, what)
        return AsyncpgSession(dialect, tx, clock)
    if _is(tx, "psycopg", "AsyncConnection"):
        _same(dialect, "postgres")
        _psycopg_ready(tx, what)
        return AsyncDbapiSession(dialect, _psycopg_async_cursor(tx), "pyformat", clock)
    if _is_async_mysql(tx):
        _same(dialect, "mysql")
        _mysql_ready(tx, what)
        return acareful(AsyncDbapiSession(dialect, _mysql_async_cursor(tx), "format", clock), tx.character_set_name())
    if _is(tx, "aiosqlite", "Connection"):
        _same(dialect, "sqlite")
        await _aiosqlite_ready(tx, what)
        return AsyncDbapiSession(dialect, _aiosqlite_cursor(tx), "named", clock)
    if _is(tx, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session", "AsyncConnection"):
        with translated(dialect), _sqlalchemy_refusals():
            connection = tx if _is(tx, "sqlalchemy.ext.asyncio", "AsyncConnection") else await tx.connection()
            inner = await connection.run_sync(_sqlalchemy, dialect, clock, what)
        return GreenSession(connection.run_sync, inner)
    if _is_sync(tx):
        raise errors.WrongColour("aenqueue() or acomplete()", "enqueue() or complete()")
    raise errors.UnsupportedConnection(tx)


def _is(obj: Any, module: str, *names: str) -> bool:
    """Tell whether an object is of a class of a module that the application has loaded."""
    loaded = sys.modules.get(module)
    classes = [getattr(loaded, name, None) for name in names] if loaded else []
    return any(isinstance(cls, type) and isinstance(obj, cls) for cls in classes)


def _is_asyncpg(tx: Any) -> bool:
    return _is(tx, "asyncpg", "Connection") or _is(tx, "asyncpg.pool", "PoolConnectionProxy")


def _is_mysql(tx: Any) -> bool:
    return _is(tx, "pymysql.connections", "Connection") or _is(tx, "MySQLdb.connections", "Connection")


def _is_async_mysql(tx: Any) -> bool:
    return _is(tx, "aiomysql", "Connection") or _is(tx, "asyncmy", "Connection")


def _is_django(tx: Any) -> bool:
    if _is(tx, "django.utils.connection", "ConnectionProxy"):
        # Django's cache is a proxy of the same class.
        return hasattr(tx, "vendor")
    return _is(tx, "django.db.backends.base.base", "BaseDatabaseWrapper")


def _is_async(tx: Any) -> bool:
    return (
        _is_asyncpg(tx)
        or _is(tx, "psycopg", "AsyncConnection")
        or _is(tx, "aiosqlite", "Connection")
        or _is_async_mysql(tx)
        or _is(tx, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session", "AsyncConnection")
    )


def _is_sync(tx: Any) -> bool:
    return (
        _is(tx, "sqlite3", "Connection")
        or _is(tx, "psycopg", "Connection")
        or _is_mysql(tx)
        or _is(tx, "sqlalchemy", "Connection")
        or _is(tx, "sqlalchemy.orm", "Session", "scoped_session")
        or _is_django(tx)
    )


def _same(dialect: Dialect, got: str) -> None:
    if dialect.name != got:
        raise errors.WrongDatabase(dialect.name, got)


def _sqlite_ready(tx: Any, what: str) -> None:
    try:
        inside = tx.in_transaction
    except Exception as error:
        raise errors.ConnectionClosed from error
    # By default sqlite3 opens the transaction itself, at the first statement that starts with INSERT, UPDATE, DELETE or
    # REPLACE, as all do that run on a caller's connection. It does not with isolation_level=None.
    if not inside and tx.isolation_level is None:
        raise errors.NoTransaction(what)


def _sqlite_mode_ready(tx: Any, what: str) -> None:
    """Refuse Python 3.12's autocommit=True too, which overrules isolation_level; only the owning thread can ask."""
    _sqlite_ready(tx, what)
    if not tx.in_transaction and getattr(tx, "autocommit", None) is True:
        raise errors.NoTransaction(what)


def _with_tuples(cursor: Any) -> Any:
    cursor.row_factory = None
    return cursor


async def _aiosqlite_ready(tx: Any, what: str) -> None:
    # None when closed or not yet awaited. aiosqlite's public face has no `autocommit`, nor a way to its thread.
    if tx._connection is None:
        raise errors.ConnectionClosed
    await tx._execute(_sqlite_mode_ready, tx._connection, what)


def _aiosqlite_cursor(tx: Any) -> Callable[[], Awaitable[Any]]:
    async def make() -> Any:
        return _with_tuples(await tx.cursor())

    return make


def _psycopg_ready(tx: Any, what: str) -> None:
    from psycopg.pq import TransactionStatus

    status = tx.info.transaction_status
    if tx.closed or status == TransactionStatus.UNKNOWN:
        raise errors.ConnectionClosed
    if tx.autocommit and status == TransactionStatus.IDLE:
        raise errors.NoTransaction(what)


def _psycopg_cursor(tx: Any) -> Callable[[], Any]:
    """Make plain cursors that give tuples, whatever cursor and row factory the caller has set."""
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    return lambda: Cursor(tx, row_factory=tuple_row)


def _psycopg_async_cursor(tx: Any) -> Callable[[], Awaitable[Any]]:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async def make() -> Any:
        return AsyncCursor(tx, row_factory=tuple_row)

    return make


def _mysql_ready(tx: Any, what: str) -> None:
    """Check a MySQL driver's connection; without autocommit its first statement opens the transaction."""
    if not (tx.connected if _is(tx, "asyncmy", "Connection") else tx.open if _is_mysql(tx) else not tx.closed):
        raise errors.ConnectionClosed
    # The protocol has one result at a time: these drivers throw away the rest of one when the next statement comes.
    # mysqlclient does not tell, and refuses the statement itself.
    if not _is(tx, "MySQLdb.connections", "Connection") and tx._result is not None and tx._result.unbuffered_active:
        raise errors.TransactionError(errors.UNREAD)
    if tx.get_autocommit() and not _in_mysql_transaction(tx):
        raise errors.NoTransaction(what)


def _in_mysql_transaction(tx: Any) -> bool:
    """Tell whether a connection in autocommit is inside a transaction that was begun by hand."""
    if _is(tx, "pymysql.connections", "Connection"):
        from pymysql.constants import SERVER_STATUS

        return bool(tx.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
    if _is_async_mysql(tx):
        return bool(tx.get_transaction_status())
    # mysqlclient does not tell; a savepoint outlives its own statement only inside a transaction.
    cursor = tx.cursor()
    try:
        cursor.execute("savepoint holdfast_probe")
        cursor.execute("release savepoint holdfast_probe")
    except tx.OperationalError:
        return False
    finally:
        cursor.close()
    return True


def _mysql_cursor(tx: Any) -> Callable[[], Any]:
    """Make plain cursors that give tuples, whatever cursor class the caller has set."""
    package = "pymysql" if _is(tx, "pymysql.connections", "Connection") else "MySQLdb"
    plain = import_module(f"{package}.cursors").Cursor
    return lambda: tx.cursor(plain)


def _mysql_async_cursor(tx: Any) -> Callable[[], Awaitable[Any]]:
    async def make() -> Any:
        if _is(tx, "asyncmy", "Connection"):
            return tx.cursor(import_module("asyncmy.cursors").Cursor)
        return await tx.cursor(import_module("aiomysql").Cursor)

    return make


def _asyncpg_ready(tx: Any, what: str) -> None:
    from asyncpg import InterfaceError

    try:
        closed = tx.is_closed()
    except InterfaceError as error:
        # The pool's proxy says this once the connection went back to the pool.
        raise errors.ConnectionClosed from error
    if closed:
        raise errors.ConnectionClosed
    if not tx.is_in_transaction():
        raise errors.NoTransaction(what)


@contextmanager
def _sqlalchemy_refusals() -> Iterator[None]:
    """Raise as ours what SQLAlchemy says by itself about a session or connection, before any driver is asked."""
    from sqlalchemy import exc

    try:
        yield
    except exc.PendingRollbackError as error:
        raise errors.TransactionAborted from error
    except exc.ResourceClosedError as error:
        raise errors.ConnectionClosed from error
    except exc.UnboundExecutionError as error:
        raise errors.TransactionError(
            "The session given as tx= is bound to no one database. Give session.connection(bind_arguments=…) of the "
            "database that holds the jobs."
        ) from error
    except exc.InvalidRequestError as error:
        if "permanently closed" in str(error) or type(error).__name__ == "AsyncContextNotStarted":
            raise errors.ConnectionClosed from error
        raise errors.TransactionError(f"What was given as tx= cannot be used now: {error}") from error


def _sqlalchemy(connection: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    if connection.closed:
        raise errors.ConnectionClosed
    _same(dialect, _database(connection.dialect.name))
    # MySQL's drivers all take `%s`, whatever style SQLAlchemy prefers, and a list is so many of them.
    style = dialect.style if dialect.spreads_lists else _STYLES.get(connection.dialect.paramstyle)
    if style is None:
        raise errors.UnsupportedConnection(connection)
    usual = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if connection.get_execution_options().get("isolation_level", usual) == "AUTOCOMMIT":
        raise errors.NoTransaction(what)
    with translated(dialect), _sqlalchemy_refusals():
        inner = connection.get_nested_transaction() or connection.get_transaction() or connection.begin()
        if not inner.is_active:
            raise errors.TransactionAborted
        _sqlalchemy_driver_ready(connection.connection, what)
    session = SqlalchemySession(dialect, connection, style, clock)
    return (
        careful(session, connection.connection.driver_connection.character_set_name())
        if _is_mysqls(dialect)
        else session
    )


def _sqlalchemy_driver_ready(pooled: Any, what: str) -> None:
    """Check the driver's connection below SQLAlchemy's: it may be in autocommit by its own settings."""
    raw = pooled.driver_connection
    if _is(raw, "sqlite3", "Connection"):
        _sqlite_mode_ready(raw, what)
    elif _is(raw, "aiosqlite", "Connection"):
        _sqlite_ready(raw._conn, what)
    elif _is(raw, "psycopg", "Connection", "AsyncConnection"):
        _psycopg_ready(raw, what)
    elif _is_mysql(raw) or _is_async_mysql(raw):
        _mysql_ready(raw, what)
    elif getattr(pooled.dbapi_connection, "isolation_level", None) == "autocommit":
        # asyncpg's adapter opens the transaction at the first statement, so only its setting can be asked.
        raise errors.NoTransaction(what)


def _django(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    _same(dialect, _database(tx.vendor))
    if tx.closed_in_transaction:
        raise errors.ConnectionClosed
    if tx.needs_rollback:
        raise errors.TransactionAborted
    with translated(dialect):
        if tx.get_autocommit() and not tx.in_atomic_block:
            raise errors.NoTransaction(what)
    session = DbapiSession(dialect, tx.cursor, "format", clock)
    return careful(session, tx.connection.character_set_name()) if _is_mysqls(dialect) else session


def _is_mysqls(dialect: Dialect) -> bool:
    """Tell whether texts go to the server in a character set of the connection's own."""
    return dialect.name == "mysql"


def _database(name: str) -> str:
    return _DATABASES.get(name, name)
