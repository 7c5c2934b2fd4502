"""Applications that name one URL, whose database is one shard of several: an enqueue says so, once."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import aiosqlite
import psycopg
import pymysql
import pytest

from holdfast import Holdfast, Run
from holdfast.app import lookout
from holdfast.sinks import Function
from holdfast.store import growing
from tests.callers.mysql_callers import at, database
from tests.shards.stage import count_in

WHY = "this database is shard 1 of 3: name all in shards="
WARNING = f"{WHY}; what this process enqueues all goes to that shard, also keys of other shards"


def drop(message: object) -> None: ...


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [one.message for one in caplog.records if one.levelname == "WARNING"]


@pytest.fixture
def lone(hf: Holdfast) -> Iterator[Holdfast]:
    """An application that names the second shard alone."""
    store = hf.stores.ours[1]
    with Holdfast(store.url, schema=store.options.schema) as app:
        yield app


def test_an_enqueue_to_one_shard_of_several_is_told_once(lone: Holdfast, told: Callable[[], list[str]]) -> None:
    for n in range(3):
        lone.enqueue("send", {"n": n}, check=False)
    lone.enqueue_many([lone.bind("send", check=False)])
    assert told() == [WARNING]


def test_async_enqueues_tell_it_too(lone: Holdfast, told: Callable[[], list[str]]) -> None:
    async def scene() -> None:
        async with lone:
            await lone.aenqueue("send", check=False)
            await lone.aenqueue_many([lone.bind("send", check=False)])

    asyncio.run(scene())
    assert told() == [WARNING]


def test_a_transaction_of_the_callers_tells_it_too(lone: Holdfast, told: Callable[[], list[str]]) -> None:
    with lone.store.transaction() as link:
        for _ in range(2):
            lone.enqueue("send", check=False, tx=link.raw)
    # What is read there decides on MySQL and MariaDB what the caller sees from then on.
    assert told() == ([] if lone.store.dialect.name == "mysql" else [WARNING])
    lone.enqueue("send", check=False)
    assert told() == [WARNING]
    assert count_in(lone, 0) == 3


def test_an_async_transaction_of_the_callers_tells_it_too(lone: Holdfast, told: Callable[[], list[str]]) -> None:
    async def scene() -> None:
        if lone.store.embedded:
            async with aiosqlite.connect(lone.store.file or "") as tx:
                await lone.aenqueue("send", check=False, tx=tx)
        else:
            async with lone.store.alink() as link, link.transaction():
                await lone.aenqueue("send", check=False, tx=link.raw)
        await lone.aclose()

    asyncio.run(scene())
    assert told() == ([] if lone.store.dialect.name == "mysql" else [WARNING])


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_starts_of_runs_and_events_tell_it_too(
    files: Callable[..., Holdfast], told: Callable[[], list[str]], colour: str
) -> None:
    [url, *_] = [store.url for store in files().stores.ours[1:]]

    async def order(run: Run) -> None: ...

    async def scene(first: Holdfast, second: Holdfast) -> None:
        await first.workflow(order).astart()
        second.route("order.*", to=Function(drop))
        await second.apublish("order.placed", {})

    with Holdfast(url) as first, Holdfast(url) as second:
        if colour == "async":
            asyncio.run(scene(first, second))
        else:
            first.workflow(order).start()
            second.route("order.*", to=Function(drop))
            second.publish("order.placed", {})
        assert told() == [WARNING] * 2


def test_one_database_and_a_whole_list_say_nothing(
    files: Callable[..., Holdfast], sqlite_url: str, told: Callable[[], list[str]]
) -> None:
    with Holdfast(sqlite_url) as single:
        single.migrate()
        single.enqueue("send", check=False)
    files().enqueue("send", check=False)
    assert told() == []


def test_shards_that_come_later_are_told_to_those_who_know_the_first_alone(
    tmp_path: Any, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new")]
    monkeypatch.setattr(lookout, "EVERY_SECONDS", 0.0)
    with Holdfast(urls[0]) as old, Holdfast(shards=urls) as whole:
        old.migrate()
        old.enqueue("send", check=False, key="a")
        whole.migrate()
        old.enqueue("send", check=False, key="a")
        assert told() == []  # all keys are still here
        assert whole.shards is not None
        whole.shards.go(growing.add(whole.shards, 1))
        for _ in range(2):
            old.enqueue("send", check=False, key="a")
    [line] = told()
    assert line.startswith("this database is shard 0 of 2: name all in shards=; ")


def test_an_enqueue_pays_no_statement_for_it(files: Callable[..., Holdfast], told: Callable[[], list[str]]) -> None:
    store, asked = files().stores.ours[1], list[str]()
    with Holdfast(store.url) as lone:
        tx = sqlite3.connect(store.file or "")
        tx.set_trace_callback(asked.append)
        for n in range(20):
            lone.enqueue("send", {"n": n}, check=False, tx=tx)
        tx.commit()
        tx.close()
    assert sum("shard_map" in sql for sql in asked) == 1
    assert told() == [WARNING]


def test_a_database_that_is_all_is_looked_at_once_a_minute(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with Holdfast(sqlite_url) as single:
        single.migrate()
        tx = sqlite3.connect(single.store.file or "")
        tx.set_trace_callback(asked.append)
        now = 1000.0
        monkeypatch.setattr("holdfast.app.lookout.time.monotonic", lambda: now)
        for seconds in (0, 1, 30, 59, 61, 62, 122):
            now = 1000.0 + seconds
            single.enqueue("send", check=False, tx=tx)
        tx.rollback()
        tx.close()
    assert sum("shard_map" in sql for sql in asked) == 3


def test_a_role_that_may_not_read_the_map_goes_on_in_its_transaction(pg_url: str, postgres: Any) -> None:
    with Holdfast(pg_url) as hf, psycopg.connect(pg_url, autocommit=True) as owner:
        hf.migrate()
        owner.execute("drop role if exists clerk")
        owner.execute("create role clerk")
        owner.execute("grant select, insert on holdfast_jobs to clerk")
        with psycopg.connect(pg_url) as tx:
            tx.execute("set local role clerk")
            hf.enqueue("send", check=False, tx=tx)
            assert tx.execute("select count(*) from holdfast_jobs").fetchone() == (1,)
        assert count_in(hf, 0) == 1
        owner.execute("drop owned by clerk; drop role clerk")


def test_what_goes_wrong_with_the_look_is_no_matter_of_the_enqueue(lone: Holdfast) -> None:
    with lone.store.transaction() as link:
        link.raw.cursor().execute(
            f"drop table {lone.store.options.schema}.holdfast_shard_map"
            if lone.store.options.schema
            else "drop table holdfast_shard_map"
        )
    lone.enqueue("send", check=False)
    with lone.store.transaction() as link:
        lone.enqueue("send", check=False, tx=link.raw)
    assert count_in(lone, 0) == 2


def test_a_transaction_on_mysql_sees_what_it_would_see_without_the_look(mariadb_url: str) -> None:
    with Holdfast(mariadb_url) as hf:
        hf.migrate()
        tx, other = (pymysql.connect(**at(mariadb_url), database=database(mariadb_url)) for _ in range(2))
        other.cursor().execute("create table stock (n int)")
        other.commit()
        tx.begin()
        hf.enqueue("send", check=False, tx=tx)
        other.cursor().execute("insert into stock values (1)")
        other.commit()
        with tx.cursor() as cursor:
            cursor.execute("select n from stock")
            assert cursor.fetchall() == ((1,),)
        tx.close()
        other.close()
