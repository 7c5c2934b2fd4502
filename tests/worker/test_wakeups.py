"""Idle workers wake at once: by NOTIFY, by the file's change counter, by their own process; polling carries alone."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Retry, events
from holdfast.errors import DatabaseUnavailable
from holdfast.sinks import Function
from holdfast.store import Store
from holdfast.store.dialects.mysql.waker import MysqlWatcher
from holdfast.store.dialects.postgres.waker import PostgresListener
from holdfast.store.dialects.sqlite import path_of
from holdfast.store.dialects.sqlite.waker import SqliteWatcher, log_stamp
from holdfast.values.options import StoreOptions
from holdfast.worker import Worker
from tests.proxy import Proxy
from tests.servers import MariaDB
from tests.worker.stage import DEADLINE, Stage

ENQUEUE = """
import sys
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as hf:
    hf.enqueue("act", {}, check=False)
"""

PUBLISH = """
import sys
import psycopg
from holdfast import Holdfast
from holdfast.sinks import Function
with Holdfast(sys.argv[1]) as hf, psycopg.connect(sys.argv[1]) as connection:
    hf.route("order.*", to=Function(print), name="orders", ordered=True)
    hf.publish("order.created", 1, key="order:1", tx=connection if sys.argv[2] == "tx" else None)
"""


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers pause for their whole `poll` from the first time on."""
    monkeypatch.setattr("holdfast.worker.claiming.FIRST_POLL_SECONDS", 1000.0)


@pytest.mark.usefixtures("sleepy")
def test_another_process_wakes_an_idle_worker_at_once(stage: Stage) -> None:
    """With a poll of a minute, only a wake-up can be this early."""

    @stage.hf.job
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", ENQUEUE, stage.url], check=True, stdin=subprocess.DEVNULL
        )
        await stage.until_said(events.JobDone)

    began = time.monotonic()
    stage.work(body, poll=60)
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("how", ["own", "tx"])
def test_a_publish_of_another_process_wakes_an_idle_relay(pg_stage: Stage, how: str) -> None:
    """No poll comes before the test gives up: only the notification of the publish can bring the event."""
    stage, got = pg_stage, []
    stage.hf.route("order.*", to=Function(got.append), name="orders", ordered=True)
    told = [sys.executable, "-c", PUBLISH, stage.url, how]

    async def scene() -> None:
        async with stage.hf.relay(poll=10 * DEADLINE):
            for count in (1, 2):
                await asyncio.to_thread(subprocess.run, told, check=True, stdin=subprocess.DEVNULL)
                await stage.until(lambda count=count: len(got) == count, f"event {count}")
                await stage.until_empty()
        await stage.hf.aclose()

    asyncio.run(scene())


@pytest.mark.usefixtures("sleepy")
def test_its_own_process_wakes_it_without_any_wakeup_of_the_database(stage: Stage) -> None:
    hf = stage.app(notify=False)

    @hf.job
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        await asyncio.sleep(0.05)
        await act.aenqueue()
        await stage.until_said(events.JobDone)

    began = time.monotonic()
    stage.work(body, hf, poll=60)
    assert time.monotonic() - began < 30


def test_without_wakeups_polling_carries_alone(stage: Stage) -> None:
    hf = stage.app(notify=False)

    @hf.job
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "holdfast-waker"]
        stage.put("act", "{}")
        await stage.until_said(events.JobDone)

    stage.work(body, hf, poll=0.1)


@pytest.mark.usefixtures("sleepy")
def test_a_retry_at_once_wakes_an_idle_worker(stage: Stage) -> None:
    @stage.hf.job(retry=Retry(max_attempts=2, first_delay=0, max_delay=0, jitter=0))
    async def act() -> None:
        if not stage.heard(events.JobRetried):
            raise ValueError("once")

    act.enqueue()
    began = time.monotonic()
    stage.work(poll=60)
    assert time.monotonic() - began < 30


def notifications(url: str, act: Any) -> list[str]:
    """Count what a listener hears of one piece of work."""
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute("listen holdfast_wake")
        act()
        return sorted(note.payload for note in ear.notifies(timeout=0.3))


def test_one_notification_per_transaction_and_queue(pg_stage: Stage) -> None:
    stage = pg_stage

    @stage.hf.job(queue="a")
    async def one(n: int) -> None: ...

    @stage.hf.job(queue="b")
    async def two(n: int) -> None: ...

    many = [*(one.bind(n=n) for n in range(50)), *(two.bind(n=n) for n in range(50))]

    def in_one_transaction() -> None:
        with psycopg.connect(stage.url) as connection:
            for n in range(5):
                one.using(tx=connection).enqueue(n=n)

    assert notifications(stage.url, lambda: stage.hf.enqueue_many(many)) == ["a", "b"]
    assert notifications(stage.url, in_one_transaction) == ["a"]
    assert notifications(stage.url, lambda: one.using(run_after=60).enqueue(n=1)) == []
    silent = stage.app(notify=False)
    assert notifications(stage.url, lambda: silent.enqueue("one", {"n": 1}, check=False, queue="a")) == []
    silent.close()


def test_a_listener_that_is_cut_off_heals(pg_stage: Stage) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act(n: int) -> None: ...

    def listeners() -> list[Any]:
        return stage.sql(
            "select pid from pg_stat_activity where application_name = 'holdfast-listener'"
            " and datname = current_database()"
        )

    async def body(_: Worker) -> None:
        [[pid]] = await stage.until(listeners)
        stage.sql("select pg_terminate_backend(?)", pid)
        await stage.until_said(events.ListenerLost)
        job = stage.put("act", '{"n": 1}')
        await stage.until(lambda: stage.state(job) == "done", "polling carries on")
        await stage.until_said(events.ListenerRegained)

    stage.work(body, poll=0.2)
    assert len(stage.heard(events.ListenerLost)) == 1
    assert len(stage.heard(events.ListenerRegained)) == 1
    assert not stage.heard(events.DatabaseLost)


def test_a_deaf_listener_is_noticed_by_its_missing_echo(
    pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = pg_stage
    monkeypatch.setattr("holdfast.store.dialects.postgres.waker.PROBE_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.store.dialects.postgres.waker.ECHO_WITHIN_SECONDS", 0.5)
    hf = stage.app(listen_url=pg_proxy.url(stage.url), connect_timeout=1)

    @hf.job
    async def act() -> None: ...

    async def body(_: Worker) -> None:
        await stage.until(lambda: pg_proxy.connections)
        await asyncio.sleep(0.05)
        pg_proxy.blackhole()
        await stage.until_said(events.ListenerLost)
        job = await act.aenqueue()
        await stage.until(lambda: stage.state(job) == "done")
        pg_proxy.heal()
        await stage.until_said(events.ListenerRegained)

    stage.work(body, hf, poll=0.2)
    assert len(stage.heard(events.ListenerLost)) == 1


def test_a_pooler_that_drops_notifications_is_named(pg_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.dialects.postgres.waker.ECHO_WITHIN_SECONDS", 0.2)
    stage = pg_stage
    monkeypatch.setattr(PostgresListener, "_heard", lambda *_: None)

    @stage.hf.job
    async def act() -> None: ...

    act.enqueue()

    async def body(_: Worker) -> None:
        [lost] = await stage.until_said(events.ListenerLost)
        assert "listen_url" in lost.error

    stage.work(body)
    assert len(stage.heard(events.JobDone)) == 1


def test_a_watcher_that_fails_comes_back(sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = sqlite_stage
    monkeypatch.setattr("holdfast.store.wakers.FIRST_PAUSE_SECONDS", 0.02)
    real, failures = SqliteWatcher._version, iter([True, True])

    def sometimes(self: SqliteWatcher, link: Any) -> Any:
        if next(failures, False):
            raise DatabaseUnavailable("disk I/O error")
        return real(self, link)

    monkeypatch.setattr(SqliteWatcher, "_version", sometimes)

    @stage.hf.job
    async def act() -> None: ...

    stage.work(lambda _: stage.until_said(events.ListenerRegained))
    assert len(stage.heard(events.ListenerLost)) == 1


@pytest.mark.parametrize("database", ["sqlite_stage", "mariadb_stage"])
def test_a_watchers_thread_ends_with_it(database: str, request: pytest.FixtureRequest) -> None:
    stage: Stage = request.getfixturevalue(database)

    @stage.hf.job
    async def act() -> None: ...

    def watchers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "holdfast-watcher"]

    async def body(_: Worker) -> None:
        await stage.until(watchers)

    stage.work(body)
    for thread in watchers():
        thread.join(10)
    assert watchers() == []


def test_a_watcher_whose_server_falls_silent_comes_back(
    mariadb_stage: Stage, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = mariadb_stage
    monkeypatch.setattr("holdfast.store.dialects.mysql.waker.ANSWER_WITHIN_SECONDS", 0.5)

    async def watch(proxy: Proxy) -> None:
        hf = stage.app(url=proxy.url(stage.url), connect_timeout=1)
        woken: list[str | None] = []
        watching = asyncio.create_task(MysqlWatcher(hf.store, "w", woken.append, hf.events.emit).serve())
        await stage.until(lambda: woken)
        proxy.blackhole()
        await stage.until_said(events.ListenerLost)
        woken.clear()
        stage.put("act", "{}")
        proxy.heal()
        await stage.until_said(events.ListenerRegained)
        assert woken
        watching.cancel()
        await hf.aclose()

    with Proxy(mariadb.port, protocol=None) as proxy:
        asyncio.run(watch(proxy))
    assert len(stage.heard(events.ListenerLost)) == 1


def test_a_server_that_accepts_and_says_nothing_is_given_up_on(mariadb_stage: Stage, mariadb: MariaDB) -> None:
    with Proxy(mariadb.port, protocol=None) as proxy:
        proxy.blackhole()
        store = Store(proxy.url(mariadb_stage.url), StoreOptions(connect_timeout=1))
        with pytest.raises(DatabaseUnavailable):
            store.open()


def test_a_watcher_ends_when_its_loop_is_closed_under_it(sqlite_stage: Stage) -> None:
    async def leave() -> None:
        watcher = SqliteWatcher(
            sqlite_stage.hf.store, path_of(sqlite_stage.url), "w", lambda _: None, sqlite_stage.hf.events.emit
        )
        left.append(asyncio.ensure_future(watcher.serve()))
        await sqlite_stage.until(lambda: watcher.alive)

    left: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    [thread] = [thread for thread in threading.enumerate() if thread.name == "holdfast-watcher"]
    loop.close()
    thread.join(20)
    assert not thread.is_alive()


def test_unread_answers_of_mysql_tell_one_state_from_another(mariadb_stage: Stage) -> None:
    stage = mariadb_stage
    newest = "select max(id) from holdfast_jobs"
    with stage.hf.store.link() as link:
        before = link.raw.answer(newest)
        assert link.raw.answer(newest) == before
        stage.put("act", "{}")
        assert link.raw.answer(newest) != before
        with pytest.raises(Exception, match="doesn't exist"):
            link.raw.answer("select 1 from nowhere")
        # The connection is still in step with its server.
        assert len(link.raw.execute(newest).fetchall()) == 1


def test_a_watcher_reads_the_change_counter_only_when_the_log_was_written(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = sqlite_stage
    real, reads, woken = SqliteWatcher._version, [], []

    def counted(self: SqliteWatcher, link: Any) -> Any:
        reads.append(link)
        return real(self, link)

    monkeypatch.setattr(SqliteWatcher, "_version", counted)
    monkeypatch.setattr("holdfast.store.dialects.sqlite.waker.WATCH_EVERY_SECONDS", 0.001)

    @stage.hf.job
    async def act() -> None: ...

    async def watch() -> None:
        watching = asyncio.create_task(
            SqliteWatcher(stage.hf.store, path_of(stage.url), "w", woken.append, stage.hf.events.emit).serve()
        )
        await stage.until(lambda: woken)
        os.utime(f"{path_of(stage.url)}-wal", (0, 0))
        await asyncio.sleep(0.02)
        reads.clear()
        await asyncio.sleep(0.05)
        assert reads == []
        woken.clear()
        await asyncio.to_thread(act.enqueue)
        await stage.until(lambda: woken)
        watching.cancel()

    asyncio.run(watch())


def test_a_log_that_was_just_written_tells_nothing_yet(tmp_path: Path) -> None:
    """Its commit may become visible later, once the disk has it, and the next write may leave the same time."""
    log = tmp_path / "shop.db-wal"
    assert log_stamp(str(log)) is None
    log.write_bytes(b"frame")
    assert log_stamp(str(log)) is None
    os.utime(log, (0, 0))
    old = log_stamp(str(log))
    assert old is not None
    assert log_stamp(str(log)) == old
    os.utime(log, (1, 1))
    assert log_stamp(str(log)) != old
