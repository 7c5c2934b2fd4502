"""The caller's own connection: recognise what `tx=` was given, check it, and speak to it in its driver's style.

Nothing is imported here that the application has not imported itself: an object can only be of a driver's class when
that driver is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from holdfast import errors
from holdfast.flow import AsyncSession, Flow, Session, drive
from holdfast.store.caller_charsets import acareful, careful
from holdfast.store.catalogue import Style
from holdfast.store.dialects.base import Dialect
from holdfast.store.sessions import (
    AsyncDbapiSession,
    AsyncpgSession,
    Clock,
    DbapiSession,
    GreenSession,
    SqlalchemySession,
    raise_ours,
    translated,
)

T = TypeVar("T")
_DATABASES = {"postgresql": "postgres", "mariadb": "mysql"}
_STYLES: dict[str, Style] = {
    "qmark": "qmark",
    "named": "named",
    "format": "format",
    "pyformat": "pyformat",
    "numeric_dollar": "dollar",
}


Make = Callable[[Any, Dialect, Clock, str], Session]
AsyncMake = Callable[[Any, Dialect, Clock, str], Awaitable[AsyncSession]]


def session(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    """Make a sync session on the caller's connection; `what` names the work in errors."""
    own: type = type(tx)
    # A proxy is of a class of its own, and says that it is of another.
    cls: type = tx.__class__
    make = _maker(own) or _maker(cls)
    if make is not None:
        return make(tx, dialect, clock, what)
    if _async_maker(cls) is not None:
        raise errors.WrongColour("enqueue() or complete()", "aenqueue() or acomplete()")
    raise errors.UnsupportedConnection(tx)


async def asession(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    """Make an async session on the caller's connection."""
    own: type = type(tx)
    cls: type = tx.__class__
    make = _async_maker(own) or _async_maker(cls)
    if make is not None:
        return await make(tx, dialect, clock, what)
    if _maker(cls) is not None and not _is_cache(tx):
        raise errors.WrongColour("aenqueue() or acomplete()", "enqueue() or complete()")
    raise errors.UnsupportedConnection(tx)


# Kept for each class, because to find it out takes longer than all else that is asked of a connection. A class never
# becomes one of a driver's later: it could not be derived from a class of a driver that is not loaded.


@lru_cache(maxsize=256)
def _maker(cls: type) -> Make | None:
    """Find what makes sync sessions on connections of a class."""
    if _is(cls, "sqlite3", "Connection"):
        return _sqlite
    if _is(cls, "psycopg", "Connection"):
        return _psycopg
    if _is_mysql(cls):
        return _mysql
    if _is(cls, "sqlalchemy.orm", "Session", "scoped_session"):
        return _sqlalchemy_session
    if _is(cls, "sqlalchemy", "Connection"):
        return _sqlalchemy
    return _django if _is_django(cls) else None


@lru_cache(maxsize=256)
def _async_maker(cls: type) -> AsyncMake | None:
    """Find what makes async sessions on connections of a class."""
    if _is(cls, "asyncpg", "Connection") or _is(cls, "asyncpg.pool", "PoolConnectionProxy"):
        return _asyncpg
    if _is(cls, "psycopg", "AsyncConnection"):
        return _psycopg_async
    if _is_async_mysql(cls):
        return _mysql_async
    if _is(cls, "aiosqlite", "Connection"):
        return _aiosqlite
    if _is(cls, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session", "AsyncConnection"):
        return _sqlalchemy_async
    return None


@lru_cache(maxsize=1024)
def _is(cls: type, module: str, *names: str) -> bool:
    """Tell whether a class is one of a module that the application has loaded, or derived from one."""
    loaded = sys.modules.get(module)
    classes = [getattr(loaded, name, None) for name in names] if loaded else []
    return any(isinstance(known, type) and issubclass(cls, known) for known in classes)


def _is_mysql(cls: type) -> bool:
    return _is(cls, "pymysql.connections", "Connection") or _is(cls, "MySQLdb.connections", "Connection")


def _is_async_mysql(cls: type) -> bool:
    return _is(cls, "aiomysql", "Connection") or _is(cls, "asyncmy", "Connection")


def _is_django(cls: type) -> bool:
    return _is(cls, "django.utils.connection", "ConnectionProxy") or _is(
        cls, "django.db.backends.base.base", "BaseDatabaseWrapper"
    )


def _is_cache(tx: Any) -> bool:
    """Tell Django's cache from its connection: both are proxies of the same class."""
    return _is(tx.__class__, "django.utils.connection", "ConnectionProxy") and not hasattr(tx, "vendor")


def _same(dialect: Dialect, got: str) -> None:
    if dialect.name != got:
        raise errors.WrongDatabase(dialect.name, got)


def _sqlite(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    _same(dialect, "sqlite")
    with translated(dialect):
        _sqlite_mode_ready(tx, what)
    return DbapiSession(dialect, lambda: _with_tuples(tx.cursor()), "named", clock)


def _sqlite_ready(tx: Any, what: str) -> bool:
    """Refuse a connection without a transaction, and tell whether one is open already."""
    try:
        inside: bool = tx.in_transaction
    except Exception as error:
        raise errors.ConnectionClosed from error
    # By default sqlite3 opens the transaction itself, at the first statement that starts with INSERT, UPDATE, DELETE or
    # REPLACE, as all do that run on a caller's connection. It does not with isolation_level=None.
    if not inside and tx.isolation_level is None:
        raise errors.NoTransaction(what)
    return inside


def _sqlite_mode_ready(tx: Any, what: str) -> None:
    """Refuse Python 3.12's autocommit=True too, which overrules isolation_level; only the owning thread can ask."""
    if not _sqlite_ready(tx, what) and getattr(tx, "autocommit", None) is True:
        raise errors.NoTransaction(what)


def _with_tuples(cursor: Any) -> Any:
    cursor.row_factory = None
    return cursor


async def _aiosqlite(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    _same(dialect, "sqlite")
    # None when closed or not yet awaited. aiosqlite's public face has no `autocommit`, nor a way to its thread.
    if tx._connection is None:
        raise errors.ConnectionClosed
    await tx._execute(_sqlite_mode_ready, tx._connection, what)

    async def cursor() -> Any:
        return _with_tuples(await tx.cursor())

    return AsyncDbapiSession(dialect, cursor, "named", clock)


class _Psycopg(NamedTuple):
    """What is needed of psycopg, imported once."""

    cursor: Any
    async_cursor: Any
    idle: int
    unknown: int

    @classmethod
    @cache
    def parts(cls) -> _Psycopg:
        from psycopg import AsyncCursor, Cursor
        from psycopg.pq import TransactionStatus
        from psycopg.rows import tuple_row

        # Plain cursors that give tuples, whatever cursor and row factory the caller has set.
        plain, aplain = partial(Cursor, row_factory=tuple_row), partial(AsyncCursor, row_factory=tuple_row)
        return cls(plain, aplain, int(TransactionStatus.IDLE), int(TransactionStatus.UNKNOWN))


def _psycopg(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    _same(dialect, "postgres")
    _psycopg_ready(tx, what)
    return DbapiSession(dialect, partial(_Psycopg.parts().cursor, tx), "pyformat", clock)


async def _psycopg_async(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    _same(dialect, "postgres")
    _psycopg_ready(tx, what)

    async def cursor() -> Any:
        return _Psycopg.parts().async_cursor(tx)

    return AsyncDbapiSession(dialect, cursor, "pyformat", clock)


def _psycopg_ready(tx: Any, what: str) -> None:
    parts = _Psycopg.parts()
    status = tx.pgconn.transaction_status
    if status == parts.unknown:
        raise errors.ConnectionClosed
    if status == parts.idle and tx.autocommit:
        raise errors.NoTransaction(what)


def _mysql(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    _same(dialect, "mysql")
    try:
        _mysql_ready(tx, what)
        session = DbapiSession(dialect, partial(tx.cursor, _Mysql.of(tx.__class__).cursor), "format", clock)
        return careful(session, tx.character_set_name())
    except Exception as error:
        raise_ours(dialect, error)
        raise


class _Mysql(NamedTuple):
    """What is to be known of a driver's connections, found out once for each class of them."""

    driver: str
    # Plain cursors that give tuples, whatever cursor class the caller has set.
    cursor: Any

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, connection: type) -> _Mysql:
        if _is(connection, "asyncmy", "Connection"):
            return cls("asyncmy", import_module("asyncmy.cursors").Cursor)
        if _is(connection, "aiomysql", "Connection"):
            return cls("aiomysql", import_module("aiomysql").Cursor)
        driver = "pymysql" if _is(connection, "pymysql.connections", "Connection") else "MySQLdb"
        return cls(driver, import_module(f"{driver}.cursors").Cursor)


async def _mysql_async(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    _same(dialect, "mysql")
    _mysql_ready(tx, what)

    async def cursor() -> Any:
        parts = _Mysql.of(tx.__class__)
        return tx.cursor(parts.cursor) if parts.driver == "asyncmy" else await tx.cursor(parts.cursor)

    return acareful(AsyncDbapiSession(dialect, cursor, "format", clock), tx.character_set_name())


def _mysql_ready(tx: Any, what: str) -> None:
    """Check a MySQL driver's connection; without autocommit its first statement opens the transaction."""
    driver = _Mysql.of(tx.__class__).driver
    if not (tx.connected if driver == "asyncmy" else not tx.closed if driver == "aiomysql" else tx.open):
        raise errors.ConnectionClosed
    # The protocol has one result at a time: these drivers throw away the rest of one when the next statement comes.
    # mysqlclient does not tell, and refuses the statement itself.
    if driver != "MySQLdb" and tx._result is not None and tx._result.unbuffered_active:
        raise errors.TransactionError(errors.UNREAD)
    if tx.get_autocommit() and not _in_mysql_transaction(tx):
        raise errors.NoTransaction(what)


def _in_mysql_transaction(tx: Any) -> bool:
    """Tell whether a connection in autocommit is inside a transaction that was begun by hand."""
    if _is(tx.__class__, "pymysql.connections", "Connection"):
        from pymysql.constants import SERVER_STATUS

        return bool(tx.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
    if _is_async_mysql(tx.__class__):
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


async def _asyncpg(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    _same(dialect, "postgres")
    _asyncpg_ready(tx, what)
    return AsyncpgSession(dialect, tx, clock)


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


def _sqlalchemy_session(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    with translated(dialect), _sqlalchemy_refusals():
        connection = tx.connection()
    return _sqlalchemy(connection, dialect, clock, what)


async def _sqlalchemy_async(tx: Any, dialect: Dialect, clock: Clock, what: str) -> AsyncSession:
    with translated(dialect), _sqlalchemy_refusals():
        is_connection = _is(tx.__class__, "sqlalchemy.ext.asyncio", "AsyncConnection")
        connection = tx if is_connection else await tx.connection()
        inner = await connection.run_sync(_sqlalchemy, dialect, clock, what)
    return GreenSession(connection.run_sync, inner)


def _sqlalchemy(connection: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    if connection.closed:
        raise errors.ConnectionClosed
    _same(dialect, database_of(connection.dialect.name))
    # MySQL's drivers all take `%s`, whatever style SQLAlchemy prefers, and a list becomes one for each value.
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


def run_ddl(connection: Any, dialect: Dialect, work: Flow[T]) -> T:
    """Run a flow that changes tables in the transaction of a sync SQLAlchemy connection, which the caller ends."""
    session = _sqlalchemy(connection, dialect, _no_clock, "the migration")
    raw = connection.connection.driver_connection
    if dialect.embedded and not getattr(raw, "_conn", raw).in_transaction:
        # Python's sqlite3 opens no transaction before DDL, so each statement would be committed by itself.
        with translated(dialect):
            connection.exec_driver_sql(dialect.begin)
    return drive(work, session)


def _no_clock() -> None:
    """Leave the time to the database."""


def _sqlalchemy_driver_ready(pooled: Any, what: str) -> None:
    """Check the driver's connection below SQLAlchemy's: it may be in autocommit by its own settings."""
    raw = pooled.driver_connection
    cls = raw.__class__
    if _is(cls, "sqlite3", "Connection"):
        _sqlite_mode_ready(raw, what)
    elif _is(cls, "aiosqlite", "Connection"):
        _sqlite_ready(raw._conn, what)
    elif _is(cls, "psycopg", "Connection", "AsyncConnection"):
        _psycopg_ready(raw, what)
    elif _is_mysql(cls) or _is_async_mysql(cls):
        _mysql_ready(raw, what)
    elif getattr(pooled.dbapi_connection, "isolation_level", None) == "autocommit":
        # asyncpg's adapter opens the transaction at the first statement, so only its setting can be asked.
        raise errors.NoTransaction(what)


def _django(tx: Any, dialect: Dialect, clock: Clock, what: str) -> Session:
    if _is_cache(tx):
        raise errors.UnsupportedConnection(tx)
    _same(dialect, database_of(tx.vendor))
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


def database_of(name: str) -> str:
    """Return our name of a database that SQLAlchemy or Django names."""
    return _DATABASES.get(name, name)
