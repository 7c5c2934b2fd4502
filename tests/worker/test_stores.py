"""One worker serves sources of several stores, and an outage of one costs only its own jobs."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, events, jobs
from holdfast.errors import SchemaMissing
from holdfast.jobs.source import JobsSource
from holdfast.worker import Worker
from holdfast.worker.branch import Served
from tests.proxy import Proxy
from tests.worker.stage import Stage

OTHER_DATABASES = pytest.mark.parametrize("other", ["sqlite", "postgres"])


@pytest.fixture
def second(sqlite_stage: Stage, migrated_file: Path, tmp_path: Path) -> Iterator[Stage]:
    """A second file with our tables; what its application hears is kept by the first stage."""
    stage = Stage(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'second.db')}")
    yield stage
    stage.close()


@pytest.fixture
def other_stage(other: str, request: pytest.FixtureRequest) -> Stage:
    found: Stage = request.getfixturevalue({"sqlite": "second", "postgres": "pg_stage"}[other])
    return found


def serves(app: Holdfast, other: Holdfast) -> Served:
    """Say that a worker of `app` is to serve the jobs of the other application's store, too, by the same handlers."""
    floors = other.store.dialect.keeps_dead_rows
    return Served(other.store, [JobsSource(["default", "elsewhere"], app.handlers, floors=floors)])


def work(app: Holdfast, other: Holdfast, body: Callable[[Worker], Awaitable[None]], **options: Any) -> None:
    async def scene() -> None:
        worker = Worker(app.context, app.handlers, also=[serves(app, other)], **{"poll": 0.05} | options)
        try:
            async with asyncio.timeout(60), worker:
                await body(worker)
        finally:
            await app.aclose()
            await other.aclose()

    asyncio.run(scene())


@OTHER_DATABASES
def test_a_worker_serves_the_jobs_of_two_databases(sqlite_stage: Stage, other_stage: Stage) -> None:
    first, other = sqlite_stage, other_stage
    ran: list[str] = []

    @first.hf.job
    async def act(name: str) -> str:
        if name == "fails":
            raise ValueError(name)
        ran.append(name)
        return name

    mine = [act.enqueue(name=f"first {n}") for n in range(30)]
    theirs = [other.hf.enqueue("act", {"name": f"other {n}"}, check=False) for n in range(30)]
    failing = other.hf.enqueue("act", {"name": "fails"}, check=False, max_attempts=1)

    async def body(worker: Worker) -> None:
        await first.until_empty()
        await other.until_empty()
        await first.until(lambda: not worker.held)
        assert first.sql("select count(*) from holdfast_workers") == [(1,)]
        assert other.sql("select count(*) from holdfast_workers") == [(0,)], "the registry has one place"

    work(first.hf, other.hf, body)
    assert sorted(ran) == sorted([f"first {n}" for n in range(30)] + [f"other {n}" for n in range(30)])
    assert {first.state(job) for job in mine} | {other.state(job) for job in theirs} == {"done"}
    assert other.state(failing) == "dead"


@OTHER_DATABASES
@pytest.mark.parametrize("colour", ["async", "def"])
def test_effect_and_completion_commit_together_on_the_store_that_the_job_is_from(
    sqlite_stage: Stage, other_stage: Stage, colour: str
) -> None:
    first, other = sqlite_stage, other_stage
    for stage in (first, other):
        stage.sql("create table effects (place text)")

    async def acts(job: Job, place: str) -> None:
        async with job.transaction() as tx:
            await tx.execute(f"insert into effects values ('{place}')")  # noqa: S608 - a word of this test

    def acts_too(job: Job, place: str) -> None:
        with job.transaction() as tx:
            tx.execute(f"insert into effects values ('{place}')")  # noqa: S608 - a word of this test

    act: Any = first.hf.job(kind="act")(acts if colour == "async" else acts_too)
    act.enqueue(place="first")
    other.hf.enqueue("act", {"place": "other"}, check=False)

    async def body(_: Worker) -> None:
        await first.until_empty()
        await other.until_empty()

    work(first.hf, other.hf, body)
    assert first.sql("select place from effects") == [("first",)]
    assert other.sql("select place from effects") == [("other",)]


@OTHER_DATABASES
def test_leases_of_every_store_are_renewed_and_reaped(sqlite_stage: Stage, other_stage: Stage) -> None:
    first, other = sqlite_stage, other_stage
    attempts: list[tuple[str, int]] = []

    @first.hf.job(lease=1)
    async def act(job: Job, name: str) -> None:
        attempts.append((name, job.attempt))
        await asyncio.sleep(1.5)

    left = other.hf.enqueue("act", {"name": "left by another worker"}, check=False)
    other.run(jobs.claim("default", limit=1, worker="dead-worker", lease_ms=1))
    act.enqueue(name="first")
    other.hf.enqueue("act", {"name": "other"}, check=False)

    async def body(_: Worker) -> None:
        await first.until_empty()
        await other.until_empty()

    work(first.hf, other.hf, body)
    assert sorted(attempts) == [("first", 1), ("left by another worker", 1), ("other", 1)]
    assert [event.id for event in first.heard(events.JobReaped)] == [left.id]
    assert not first.heard(events.LeaseWasLost)


@pytest.mark.slow
@OTHER_DATABASES
def test_a_job_on_a_queue_that_only_another_store_has_wakes_the_worker(
    sqlite_stage: Stage, other_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not found by polling: the pauses are longer than the test may take."""
    monkeypatch.setattr("holdfast.worker.claiming.FIRST_POLL_SECONDS", 1000.0)
    first, other = sqlite_stage, other_stage

    @first.hf.job
    async def act() -> None: ...

    async def body(_: Worker) -> None:
        # By then the first look is over, and whatever wakes the worker listens.
        await asyncio.sleep(0.5)
        job = await other.hf.aenqueue("act", check=False, queue="elsewhere")
        await other.until(lambda: other.state(job) == "done")

    work(first.hf, other.hf, body, poll=1000)


@pytest.mark.parametrize("down", ["first", "other"])
def test_an_outage_of_one_store_does_not_stop_the_jobs_of_another(
    sqlite_stage: Stage, pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, down: str
) -> None:
    """Jobs with one attempt, suspects and failures included: each of them writes before it may go on."""
    monkeypatch.setattr("holdfast.worker.patience.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("holdfast.worker.suspects.CALM_SECONDS", 0.0)
    far = Holdfast(pg_proxy.url(pg_stage.url), connect_timeout=0.5, notify=False)
    near = sqlite_stage.hf
    app, other = (far, near) if down == "first" else (near, far)
    app.on(events.Event, sqlite_stage.said.append) if app is far else None

    async def acts(n: int) -> None:
        await asyncio.sleep(0.01)

    act: Any = app.job(kind="act", lease=30)(acts)

    def add(hf: Holdfast, n: int, **options: Any) -> Any:
        return hf.enqueue("act", {"n": n}, check=False, **options)

    for n in range(40):
        add(far, n, max_attempts=1 + n % 2)

    async def body(_: Worker) -> None:
        await sqlite_stage.until_said(events.JobDone, 5)
        pg_proxy.blackhole()
        await sqlite_stage.until_said(events.DatabaseLost)
        for n in range(40):
            job = await near.aenqueue("act", {"n": n}, check=False, max_attempts=1 + n % 2)
            if n % 5 == 0:
                sqlite_stage.sql("update holdfast_jobs set lapses = 1 where id = ?", job.id)
        await sqlite_stage.until_empty()
        pg_proxy.reset_all()
        pg_proxy.heal()
        await pg_stage.until_empty()

    work(app, other, body, concurrency=10)
    [lost] = sqlite_stage.heard(events.DatabaseLost)
    assert "postgresql://" in lost.store
    assert act.kind == "act"
    done = "select outcome, count(*) from holdfast_finished group by outcome"
    assert (pg_stage.sql(done), sqlite_stage.sql(done)) == ([("done", 40)], [("done", 40)])


def test_a_worker_starts_while_another_store_is_away_and_serves_it_when_it_is_back(
    sqlite_stage: Stage, pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.patience.ANSWER_SECONDS", 0.5)
    far = Holdfast(pg_proxy.url(pg_stage.url), connect_timeout=0.5, notify=False)

    @sqlite_stage.hf.job
    async def act() -> None: ...

    near_job, far_job = act.enqueue(), pg_stage.hf.enqueue("act", check=False)
    pg_proxy.blackhole()

    async def body(_: Worker) -> None:
        await sqlite_stage.until(lambda: sqlite_stage.state(near_job) == "done")
        await sqlite_stage.until_said(events.DatabaseLost)
        pg_proxy.reset_all()
        pg_proxy.heal()
        await pg_stage.until(lambda: pg_stage.state(far_job) == "done")

    work(sqlite_stage.hf, far, body)


def test_nothing_is_claimed_or_reaped_in_a_store_that_came_back_with_tables_of_another_version(
    sqlite_stage: Stage, pg_stage: Stage, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.patience.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("holdfast.worker.outage.LONGEST_OUTAGE_PAUSE_SECONDS", 0.2)
    far = Holdfast(pg_proxy.url(pg_stage.url), connect_timeout=0.5, notify=False)

    @sqlite_stage.hf.job
    async def act() -> None: ...

    left, waiting = (pg_stage.hf.enqueue("act", check=False) for _ in range(2))
    pg_stage.run(jobs.claim("default", limit=1, worker="dead-worker", lease_ms=1))
    [[version]] = pg_stage.sql("select value from holdfast_meta where key = 'schema_version'")
    pg_stage.sql("update holdfast_meta set value = '999' where key = 'schema_version'")
    pg_proxy.blackhole()

    async def body(_: Worker) -> None:
        await sqlite_stage.until_said(events.DatabaseLost)
        pg_proxy.reset_all()
        pg_proxy.heal()
        _, told = await sqlite_stage.until_said(events.DatabaseLost, 2)
        assert "999" in told.error
        await asyncio.sleep(0.05)
        assert (pg_stage.state(left), pg_stage.state(waiting)) == ("leased", "pending")
        pg_stage.sql("update holdfast_meta set value = ? where key = 'schema_version'", version)
        await pg_stage.until_empty()

    work(sqlite_stage.hf, far, body)
    assert len(sqlite_stage.heard(events.DatabaseRegained)) == 1


def test_every_store_must_have_its_tables_at_the_start(sqlite_stage: Stage, tmp_path: Path) -> None:
    @sqlite_stage.hf.job
    async def act() -> None: ...

    async def nothing(_: Worker) -> None: ...

    empty = Holdfast(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(SchemaMissing):
        work(sqlite_stage.hf, empty, nothing)
