"""Connections of the pools: none is lent in an unknown state, none outlives its event loop, a lost one is replaced."""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from holdfast import Holdfast, admin, jobs
from holdfast.errors import DatabaseBusy, DatabaseUnavailable, HoldfastError
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store, migrate
from holdfast.values.options import StoreOptions
from holdfast.values.rows import NewJob
from tests.servers import Postgres


def new_job(job_id: str = "00000000-0000-7000-8000-000000000001") -> NewJob:
    return NewJob(job_id, "default", "noop", "{}")


def added(store: Store) -> str:
    key = "`key`" if store.dialect.name == "mysql" else "key"
    return f"insert into {store.dialect.table('meta')} ({key}, value) values ('left', 'open')"  # noqa: S608


def is_there(store: Store) -> bool:
    with store.link() as link:
        cursor = link.raw.cursor()
        cursor.execute(f"select count(*) from {store.dialect.table('meta')} where value = 'open'")  # noqa: S608
        return bool(cursor.fetchone()[0])


def test_a_connection_given_back_inside_a_transaction_is_not_lent_again(store: Store) -> None:
    with store.link() as link:
        link.tell(store.dialect.begin)
        link.raw.cursor().execute(added(store))
    store.run(jobs.enqueue(new_job()))
    assert store.run(admin.show(new_job().id)).state == "pending"
    other = Store(store.url)
    assert not is_there(other)
    assert other.run(admin.show(new_job().id)).state == "pending"
    other.close()


def test_an_async_connection_given_back_inside_a_transaction_is_not_lent_again(store: Store) -> None:
    if store.embedded:
        pytest.skip("SQLite has no async connections")

    async def scene() -> None:
        async with store.alink() as link:
            await link.tell(store.dialect.begin)
            await link.raw.execute(added(store))
        await store.arun(jobs.enqueue(new_job()))
        await store.aclose()

    asyncio.run(scene())
    assert not is_there(store)
    assert store.run(admin.show(new_job().id)).state == "pending"


def slow(store: Store) -> str:
    return f"select {'pg_sleep' if store.dialect.name == 'postgres' else 'sleep'}(0.5)"


@flow
def asked(sql: str) -> Steps[Any]:
    return (yield from run_text("asked", sql))[0][0]


@pytest.mark.parametrize("fails", [False, True], ids=["left", "failed"])
def test_an_async_connection_given_back_while_a_statement_runs_is_not_lent_again(store: Store, fails: bool) -> None:
    if store.embedded:
        pytest.skip("SQLite has no async connections")
    one = Store(store.url, replace(store.options, pool_size=1))

    async def scene() -> Any:
        with suppress(ValueError):
            async with one.alink() as link:
                running = asyncio.create_task(link.raw.execute(slow(store)))
                await asyncio.sleep(0.05)
                if fails:
                    raise ValueError
        answer = await one.arun_once(asked("select 42"))
        await asyncio.gather(running, return_exceptions=True)
        await one.aclose()
        return answer

    assert asyncio.run(scene()) == 42


def test_a_call_that_is_cancelled_in_the_middle_leaves_its_answer_to_nobody(store: Store) -> None:
    if store.embedded:
        pytest.skip("SQLite's statements run on a thread, which cannot be cancelled")
    one = Store(store.url, replace(store.options, pool_size=1))

    async def scene() -> list[Any]:
        answers = []
        for n in range(3):
            running = asyncio.create_task(one.arun(asked(slow(store))))
            await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.wait([running])
            answers += [running.cancelled(), await one.arun_once(asked(f"select {40 + n}"))]
        await one.aclose()
        return answers

    assert asyncio.run(scene()) == [True, 40, True, 41, True, 42]


def test_a_database_in_memory_outlives_an_interrupted_transaction() -> None:
    store = Store("sqlite:///:memory:")
    store.run(jobs.enqueue(new_job()))
    with store.link() as link:
        link.tell(store.dialect.begin)
        link.raw.execute(added(store))
    assert store.run(admin.show(new_job().id)).state == "pending"
    assert not is_there(store)
    store.close()


def test_a_moment_without_threads_costs_an_async_enqueue_a_repeat(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()

    @hf.job
    async def noop(n: int) -> None: ...

    refused: list[str] = []
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-sqlite") and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    async def scene() -> str:
        answer = await noop.aenqueue(n=1)
        await hf.aclose()
        return answer.id

    monkeypatch.setattr(threading.Thread, "start", start)
    job_id = asyncio.run(scene())
    assert len(refused) == 2
    assert [view.id for view in hf.store.run(admin.list_jobs())] == [job_id]
    hf.close()


class Interrupted:
    """A lock that is taken just when a signal comes."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.hits = 1

    def acquire(self, timeout: float) -> bool:
        got = bool(self._lock.acquire(timeout=timeout))
        if self.hits:
            self.hits -= 1
            raise KeyboardInterrupt
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_an_interrupt_leaves_sqlite_usable(sqlite_url: str) -> None:
    store = Store(sqlite_url, StoreOptions(busy_timeout=0.2))
    store.run(migrate.apply(store.migrations))
    store._line = Interrupted(store._line)
    with pytest.raises(KeyboardInterrupt):
        store.run(jobs.enqueue(new_job()))
    # By another thread: the one that was interrupted might still own the lock and pass.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(store.run, jobs.enqueue(new_job())).result()
    assert store.run(admin.show(new_job().id)).state == "pending"
    store.close()


def test_a_thread_that_waits_for_itself_is_told_at_once(sqlite_url: str) -> None:
    store = Store(sqlite_url, StoreOptions(busy_timeout=60))
    store.run(migrate.apply(store.migrations))
    with store.transaction(), pytest.raises(DatabaseBusy, match="give its connection as tx="):
        store.run(jobs.enqueue(new_job()))
    store.close()


@pytest.fixture(params=["pg", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def mysql_sessions(url: str) -> list[int]:
    address = urlsplit(url)
    database = address.path.strip("/")
    with closing(pymysql.connect(host="127.0.0.1", port=address.port or 0, user="root")) as connection:
        cursor = connection.cursor()
        cursor.execute("select id from information_schema.processlist where db = %s", [database])
        return [row[0] for row in cursor.fetchall()]


def sessions(url: str) -> int:
    if url.startswith("mysql"):
        return len(mysql_sessions(url))
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone()
    assert found
    return int(found[0])


def until_sessions(url: str, most: int) -> int:
    """Wait for a server that still ends sessions; return how many are left."""
    deadline = time.monotonic() + 20
    while (count := sessions(url)) > most and time.monotonic() < deadline:
        time.sleep(0.02)
    return count


def test_connections_do_not_pile_up_over_event_loops(server_url: str) -> None:
    hf = Holdfast(server_url)
    hf.migrate()

    @hf.job
    async def noop(n: int) -> None: ...

    hf.close()
    for n in range(10):
        asyncio.run(noop.aenqueue(n=n))
    assert until_sessions(server_url, 0) == 0


# What nobody closed in time complains when it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_connections_of_a_loop_that_was_closed_in_a_hurry_are_hung_up(server_url: str) -> None:
    hf = Holdfast(server_url)
    hf.migrate()

    @hf.job
    async def noop(n: int) -> None: ...

    hf.close()
    for n in range(10):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(noop.aenqueue(n=n))
        loop.close()
    assert until_sessions(server_url, 1) == 1
    hf.close()
    assert until_sessions(server_url, 0) == 0
    del loop
    gc.collect()


def test_idle_connections_that_the_server_ended_are_replaced(pg_url: str) -> None:
    """More of them than a call has tries."""
    hf = Holdfast(pg_url)
    hf.migrate()

    @hf.job
    async def noop(n: int) -> None: ...

    async def scene() -> None:
        for _ in range(5):
            await asyncio.gather(*(noop.aenqueue(n=n) for n in range(20)))
            end_sessions(pg_url)
            await asyncio.gather(*(noop.aenqueue(n=n) for n in range(20)))
        await hf.aclose()

    asyncio.run(scene())
    assert len(hf.store.run(admin.list_jobs(limit=1000))) == 200
    hf.close()


def test_a_worker_starts_while_its_idle_connections_were_cut(server_url: str) -> None:
    hf = Holdfast(server_url)
    hf.migrate()
    ran: list[int] = []
    all_ran = asyncio.Event()

    @hf.job
    async def note(n: int) -> None:
        ran.append(n)
        if len(ran) == 20:
            all_ran.set()

    async def scene() -> None:
        await asyncio.gather(*(note.aenqueue(n=n) for n in range(20)))
        end_sessions(server_url)
        async with hf.worker(poll=0.05) as worker:
            await asyncio.wait_for(all_ran.wait(), 40)
            assert worker.failure is None
        await hf.aclose()

    asyncio.run(scene())
    assert sorted(ran) == list(range(20))
    hf.close()


def end_sessions(url: str, share: float = 1.0) -> None:
    if url.startswith("mysql"):
        with closing(pymysql.connect(host="127.0.0.1", port=urlsplit(url).port or 0, user="root")) as connection:
            for session in mysql_sessions(url):
                with suppress(pymysql.err.OperationalError):
                    connection.query(f"kill {session}")
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and random() < %s",
            [share],
        )


@pytest.mark.slow
def test_cut_sessions_are_an_outage_and_never_a_refused_query(postgres: Postgres, pg_url: str) -> None:
    hf = Holdfast(pg_url, pool_size=4)
    hf.migrate()
    over = threading.Event()

    @hf.job
    async def noop(n: str) -> None: ...

    def cut() -> None:
        while not over.wait(0.03):
            end_sessions(pg_url, 0.5)

    async def enqueue(who: int, answered: list[str], errors: list[HoldfastError]) -> None:
        ends = time.monotonic() + 3
        count = 0
        while time.monotonic() < ends:
            count += 1
            try:
                await noop.using(unique=f"{who}-{count}").aenqueue(n=f"{who}-{count}")
                answered.append(f"{who}-{count}")
            except HoldfastError as error:
                errors.append(error)

    async def scene() -> tuple[list[str], list[HoldfastError]]:
        answered: list[str] = []
        errors: list[HoldfastError] = []
        await asyncio.gather(*(enqueue(who, answered, errors) for who in range(4)))
        await hf.aclose()
        return answered, errors

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        answered, errors = asyncio.run(scene())
    finally:
        over.set()
        thread.join()
    assert answered
    assert [error for error in errors if not isinstance(error, DatabaseUnavailable)] == []
    there = [view.payload for view in hf.store.run(admin.list_jobs(limit=100_000))]
    assert len(there) == len(set(there))
    assert {f'{{"n":"{name}"}}' for name in answered} <= set(there)
    hf.close()
