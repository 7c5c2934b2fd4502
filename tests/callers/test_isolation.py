"""Callers whose transaction sees a snapshot: what they are told about keys is true now, or they are told to repeat."""

import sqlite3
from contextlib import closing

import pytest

from holdfast import DatabaseBusy
from holdfast.jobs import claim, complete, prune_keys
from tests.callers.callers import Asyncpg, Psycopg, Sqlite3Explicit, path_of
from tests.callers.conftest import Shop
from tests.callers.mysql_callers import PyMySQL

LEVELS = ["repeatable read", "serializable"]


class PsycopgAt(Psycopg):
    def begin(self, level):
        self.tx.execute(f"set transaction isolation level {level}")


class AsyncpgAt(Asyncpg):
    def begin(self, level=None):
        return self._begin() if level is None else self.execute(f"set transaction isolation level {level}")

    async def _begin(self):
        await super().begin()


class PyMySQLAt(PyMySQL):
    def begin(self, level):
        self.execute(f"set session transaction isolation level {level}")


class SqliteAt(Sqlite3Explicit):
    def begin(self, level):
        """Its one level: a transaction that has read sees the same until it ends."""


CALLERS = {"postgres": PsycopgAt, "asyncpg": AsyncpgAt, "mariadb": PyMySQLAt, "mysql": PyMySQLAt, "sqlite": SqliteAt}
SHOPS = {"asyncpg": "postgres_shop", "postgres": "postgres_shop", "mariadb": "mysql_shop", "sqlite": "sqlite_shop"}


@pytest.fixture(params=CALLERS)
def where(request):
    return request.param


@pytest.fixture
def shop(where, request, shop_at) -> Shop:
    if where == "mysql":
        return shop_at(request.getfixturevalue("mysql_url"))
    return request.getfixturevalue(SHOPS[where])


@pytest.fixture(params=LEVELS)
def caller(where, shop, request):
    """A caller that has read, and so sees this moment until its transaction ends."""
    caller = CALLERS[where](shop.url)
    caller.begin(request.param)
    yield caller
    caller.close()


def snapshot(caller):
    caller.execute("select count(*) from holdfast_meta")


def make_a_hole(shop, table):
    """Let the next row of a table stand before those that are there, on PostgreSQL: a scan then meets it first."""
    if shop.hf.store.dialect.name == "postgres":
        shop.look(f"vacuum {table}")


def answer_or_refusal(caller, shop, bound):
    try:
        answer = caller.enqueue(shop.hf, bound)
    except DatabaseBusy as busy:
        return busy.reason
    return (answer.id, answer.created)


def told_to_repeat(where):
    """SQLite cannot write on an old snapshot at all; PostgreSQL refuses where it would have to see beyond it."""
    return where == "sqlite"


@pytest.mark.parametrize("hole", [False, True], ids=["behind", "before"])
def test_a_key_that_was_freed_after_the_callers_snapshot_is_taken(where, shop, caller, hole):
    if hole:
        shop.hf.enqueue("other", check=False, idempotency_key="hole")
    shop.receipt.using(idempotency_key="k", window=0.001).enqueue(order=1)
    if hole:
        shop.look("delete from holdfast_keys where scope = 'other'")
        make_a_hole(shop, "holdfast_keys")
    snapshot(caller)
    while not shop.hf.store.run(prune_keys()):
        pass
    keyed = shop.receipt.using(idempotency_key="k").bind(order=2)
    if told_to_repeat(where):
        with pytest.raises(DatabaseBusy):
            caller.enqueue(shop.hf, keyed)
        return
    second = caller.enqueue(shop.hf, keyed)
    caller.commit()
    assert second.created
    assert (second.id,) in [(str(row[0]),) for row in shop.look("select id from holdfast_jobs")]
    third = shop.receipt.using(idempotency_key="k").enqueue(order=3)
    assert (third.id, third.created) == (second.id, False)


@pytest.mark.parametrize("hole", [False, True], ids=["behind", "before"])
def test_a_unique_job_that_ended_after_the_callers_snapshot_is_followed_by_the_next(where, shop, caller, hole):
    if hole:
        shop.receipt.enqueue(order=0)
    first = shop.receipt.using(unique="u", priority=5).enqueue(order=1)
    if hole:
        shop.look("delete from holdfast_jobs where unique_key is null")
        make_a_hole(shop, "holdfast_jobs")
    snapshot(caller)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    shop.hf.store.run(complete(lease))
    unique = [shop.receipt.using(unique=name).bind(order=2) for name in ("u", "v")]
    if told_to_repeat(where):
        with pytest.raises(DatabaseBusy):
            caller.enqueue_many(shop.hf, unique)
        return
    answers = caller.enqueue_many(shop.hf, unique)
    caller.commit()
    assert [answer.created for answer in answers] == [True, True]
    assert first.id not in {answer.id for answer in answers}
    assert {str(row[0]) for row in shop.look("select id from holdfast_jobs")} == {answer.id for answer in answers}


@pytest.mark.parametrize("said", [{"unique": "u"}, {"idempotency_key": "k"}], ids=["unique", "key"])
def test_a_key_that_was_taken_after_the_callers_snapshot_is_found_or_the_caller_is_told_to_repeat(
    where, shop, caller, said
):
    snapshot(caller)
    first = shop.receipt.using(**said).enqueue(order=1)
    answer = answer_or_refusal(caller, shop, shop.receipt.using(**said).bind(order=2))
    caller.rollback()
    found, refused = (first.id, False), "busy" if where == "sqlite" else "serialisation"
    # MariaDB refuses from version 11.6 on, if it is not told otherwise.
    assert answer in {"mysql": [found], "mariadb": [found, refused]}.get(where, [refused])
    assert shop.jobs == 1


@pytest.mark.parametrize("said", [{"unique": "u"}, {"idempotency_key": "k"}], ids=["unique", "key"])
def test_a_key_that_is_held_in_the_callers_snapshot_is_found(shop, caller, said):
    first = shop.receipt.using(**said).enqueue(order=1)
    snapshot(caller)
    answers = caller.enqueue_many(shop.hf, [shop.receipt.using(**said).bind(order=n) for n in (2, 3)])
    caller.commit()
    assert [(answer.id, answer.created) for answer in answers] == [(first.id, False)] * 2
    assert shop.jobs == 1


def test_a_reader_on_sqlite_that_nobody_overtook_may_enqueue(sqlite_shop):
    with closing(sqlite3.connect(path_of(sqlite_shop.url), isolation_level=None)) as tx:
        tx.execute("begin")
        tx.execute("select count(*) from holdfast_jobs").fetchall()
        assert sqlite_shop.receipt.using(tx=tx, unique="u").enqueue(order=1).created
        tx.execute("commit")
    assert sqlite_shop.jobs == 1
