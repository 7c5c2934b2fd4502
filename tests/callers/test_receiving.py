"""Once each, in the caller's transaction: the job of a message (`receive_one`), and an effect with `job.once(tx=…)`."""

import asyncio
import threading

import psycopg
import pytest

from holdfast import ConfigError, Debounce, Job
from holdfast.errors import WrongColour
from holdfast.jobs import claim
from tests.callers.callers import (
    KINDS,
    Aiosqlite,
    AsyncCaller,
    Asyncpg,
    Django,
    Psycopg,
    SqlalchemyAsyncSessionAsyncpg,
    SqlalchemySession,
    Sqlite3,
)
from tests.callers.mysql_callers import Asyncmy, PyMySQL

FEW = [Sqlite3, Aiosqlite, Psycopg, Asyncpg, SqlalchemySession, SqlalchemyAsyncSessionAsyncpg, Django, PyMySQL, Asyncmy]
few_kinds = pytest.mark.parametrize("kind", FEW, ids=lambda kind: kind.__name__)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture
def begin(kind, shop):
    """Open a connection of the kind inside a transaction, one after the other."""
    held = []

    def open_one():
        close()
        held.append(kind(shop.url))
        return held[-1]

    def close():
        for one in held:
            one.close()
        held.clear()

    yield open_one
    close()


def receive(shop, caller, message_id, order=1, **said):
    job = shop.receipt.bind(order=order)
    if isinstance(caller, AsyncCaller):
        return caller.wait(shop.hf.areceive_one("stripe", message_id, job, tx=caller.tx, **said))
    return shop.hf.receive_one("stripe", message_id, job, tx=caller.tx, **said)


@each_kind
def test_a_message_adds_its_job_once_with_a_commit_and_a_repeat_leaves_the_transaction_whole(shop, begin):
    caller = begin()
    assert receive(shop, caller, "evt_1")
    assert not receive(shop, caller, "evt_1")
    caller.rollback()
    assert shop.jobs == 0
    caller = begin()
    assert receive(shop, caller, "evt_1")
    caller.commit()
    caller = begin()
    caller.execute("insert into orders values (1)")
    assert not receive(shop, caller, "evt_1")
    assert receive(shop, caller, "evt_2")
    caller.execute("insert into orders values (2)")
    caller.commit()
    assert (shop.orders, shop.jobs) == (2, 2)


def test_of_many_deliveries_at_once_one_is_new(shop_at, sqlite_url, shops_url, mariadb_shops_url, postgres_shop):
    for url in (sqlite_url, shops_url, mariadb_shops_url):
        shop = shop_at(url)
        shop.empty()
        answers: list[bool] = []
        begin = threading.Barrier(8)

        def deliver(shop=shop, answers=answers, begin=begin):
            begin.wait()
            answers.append(shop.hf.receive_one("stripe", "evt_1", shop.receipt.bind(order=1)))

        threads = [threading.Thread(target=deliver) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [False] * 7 + [True]
        assert shop.jobs == 1
        shop.empty()


def test_a_message_is_known_for_its_window(sqlite_shop):
    hf, job = sqlite_shop.hf, sqlite_shop.receipt.bind(order=1)
    assert hf.receive_one("stripe", "evt_1", job, window=0.001)
    while not hf.receive_one("stripe", "evt_1", job):
        pass
    assert not hf.receive_one("stripe", "evt_1", job)


@pytest.mark.parametrize(
    "said",
    [{"unique": "u"}, {"idempotency_key": "k"}, {"debounce": Debounce("d", wait=1)}],
    ids=["unique", "idempotency_key", "debounce"],
)
def test_a_job_that_may_be_found_instead_of_added_is_refused(sqlite_shop, said):
    with pytest.raises(ConfigError, match=r"cannot be said of a job in hf\.receive_one"):
        sqlite_shop.hf.receive_one("stripe", "evt_1", sqlite_shop.receipt.using(**said).bind(order=1))


@pytest.mark.parametrize("source, message_id", [("", "1"), ("stripe", ""), ("stripe", 5), ("stripe", "a\0b")])
def test_what_names_no_message_is_refused(sqlite_shop, source, message_id):
    with pytest.raises(ConfigError, match=r"source|message_id"):
        sqlite_shop.hf.receive_one(source, message_id, sqlite_shop.receipt.bind(order=1))


# Effects


def once(shop, caller, job, key, body=None):
    """Enter a block of `job.once` on the caller's transaction and return what it says."""
    if isinstance(caller, AsyncCaller):

        async def enter():
            async with job.once(key, tx=caller.tx) as first:
                if body is not None:
                    await caller.aexecute(body)
            return first

        return caller.wait(enter())
    with job.once(key, tx=caller.tx) as first:
        if body is not None:
            caller.execute(body)
    return first


@pytest.fixture
def job(shop):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    return Job(lease, shop.hf.store)


@few_kinds
def test_an_effect_of_the_callers_transaction_is_first_until_it_commits(shop, begin, job):
    caller = begin()
    assert once(shop, caller, job, "charge:1", "insert into orders values (1)")
    caller.rollback()
    caller = begin()
    assert once(shop, caller, job, "charge:1", "insert into orders values (1)")
    caller.commit()
    caller = begin()
    # The same job again, as in an attempt that follows a crash.
    assert not once(shop, caller, job, "charge:1")
    caller.complete(job)
    caller.commit()
    assert shop.orders == 1


@few_kinds
def test_an_effect_that_fails_is_taken_back_where_the_transaction_goes_on(shop, begin, job):
    caller = begin()

    class Refused(Exception): ...

    def failing():
        if isinstance(caller, AsyncCaller):

            async def enter():
                async with job.once("charge:1", tx=caller.tx) as first:
                    assert first
                    raise Refused

            caller.wait(enter())
        else:
            with job.once("charge:1", tx=caller.tx) as first:
                assert first
                raise Refused

    with pytest.raises(Refused):
        failing()
    caller.commit()
    caller = begin()
    assert once(shop, caller, job, "charge:1")
    caller.commit()


def test_a_connection_of_the_other_colour_is_told_how_the_block_is_written(pg_shop):
    pg_shop.receipt.enqueue(order=1)
    [lease] = pg_shop.hf.store.run(claim("default", limit=1))
    job = Job(lease, pg_shop.hf.store)

    async def enter() -> None:
        with psycopg.connect(pg_shop.url) as connection:
            async with job.once("charge:1", tx=connection):
                raise AssertionError("not reached")

    with pytest.raises(WrongColour, match=r"`with job\.once"):
        asyncio.run(enter())
