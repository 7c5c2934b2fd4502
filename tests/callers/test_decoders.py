"""Connections that decode what they read, or encode what they send, in a way of their own: keys mean the same there."""

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import psycopg
import pytest
from psycopg.adapt import Loader

from holdfast import Job
from holdfast.jobs import claim
from tests.callers.callers import (
    Aiosqlite,
    Asyncpg,
    Django,
    Psycopg,
    PsycopgAsync,
    SqlalchemyAsyncConnection,
    SqlalchemyConnection,
    Sqlite3,
)
from tests.callers.mysql_callers import Aiomysql, Asyncmy, Mysqlclient, PyMySQL


class Sqlite3Bytes(Sqlite3):
    def open(self):
        super().open()
        self.tx.text_factory = bytes


class Sqlite3Latin1(Sqlite3):
    def open(self):
        super().open()
        self.tx.text_factory = lambda text: text.decode("latin-1")


class Sqlite3Converted(Sqlite3):
    """Converters by declared type, which are the process's own."""

    def open(self):
        sqlite3.register_converter("text", lambda text: ("text", text))
        self.tx = sqlite3.connect(self.url.removeprefix("sqlite:///"), detect_types=sqlite3.PARSE_DECLTYPES)

    def close(self):
        super().close()
        del sqlite3.converters["TEXT"]


class AiosqliteBytes(Aiosqlite):
    async def aopen(self):
        await super().aopen()
        self.tx.text_factory = bytes


class SqlalchemyBytes(SqlalchemyConnection):
    def hold(self):
        tx = super().hold()
        tx.connection.driver_connection.text_factory = bytes
        return tx


class SqlalchemyAsyncBytes(SqlalchemyAsyncConnection):
    async def hold(self):
        tx = await super().hold()
        (await tx.get_raw_connection()).driver_connection.text_factory = bytes
        return tx


class DjangoBytes(Django):
    def connection(self):
        wrapper = super().connection()
        wrapper.connect()
        wrapper.connection.text_factory = bytes
        return wrapper


class Raw(Loader):
    """Gives what the server sent."""

    def load(self, data):
        return bytes(data)


TYPES = ("uuid", "text", "varchar", "json", "timestamptz")


class PsycopgLoaders(Psycopg):
    def open(self):
        super().open()
        for name in TYPES:
            self.tx.adapters.register_loader(name, Raw)


class PsycopgAsyncLoaders(PsycopgAsync):
    async def aopen(self):
        await super().aopen()
        for name in TYPES:
            self.tx.adapters.register_loader(name, Raw)


class AsyncpgCodecs(Asyncpg):
    """Types of the application's own for ids and times: what is not of them cannot be sent."""

    async def begin(self):
        for name in ("uuid", "timestamptz"):
            await self.tx.set_type_codec(
                name, encoder=lambda own: own.written, decoder=lambda text: ("own", text), schema="pg_catalog"
            )
        await super().begin()


class PyMySQLBytes(PyMySQL):
    options: ClassVar = {"use_unicode": False}


class MysqlclientBytes(Mysqlclient):
    options: ClassVar = {"use_unicode": False}


class AiomysqlBytes(Aiomysql):
    options: ClassVar = {"use_unicode": False}


class AsyncmyBytes(Asyncmy):
    options: ClassVar = {"use_unicode": False}


KINDS = [
    Sqlite3Bytes,
    Sqlite3Latin1,
    Sqlite3Converted,
    AiosqliteBytes,
    SqlalchemyBytes,
    SqlalchemyAsyncBytes,
    DjangoBytes,
    PsycopgLoaders,
    PsycopgAsyncLoaders,
    AsyncpgCodecs,
    PyMySQLBytes,
    MysqlclientBytes,
    AiomysqlBytes,
    AsyncmyBytes,
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
ODD = "schlüssel-№7-🦑"
LATER = datetime.now(UTC) + timedelta(days=1)


@each_kind
@pytest.mark.parametrize("said", [{"unique": ODD}, {"idempotency_key": ODD}], ids=["unique", "key"])
def test_a_key_is_found_by_a_connection_that_decodes_by_itself(shop, caller, said):
    first = shop.receipt.using(**said).enqueue(order=1)
    named = [shop.receipt.using(**dict.fromkeys(said, f"{ODD}-{n}")).bind(order=n) for n in range(3)]
    answers = caller.enqueue_many(shop.hf, [shop.receipt.using(**said).bind(order=2), *named])
    again = caller.enqueue_many(shop.hf, [shop.receipt.using(**said).bind(order=2), *named])
    caller.commit()
    assert (answers[0].id, answers[0].created) == (first.id, False)
    assert [answer.created for answer in answers[1:]] == [True] * 3
    assert [answer.id for answer in again] == [answer.id for answer in answers]
    assert shop.jobs == 4


@each_kind
def test_jobs_of_any_sort_are_added_by_a_connection_that_encodes_by_itself(shop, caller):
    later = shop.receipt.using(run_after=LATER)
    answers = [
        caller.enqueue(shop.hf, later.bind(order=1)),
        *caller.enqueue_many(shop.hf, [later.bind(order=2), later.bind(order=3)]),
        *caller.enqueue_many(shop.hf, [later.bind(order=4), shop.receipt.using(key=ODD).bind(order=5)]),
    ]
    caller.commit()
    assert {str(row[0]) for row in shop.look("select id from holdfast_jobs")} == {answer.id for answer in answers}
    [due] = shop.hf.store.run(claim("default", limit=9))
    assert (due.job_id, due.key) == (answers[-1].id, ODD)


@each_kind
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_job_is_completed_by_a_connection_that_decodes_by_itself(shop, caller, keep):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    caller.complete(Job(lease, shop.hf.store, keep=keep))
    caller.commit()
    assert shop.jobs == 0
    assert shop.look("select outcome from holdfast_finished") == ([("done",)] if keep else [])


def test_the_loaders_are_what_reaches_the_applications_own_reads(postgres_shop):
    """Else the tests above would say nothing."""
    with psycopg.connect(postgres_shop.url) as tx:
        tx.adapters.register_loader("text", Raw)
        assert tx.execute("select 'a'::text").fetchone() == (b"a",)
