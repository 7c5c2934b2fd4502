"""What only SQLAlchemy's users do with `tx=`."""

import asyncio
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from holdfast import Holdfast, Job, LeaseLost, jobs
from tests.callers.conftest import receipt


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


def test_a_sync_session_inside_async_code_enqueues(pg_shop):
    """`AsyncSession.run_sync` hands a sync session to its function."""
    engine = sqlalchemy_async.create_async_engine(
        pg_shop.url.replace("postgresql:", "postgresql+asyncpg:"), poolclass=sqlalchemy.NullPool
    )

    def work(session: orm.Session) -> None:
        session.add(Order(id=1))
        pg_shop.receipt.using(tx=session, idempotency_key="order-1").enqueue(order=1)

    async def main() -> None:
        async with sqlalchemy_async.AsyncSession(engine) as session:
            await session.run_sync(work)
            assert (pg_shop.orders, pg_shop.jobs) == (0, 0)
            await session.commit()

    asyncio.run(main())
    assert (pg_shop.orders, pg_shop.jobs) == (1, 1)


def test_a_session_that_chooses_its_database_by_model_gives_its_connection(sqlite_shop):
    engine = sqlalchemy.create_engine(sqlite_shop.url, poolclass=sqlalchemy.NullPool)
    with orm.Session(binds={Order: engine}) as session:
        session.add(Order(id=1))
        connection = session.connection(bind_arguments={"mapper": Order})
        sqlite_shop.receipt.using(tx=connection).enqueue(order=1)
        assert (sqlite_shop.orders, sqlite_shop.jobs) == (0, 0)
        session.commit()
    assert (sqlite_shop.orders, sqlite_shop.jobs) == (1, 1)


def test_a_schema_of_its_own_is_found_whatever_the_search_path(pg_url):
    with Holdfast(pg_url, schema="work") as hf:
        hf.migrate()
        handler = hf.job(receipt)
        engine = sqlalchemy.create_engine(
            pg_url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool
        )
        with engine.begin() as tx:
            tx.exec_driver_sql("set local search_path = pg_catalog")
            handler.using(tx=tx).enqueue(order=1)
        with engine.connect() as tx:
            assert tx.exec_driver_sql("select count(*) from work.holdfast_jobs").scalar() == 1


@pytest.mark.parametrize("keep", [True, False])
def test_a_listener_that_writes_a_log_cannot_answer_for_a_lost_lease(sqlite_shop, keep):
    """It runs on the same connection between our statements, so what SQLite last changed is its line."""
    store = sqlite_shop.hf.store
    sqlite_shop.look("create table log (line text)")
    sqlite_shop.receipt.enqueue(order=1)
    [stale] = store.run(jobs.claim("default", limit=1))
    store.run(jobs.release(stale))
    [fresh] = store.run(jobs.claim("default", limit=1))
    engine = sqlalchemy.create_engine(sqlite_shop.url, poolclass=sqlalchemy.NullPool)

    @sqlalchemy.event.listens_for(engine, "after_cursor_execute")
    def write_log(connection: Any, cursor: Any, sql: str, *others: Any) -> None:
        connection.connection.executemany("insert into log values (?)", [(sql,)] * lines)

    lines = 1
    with engine.begin() as tx, pytest.raises(LeaseLost):
        Job(stale, store, keep=keep).complete(tx)
    assert sqlite_shop.jobs == 1
    lines = 2
    with engine.begin() as tx:
        Job(fresh, store, keep=keep).complete(tx)
    assert sqlite_shop.jobs == 0
