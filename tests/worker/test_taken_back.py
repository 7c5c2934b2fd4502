"""What a handler got from `job.transaction()` is taken back with its block: later uses are refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncmy
import asyncpg
import pytest

from holdfast import Holdfast, Job, Retry
from holdfast.errors import OVER
from tests.worker.stage import Stage

ONCE = Retry(max_attempts=1)


@pytest.fixture
def hf(stage: Stage) -> Holdfast:
    """An application with one connection: who comes next gets the one that was given back."""
    stage.sql("create table effects (what varchar(40))")
    return stage.app(pool_size=1)


def insert(what: str) -> str:
    return f"insert into effects (what) values ('{what}')"  # noqa: S608 - a constant of the test


def written(stage: Stage) -> list[str]:
    return [row[0] for row in stage.sql("select what from effects order by what")]


@pytest.mark.parametrize("beside", ["nothing", "a transaction"])
@pytest.mark.parametrize("fails", [True, False], ids=["failed", "completed"])
def test_a_task_that_goes_on_after_the_block_writes_nothing(
    stage: Stage, hf: Holdfast, fails: bool, beside: str
) -> None:
    first, left, inside, over = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    going_on: list[asyncio.Task[Any]] = []

    @hf.job(retry=ONCE)
    async def charge(job: Job) -> None:
        async with job.transaction() as tx:

            async def two() -> None:
                await tx.execute(insert("first"))
                first.set()
                await left.wait()
                await tx.execute(insert("second"))

            going_on.append(asyncio.create_task(two()))
            await first.wait()
            if fails:
                raise ConnectionError("the other service said no")

    @hf.job(retry=ONCE)
    async def other(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert("other"))
            inside.set()
            await over.wait()

    async def scene() -> list[Any]:
        with Holdfast(stage.url) as app:
            async with hf.worker(poll=0.05):
                jobs = [app.enqueue("charge", check=False, max_attempts=1)]
                await stage.until_empty()
                if beside == "a transaction":
                    jobs.append(app.enqueue("other", check=False, max_attempts=1))
                    await inside.wait()
                left.set()
                [said] = await asyncio.gather(*going_on, return_exceptions=True)
                over.set()
                await stage.until_empty()
        await hf.aclose()
        return [said, *jobs]

    said, *jobs = asyncio.run(scene())
    assert str(said) == OVER
    assert stage.state(jobs[0]) == ("dead" if fails else "done")
    assert written(stage) == ([] if fails else ["first"]) + (["other"] if beside == "a transaction" else [])


async def run_one(stage: Stage, hf: Holdfast, kind: str, after: Callable[[], Awaitable[None]]) -> Any:
    with Holdfast(stage.url) as app:
        async with hf.worker(queues=["default"], poll=0.05):
            job = app.enqueue(kind, check=False, max_attempts=1)
            await stage.until_empty()
            await after()
    await hf.aclose()
    return job


def test_enqueueing_through_what_was_taken_back_is_refused(stage: Stage, hf: Holdfast) -> None:
    kept: list[Any] = []

    @hf.job(retry=ONCE)
    async def keeps(job: Job) -> None:
        async with job.transaction() as tx:
            kept.append(tx)
            await later.using(tx=tx).aenqueue()

    @hf.job(queue="other")
    async def later() -> None: ...

    async def after() -> None:
        with pytest.raises(Exception, match="transaction is over"):
            await later.using(tx=kept[0]).aenqueue()

    async def scene() -> Any:
        with Holdfast(stage.url) as app:
            async with hf.worker(queues=["default"], poll=0.05):
                job = app.enqueue("keeps", check=False, max_attempts=1)
                await stage.until(lambda: stage.show(job).state in ("done", "dead"))
                await after()
        await hf.aclose()
        return job

    assert stage.state(asyncio.run(scene())) == "done"
    assert stage.live() == 1


@pytest.mark.parametrize("stage", ["pg"], indirect=True)
def test_what_was_made_on_a_connection_is_taken_back_with_it(stage: Stage, hf: Holdfast) -> None:
    kept: list[Any] = []

    @hf.job(retry=ONCE)
    async def keeps(job: Job) -> None:
        async with job.transaction() as tx:
            assert isinstance(tx, asyncpg.Connection)
            prepared = await tx.prepare(insert("late"))
            cursor = await tx.cursor("select generate_series(1, 100)")
            inner = tx.transaction()
            await inner.start()
            kept.extend([prepared.fetch, lambda: cursor.fetch(1), inner.commit, inner.rollback, tx.transaction().start])

    async def after() -> None:
        for late in kept:
            with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
                await late()

    job = asyncio.run(run_one(stage, hf, "keeps", after))
    assert (stage.state(job), written(stage)) == ("done", [])


@pytest.mark.parametrize("stage", ["mariadb", "mysql"], indirect=True)
def test_a_cursor_is_taken_back_with_its_connection(stage: Stage, hf: Holdfast) -> None:
    kept: list[Any] = []

    @hf.job(retry=ONCE)
    async def keeps(job: Job) -> None:
        async with job.transaction() as tx:
            assert isinstance(tx, asyncmy.Connection)
            async with tx.cursor(asyncmy.cursors.DictCursor) as cursor:
                await cursor.execute("select %s as n", (7,))
                assert await cursor.fetchall() == [{"n": 7}]
            kept.append(tx.cursor())
            await kept[0].execute("select 1")

    async def after() -> None:
        with pytest.raises(Exception, match="transaction is over"):
            await kept[0].execute(insert("late"))

    job = asyncio.run(run_one(stage, hf, "keeps", after))
    assert (stage.state(job), written(stage)) == ("done", [])


@pytest.mark.parametrize("stage", ["pg"], indirect=True)
def test_a_table_that_changes_inside_a_transaction_is_read_anew(stage: Stage, hf: Holdfast) -> None:
    """asyncpg asks the pool of a proxied connection to forget its statements."""
    read: list[Any] = []

    @hf.job(retry=ONCE)
    async def reads(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert("one"))
            await tx.fetch("select * from effects")
            await tx.execute("alter table effects add n integer default 5")
            await tx.reload_schema_state()
            read.append(tuple((await tx.fetch("select * from effects"))[0]))

    async def after() -> None: ...

    assert stage.state(asyncio.run(run_one(stage, hf, "reads", after))) == "done"
    assert read == [("one", 5)]
