"""Callers that read their rows in a stream: by SQLAlchemy's options, or with a cursor of the server's.

Our statements run on ordinary cursors whatever such an option says, and take no row from a stream that is open.
"""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import aiomysql
import asyncmy
import asyncmy.cursors
import psycopg
import pymysql
import pymysql.cursors
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from holdfast import Job
from holdfast.errors import TransactionError
from holdfast.jobs import claim
from tests.callers.conftest import Shop
from tests.callers.mysql_callers import at, database, mysqldb

STREAMING = [{"stream_results": True}, {"yield_per": 2}, {"stream_results": True, "max_row_buffer": 2}]
SYNC = ["sqlite", "postgresql+psycopg", "mysql+pymysql", "mysql+mysqldb"]
ASYNC = ["sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg", "mysql+asyncmy", "mysql+aiomysql"]
KEYED = [{}, {"unique": "u"}, {"idempotency_key": "i"}]
ROWS = 300
NUMBERS = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 300) select n from n order by n"


@pytest.fixture
def shop(request: pytest.FixtureRequest, driver: str) -> Shop:
    if driver == "mysql+mysqldb":
        mysqldb()
    name = driver.partition("+")[0].replace("postgresql", "postgres")
    found: Shop = request.getfixturevalue(f"{name}_shop")
    return found


@contextmanager
def connected(shop: Shop, driver: str, **options: Any) -> Any:
    engine = sqlalchemy.create_engine(f"{driver}://{shop.url.partition('://')[2]}", execution_options=options)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def aconnected(shop: Shop, driver: str, **options: Any) -> Any:
    url = f"{driver}://{shop.url.partition('://')[2]}"
    engine = sqlalchemy_async.create_async_engine(url, execution_options=options)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


def enqueue_in_every_way(shop: Shop, tx: Any) -> None:
    for keyed in KEYED:
        first, second = [shop.receipt.using(tx=tx, **keyed).enqueue(order=n) for n in (1, 2)]
        assert second.created is (not keyed)
        assert (first.id == second.id) is bool(keyed)
    shop.hf.enqueue_many([shop.receipt.bind(order=n) for n in range(3)], tx=tx)


async def aenqueue_in_every_way(shop: Shop, tx: Any) -> None:
    for keyed in KEYED:
        first, second = [await shop.receipt.using(tx=tx, **keyed).aenqueue(order=n) for n in (1, 2)]
        assert second.created is (not keyed)
        assert (first.id == second.id) is bool(keyed)
    await shop.hf.aenqueue_many([shop.receipt.bind(order=n) for n in range(3)], tx=tx)


@pytest.mark.parametrize("options", STREAMING, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("driver", SYNC)
@pytest.mark.parametrize("of", [lambda connection: connection, orm.Session], ids=["connection", "session"])
def test_a_connection_that_streams_its_results_enqueues(shop, driver, options, of):
    with connected(shop, driver, **options) as connection:
        enqueue_in_every_way(shop, of(connection))
        assert shop.jobs == 0
        connection.commit()
    assert shop.jobs == 7


@pytest.mark.parametrize("options", STREAMING, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("driver", ASYNC)
@pytest.mark.parametrize(
    "of", [lambda connection: connection, sqlalchemy_async.AsyncSession], ids=["connection", "session"]
)
def test_an_async_connection_that_streams_its_results_enqueues(shop, driver, options, of):
    async def main() -> None:
        async with aconnected(shop, driver, **options) as connection:
            await aenqueue_in_every_way(shop, of(connection))
            assert shop.jobs == 0
            await connection.commit()

    asyncio.run(main())
    assert shop.jobs == 7


@pytest.mark.parametrize("driver", SYNC[:2])
def test_a_job_completes_on_a_connection_that_streams(shop, driver):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    with connected(shop, driver, stream_results=True) as connection:
        Job(lease, shop.hf.store).complete(tx=connection)
        connection.commit()
    assert shop.jobs == 0


@pytest.mark.parametrize("driver", SYNC[:2])
def test_an_open_stream_loses_no_row_to_an_enqueue(shop, driver):
    with connected(shop, driver) as connection:
        stream = connection.execution_options(yield_per=10).execute(sqlalchemy.text(NUMBERS))
        seen = []
        for n, (row,) in enumerate(stream):
            seen.append(row)
            if n % 100 == 5:
                enqueue_in_every_way(shop, connection)
        connection.commit()
    assert seen == list(range(1, ROWS + 1))


@pytest.mark.parametrize("driver", ASYNC[:3])
def test_an_open_async_stream_loses_no_row_to_an_enqueue(shop, driver):
    seen = []

    async def main() -> None:
        async with aconnected(shop, driver) as connection:
            stream = await connection.stream(sqlalchemy.text(NUMBERS))
            async for (row,) in stream:
                seen.append(row)
                if row % 100 == 5:
                    await aenqueue_in_every_way(shop, connection)
            await connection.commit()

    asyncio.run(main())
    assert seen == list(range(1, ROWS + 1))


def test_an_open_cursor_of_psycopgs_loses_no_row_to_an_enqueue(postgres_shop):
    with psycopg.connect(postgres_shop.url) as tx, tx.cursor(name="numbers") as cursor:
        cursor.itersize = 10
        seen = []
        for (row,) in cursor.execute(NUMBERS):
            seen.append(row)
            if row % 100 == 5:
                enqueue_in_every_way(postgres_shop, tx)
    assert seen == list(range(1, ROWS + 1))


REFUSED = "rows of an unbuffered result are still to be read"


@pytest.mark.parametrize("driver", SYNC[2:3])
def test_an_open_stream_on_mysql_is_left_alone_and_named(shop, driver):
    """Its protocol has one result at a time: the driver would throw away what the caller has not read yet."""
    with connected(shop, driver) as connection:
        stream = connection.execution_options(yield_per=10).execute(sqlalchemy.text(NUMBERS))
        seen = [stream.fetchone()[0]]
        with pytest.raises(TransactionError, match=REFUSED):
            shop.receipt.using(tx=connection).enqueue(order=1)
        seen += [row[0] for row in stream]
        enqueue_in_every_way(shop, connection)
        connection.commit()
    assert seen == list(range(1, ROWS + 1))
    assert shop.jobs == 7


@pytest.mark.parametrize("driver", ASYNC[3:])
def test_an_open_async_stream_on_mysql_is_left_alone_and_named(shop, driver):
    seen = []

    async def main() -> None:
        async with aconnected(shop, driver) as connection:
            stream = await connection.stream(sqlalchemy.text(NUMBERS))
            seen.append((await stream.fetchone())[0])
            with pytest.raises(TransactionError, match=REFUSED):
                await shop.receipt.using(tx=connection).aenqueue(order=1)
            seen.extend([row[0] async for row in stream])
            await aenqueue_in_every_way(shop, connection)
            await connection.commit()

    asyncio.run(main())
    assert seen == list(range(1, ROWS + 1))
    assert shop.jobs == 7


def test_an_open_stream_on_pymysql_is_left_alone_and_named(mysql_shop):
    shop = mysql_shop
    with (
        closing(pymysql.connect(**at(shop.url), database=database(shop.url))) as tx,
        tx.cursor(pymysql.cursors.SSCursor) as cursor,
    ):
        cursor.execute(NUMBERS)
        seen = [cursor.fetchone()[0]]
        with pytest.raises(TransactionError, match=REFUSED):
            shop.receipt.using(tx=tx).enqueue(order=1)
        seen += [row[0] for row in cursor]
        enqueue_in_every_way(shop, tx)
        tx.commit()
    assert seen == list(range(1, ROWS + 1))
    assert shop.jobs == 7


def test_an_open_stream_on_mysqlclient_is_named_and_ends_with_an_error(mysql_shop):
    """This driver cannot be asked for it beforehand; its own refusal ends the stream, and not in silence."""
    shop = mysql_shop
    driver = mysqldb()
    with closing(driver.connect(**at(shop.url), database=database(shop.url))) as tx:
        cursor = tx.cursor(driver.cursors.SSCursor)
        cursor.execute(NUMBERS)
        cursor.fetchone()
        with pytest.raises(TransactionError, match=REFUSED):
            shop.receipt.using(tx=tx).enqueue(order=1)
        with pytest.raises(driver.Error):
            cursor.fetchall()
    assert shop.jobs == 0


async def open_aiomysql(url: str) -> tuple[Any, Any]:
    tx = await aiomysql.connect(**at(url), db=database(url))
    return tx, await tx.cursor(aiomysql.SSCursor)


async def open_asyncmy(url: str) -> tuple[Any, Any]:
    tx = await asyncmy.connect(**at(url), database=database(url))
    return tx, tx.cursor(asyncmy.cursors.SSCursor)


@pytest.mark.parametrize("opened", [open_aiomysql, open_asyncmy])
def test_an_open_stream_on_an_async_driver_of_mysqls_is_left_alone_and_named(mysql_shop, opened: Callable[..., Any]):
    shop = mysql_shop
    seen = []

    async def main() -> None:
        tx, cursor = await opened(shop.url)
        await cursor.execute(NUMBERS)
        seen.append((await cursor.fetchone())[0])
        with pytest.raises(TransactionError, match=REFUSED):
            await shop.receipt.using(tx=tx).aenqueue(order=1)
        seen.extend(row[0] for row in await cursor.fetchall())
        await cursor.close()
        await aenqueue_in_every_way(shop, tx)
        await tx.commit()
        await tx.ensure_closed()

    asyncio.run(main())
    assert seen == list(range(1, ROWS + 1))
    assert shop.jobs == 7
