"""Connections in a handler's hands: whatever it does with one, nobody is lent it in a state that is not known."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pymysql.cursors
import pytest

from holdfast import Handler, Holdfast, Job, Retry, events
from holdfast.errors import TransactionEnded
from tests.worker.stage import Stage

ONCE = Retry(max_attempts=1)
AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])
SERVERS = pytest.mark.parametrize("stage", ["pg", "mariadb", "mysql"], indirect=True)


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"])
def stage(request: pytest.FixtureRequest) -> Stage:
    stage: Stage = request.getfixturevalue(f"{request.param}_stage")
    stage.sql("create table effects (what varchar(40), attempt integer)")
    stage.sql("create table counters (id integer not null unique, n integer)")
    stage.sql("insert into counters values (1, 0), (2, 0)")
    return stage


@pytest.fixture
def hf(stage: Stage) -> Holdfast:
    """An application with one connection: who comes next gets the one that was given back."""
    return stage.app(pool_size=1)


def slow(stage: Stage, seconds: float) -> str:
    if stage.is_sqlite:
        return (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000000) select count(*) from n"
        )
    return f"select {'pg_sleep' if is_postgres(stage) else 'sleep'}({seconds})"


def is_postgres(stage: Stage) -> bool:
    return stage.url.startswith("postgres")


def insert(what: str) -> str:
    return f"insert into effects (what, attempt) values ('{what}', 1)"  # noqa: S608 - a constant of the test


def written(stage: Stage) -> list[str]:
    return [row[0] for row in stage.sql("select what from effects order by what")]


async def fails() -> None:
    raise ConnectionError("the other service said no")


async def run(stage: Stage, hf: Holdfast, *wanted: Handler[[], Any]) -> list[Any]:
    """Run one job of each handler, one after the other, in one worker."""
    found = []
    async with hf.worker(poll=0.05):
        for handler in wanted:
            found.append(await handler.aenqueue())
            await stage.until_empty()
    await hf.aclose()
    return found


async def statement_is_over() -> None:
    """Wait until a statement that nobody waits for has ended: from then on its connection looks like any other."""
    await asyncio.sleep(0.5)


@pytest.mark.slow
def test_a_failure_beside_a_running_statement_commits_nothing_later(stage: Stage, hf: Holdfast) -> None:
    @hf.job(retry=Retry(max_attempts=3, first_delay=2, max_delay=2, jitter=0))
    async def charge(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert(f"charge {job.attempt}"))
            await asyncio.gather(tx.execute(slow(stage, 0.3)), fails() if job.attempt == 1 else asyncio.sleep(0))

    @hf.job(retry=ONCE)
    async def other(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert("other"))

    async def scene() -> list[Any]:
        async with hf.worker(poll=0.05):
            jobs = [await charge.aenqueue()]
            await stage.until_said(events.JobRetried)
            await statement_is_over()
            jobs.append(await other.aenqueue())
            await stage.until_empty()
        await hf.aclose()
        return jobs

    assert [stage.state(job) for job in asyncio.run(scene())] == ["done", "done"]
    assert written(stage) == ["charge 2", "other"]
    assert not stage.heard(events.LeaseWasLost)


@pytest.mark.slow
def test_an_enqueue_after_a_failure_beside_a_running_statement_is_there(stage: Stage, hf: Holdfast) -> None:
    @hf.job(retry=ONCE)
    async def report(job: Job) -> None:
        async with job.transaction() as tx:
            await asyncio.gather(tx.execute(slow(stage, 0.2)), fails())

    @hf.job(queue="other")
    async def follow_up(n: int) -> None: ...

    async def scene() -> list[Any]:
        async with hf.worker(queues=["default"]):
            await report.aenqueue()
            await stage.until_said(events.JobDead)
            await statement_is_over()
            answers = [await follow_up.aenqueue(n=n) for n in range(3)]
        await hf.aclose()
        return answers

    assert [stage.state(job) for job in asyncio.run(scene())] == ["pending"] * 3


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
def test_an_answer_that_was_given_up_on_reaches_nobody_else(stage: Stage, hf: Holdfast, swallowed: bool) -> None:
    read: list[Any] = []

    @hf.job(retry=ONCE)
    async def hasty(job: Job) -> None:
        async with job.transaction() as tx:
            try:
                async with asyncio.timeout(0.05):
                    await tx.execute(slow(stage, 0.3))
            except TimeoutError:
                if not swallowed:
                    raise

    @hf.job(retry=ONCE)
    async def reader(job: Job) -> None:
        async with job.transaction() as tx:
            for n in range(3):
                read.append((await tx.fetch(f"select {40 + n}"))[0][0])

    _, second = asyncio.run(run(stage, hf, hasty, reader))
    assert stage.state(second) == "done"
    assert read == [40, 41, 42]


def test_leaving_the_block_while_a_statement_runs_completes_nothing(stage: Stage, hf: Holdfast) -> None:
    left: list[asyncio.Task[Any]] = []

    @hf.job(retry=ONCE)
    async def careless(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert("careless"))
            left.append(asyncio.create_task(tx.execute(slow(stage, 0.2))))
            await asyncio.sleep(0)

    async def scene() -> Any:
        [job] = await run(stage, hf, careless)
        for task in left:
            with suppress(Exception):
                await task
        return job

    job = asyncio.run(scene())
    if stage.is_sqlite:
        # Its statements stand in line, and the completion stood behind the last.
        assert (stage.state(job), written(stage)) == ("done", ["careless"])
    else:
        assert (stage.state(job), written(stage)) == ("dead", [])
        assert "wait for it" in stage.show(job).errors[0]["message"]


@COLOURS
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction_itself_is_told(stage: Stage, hf: Holdfast, colour: str, end: str) -> None:
    if colour == "async":

        @hf.job(retry=ONCE)
        async def meddles(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(end)
    else:

        @hf.job(retry=ONCE)
        def meddles(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(end)

    [job] = asyncio.run(run(stage, hf, meddles))
    shown = stage.show(job)
    assert shown.state == "dead"
    assert shown.errors[0]["message"] == str(TransactionEnded())


@COLOURS
@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
def test_a_conflict_that_rolled_back_is_not_completed(stage: Stage, hf: Holdfast, colour: str) -> None:
    conflict = "insert or rollback into counters values (1, 5)"
    if colour == "async":

        @hf.job(retry=ONCE)
        async def swallows(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(insert("lost"))
                with suppress(Exception):
                    await tx.execute(conflict)
    else:

        @hf.job(retry=ONCE)
        def swallows(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(insert("lost"))
                with suppress(Exception):
                    tx.execute(conflict)

    [job] = asyncio.run(run(stage, hf, swallows))
    assert (stage.state(job), written(stage)) == ("dead", [])


@COLOURS
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "begins again"])
@pytest.mark.parametrize("stage", ["mariadb", "mysql"], indirect=True)
def test_a_deadlock_that_was_swallowed_is_not_completed(stage: Stage, hf: Holdfast, colour: str, again: bool) -> None:
    codes: list[int] = []
    first, second = threading.Event(), threading.Event()
    mine = [insert("lost"), "update counters set n = n + 1 where id = 1"]
    contested = "update counters set n = n + 1 where id = 2"

    def rival() -> None:
        """A transaction with more rows than the handler's, so that the handler is the one to be rolled back."""
        assert first.wait(30)
        with stage._store.link() as link, link.transaction() as raw:
            for n in range(10, 200):
                raw.execute(f"insert into counters values ({n}, 0)")  # noqa: S608
            raw.execute("update counters set n = 10 where id = 2")
            second.set()
            raw.execute("update counters set n = 10 where id = 1")

    if colour == "async":

        @hf.job(retry=AT_ONCE)
        async def swallows(job: Job) -> None:
            async with job.transaction() as tx:
                for sql in mine:
                    await tx.execute(sql)
                first.set()
                await asyncio.to_thread(second.wait, 30)
                try:
                    await tx.execute(contested)
                except Exception as error:
                    codes.append(error.args[0])
                    if again:
                        await tx.begin()
                    await tx.execute(contested)
    else:

        @hf.job(retry=AT_ONCE)
        def swallows(job: Job) -> None:
            with job.transaction() as tx:
                for sql in mine:
                    tx.execute(sql)
                first.set()
                second.wait(30)
                try:
                    tx.execute(contested)
                except Exception as error:
                    codes.append(error.args[0])
                    if again:
                        tx.begin()
                    tx.execute(contested)

    thread = threading.Thread(target=rival)
    thread.start()
    [job] = asyncio.run(run(stage, hf, swallows))
    thread.join()
    shown = stage.show(job)
    assert codes == [1213]
    assert [error["message"] for error in shown.errors] == [str(TransactionEnded())]
    assert (shown.state, written(stage)) == ("done", ["lost"])


@COLOURS
@pytest.mark.parametrize("statement", ["create table made (id int)", "begin", " START  transaction"])
@pytest.mark.parametrize("stage", ["mariadb", "mysql"], indirect=True)
def test_what_commits_by_itself_is_not_followed_by_a_completion(
    stage: Stage, hf: Holdfast, colour: str, statement: str
) -> None:
    if colour == "async":

        @hf.job(retry=ONCE)
        async def meddles(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(statement)
    else:

        @hf.job(retry=ONCE)
        def meddles(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(statement)

    [job] = asyncio.run(run(stage, hf, meddles))
    assert stage.show(job).errors[0]["message"] == str(TransactionEnded())


@COLOURS
@pytest.mark.parametrize("stage", ["pg"], indirect=True)
def test_a_transaction_of_the_driver_inside_is_a_savepoint(stage: Stage, hf: Holdfast, colour: str) -> None:
    if colour == "async":

        @hf.job(retry=ONCE)
        async def nests(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(insert("outer"))
                with suppress(ValueError):
                    async with tx.transaction():
                        await tx.execute(insert("inner"))
                        raise ValueError
                async with tx.transaction():
                    await tx.execute(insert("second"))
    else:

        @hf.job(retry=ONCE)
        def nests(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(insert("outer"))
                with suppress(ValueError), tx.transaction():
                    tx.execute(insert("inner"))
                    raise ValueError
                with tx.transaction():
                    tx.execute(insert("second"))

    [job] = asyncio.run(run(stage, hf, nests))
    assert (stage.state(job), written(stage)) == ("done", ["outer", "second"])


SETTINGS = {
    "pg": {
        "set statement_timeout = 4321": ("show statement_timeout", "0"),
        "set role postgres": ("show role", "none"),
        "select pg_advisory_lock(77)": ("select count(*)::text from pg_locks where locktype = 'advisory'", "0"),
        "create temp table scratch (id int)": ("select coalesce(to_regclass('pg_temp.scratch')::text, '')", ""),
    },
    "mysql": {
        "set session lock_wait_timeout = 4321": ("select @@lock_wait_timeout = 4321", 0),
        "set session sql_mode = ''": ("select @@sql_mode like '%STRICT%'", 1),
        "set @mine = 7": ("select @mine is null", 1),
        "create temporary table scratch (id int)": ("select count(*) from scratch", None),
        "select get_lock('mine', 1)": ("select coalesce(is_used_lock('mine') = connection_id(), 0)", 0),
    },
}
CASES = [
    (server, statement)
    for server, kind in (("pg", "pg"), ("mariadb", "mysql"), ("mysql", "mysql"))
    for statement in SETTINGS[kind]
]


@COLOURS
@pytest.mark.parametrize("fails_after", [False, True], ids=["completed", "failed"])
@pytest.mark.parametrize("stage, statement", CASES, indirect=["stage"])
def test_what_a_handler_does_to_its_session_ends_with_its_transaction(
    stage: Stage, hf: Holdfast, colour: str, statement: str, fails_after: bool
) -> None:
    question, answer = SETTINGS["pg" if is_postgres(stage) else "mysql"][statement]

    if colour == "async":

        @hf.job(retry=ONCE)
        async def changes(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute(statement)
                if fails_after:
                    raise ValueError

        async def ask() -> Any:
            async with hf.store.alink() as link:
                return (await link.raw.fetch(question))[0][0]
    else:

        @hf.job(retry=ONCE)
        def changes(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute(statement)
                if fails_after:
                    raise ValueError

        async def ask() -> Any:
            with hf.store.link() as link:
                return link.raw.execute(question).fetchone()[0]

    async def scene() -> Any:
        async with hf.worker():
            job = await changes.aenqueue()
            await stage.until_empty()
            assert stage.state(job) == ("dead" if fails_after else "done")
            if answer is None:
                with pytest.raises(Exception, match="scratch"):
                    await ask()
            else:
                assert await ask() == answer
        await hf.aclose()

    asyncio.run(scene())


REPLACED = {
    "sqlite": [["rollback", "begin immediate"], ["commit", "begin"]],
    "pg": [["rollback and chain"], ["rollback", "begin"], ["commit", "begin"]],
    "mysql": [["rollback and chain"], ["/* a tag */ begin"], ["commit", "begin"]],
}


@COLOURS
@pytest.mark.parametrize(
    "stage, statements",
    [
        (server, statements)
        for server, kind in (("sqlite", "sqlite"), ("pg", "pg"), ("mariadb", "mysql"), ("mysql", "mysql"))
        for statements in REPLACED[kind]
    ],
    indirect=["stage"],
    ids=lambda given: given if isinstance(given, str) else "; ".join(given),
)
def test_another_transaction_is_not_taken_for_the_one_that_was_begun(
    stage: Stage, hf: Holdfast, colour: str, statements: list[str]
) -> None:
    if colour == "async":

        @hf.job(retry=ONCE)
        async def replaces(job: Job) -> None:
            async with job.transaction() as tx:
                for sql in statements:
                    await tx.execute(sql)
                await tx.execute(insert("late"))
    else:

        @hf.job(retry=ONCE)
        def replaces(job: Job) -> None:
            with job.transaction() as tx:
                for sql in statements:
                    tx.execute(sql)
                tx.execute(insert("late"))

    [job] = asyncio.run(run(stage, hf, replaces))
    shown = stage.show(job)
    assert (shown.state, written(stage)) == ("dead", [])
    assert shown.errors[0]["message"] == str(TransactionEnded())


def spoil(stage: Stage, tx: Any, how: str) -> None:
    """Change a connection as a helper written for one's own connections might."""
    if how == "rows as dicts" and is_postgres(stage):
        tx.row_factory = psycopg.rows.dict_row
    elif how == "rows as dicts" and stage.is_sqlite:
        tx.row_factory = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))
    elif how == "rows as dicts":
        tx.cursorclass = pymysql.cursors.DictCursor
    elif how == "bytes for text":
        tx.text_factory = bytes
    elif how == "implicit transactions":
        tx.isolation_level = "IMMEDIATE"
    elif how == "read only":
        tx.execute("pragma query_only = on")
    else:
        tx.execute("create temp table holdfast_jobs (id text)")


@pytest.mark.parametrize(
    "stage, how",
    [
        *((server, "rows as dicts") for server in ("sqlite", "pg", "mariadb", "mysql")),
        *(
            ("sqlite", how)
            for how in ("bytes for text", "implicit transactions", "read only", "a table in front of ours")
        ),
    ],
    indirect=["stage"],
)
def test_what_a_def_handler_does_to_its_connection_reaches_nobody_else(stage: Stage, hf: Holdfast, how: str) -> None:
    @hf.job(retry=ONCE)
    def spoils(job: Job) -> None:
        with job.transaction() as tx:
            tx.execute(insert("mine"))
            spoil(stage, tx, how)

    @hf.job(queue="other")
    def later(n: int) -> None: ...

    asyncio.run(run(stage, hf, spoils))
    first = [later.enqueue(n=n) for n in range(3)]
    keyed = [later.using(unique="one", idempotency_key="key").enqueue(n=n) for n in (3, 4)]
    hf.close()
    assert keyed[0].id == keyed[1].id
    assert [stage.state(job) for job in (*first, keyed[0])] == ["pending"] * 4


@pytest.mark.parametrize("stage", ["pg"], indirect=True)
def test_a_stream_that_was_left_unread_does_not_hold_up_the_attempt(stage: Stage, hf: Holdfast) -> None:
    left: list[Any] = []

    @hf.job(retry=ONCE)
    def streams(job: Job) -> None:
        with job.transaction() as tx:
            rows = tx.cursor().stream("select * from generate_series(1, 1000)")
            left.append(rows)
            next(rows)

    [job] = asyncio.run(run(stage, hf, streams))
    assert stage.state(job) == "dead"
    left[0].close()
