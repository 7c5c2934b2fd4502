"""What is special to MySQL's drivers: autocommit, closed connections, REPEATABLE READ, MySQL's own server.

Commit, rollback, keys and completion on each kind of connection are in the tests that every kind of caller runs.
"""

import asyncio
from contextlib import closing, contextmanager

import aiomysql
import asyncmy
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async

from holdfast import Holdfast, Job
from holdfast.errors import ConnectionClosed, NoTransaction, WrongDatabase
from holdfast.jobs import claim, complete
from tests.callers.conftest import receipt
from tests.callers.mysql_callers import MYSQL_KINDS, at, database, mysqldb


def opened(url, driver, **options):
    return driver.connect(**at(url), database=database(url), **options)


def in_autocommit(driver):
    def enqueue(shop):
        with closing(opened(shop.url, driver(), autocommit=True)) as tx:
            shop.receipt.using(tx=tx).enqueue(order=1)

    return enqueue


def in_async_autocommit(driver, name):
    async def enqueue(shop):
        tx = await driver.connect(**at(shop.url), **{name: database(shop.url)}, autocommit=True)
        try:
            await shop.receipt.using(tx=tx).aenqueue(order=1)
        finally:
            tx.close()

    return enqueue


def in_sqlalchemys_autocommit(shop):
    with (
        disposed(sqlalchemy.create_engine(pymysql_url(shop), isolation_level="AUTOCOMMIT")) as engine,
        engine.connect() as tx,
    ):
        shop.receipt.using(tx=tx).enqueue(order=1)


def in_autocommit_below_sqlalchemy(shop):
    with disposed(sqlalchemy.create_engine(pymysql_url(shop))) as engine, engine.connect() as tx:
        tx.connection.driver_connection.autocommit(True)
        shop.receipt.using(tx=tx).enqueue(order=1)


def pymysql_url(shop):
    return shop.url.replace("mysql://", "mysql+pymysql://")


@contextmanager
def disposed(engine):
    yield engine
    engine.dispose()


AUTOCOMMIT = {
    "pymysql": in_autocommit(lambda: pymysql),
    "mysqlclient": in_autocommit(mysqldb),
    "aiomysql": in_async_autocommit(aiomysql, "db"),
    "asyncmy": in_async_autocommit(asyncmy, "database"),
    "sqlalchemy": in_sqlalchemys_autocommit,
    "below-sqlalchemy": in_autocommit_below_sqlalchemy,
}


@pytest.mark.parametrize("misuse", AUTOCOMMIT.values(), ids=AUTOCOMMIT)
def test_a_connection_in_autocommit_is_refused(mysql_shop, misuse):
    with pytest.raises(NoTransaction, match="visible at once"):
        act(misuse, mysql_shop)
    assert mysql_shop.jobs == 0


def act(misuse, shop):
    return asyncio.run(misuse(shop)) if asyncio.iscoroutinefunction(misuse) else misuse(shop)


def closed(driver):
    def enqueue(shop):
        tx = opened(shop.url, driver())
        tx.close()
        shop.receipt.using(tx=tx).enqueue(order=1)

    return enqueue


def closed_async(driver, name):
    async def enqueue(shop):
        tx = await driver.connect(**at(shop.url), **{name: database(shop.url)})
        await tx.ensure_closed()
        await shop.receipt.using(tx=tx).aenqueue(order=1)

    return enqueue


def closed_sqlalchemy(shop):
    with disposed(sqlalchemy.create_engine(pymysql_url(shop))) as engine:
        with engine.connect() as tx:
            pass
        shop.receipt.using(tx=tx).enqueue(order=1)


async def closed_sqlalchemy_async(shop):
    engine = sqlalchemy_async.create_async_engine(shop.url.replace("mysql://", "mysql+asyncmy://"))
    async with engine.connect() as tx:
        pass
    await engine.dispose()
    await shop.receipt.using(tx=tx).aenqueue(order=1)


CLOSED = {
    "pymysql": closed(lambda: pymysql),
    "mysqlclient": closed(mysqldb),
    "aiomysql": closed_async(aiomysql, "db"),
    "asyncmy": closed_async(asyncmy, "database"),
    "sqlalchemy": closed_sqlalchemy,
    "sqlalchemy-async": closed_sqlalchemy_async,
}


@pytest.mark.parametrize("misuse", CLOSED.values(), ids=CLOSED)
def test_a_closed_connection_is_refused(mysql_shop, misuse):
    with pytest.raises(ConnectionClosed):
        act(misuse, mysql_shop)
    assert mysql_shop.jobs == 0


def test_a_shop_on_mysql_refuses_a_connection_to_another_database(mysql_shop, sqlite_shop):
    import sqlite3

    with closing(sqlite3.connect(":memory:")) as tx, pytest.raises(WrongDatabase):
        mysql_shop.receipt.using(tx=tx).enqueue(order=1)


def test_an_open_transaction_of_the_caller_keeps_no_worker_from_finishing(mysql_shop):
    """In REPEATABLE READ a look into the finished table would lock the gap that every newer job goes to."""
    shop = mysql_shop
    with closing(opened(shop.url, pymysql)) as tx:
        shop.receipt.using(tx=tx).enqueue(order=1)
        for n in range(5):
            shop.receipt.enqueue(order=n)
        for lease in shop.hf.store.run(claim("default", limit=5)):
            shop.hf.store.run_once(complete(lease))
        tx.commit()
    assert shop.look("select count(*) from holdfast_finished") == [(5,)]
    assert shop.jobs == 1


def test_a_key_that_was_taken_after_the_callers_snapshot_is_found(mysql_shop):
    shop = mysql_shop
    with closing(opened(shop.url, pymysql)) as tx, tx.cursor() as cursor:
        cursor.execute("select count(*) from holdfast_jobs")
        first = [shop.receipt.using(**said).enqueue(order=1) for said in ({"unique": "u"}, {"idempotency_key": "k"})]
        for held, said in zip(first, ({"unique": "u"}, {"idempotency_key": "k"}), strict=True):
            found = shop.receipt.using(tx=tx, **said).enqueue(order=1)
            assert (found.id, found.created) == (held.id, False)
        tx.rollback()


# SQLAlchemy's mariadb:// refuses a server of MySQL's.
ON_MYSQL = [kind for kind in MYSQL_KINDS if not getattr(kind, "driver", "").startswith("mariadb")]


@pytest.mark.parametrize("kind", ON_MYSQL, ids=lambda kind: kind.__name__)
def test_commit_and_rollback_on_mysqls_own_server(kind, mysql_url):
    app = Holdfast(mysql_url)
    app.migrate()
    job = app.job(receipt)
    caller = kind(mysql_url)
    caller.enqueue(app, job.bind(order=1))
    caller.rollback()
    caller.close()
    caller = kind(mysql_url)
    caller.enqueue(app, job.bind(order=2))
    caller.commit()
    caller.close()
    [lease] = app.store.run(claim("default", limit=9))
    assert lease.payload == '{"order":2}'
    caller = kind(mysql_url)
    caller.complete(Job(lease, app.store))
    caller.commit()
    caller.close()
    assert app.store.run(claim("default", limit=9)) == []
    app.close()
