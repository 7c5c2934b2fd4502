"""Two-phase commits: PostgreSQL's PREPARE TRANSACTION, MySQL's XA, and what passes them on.

PostgreSQL prepares no transaction that has notified, so an enqueue in one says `notify=False`.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing

import aiomysql
import asyncpg
import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy import orm

from holdfast import ConfigError, Holdfast, Job, results
from holdfast.jobs import claim
from tests.callers.conftest import Shop
from tests.callers.conftest import receipt as handler
from tests.callers.mysql_callers import at, database, mysqldb
from tests.callers.test_sqlalchemy import Order
from tests.servers import Postgres

KEYED = [{}, {"unique": "u"}, {"idempotency_key": "i"}]


@pytest.fixture(scope="module")
def preparing() -> Iterator[Postgres]:
    """A server that may prepare transactions, which it may not by default."""
    with Postgres(settings={"max_prepared_transactions": "5"}) as server:
        yield server


@pytest.fixture
def shop(preparing: Postgres, shop_at: Callable[..., Shop]) -> Shop:
    return shop_at(preparing.fresh_database())


def test_a_prepared_transaction_takes_jobs_that_notify_nobody(shop):
    with psycopg.connect(shop.url) as tx:
        tx.tpc_begin("jobs")
        for said in KEYED:
            for _ in range(2):
                shop.receipt.using(tx=tx, notify=False, **said).enqueue(order=1)
        shop.hf.enqueue_many([shop.receipt.bind(order=n) for n in range(3)], tx=tx, notify=False)
        shop.hf.enqueue("receipt", {"order": 1}, tx=tx, notify=False)
        tx.tpc_prepare()
        assert shop.jobs == 0
        tx.tpc_commit()
    assert shop.jobs == 8


def test_a_prepared_transaction_rolls_back(shop):
    with psycopg.connect(shop.url) as tx:
        tx.tpc_begin("jobs")
        shop.receipt.using(tx=tx, notify=False, unique="u").enqueue(order=1)
        tx.tpc_prepare()
        tx.tpc_rollback()
    assert shop.jobs == 0


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_prepared_transaction_completes_a_job_that_somebody_waits_for(shop, keep):
    """Its end is told to those who wait, but not from here: they look."""
    answer = shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    shop.hf.store.run(results.mark([answer.id]))
    with psycopg.connect(shop.url) as tx:
        tx.tpc_begin("jobs")
        Job(lease, shop.hf.store, keep=keep).complete(tx=tx, result=7)
        tx.tpc_prepare()
        assert shop.hf.store.run(results.look([answer.id]))[answer.id].state == "leased"
        tx.tpc_commit()
    assert shop.hf.result(answer, timeout=0) == 7


def test_a_transaction_that_notified_is_not_prepared(shop):
    """Why there is a switch; were PostgreSQL to allow it one day, the switch could go."""
    with closing(psycopg.connect(shop.url)) as tx:
        tx.tpc_begin("jobs")
        shop.receipt.using(tx=tx).enqueue(order=1)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            tx.tpc_prepare()


def test_a_prepared_transaction_of_async_code(shop):
    async def main() -> None:
        tx = await asyncpg.connect(shop.url)
        await tx.execute("begin")
        await shop.receipt.using(tx=tx, notify=False).aenqueue(order=1)
        await shop.hf.aenqueue_many([shop.receipt.bind(order=n) for n in range(3)], tx=tx, notify=False)
        await shop.hf.aenqueue("receipt", {"order": 1}, tx=tx, notify=False)
        await tx.execute("prepare transaction 'jobs'")
        assert shop.jobs == 0
        await tx.execute("commit prepared 'jobs'")
        await tx.close()

    asyncio.run(main())
    assert shop.jobs == 5


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_two_phase_session_of_sqlalchemys(shop, end):
    engine = sqlalchemy.create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"))
    with orm.Session(engine, twophase=True) as session:
        session.add(Order(id=1))
        shop.receipt.using(tx=session, notify=False).enqueue(order=1)
        session.prepare()
        assert (shop.orders, shop.jobs) == (0, 0)
        getattr(session, end)()
    engine.dispose()
    assert (shop.orders, shop.jobs) == ((1, 1) if end == "commit" else (0, 0))


def test_a_job_completes_in_a_prepared_transaction(shop):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    with psycopg.connect(shop.url) as tx:
        tx.tpc_begin("jobs")
        Job(lease, shop.hf.store).complete(tx=tx)
        tx.tpc_prepare()
        tx.tpc_commit()
    assert shop.jobs == 0


@pytest.mark.parametrize("setting, said", [(True, None), (True, False), (False, True), (False, None)])
def test_who_hears_of_a_job_is_the_stores_setting_unless_a_call_says_otherwise(pg_url, setting, said):
    with Holdfast(pg_url, notify=setting) as hf, psycopg.connect(pg_url, autocommit=True) as listener:
        hf.migrate()
        receipt = hf.job(handler)
        listener.execute("listen holdfast_wake")
        # A handler keeps the statement of jobs about which nothing was said.
        receipt.enqueue(order=0)
        before = len(list(listener.notifies(timeout=0.2)))
        receipt.using(notify=said).enqueue(order=1)
        hf.enqueue_many([receipt.bind(order=n) for n in range(3)], notify=said)
        hf.enqueue("receipt", {"order": 1}, notify=said)
        heard = len(list(listener.notifies(timeout=0.2)))
    expected = setting if said is None else said
    assert (before > 0, heard > 0) == (setting, expected)


def test_what_is_not_a_switch_is_refused(sqlite_shop):
    with pytest.raises(ConfigError, match="notify: must be True, False or None"):
        sqlite_shop.receipt.using(notify="no")
    with pytest.raises(ConfigError, match="notify"):
        sqlite_shop.hf.enqueue_many([sqlite_shop.receipt.bind(order=1)], notify=0)


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
def test_the_switch_changes_nothing_where_nobody_is_notified(kind, request):
    shop: Shop = request.getfixturevalue(f"{kind}_shop")
    for said in KEYED:
        shop.receipt.using(notify=False, **said).enqueue(order=1)
    shop.hf.enqueue_many([shop.receipt.bind(order=n) for n in range(3)], notify=False)
    assert shop.jobs == 6


# MySQL's own two phases; it notifies nobody, so there is nothing to say.


@pytest.fixture(params=["mariadb", "mysql"])
def xa_shop(request: pytest.FixtureRequest, shop_at: Callable[..., Shop]) -> Shop:
    return shop_at(request.getfixturevalue(f"{request.param}_url"))


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("driver", [lambda: pymysql, mysqldb], ids=["pymysql", "mysqlclient"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_xa_transaction_takes_jobs(xa_shop, driver, autocommit, end):
    shop = xa_shop
    where = {**at(shop.url), "database": database(shop.url)}
    with closing(driver().connect(**where, autocommit=autocommit)) as tx, closing(tx.cursor()) as cursor:
        cursor.execute("xa start 'jobs'")
        for said in KEYED:
            for _ in range(2):
                shop.receipt.using(tx=tx, **said).enqueue(order=1)
        shop.hf.enqueue_many([shop.receipt.bind(order=n) for n in range(3)], tx=tx)
        cursor.execute("xa end 'jobs'")
        cursor.execute("xa prepare 'jobs'")
        assert shop.jobs == 0
        cursor.execute(f"xa {end} 'jobs'")
    assert shop.jobs == (7 if end == "commit" else 0)


def test_an_xa_transaction_of_async_code_takes_jobs(xa_shop):
    shop = xa_shop

    async def main() -> None:
        tx = await aiomysql.connect(**at(shop.url), db=database(shop.url))
        async with tx.cursor() as cursor:
            await cursor.execute("xa start 'jobs'")
            await shop.receipt.using(tx=tx, unique="u").aenqueue(order=1)
            for command in ("xa end 'jobs'", "xa prepare 'jobs'", "xa commit 'jobs'"):
                await cursor.execute(command)
        tx.close()

    asyncio.run(main())
    assert shop.jobs == 1


def test_a_two_phase_session_of_sqlalchemys_on_mariadb(mysql_shop):
    shop = mysql_shop
    engine = sqlalchemy.create_engine(shop.url.replace("mysql://", "mysql+pymysql://"))
    with orm.Session(engine, twophase=True) as session:
        session.add(Order(id=1))
        shop.receipt.using(tx=session).enqueue(order=1)
        session.prepare()
        assert (shop.orders, shop.jobs) == (0, 0)
        session.commit()
    engine.dispose()
    assert (shop.orders, shop.jobs) == (1, 1)


def test_a_job_completes_in_an_xa_transaction(xa_shop):
    shop = xa_shop
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    with closing(pymysql.connect(**at(shop.url), database=database(shop.url))) as tx, tx.cursor() as cursor:
        cursor.execute("xa start 'jobs'")
        Job(lease, shop.hf.store).complete(tx=tx)
        for command in ("xa end 'jobs'", "xa prepare 'jobs'", "xa commit 'jobs'"):
            cursor.execute(command)
    assert shop.jobs == 0
