"""What kills workers, networks and databases, done to real ones: nothing is lost, nothing is done twice in a commit."""

import asyncio
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, Retry, events
from holdfast.worker import Worker
from tests.proxy import Proxy
from tests.servers import Postgres, faketime_env
from tests.worker.conftest import (
    crew,
    mariadb_stage,
    migrated_file,
    migrated_mariadb,
    migrated_mysql,
    migrated_template,
    mysql_stage,
    pg_stage,
    sqlite_stage,
    stage,
)
from tests.worker.processes import Crew, Process, crew_on, until
from tests.worker.stage import Stage

__all__ = [
    "crew",
    "mariadb_stage",
    "migrated_file",
    "migrated_mariadb",
    "migrated_mysql",
    "migrated_template",
    "mysql_stage",
    "pg_stage",
    "sqlite_stage",
    "stage",
]


@pytest.fixture
def pg_crew(pg_stage: Stage, tmp_path: Path) -> Any:
    with crew_on(pg_stage, tmp_path) as crew:
        yield crew


def enqueue(stage: Stage, kind: str, **payload: Any) -> Any:
    return stage.hf.enqueue(kind, payload, check=False)


def holder(stage: Stage, job: Any) -> Any:
    """The pid that runs a job, once its handler has said so."""
    return until(lambda: (stage.show(job).progress or {}).get("pid"))


def is_stopped(pid: int) -> bool:
    threads = [task.joinpath("stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(one.rpartition(")")[2].split()[0] == "T" for one in threads)


def freeze(process: Process, stage: Stage) -> None:
    """Stop a process in its tracks, but not while it holds the lock of a SQLite file, which would stop everybody."""
    while True:
        process.send(signal.SIGSTOP)
        # A signal needs a moment: a thread that goes on until then may just begin a transaction.
        until(lambda: is_stopped(process.pid))
        if not stage.is_sqlite:
            return
        probe = sqlite3.connect(stage.url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)
        try:
            probe.execute("begin immediate")
            return
        except sqlite3.OperationalError:
            process.send(signal.SIGCONT)
        finally:
            probe.close()


@pytest.mark.parametrize("kind", ["slow", "slow_thread"])
def test_the_job_of_a_killed_worker_is_finished_by_another(crew: Crew, kind: str) -> None:
    job = enqueue(crew.stage, kind, seconds=600)
    victim = crew.start().started()
    holder(crew.stage, job)
    other = crew.start().started()
    victim.end(signal.SIGKILL)
    until(lambda: crew.stage.state(job) == "done")
    shown = crew.stage.show(job)
    assert (shown.result, shown.attempts) == (other.pid, 1)
    assert [error["type"] for error in shown.errors] == ["LeaseExpired"]
    assert len(other.said("job reaped")) == 1


def test_a_worker_stopped_for_longer_than_its_lease_changes_nothing_when_it_comes_back(crew: Crew) -> None:
    stage = crew.stage
    job = enqueue(stage, "slow", seconds=2)
    zombie = crew.start().started()
    holder(stage, job)
    freeze(zombie, stage)
    other = crew.start().started()
    until(lambda: stage.state(job) == "done")
    before = stage.show(job)
    zombie.send(signal.SIGCONT)
    zombie.until_said("lease was lost")
    zombie.until_said("loop blocked")
    assert stage.show(job) == before
    assert (before.result, before.attempts) == (other.pid, 1)
    # It is none the worse for it.
    other.end()
    again = enqueue(stage, "slow", seconds=0)
    until(lambda: stage.state(again) == "done")
    assert stage.show(again).result == zombie.pid
    assert zombie.end() == 0


def test_a_handler_that_blocks_the_event_loop_loses_its_lease_and_its_late_result(crew: Crew, tmp_path: Path) -> None:
    stage = crew.stage
    job = enqueue(stage, "blocks", until=str(tmp_path / "enough"))
    blocked = crew.start().started()
    holder(stage, job)
    other = crew.start().started()
    until(lambda: stage.state(job) == "done")
    before = stage.show(job)
    (tmp_path / "enough").touch()
    blocked.until_said("lease was lost")
    # On a busy machine the loop may be late a second time, for a moment.
    assert max(said["seconds"] for said in blocked.until_said("loop blocked")) > 1
    assert stage.show(job) == before
    assert (before.result, before.attempts) == (other.pid, 1)


def test_a_blocked_event_loop_cannot_keep_a_process_from_ending(sqlite_stage: Stage, tmp_path: Path) -> None:
    with crew_on(sqlite_stage, tmp_path) as crew:
        job = enqueue(sqlite_stage, "blocks", until=str(tmp_path / "never"))
        worker = crew.start("--drain", "0").started()
        holder(sqlite_stage, job)
        worker.send(signal.SIGTERM)
        # Two signals sent together may arrive as one; the second makes it seconds instead of the drain time and more.
        time.sleep(0.05)
        assert worker.end() == 1
        assert "apps/shop.py" in worker.text(), "the traceback of what held it up"


@pytest.mark.parametrize("database, how", [("sqlite", "exit"), ("sqlite", "segfault"), ("postgres", "kill")])
def test_a_job_that_kills_its_process_ends_in_the_dead_letters_and_others_finish(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, how: str
) -> None:
    stage: Stage = request.getfixturevalue("sqlite_stage" if database == "sqlite" else "pg_stage")
    killer = stage.hf.enqueue("kills", {"how": how}, check=False, max_attempts=2)
    others = [enqueue(stage, "quick", n=n) for n in range(20)]
    with crew_on(stage, tmp_path) as crew:
        parent = crew.start("--processes", "2")
        until(lambda: stage.state(killer) == "dead")
        until(lambda: all(stage.state(job) == "done" for job in others))
        assert parent.end() == 0
    shown = stage.show(killer)
    assert (shown.attempts, {error["type"] for error in shown.errors}) == (2, {"LeaseExpired"})


def test_a_restarted_database_costs_time_and_nothing_else(pg_crew: Crew, postgres: Postgres) -> None:
    stage = pg_crew.stage
    count = 1_500
    stage.sql("create table effects (n integer)")
    workers = [worker.started() for worker in [pg_crew.start() for _ in range(2)]]
    ledger = {"queue": "ledger", "max_attempts": 50}
    stage.hf.enqueue_many([stage.hf.bind("effect", {"n": n}, check=False, **ledger) for n in range(count)])
    until(lambda: stage.sql("select count(*) > 200 from effects") == [(True,)])
    postgres.stop("immediate")
    for worker in workers:
        worker.until_said("database lost")
    postgres.start()
    until(lambda: not stage.live())
    for worker in workers:
        worker.until_said("database regained")
        assert worker.end() == 0
        assert (len(worker.said("database lost")), len(worker.said("database regained"))) == (1, 1)
        assert len(worker.said("listener lost")) <= 1
    assert stage.sql("select count(*), count(distinct n) from effects") == [(count, count)]
    assert stage.sql("select outcome, count(*) from holdfast_finished group by outcome") == [("done", count)]


def test_a_worker_can_be_stopped_while_its_database_is_away(pg_crew: Crew, postgres: Postgres) -> None:
    stage = pg_crew.stage
    job = enqueue(stage, "slow", seconds=600)
    worker = pg_crew.start("--drain", "0.2").started()
    holder(stage, job)
    postgres.stop("immediate")
    try:
        assert worker.end() == 0
    finally:
        postgres.start()
    shown = stage.show(job)
    assert (shown.state, shown.attempts) == ("leased", 1)


def test_workers_with_wrong_clocks_change_nothing(pg_crew: Crew) -> None:
    stage = pg_crew.stage
    fast = pg_crew.start(env=faketime_env("+1h")).started()
    late = pg_crew.start(env=faketime_env("-1h")).started()
    long = enqueue(stage, "slow", seconds=4.5)
    quick = [enqueue(stage, "quick", n=n) for n in range(20)]
    until(lambda: stage.state(long) == "done")
    until(lambda: all(stage.state(job) == "done" for job in quick))
    # Past two leases, and neither the holder nor the other thought that it had run out.
    assert (stage.show(long).attempts, fast.said("job reaped"), late.said("job reaped")) == (1, [], [])
    job = enqueue(stage, "slow", seconds=600)
    pid = holder(stage, job)
    left = "select extract(epoch from lease_expires_at - statement_timestamp())::float from holdfast_jobs"
    [[seconds]] = stage.sql(left)
    assert 0 < seconds <= 2
    os.kill(pid, signal.SIGKILL)
    until(lambda: stage.state(job) == "done")
    assert (stage.show(job).attempts, len(stage.show(job).errors)) == (1, 1)


def test_a_network_that_swallows_everything_is_noticed_and_outlived(
    pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reset, no error, only silence: without a time limit of its own, a worker would wait for hours."""
    monkeypatch.setattr("holdfast.worker.patience.ANSWER_SECONDS", 0.5)
    stage = pg_stage
    hf = Holdfast(pg_proxy.url(stage.url), connect_timeout=0.5, notify=False)
    hf.on(events.Event, stage.said.append)

    @hf.job(lease=30)
    async def act(n: int) -> None:
        await asyncio.sleep(0.05)

    async def body(_: Worker) -> None:
        await hf.aenqueue_many([act.bind(n=n) for n in range(40)])
        await stage.until_said(events.JobDone, 5)
        pg_proxy.blackhole()
        await stage.until_said(events.DatabaseLost)
        pg_proxy.reset_all()
        pg_proxy.heal()
        await stage.until_empty()

    stage.work(body, hf, poll=0.1, concurrency=4)
    assert len(stage.heard(events.DatabaseLost)) == len(stage.heard(events.DatabaseRegained)) == 1
    assert stage.sql("select outcome, count(*) from holdfast_finished group by outcome") == [("done", 40)]
    assert {event.id for event in stage.heard(events.JobDone)} == {
        str(row[0]) for row in stage.sql("select id from holdfast_finished")
    }


def test_a_lost_answer_to_a_settle_is_asked_again_and_told_once(pg_stage: Stage, pg_proxy: Proxy) -> None:
    stage = pg_stage
    hf = Holdfast(pg_proxy.url(stage.url), notify=False)
    hf.on(events.Event, stage.said.append)

    @hf.job
    async def act(n: int) -> int:
        return n

    hf.enqueue_many([act.bind(n=n) for n in range(5)])
    told: list[str] = []

    def is_the_settle(tag: str) -> bool:
        """Know it by its one row that answers for all five, the first after the claim."""
        told.append(tag)
        return tag == "SELECT 1" and "UPDATE 5" in told

    pg_proxy.drop_reply(is_the_settle)
    stage.work(lambda _: stage.until_said(events.JobDone, 5), hf)
    assert pg_proxy.cuts == 1
    assert len(stage.heard(events.JobDone)) == 5
    assert not stage.heard(events.LeaseWasLost)
    assert stage.sql("select count(*) from holdfast_finished where attempts = 1") == [(5,)]


def test_a_lost_answer_to_the_commit_of_an_effect_does_not_repeat_it(pg_stage: Stage, pg_proxy: Proxy) -> None:
    stage = pg_stage
    stage.sql("create table effects (n integer)")
    hf = Holdfast(pg_proxy.url(stage.url), notify=False)
    hf.on(events.Event, stage.said.append)

    @hf.job(retry=Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0))
    async def act(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into effects values (1)")
            pg_proxy.cut_commit_reply()

    job = act.enqueue()
    stage.work(lambda _: stage.until_said(events.LeaseWasLost), hf)
    assert pg_proxy.cuts == 1
    assert stage.sql("select count(*) from effects") == [(1,)]
    assert (stage.state(job), stage.show(job).attempts) == ("done", 1)


def test_a_connection_gone_stale_is_no_outage(pg_stage: Stage, pg_proxy: Proxy) -> None:
    stage = pg_stage
    hf = Holdfast(pg_proxy.url(stage.url), notify=False)
    hf.on(events.Event, stage.said.append)

    @hf.job
    async def act(n: int) -> None: ...

    async def body(_: Worker) -> None:
        for n in range(5):
            await act.aenqueue(n=n)
            await stage.until_said(events.JobDone, n + 1)
            pg_proxy.reset_all()

    stage.work(body, hf, poll=0.05)
    assert not stage.heard(events.DatabaseLost)


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_connection_gone_stale_costs_no_attempt(pg_stage: Stage, pg_proxy: Proxy, colour: str) -> None:
    """The handler's transaction begins on a connection that died while it lay idle."""
    stage = pg_stage
    hf = Holdfast(pg_proxy.url(stage.url), notify=False)
    hf.on(events.Event, stage.said.append)

    if colour == "async":

        @hf.job(kind="act")
        async def act(job: Job, n: int) -> None:
            async with job.transaction() as tx:
                await tx.execute("select 1")
    else:

        @hf.job(kind="act")
        def act(job: Job, n: int) -> None:
            with job.transaction() as tx:
                tx.execute("select 1")

    async def body(_: Worker) -> None:
        for n in range(3):
            await act.aenqueue(n=n)
            await stage.until_said(events.JobDone, n + 1)
            pg_proxy.reset_all()

    stage.work(body, hf, poll=0.05)
    assert not stage.heard(events.JobRetried)


def test_a_locked_file_costs_time_and_nothing_else(sqlite_stage: Stage) -> None:
    """Somebody holds the write lock for longer than the busy time-out and the lease."""
    stage = sqlite_stage
    hf = stage.app(busy_timeout=0.1)

    @hf.job(lease=1)
    async def act(job: Job) -> int:
        await asyncio.sleep(0.3)
        return job.attempt

    job = act.enqueue()

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobStarted)
        blocker = sqlite3.connect(stage.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
        blocker.execute("begin immediate")
        began = time.monotonic()
        while time.monotonic() - began < 1.5:  # noqa: ASYNC110 - longer than the lease
            await asyncio.sleep(0.02)
        blocker.rollback()
        blocker.close()
        await stage.until_empty()

    stage.work(body, hf, poll=0.05)
    assert (stage.state(job), stage.show(job).result) == ("done", 1)
    assert not stage.heard(events.DatabaseLost)
