"""What `tx=` refuses: each with an error that says what to do, and with nothing written."""

import asyncio
import sqlite3
import sys
from contextlib import closing

import aiosqlite
import asyncpg
import django.core.cache
import django.db
import psycopg
import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from holdfast import DatabaseBusy, Job, SchemaMissing
from holdfast.errors import (
    ConnectionClosed,
    NoTransaction,
    QueryFailed,
    TransactionAborted,
    TransactionError,
    UnsupportedConnection,
    WrongColour,
    WrongDatabase,
)
from holdfast.jobs import claim
from tests.callers import callers
from tests.callers.callers import KINDS, AsyncCaller, django_connection, path_of

DRIVERS = ("sqlite3", "psycopg", "asyncpg", "pymysql", "MySQLdb", "asyncmy", "sqlalchemy", "django")
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
each_shop = pytest.mark.parametrize("where", ["sqlite_shop", "pg_shop"])


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


@pytest.fixture
def other(kind, request):
    """A shop on the database that this kind of caller does not speak to."""
    return request.getfixturevalue("pg_shop" if kind.database == "sqlite" else "sqlite_shop")


@each_kind
def test_the_wrong_database_is_refused(caller, other):
    with pytest.raises(WrongDatabase, match="the database that holds the jobs") as refused:
        caller.enqueue(other.hf, other.receipt.bind(order=1))
    assert (refused.value.expected, refused.value.got) == (other.hf.store.dialect.name, caller.database)
    caller.rollback()
    assert other.jobs == 0


@each_kind
def test_the_other_colour_is_named(shop, caller):
    if isinstance(caller, AsyncCaller):
        with pytest.raises(WrongColour, match=r"Call aenqueue\(\)"):
            shop.receipt.using(tx=caller.tx).enqueue(order=1)
    else:
        with pytest.raises(WrongColour, match=r"Call enqueue\(\)"):
            asyncio.run(shop.receipt.using(tx=caller.tx).aenqueue(order=1))
    caller.rollback()
    assert shop.jobs == 0


def test_a_completion_of_the_other_colour_is_named(sqlite_shop):
    shop = sqlite_shop
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    with closing(sqlite3.connect(path_of(shop.url))) as tx, pytest.raises(WrongColour, match=r"or complete\(\)"):
        asyncio.run(Job(lease, shop.hf.store).acomplete(tx))


@each_kind
def test_missing_tables_are_named_with_the_cure(kind, request, shop_at):
    bare = {"sqlite": "sqlite_url", "postgres": "bare_url", "mysql": "bare_mariadb_url"}[kind.database]
    shop = shop_at(request.getfixturevalue(bare), migrate=False)
    caller = kind(shop.url)
    with pytest.raises(SchemaMissing, match="holdfast migrate apply") as missing:
        caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    assert missing.value.__cause__ is not None
    caller.rollback()
    caller.close()


# Closed connections


def closed_sqlite3(shop):
    tx = sqlite3.connect(path_of(shop.url))
    tx.close()
    shop.receipt.using(tx=tx).enqueue(order=1)


async def closed_aiosqlite(shop):
    tx = await aiosqlite.connect(path_of(shop.url))
    await tx.close()
    await shop.receipt.using(tx=tx).aenqueue(order=1)


async def unopened_aiosqlite(shop):
    await shop.receipt.using(tx=aiosqlite.connect(path_of(shop.url))).aenqueue(order=1)


def closed_psycopg(shop):
    tx = psycopg.connect(shop.url)
    tx.close()
    shop.receipt.using(tx=tx).enqueue(order=1)


def killed_psycopg(shop):
    """The server ended the session, and the driver has noticed."""
    tx = psycopg.connect(shop.url)
    with pytest.raises(psycopg.OperationalError):
        tx.execute("select pg_terminate_backend(pg_backend_pid())")
    shop.receipt.using(tx=tx).enqueue(order=1)


async def closed_psycopg_async(shop):
    tx = await psycopg.AsyncConnection.connect(shop.url)
    await tx.close()
    await shop.receipt.using(tx=tx).aenqueue(order=1)


async def closed_asyncpg(shop):
    tx = await asyncpg.connect(shop.url)
    await tx.close()
    await shop.receipt.using(tx=tx).aenqueue(order=1)


async def released_asyncpg(shop):
    async with asyncpg.create_pool(shop.url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as tx:
            pass
        await shop.receipt.using(tx=tx).aenqueue(order=1)


def closed_sqlalchemy_connection(shop):
    with engine_of(shop).connect() as tx:
        pass
    shop.receipt.using(tx=tx).enqueue(order=1)


def closed_sqlalchemy_session(shop):
    with orm.Session(engine_of(shop), close_resets_only=False) as tx:
        pass
    shop.receipt.using(tx=tx).enqueue(order=1)


async def closed_sqlalchemy_async_connection(shop):
    engine = async_engine_of(shop)
    async with engine.connect() as tx:
        pass
    await shop.receipt.using(tx=tx).aenqueue(order=1)


async def unopened_sqlalchemy_async_connection(shop):
    engine = async_engine_of(shop)
    await shop.receipt.using(tx=engine.connect()).aenqueue(order=1)


async def closed_sqlalchemy_async_session(shop):
    engine = async_engine_of(shop)
    async with sqlalchemy_async.AsyncSession(engine, close_resets_only=False) as tx:
        pass
    await shop.receipt.using(tx=tx).aenqueue(order=1)


def closed_django(shop):
    caller = callers.Django(shop.url)
    caller.tx.close()
    try:
        shop.receipt.using(tx=caller.tx).enqueue(order=1)
    finally:
        caller.close()


def engine_of(shop, **options):
    url = shop.url.replace("postgresql:", "postgresql+psycopg:")
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, **options)


def async_engine_of(shop, driver="psycopg", **options):
    url = shop.url.replace("postgresql:", f"postgresql+{driver}:").replace("sqlite:", "sqlite+aiosqlite:")
    return sqlalchemy_async.create_async_engine(url, poolclass=sqlalchemy.NullPool, **options)


def run(misuse, shop):
    answer = misuse(shop)
    return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer


ON_SQLITE = [closed_sqlite3, closed_aiosqlite, unopened_aiosqlite]
ON_POSTGRES = [closed_psycopg, killed_psycopg, closed_psycopg_async, closed_asyncpg, released_asyncpg]
ON_BOTH = [
    closed_sqlalchemy_connection,
    closed_sqlalchemy_session,
    closed_sqlalchemy_async_connection,
    unopened_sqlalchemy_async_connection,
    closed_sqlalchemy_async_session,
    closed_django,
]


@pytest.mark.parametrize("misuse", [*ON_SQLITE, *ON_BOTH])
def test_a_closed_sqlite_connection_is_refused(misuse, sqlite_shop):
    shop = sqlite_shop
    with pytest.raises(ConnectionClosed):
        run(misuse, shop)
    assert shop.jobs == 0


@pytest.mark.parametrize("misuse", [*ON_POSTGRES, *ON_BOTH])
def test_a_closed_postgres_connection_is_refused(misuse, pg_shop):
    shop = pg_shop
    with pytest.raises(ConnectionClosed):
        run(misuse, shop)
    assert shop.jobs == 0


# Autocommit


def sqlite3_without_begin(shop):
    with closing(sqlite3.connect(path_of(shop.url), isolation_level=None)) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


def sqlite3_with_autocommit(shop):
    with closing(sqlite3.connect(path_of(shop.url), autocommit=True)) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


async def aiosqlite_without_begin(shop):
    async with aiosqlite.connect(path_of(shop.url), isolation_level=None) as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


async def aiosqlite_with_autocommit(shop):
    async with aiosqlite.connect(path_of(shop.url), autocommit=True) as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


def psycopg_outside_a_block(shop):
    with psycopg.connect(shop.url, autocommit=True) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


async def psycopg_async_outside_a_block(shop):
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


async def asyncpg_outside_a_block(shop):
    tx = await asyncpg.connect(shop.url)
    try:
        await shop.receipt.using(tx=tx).aenqueue(order=1)
    finally:
        await tx.close()


def sqlalchemy_engine_autocommit(shop):
    engine = engine_of(shop, isolation_level="AUTOCOMMIT")
    with engine.begin() as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


def sqlalchemy_connection_autocommit(shop):
    engine = engine_of(shop)
    with engine.connect() as tx:
        shop.receipt.using(tx=tx.execution_options(isolation_level="AUTOCOMMIT")).enqueue(order=1)


def sqlalchemy_session_autocommit(shop):
    engine = engine_of(shop)
    with orm.Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


def sqlalchemy_driver_autocommit(shop):
    """SQLAlchemy knows nothing of it: the driver was told."""
    said = {"isolation_level": None} if shop.url.startswith("sqlite") else {"autocommit": True}
    engine = engine_of(shop, connect_args=said)
    with engine.connect() as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


async def sqlalchemy_async_autocommit(shop):
    engine = async_engine_of(shop, isolation_level="AUTOCOMMIT")
    async with engine.connect() as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


async def sqlalchemy_asyncpg_autocommit(shop):
    engine = async_engine_of(shop, "asyncpg", isolation_level="AUTOCOMMIT")
    async with sqlalchemy_async.AsyncSession(engine) as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


async def sqlalchemy_asyncpg_adapter_autocommit(shop):
    """Set on the driver's adapter, behind SQLAlchemy's back."""
    engine = async_engine_of(shop, "asyncpg")
    sqlalchemy.event.listen(engine.sync_engine, "connect", lambda adapter, _: setattr(adapter, "autocommit", True))
    async with engine.connect() as tx:
        await shop.receipt.using(tx=tx).aenqueue(order=1)


def django_outside_atomic(shop):
    with closing(django_connection(shop.url, "jobs")) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)


AUTOCOMMIT_ON_BOTH = [
    sqlalchemy_engine_autocommit,
    sqlalchemy_connection_autocommit,
    sqlalchemy_session_autocommit,
    sqlalchemy_driver_autocommit,
    sqlalchemy_async_autocommit,
    django_outside_atomic,
]
new_in_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= from Python 3.12 on")
AUTOCOMMIT_ON_SQLITE = [
    sqlite3_without_begin,
    aiosqlite_without_begin,
    pytest.param(sqlite3_with_autocommit, marks=new_in_312),
    pytest.param(aiosqlite_with_autocommit, marks=new_in_312),
]
AUTOCOMMIT_ON_POSTGRES = [
    psycopg_outside_a_block,
    psycopg_async_outside_a_block,
    asyncpg_outside_a_block,
    sqlalchemy_asyncpg_autocommit,
    sqlalchemy_asyncpg_adapter_autocommit,
]


@pytest.mark.parametrize("misuse", [*AUTOCOMMIT_ON_SQLITE, *AUTOCOMMIT_ON_BOTH])
def test_autocommit_on_sqlite_is_refused(misuse, sqlite_shop):
    shop = sqlite_shop
    with pytest.raises(NoTransaction, match="Open a transaction first"):
        run(misuse, shop)
    assert shop.jobs == 0


@pytest.mark.parametrize("misuse", [*AUTOCOMMIT_ON_POSTGRES, *AUTOCOMMIT_ON_BOTH])
def test_autocommit_on_postgres_is_refused(misuse, pg_shop):
    shop = pg_shop
    with pytest.raises(NoTransaction, match="Open a transaction first"):
        run(misuse, shop)
    assert shop.jobs == 0


@new_in_312
def test_sqlite3_without_autocommit_is_always_inside_a_transaction(sqlite_shop):
    shop = sqlite_shop
    with closing(sqlite3.connect(path_of(shop.url), autocommit=False)) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)
        assert shop.jobs == 0
        tx.commit()
    assert shop.jobs == 1


def test_a_transaction_on_an_autocommit_engine_is_taken_when_the_connection_says_otherwise(pg_shop):
    shop = pg_shop
    engine = engine_of(shop, isolation_level="AUTOCOMMIT")
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)
        tx.rollback()
    assert shop.jobs == 0


def test_sqlalchemys_recipe_for_explicit_begin_on_sqlite_is_taken(sqlite_shop):
    shop = sqlite_shop
    engine = engine_of(shop, connect_args={"isolation_level": None})
    sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as tx:
        with tx.begin_nested():
            shop.receipt.using(tx=tx).enqueue(order=1)
        tx.rollback()
    assert shop.jobs == 0


# Transactions that have failed


POSTGRES_KINDS = [kind for kind in KINDS if kind.database == "postgres"]


@pytest.mark.parametrize("kind", POSTGRES_KINDS, ids=lambda kind: kind.__name__)
def test_an_aborted_transaction_is_named(shop, caller):
    with pytest.raises(Exception, match="no_such_table"):
        caller.execute("select * from no_such_table")
    with pytest.raises(TransactionAborted, match="Roll it back"):
        caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    caller.rollback()
    assert shop.jobs == 0


@each_shop
def test_a_session_whose_flush_failed_is_named(where, request):
    shop = request.getfixturevalue(where)
    shop.look("insert into orders values (1)")
    with orm.Session(engine_of(shop)) as tx:
        tx.add(Order(id=1))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            tx.flush()
        with pytest.raises(TransactionAborted):
            shop.receipt.using(tx=tx).enqueue(order=1)
    assert shop.jobs == 0


def test_a_session_block_that_was_ended_inside_is_named(sqlite_shop):
    with orm.Session(engine_of(sqlite_shop)) as tx, tx.begin():
        tx.rollback()
        with pytest.raises(TransactionError, match="Can't operate on closed transaction"):
            sqlite_shop.receipt.using(tx=tx).enqueue(order=1)
    assert sqlite_shop.jobs == 0


@each_shop
def test_a_failed_django_block_is_named(where, request):
    shop = request.getfixturevalue(where)
    caller = callers.Django(shop.url)
    transaction.set_rollback(True)
    with pytest.raises(TransactionAborted):
        shop.receipt.using(tx=caller.tx).enqueue(order=1)
    caller.close()
    assert shop.jobs == 0


# Things that are not a connection


def test_a_session_bound_to_several_databases_is_told_what_to_give(sqlite_shop):
    shop = sqlite_shop
    with orm.Session() as tx, pytest.raises(TransactionError, match="bind_arguments"):
        shop.receipt.using(tx=tx).enqueue(order=1)


STRANGERS = {
    "a string": lambda: "postgresql://localhost/shop",
    "an engine": lambda: sqlalchemy.create_engine("sqlite://"),
    "an async engine": lambda: sqlalchemy_async.create_async_engine("sqlite+aiosqlite://"),
    "a session maker": lambda: orm.sessionmaker(),
    "Django's connections": lambda: django.db.connections,
    "Django's cache": lambda: django.core.cache.cache,
    "an object": object,
}


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_told_what_to_give(make, sqlite_shop):
    shop = sqlite_shop
    with pytest.raises(UnsupportedConnection, match="a SQLAlchemy connection or session, or Django's connection"):
        shop.receipt.using(tx=make()).enqueue(order=1)
    with pytest.raises(UnsupportedConnection):
        asyncio.run(shop.receipt.using(tx=make()).aenqueue(order=1))


def test_a_cursor_is_told_what_to_give(sqlite_shop):
    shop = sqlite_shop
    with (
        closing(sqlite3.connect(path_of(shop.url))) as connection,
        pytest.raises(UnsupportedConnection, match=r"sqlite3\.Cursor"),
    ):
        shop.receipt.using(tx=connection.cursor()).enqueue(order=1)


# Whose error it is


@each_kind
def test_a_drivers_error_comes_out_as_ours_with_the_drivers_as_the_cause(shop, caller):
    bound = shop.receipt.bind(order=1)
    # What no caller can say: it breaks a check that the table has.
    with pytest.raises(QueryFailed) as failed:
        caller.enqueue(shop.hf, bound._replace(like=bound.like._replace(kind=None)))
    package = type(failed.value.__cause__).__module__.partition(".")[0]
    assert package in DRIVERS
    caller.rollback()
    assert shop.jobs == 0


@each_kind
def test_the_callers_own_errors_stay_the_callers(shop, caller):
    caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    with pytest.raises(Exception, match="no_such_table") as failed:
        caller.execute("select * from no_such_table")
    assert type(failed.value).__module__.partition(".")[0] in DRIVERS
    caller.rollback()
    assert shop.jobs == 0


def test_a_sqlite_transaction_that_read_an_older_state_is_told_to_repeat(sqlite_shop):
    shop = sqlite_shop
    with closing(sqlite3.connect(path_of(shop.url), isolation_level=None)) as tx:
        tx.execute("begin")
        tx.execute("select * from orders").fetchall()
        shop.look("insert into orders values (1)")
        with pytest.raises(DatabaseBusy, match="Repeat the whole transaction"):
            shop.receipt.using(tx=tx).enqueue(order=1)
    assert shop.jobs == 0
