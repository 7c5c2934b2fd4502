"""Foreign tables in another database than the application's: served by the same worker, and a burden to nobody else."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, events
from holdfast.errors import ConfigError, WrongDatabase
from holdfast.worker import Worker
from tests.foreign.conftest import Rowset, statement
from tests.foreign.rows import URN
from tests.servers import MariaDB

PATIENCE = 40.0
HOMES = pytest.mark.parametrize("home", ["sqlite", "pg"])


class Shop:
    """An application whose PHP queue is in MariaDB and whose own jobs are elsewhere."""

    def __init__(self, home: str, elsewhere: str) -> None:
        self.hf = Holdfast(home, connect_timeout=2)
        self.hf.migrate()
        self.queue = self.hf.foreign.pdo(url=elsewhere, max_attempts=1)
        self.said: list[events.Event] = []
        self.calls: list[Any] = []
        self.hf.on(events.Event, self.said.append)

        @self.hf.job
        async def ordinary(n: int) -> None:
            self.calls.append(("home", n))

        @self.queue.handler(URN)
        async def created(n: int) -> None:
            self.calls.append(("php", n))

        self.ordinary = ordinary

    def heard(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]

    def there(self, sql: str) -> Rowset:
        """Run SQL where the PHP tables are."""
        return [tuple(row) for row in self.queue.store.run(statement(sql, {}))]

    def here(self, sql: str) -> Rowset:
        return [tuple(row) for row in self.hf.store.run(statement(sql, {}))]

    async def until(self, true: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"in vain; {self.calls}; {self.said[-10:]}"
            await asyncio.sleep(0.02)

    async def until_ran(self, *calls: Any) -> None:
        await self.until(lambda: set(calls) <= set(self.calls))

    def work(self, body: Callable[[Worker], Awaitable[None]], **options: Any) -> None:
        async def scene() -> None:
            try:
                async with self.hf.worker(**{"poll": 0.05} | options) as worker:
                    await body(worker)
            finally:
                await self.hf.aclose()

        asyncio.run(scene())


@pytest.fixture
def shop(home: str, mariadb_url: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(request.getfixturevalue(f"{home}_url"), mariadb_url)
    made.queue.create_schema()
    yield made
    made.hf.close()


@HOMES
def test_one_worker_serves_messages_of_another_database_beside_its_own_jobs(shop: Shop) -> None:
    for n in range(20):
        shop.ordinary.enqueue(n=n)
        shop.queue.publish(URN, {"n": n})

    async def body(_: Worker) -> None:
        await shop.until_ran(*((place, n) for place in ("home", "php") for n in range(20)))
        await shop.until(lambda: shop.there("select count(*) from jobs") == [(0,)])

    shop.work(body)
    assert len(shop.calls) == 40
    tables = "select table_name from information_schema.tables where table_schema = database() order by 1"
    assert shop.there(tables) == [("jobs",), ("jobs_failed",)], "nothing of ours is needed there"
    assert {event.source for event in shop.heard(events.JobDone)} == {"jobs", "pdo:jobs"}
    assert not shop.heard(events.ListenerLost), "nothing watches for jobs where there is no table of ours"
    assert not shop.heard(events.UpkeepFailed)


@HOMES
@pytest.mark.parametrize("colour", ["async", "def"])
def test_an_effect_and_the_ack_commit_together_where_the_message_is(shop: Shop, colour: str) -> None:
    shop.there("create table effects (n integer)")
    shop.here("create table effects (n integer)")
    insert = "insert into effects values (1)"

    async def acts(job: Job) -> None:
        async with job.transaction() as tx, tx.cursor() as cursor:
            await cursor.execute(insert)

    def acts_too(job: Job) -> None:
        with job.transaction() as tx:
            tx.cursor().execute(insert)

    async def rolls_back(job: Job) -> None:
        async with job.transaction() as tx, tx.cursor() as cursor:
            await cursor.execute(insert)
            raise ValueError("no")

    handler: Any = acts if colour == "async" else acts_too
    shop.queue.handler("urn:acts")(handler)
    shop.queue.handler("urn:rolls-back")(rolls_back)
    shop.queue.publish("urn:acts", {})
    shop.queue.publish("urn:rolls-back", {})

    async def body(_: Worker) -> None:
        await shop.until(lambda: shop.there("select count(*) from jobs") == [(0,)])

    shop.work(body)
    assert (shop.there("select n from effects"), shop.here("select n from effects")) == ([(1,)], [])
    assert shop.there("select urn from jobs_failed") == [("urn:rolls-back",)]


@HOMES
def test_a_job_cannot_be_enqueued_in_the_transaction_of_another_database(shop: Shop) -> None:
    refused: list[Exception] = []

    @shop.queue.handler("urn:enqueues")
    def enqueues(job: Job) -> None:
        key = str(job.headers["message_id"])
        with job.transaction() as tx:
            try:
                shop.ordinary.using(tx=tx).enqueue(n=1)
            except WrongDatabase as error:
                refused.append(error)
            for _ in range(2):
                shop.ordinary.using(idempotency_key=key).enqueue(n=2)

    shop.queue.publish("urn:enqueues", {})

    async def body(_: Worker) -> None:
        await shop.until_ran(("home", 2))
        await shop.until(lambda: shop.there("select count(*) from jobs") == [(0,)])

    shop.work(body)
    assert len(refused) == 1
    assert shop.calls == [("home", 2)]
    assert shop.there("select count(*) from jobs_failed") == [(0,)]


@pytest.mark.slow
@HOMES
def test_a_server_that_stops_and_comes_back_costs_only_its_own_jobs(shop: Shop, mariadb: MariaDB) -> None:
    shop.there("create table effects (n integer)")

    @shop.queue.handler("urn:effect")
    async def effect(job: Job, n: int) -> None:
        async with job.transaction() as tx, tx.cursor() as cursor:
            await asyncio.sleep(0.01)
            await cursor.execute(f"insert into effects values ({n})")  # noqa: S608 - a number of this test

    for n in range(100):
        shop.queue.publish("urn:effect", {"n": n})

    async def body(_: Worker) -> None:
        await shop.until(lambda: len(shop.heard(events.JobDone)) >= 5)
        await asyncio.to_thread(mariadb.stop, signal.SIGKILL)
        await shop.until(lambda: shop.heard(events.DatabaseLost))
        for n in range(50):
            await shop.ordinary.aenqueue(n=n)
        await shop.until_ran(*(("home", n) for n in range(50)))
        assert not shop.heard(events.DatabaseRegained), "that was during the outage"
        await asyncio.to_thread(mariadb.start)
        await shop.until(lambda: shop.heard(events.DatabaseRegained))
        await shop.until(lambda: shop.there("select count(*) from jobs") == [(0,)])

    shop.work(body, concurrency=10)
    assert {event.store.partition("://")[0] for event in shop.heard(events.DatabaseLost)} == {"mysql"}
    effects = [n for (n,) in shop.there("select n from effects")]
    failed = shop.there("select count(*) from jobs_failed")[0][0]
    assert len(effects) == len(set(effects)), "an effect was doubled"
    assert len(effects) + failed == 100, "a message was lost, or both done and dead"
    assert sorted(n for place, n in shop.calls if place == "home") == list(range(50))


@HOMES
def test_a_worker_starts_while_another_database_is_down(shop: Shop, mariadb: MariaDB) -> None:
    shop.queue.publish(URN, {"n": 1})
    shop.ordinary.enqueue(n=1)
    mariadb.stop()

    async def body(_: Worker) -> None:
        await shop.until_ran(("home", 1))
        await shop.until(lambda: shop.heard(events.DatabaseLost))
        await asyncio.to_thread(mariadb.start)
        await shop.until_ran(("php", 1))

    shop.work(body)
    assert len(shop.calls) == 2


def test_tables_that_are_missing_where_a_database_came_back_are_told_and_waited_for(
    sqlite_url: str, mariadb: MariaDB, mariadb_url: str
) -> None:
    shop = Shop(sqlite_url, mariadb_url)
    shop.ordinary.enqueue(n=1)
    mariadb.stop()

    async def body(_: Worker) -> None:
        await shop.until_ran(("home", 1))
        await asyncio.to_thread(mariadb.start)
        await shop.until(lambda: any("no table jobs" in each.error for each in shop.heard(events.DatabaseLost)))
        await shop.queue.acreate_schema()
        await shop.queue.apublish(URN, {"n": 1})
        await shop.until_ran(("php", 1))

    shop.work(body)


def test_a_worker_does_not_start_where_the_other_database_lacks_the_tables(sqlite_url: str, mariadb_url: str) -> None:
    async def nothing(_: Worker) -> None: ...

    with pytest.raises(Exception, match="There is no table jobs and no jobs_failed, which pdo:jobs needs"):
        Shop(sqlite_url, mariadb_url).work(nothing)


def test_remote_steps_of_another_postgres_are_served(sqlite_url: str, pg_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    steps = hf.foreign.durable(url=pg_url)
    steps.create_schema()

    @steps.step("add")
    async def add(value: int) -> int:
        return value + 1

    there, results = steps.store.run, statement("select output from durable_transport_results", {})
    there(
        statement(
            "insert into durable_transport_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at) "
            "values ('r:0', 'r', 0, 'add', 'add', '41', 1, 'pending', 1)",
            {},
        )
    )

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            while not await steps.store.arun(results):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        await hf.aclose()

    asyncio.run(scene())
    assert [tuple(row) for row in there(results)] == [("42",)]
    hf.close()


@pytest.mark.slow
def test_messages_in_another_file_wake_the_worker(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not found by polling: the pauses are longer than the test may take."""
    monkeypatch.setattr("holdfast.worker.claiming.FIRST_POLL_SECONDS", 1000.0)
    shop = Shop(sqlite_url, f"sqlite:///{tmp_path}/php.db")
    shop.queue.create_schema()
    with Holdfast(f"sqlite:///{tmp_path}/php.db") as other:

        async def body(_: Worker) -> None:
            # By then the first look is over, and whatever wakes the worker listens.
            await asyncio.sleep(0.5)
            await asyncio.to_thread(other.foreign.pdo().publish, URN, {"n": 1})
            await shop.until_ran(("php", 1))

        shop.work(body, poll=1000)


def test_tables_of_one_name_in_two_databases_get_names_of_their_own(sqlite_url: str, tmp_path: Path) -> None:
    hf = Holdfast(sqlite_url)
    there = f"sqlite:///{tmp_path}/php.db"
    here = hf.foreign.pdo()
    with pytest.raises(ConfigError, match=r"pdo:jobs: is served already, in another database; give one .* name="):
        hf.foreign.pdo(url=there)
    legacy = hf.foreign.pdo(url=there, name="legacy")
    assert legacy is hf.foreign.pdo(url=there, name="legacy")
    assert (here.name, legacy.name) == ("pdo:jobs", "pdo:legacy")
    legacy.create_schema()
    here.create_schema()
    legacy.publish(URN, {})
    count = statement("select count(*) from jobs", {})
    assert [tuple(next(iter(source.store.run(count)))) for source in (here, legacy)] == [(0,), (1,)]
    with pytest.raises(ConfigError, match="name"):
        hf.foreign.pdo(name="no?good")
    hf.close()


def test_a_kind_that_the_other_database_cannot_serve_is_refused(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    with pytest.raises(ConfigError, match=r"^pdo:.*: these tables are served on mysql and sqlite only"):
        hf.foreign.pdo(url="postgresql://nobody@localhost/nothing")
    with pytest.raises(ConfigError, match="url"):
        hf.foreign.pdo(url="php.db")


def test_publishing_in_a_transaction_of_the_wrong_database_is_refused(sqlite_url: str, mariadb_url: str) -> None:
    hf = Holdfast(sqlite_url)
    queue = hf.foreign.pdo(url=mariadb_url)
    queue.create_schema()
    with hf.store.transaction() as link, pytest.raises(WrongDatabase):
        queue.publish(URN, {}, tx=link.raw)
    hf.close()


def test_close_closes_the_connections_to_every_database(sqlite_url: str, mariadb: MariaDB, mariadb_url: str) -> None:
    shop = Shop(sqlite_url, mariadb_url)
    shop.queue.create_schema()
    name = mariadb_url.rpartition("/")[2]
    sessions = f"select count(*) from information_schema.processlist where db = '{name}'"  # noqa: S608 - our own name
    assert mariadb.execute(sessions)[0][0] == 1
    shop.hf.close()
    asyncio.run(shop.until(lambda: mariadb.execute(sessions)[0][0] == 0))

    async def in_async() -> None:
        await shop.queue.apublish(URN, {"n": 1})
        assert mariadb.execute(sessions)[0][0] == 1
        await shop.hf.aclose()
        await shop.until(lambda: mariadb.execute(sessions)[0][0] == 0)

    asyncio.run(in_async())


APP = """
from holdfast import Holdfast

hf = Holdfast({home!r})
queue = hf.foreign.pdo(url={elsewhere!r})


@queue.handler("urn:babel:orders:created")
def created(n: int) -> None:
    with open("ran.txt", "a") as file:
        file.write(f"{{n}}\\n")


# Before the processes are forked: each of them must open connections of its own.
queue.publish("urn:babel:orders:created", {{"n": 0}})
"""


@pytest.mark.slow
def test_forked_workers_open_their_own_connections_to_every_database(
    sqlite_url: str, mariadb_url: str, tmp_path: Path
) -> None:
    shop = Shop(sqlite_url, mariadb_url)
    shop.queue.create_schema()
    for n in range(1, 200):
        shop.queue.publish(URN, {"n": n})
    (tmp_path / "app.py").write_text(APP.format(home=sqlite_url, elsewhere=mariadb_url))
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", "app:hf", "--processes", "2"]
    log = (tmp_path / "log.txt").open("wb")
    worker = subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ), stdout=log, stderr=log)
    try:
        asyncio.run(shop.until(lambda: shop.there("select count(*) from jobs") == [(0,)]))
        worker.terminate()
        assert worker.wait(PATIENCE) == 0, (tmp_path / "log.txt").read_text()
    finally:
        worker.kill()
        worker.wait()
        log.close()
        shop.hf.close()
    assert sorted(map(int, (tmp_path / "ran.txt").read_text().split())) == list(range(200))
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
