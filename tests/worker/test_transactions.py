"""Effect and completion in one commit: job.transaction() and job.complete(tx=), in both colours, on both databases."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Cancel, Conflict, Fatal, Handler, Job, LeaseLost, Retry, Snooze, events
from holdfast.store.dialects import mysql
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])

Body = Callable[[Job, Callable[[str], Any]], Any]


def with_effects(stage: Stage) -> Stage:
    stage.sql("create table effects (what text, attempt integer)")
    return stage


@pytest.fixture(params=["alone", "together"])
def commit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(stage: Stage, commit: str) -> Stage:
    if commit == "together":
        # Every promise holds for jobs that share a transaction, too.
        register: Any = stage.hf.job
        share: Any = lambda fn=None, **options: register(fn, commit="together", **options)  # noqa: E731
        stage.hf.job = share  # type: ignore[method-assign]
    return with_effects(stage)


def written(stage: Stage) -> list[Any]:
    return [row[0] for row in stage.sql("select what from effects order by what")]


def insert(stage: Stage, what: str = "effect") -> str:
    return f"insert into effects (what, attempt) values ('{what}', 1)"  # noqa: S608 - a constant of the test


def make_handler(
    stage: Stage, colour: str, before: Callable[[Job], None], after: Callable[[Job], None]
) -> Handler[[], Any]:
    """A handler that writes an effect in job.transaction(), calling `before` its end and `after` its commit."""
    if colour == "async":

        @stage.hf.job(retry=AT_ONCE)
        async def act(job: Job) -> str:
            async with job.transaction() as tx:
                await tx.execute(insert(stage))
                await asyncio.to_thread(before, job)
            after(job)
            return "returned"
    else:

        @stage.hf.job(retry=AT_ONCE)
        def act(job: Job) -> str:
            with job.transaction() as tx:
                tx.execute(insert(stage))
                before(job)
            after(job)
            return "returned"

    return act


def nothing(_: Job) -> None: ...


@COLOURS
def test_effect_and_completion_are_one_commit(stage: Stage, colour: str) -> None:
    committed: list[tuple[list[Any], str]] = []

    def after(job: Job) -> None:
        committed.append((written(stage), stage.state(job)))
        assert job.settled

    def before(job: Job) -> None:
        job.result = {"kept": True}
        if not stage.is_sqlite:
            assert (written(stage), stage.state(job)) == ([], "leased")

    job = make_handler(stage, colour, before, after).enqueue()
    stage.work()
    assert committed == [(["effect"], "done")]
    assert stage.show(job).result == {"kept": True}
    assert len(stage.heard(events.JobDone)) == 1


@COLOURS
def test_an_exception_rolls_both_back(stage: Stage, colour: str) -> None:
    def before(job: Job) -> None:
        if job.attempt < 2:
            raise ValueError("not this time")

    job = make_handler(stage, colour, before, nothing).enqueue()
    stage.work(poll=0.05)
    shown = stage.show(job)
    assert (shown.state, shown.attempts, len(shown.errors)) == ("done", 2, 1)
    assert written(stage) == ["effect"]


@COLOURS
def test_a_failure_after_the_commit_undoes_nothing(stage: Stage, colour: str) -> None:
    def after(_: Job) -> None:
        raise ValueError("too late to matter")

    job = make_handler(stage, colour, nothing, after).enqueue()
    stage.work()
    assert (stage.state(job), stage.show(job).attempts, written(stage)) == ("done", 1, ["effect"])
    assert len(stage.heard(events.JobDone)) == 1
    [told] = stage.heard(events.FailedAfterDone)
    assert told.error == "ValueError: too late to matter"
    assert isinstance(told.exception, ValueError)
    assert 'raise ValueError("too late to matter")' in told.traceback


@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize("answer", [Snooze(60), Cancel("no"), Retry.after(60), Fatal("no")], ids=["s", "c", "r", "f"])
def test_another_end_that_comes_too_late_is_told(sqlite_stage: Stage, answer: Any, where: str) -> None:
    @sqlite_stage.hf.job
    async def act(job: Job) -> Any:
        async with job.transaction():
            if where == "inside":
                return answer
        return answer

    job = act.enqueue()
    sqlite_stage.work()
    assert sqlite_stage.state(job) == "done"
    [told] = sqlite_stage.heard(events.FailedAfterDone)
    assert told.error == f"{type(answer).__name__} came after the job's transaction had completed it"
    assert (told.traceback, told.exception) == ("", None)


@COLOURS
def test_a_lost_lease_refuses_and_rolls_back(stage: Stage, colour: str) -> None:
    refused: list[BaseException] = []

    async def attempt(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert(stage))

    def attempt_in_thread(job: Job) -> None:
        with job.transaction() as tx:
            tx.execute(insert(stage))

    def note(error: LeaseLost, job: Job) -> None:
        refused.append(error)
        assert not job.settled
        raise error

    if colour == "async":

        @stage.hf.job
        async def act(job: Job) -> None:
            stage.steal(job)
            try:
                await attempt(job)
            except LeaseLost as error:
                note(error, job)
    else:

        @stage.hf.job
        def act(job: Job) -> None:
            stage.steal(job)
            try:
                attempt_in_thread(job)
            except LeaseLost as error:
                note(error, job)

    act.enqueue()

    async def body(_: Any) -> None:
        await stage.until_said(events.LeaseWasLost)

    stage.work(body)
    assert len(refused) == 1
    assert written(stage) == []


@COLOURS
def test_a_second_completion_is_refused_before_it_does_anything(stage: Stage, colour: str) -> None:
    refused: list[Conflict] = []

    if colour == "async":

        @stage.hf.job
        async def twice(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(insert(stage, "first"))
                with pytest.raises(Conflict):
                    async with job.transaction():
                        pass
            try:
                async with job.transaction() as tx:
                    await tx.execute(insert(stage, "second"))
            except Conflict as error:
                refused.append(error)
    else:

        @stage.hf.job
        def twice(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(insert(stage, "first"))
                with pytest.raises(Conflict), job.transaction():
                    pass
            try:
                with job.transaction() as tx:
                    tx.execute(insert(stage, "second"))
            except Conflict as error:
                refused.append(error)

    job = twice.enqueue()
    stage.work()
    assert (stage.state(job), stage.show(job).attempts, written(stage), len(refused)) == ("done", 1, ["first"], 1)


def own_connection(stage: Stage) -> Any:
    if stage.is_sqlite:
        return sqlite3.connect(stage.url.removeprefix("sqlite:///"), timeout=20)
    if stage.url.startswith("mysql"):
        return mysql.sync_class()(**(mysql.split_url(stage.url).arguments() | {"autocommit": False}))
    return psycopg.connect(stage.url)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_completion_in_the_handlers_own_transaction(stage: Stage, end: str) -> None:
    @stage.hf.job(retry=AT_ONCE)
    def act(job: Job) -> None:
        connection = own_connection(stage)
        try:
            connection.execute(insert(stage, f"attempt {job.attempt}"))
            job.complete(connection, result=[job.attempt])
            getattr(connection, end if job.attempt == 1 else "commit")()
        finally:
            connection.close()
        if job.attempt == 1:
            raise ValueError("after the end of its own transaction")

    job = act.enqueue()
    stage.work(poll=0.05)
    shown = stage.show(job)
    last = 1 if end == "commit" else 2
    assert (shown.state, shown.result, shown.attempts) == ("done", [last], last)
    assert written(stage) == [f"attempt {last}"]
    # What failed behind the commit is told as that, and not as a lost lease; what was rolled back is a failed attempt.
    late = ["ValueError: after the end of its own transaction"] if end == "commit" else []
    assert [event.error for event in stage.heard(events.FailedAfterDone)] == late
    assert (len(stage.heard(events.JobDone)), len(stage.heard(events.JobRetried))) == (1, last - 1)
    assert not stage.heard(events.LeaseWasLost)


@pytest.mark.parametrize("keep", [3600, 0], ids=["kept", "dropped"])
@pytest.mark.parametrize("answer", [Snooze(60), Cancel("no"), Retry.after(60), Fatal("no")], ids=["s", "c", "r", "f"])
def test_another_end_behind_the_handlers_own_transaction_is_told(sqlite_stage: Stage, answer: Any, keep: Any) -> None:
    stage = with_effects(sqlite_stage)
    stage.hf.queue("default", retention=keep)

    @stage.hf.job
    def act(job: Job) -> Any:
        with contextlib.closing(own_connection(stage)) as connection:
            job.complete(connection)
            connection.commit()
        return answer

    act.enqueue()
    stage.work()
    [told] = stage.heard(events.FailedAfterDone)
    assert type(answer).__name__ in told.error
    assert len(stage.heard(events.JobDone)) == 1
    assert not stage.heard(events.LeaseWasLost)


def test_a_lease_that_was_lost_behind_a_completion_that_came_to_nothing_is_lost(sqlite_stage: Stage) -> None:
    stage = with_effects(sqlite_stage)

    @stage.hf.job
    def act(job: Job) -> None:
        with contextlib.closing(own_connection(stage)) as connection:
            job.complete(connection)
            connection.rollback()
        stage.steal(job)
        raise ValueError("neither complete nor held")

    act.enqueue()
    stage.work(lambda _: stage.until_said(events.LeaseWasLost))
    assert not stage.heard(events.FailedAfterDone)
    assert not stage.heard(events.JobDone)


def test_progress_after_completion_is_refused_where_it_would_wait_for_itself(stage: Stage) -> None:
    @stage.hf.job
    def act(job: Job) -> None:
        with contextlib.closing(own_connection(stage)) as connection:
            connection.execute(insert(stage))
            job.complete(connection)
            with pytest.raises(Conflict, match=r"before job\.complete"):
                job.progress(1)
            with pytest.raises(Conflict, match=r"before job\.complete"):
                asyncio.run(job.aprogress(1))
            connection.commit()

    job = act.enqueue()
    stage.work()
    assert (stage.state(job), written(stage)) == ("done", ["effect"])


def test_async_completion_in_the_handlers_own_transaction(pg_stage: Stage) -> None:
    stage = with_effects(pg_stage)

    @stage.hf.job
    async def act(job: Job) -> None:
        connection = await psycopg.AsyncConnection.connect(stage.url)
        async with connection:
            await connection.execute(insert(stage).encode())
            await job.acomplete(connection, result="own")

    job = act.enqueue()
    stage.work()
    assert (stage.state(job), stage.show(job).result, written(stage)) == ("done", "own", ["effect"])


def test_a_completion_that_is_not_committed_yet_holds_up_no_renewals(pg_stage: Stage) -> None:
    """The row is locked by the handler's own transaction: a renewal that asked for it would wait, and all with it."""
    stage = with_effects(pg_stage)
    attempts: list[str] = []

    @stage.hf.job(lease=1, retry=AT_ONCE)
    async def holds(job: Job) -> None:
        attempts.append("holds")
        async with await psycopg.AsyncConnection.connect(stage.url) as connection:
            await connection.execute(insert(stage).encode())
            await job.acomplete(connection)
            await asyncio.sleep(2.2)

    @stage.hf.job(lease=1, retry=AT_ONCE)
    async def beside() -> None:
        attempts.append("beside")
        await asyncio.sleep(2.2)

    holds.enqueue()
    beside.enqueue()

    async def body(_: Any) -> None:
        async with stage.hf.worker(poll=0.05):
            await stage.until_empty()

    stage.work(body, poll=0.05)
    assert sorted(attempts) == ["beside", "holds"]
    assert written(stage) == ["effect"]
    assert not stage.heard(events.LeaseWasLost)


def test_jobs_enqueued_inside_the_transaction_share_its_fate(stage: Stage) -> None:
    @stage.hf.job
    async def follow(n: int) -> None: ...

    @stage.hf.job(retry=AT_ONCE)
    async def lead(job: Job) -> None:
        async with job.transaction() as tx:
            await follow.using(tx=tx).aenqueue(n=job.attempt)
            if job.attempt == 1:
                raise ValueError("roll it back")

    lead.enqueue()
    stage.work(poll=0.05)
    rows = stage.sql("select payload from holdfast_finished where kind = 'follow'")
    assert [row[0] for row in rows] in (['{"n":2}'], [{"n": 2}])


def test_a_lease_renewed_during_the_commit_is_not_called_lost(stage: Stage) -> None:
    """The row is gone once its completion commits; a renewal that then misses it must not cancel the handler."""
    finished: list[str] = []

    @stage.hf.job(lease=1)
    async def act(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert(stage))
        ends = time.monotonic() + 0.7
        while time.monotonic() < ends:  # noqa: ASYNC110 - renewals must come by while it runs
            await asyncio.sleep(0.02)
        finished.append(job.id)

    job = act.enqueue()

    async def body(_: Any) -> None:
        await stage.until_said(events.JobDone)

    stage.work(body)
    assert finished == [job.id]
    assert not stage.heard(events.LeaseWasLost)


def test_a_cancelled_transaction_leaves_nothing_behind(stage: Stage) -> None:
    """Cancelled at any moment: no effect, no lock, and no connection that is reused in a bad state."""

    @stage.hf.job(retry=AT_ONCE)
    async def act(job: Job, n: int) -> None:
        async with asyncio.timeout(0.005 * n if job.attempt == 1 else None), job.transaction() as tx:
            await tx.execute(insert(stage, f"{n:02}"))
            if job.attempt == 1:
                await asyncio.sleep(30)

    jobs = [act.enqueue(n=n) for n in range(20)]
    stage.work(poll=0.05)
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("done", 2)}
    assert written(stage) == [f"{n:02}" for n in range(20)]


def test_a_statement_that_still_runs_is_over_before_the_rollback(sqlite_stage: Stage) -> None:
    """On SQLite a cancelled statement runs on in its thread; it must not run outside its transaction."""
    stage = with_effects(sqlite_stage)
    heavy = (
        "insert into effects with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000000)"
        " select 'heavy', i from n"
    )

    @stage.hf.job(retry=AT_ONCE, timeout=0.1)
    async def act(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(heavy if job.attempt == 1 else insert(stage, "light"))

    job = act.enqueue()
    stage.work(poll=0.05)
    assert (stage.state(job), written(stage)) == ("done", ["light"])


@COLOURS
def test_handlers_in_transactions_cannot_starve_the_worker(stage: Stage, colour: str) -> None:
    """More handlers than connections, all in transactions past their lease: the worker renews, claims and settles."""
    release = asyncio.Event()
    count = 0

    def enter() -> None:
        nonlocal count
        count += 1

    hf = stage.app(pool_size=2)
    if colour == "async":

        @hf.job(lease=1)
        async def act(job: Job, n: int) -> None:
            enter()
            if stage.is_sqlite:
                # One that waits inside would have the file to itself, and nobody could take its lease.
                await release.wait()
            async with job.transaction() as tx:
                await release.wait()
                await tx.execute(insert(stage, f"{n:02}"))
    else:

        @hf.job(lease=1)
        def act(job: Job, n: int) -> None:
            enter()
            while stage.is_sqlite and not release.is_set():
                time.sleep(0.01)
            with job.transaction() as tx:
                while not release.is_set():
                    time.sleep(0.01)
                tx.execute(insert(stage, f"{n:02}"))

    @hf.job(queue="other")
    async def other() -> None: ...

    hf.enqueue_many([act.bind(n=n) for n in range(12)])

    async def body(_: Any) -> None:
        await stage.until(lambda: count == 12)
        moment = time.monotonic()
        while time.monotonic() - moment < 1.3:  # noqa: ASYNC110 - longer than the lease
            await asyncio.sleep(0.02)
        bystander = stage.put("other", "{}", "other")
        await stage.until(lambda: stage.state(bystander) == "done")
        release.set()
        await stage.until_empty()

    stage.work(body, hf, poll=0.05)
    assert written(stage) == [f"{n:02}" for n in range(12)]
    assert not stage.heard(events.LeaseWasLost)
    assert not stage.heard(events.JobReaped)
    assert not stage.heard(events.JobRetried)


def test_a_handler_that_uses_up_the_pool_fails_in_time(pg_stage: Stage) -> None:
    """A transaction that waits for a connection of its own pool is told so, not hung."""
    hf = pg_stage.app(pool_size=1, connect_timeout=1)  # a busy machine may take a while to connect

    @hf.job
    async def target() -> None: ...

    @hf.job(retry=Retry(max_attempts=1))
    async def greedy(job: Job) -> None:
        async with job.transaction():
            await target.aenqueue()

    job = greedy.enqueue()
    pg_stage.work(None, hf)
    [error] = pg_stage.show(job).errors
    assert "pool_size" in error["message"]
