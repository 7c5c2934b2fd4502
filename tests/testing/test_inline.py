"""What an application's own tests get from Holdfast: jobs run inline, and a look at what was enqueued."""

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import aiosqlite
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from holdfast import Bulk, Cancel, Fatal, Holdfast, Job, Retry, Snooze, admin
from holdfast.errors import WrongColour
from holdfast.testing import Clock
from holdfast.testing.inline import aassert_enqueued, aenqueued, arun_due, assert_enqueued, enqueued, run_due


@pytest.fixture(params=["sqlite_url", "pg_url"])
def hf(request):
    app = Holdfast(request.getfixturevalue(request.param))
    app.migrate()
    yield app
    app.close()


def test_due_jobs_run_inline_with_those_they_enqueue(hf):
    seen = []

    @hf.job
    def first(number: int) -> int:
        seen.append(number)
        if number < 3:
            first.enqueue(number=number + 1)
        return number * 10

    first.enqueue(number=1)
    ran = run_due(hf)

    assert seen == [1, 2, 3]
    assert [(one.kind, one.outcome, one.result) for one in ran] == [("first", "done", n * 10) for n in (1, 2, 3)]
    assert run_due(hf) == []


def test_a_bulk_handler_gets_its_items_together(hf):
    calls = []

    @hf.bulk(size=3)
    async def index(pages: list[int], bulk: Bulk) -> list[object]:
        calls.append(pages)
        if len(calls) > 2:
            assert {job.attempt for job in bulk.jobs} in ({1}, {2})
            return [None for _ in pages]
        return [Snooze(3600) if page == 1 else Retry() if page == 2 else page for page in pages]

    @hf.job
    def other() -> None: ...

    hf.enqueue_many([index.bind(n) for n in range(5)])
    other.enqueue()
    ran = run_due(hf, raise_errors=False)
    assert calls == [[0, 1, 2], [3, 4]]
    assert [(one.kind, one.outcome, one.result) for one in ran] == [
        ("index", "done", 0),
        ("index", "snoozed", None),
        ("index", "retried", None),
        ("index", "done", 3),
        ("index", "done", 4),
        ("other", "done", None),
    ]
    # The one that was tried before runs in a batch of its own; nothing stays claimed.
    assert len(run_due(hf, ahead=7200)) == 2
    assert sorted(calls[2:]) == [[1], [2]]
    assert enqueued(hf) == []


def test_an_error_of_a_bulk_handler_leaves_nothing_claimed(hf):
    @hf.bulk(size=30)
    def index(pages: list[int]) -> None:
        if 3 in pages:
            raise ValueError("no such page")

    hf.enqueue_many([index.bind(n) for n in range(4)])
    with pytest.raises(ValueError, match="no such page"):
        run_due(hf)
    assert [(one.attempts, one.errors[0]["message"]) for one in enqueued(hf)] == [(1, "no such page")] * 4
    index.enqueue(7)
    with pytest.raises(ValueError, match="no such page"):
        run_due(hf, ahead=60)
    # Whatever was claimed beside the batch that failed went back.
    assert hf.store.run(admin.list_jobs(admin.Filter(states=("leased",)), limit=10)) == []


def test_a_handlers_error_is_raised_after_it_is_recorded(hf):
    @hf.job(retry=Retry(max_attempts=3))
    async def breaks() -> None:
        raise ValueError("no such order")

    breaks.enqueue()
    with pytest.raises(ValueError, match="no such order"):
        run_due(hf)

    [waiting] = enqueued(hf, breaks)
    assert waiting.attempts == 1
    assert waiting.errors[0]["message"] == "no such order"


def test_retries_and_delays_run_when_time_is_moved_ahead(hf):
    calls = []

    @hf.job(retry=Retry(max_attempts=2, first_delay=60))
    def flaky() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("once")

    flaky.using(run_after=3600).enqueue()
    assert run_due(hf) == []
    assert [one.outcome for one in run_due(hf, ahead=3600, raise_errors=False)] == ["retried"]
    assert [one.outcome for one in run_due(hf, ahead=7200)] == ["done"]


@pytest.mark.parametrize("level", [logging.INFO, logging.CRITICAL])
def test_what_became_of_a_job_is_told_whether_or_not_somebody_listens(hf, caplog, level):
    caplog.set_level(level, "holdfast")
    answers = {"done": 1, "retried": Retry(), "snoozed": Snooze(60), "cancelled": Cancel(), "dead": Fatal()}

    @hf.job
    async def act(answer: str) -> object:
        return answers[answer]

    for answer in answers:
        act.enqueue(answer=answer)
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == list(answers)


def test_a_fatal_error_goes_to_the_dead_letters(hf):
    @hf.job
    def fatal() -> None:
        raise Fatal("never again")

    fatal.enqueue()
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["dead"]


def test_what_was_enqueued_can_be_asserted(hf):
    @hf.job
    def receipt(order_id: int, copy: bool = False) -> None: ...

    receipt.enqueue(order_id=1)
    receipt.enqueue(order_id=2, copy=True)

    assert_enqueued(hf, receipt, order_id=2)
    assert_enqueued(hf, "receipt", times=2)
    with pytest.raises(AssertionError, match="order_id"):
        assert_enqueued(hf, receipt, order_id=3)
    with pytest.raises(AssertionError, match="1 times"):
        assert_enqueued(hf, receipt, times=1)


@pytest.mark.parametrize("times", [None, 0])
def test_a_misspelt_kind_or_argument_is_never_taken_for_one_that_nothing_was_enqueued_of(hf, times):
    @hf.job
    def receipt(order_id: int) -> None: ...

    with pytest.raises(AssertionError, match=r"'reciept' is not the kind of a handler .*; did you mean receipt\?"):
        assert_enqueued(hf, "reciept", times=times)
    with pytest.raises(AssertionError, match=r"receipt takes no argument 'order'; did you mean order_id\?"):
        assert_enqueued(hf, receipt, times=times, order=1)
    assert_enqueued(hf, "receipt", times=0, order_id=1)
    receipt.enqueue(1)
    hf.enqueue("elsewhere", {"n": 1}, check=False)
    assert_enqueued(hf, "elsewhere", n=1)
    with pytest.raises(AssertionError, match="did you mean order_id"):
        assert_enqueued(hf, receipt, times=0, order=1)


def test_the_look_sees_the_tests_own_transaction(sqlite_url):
    hf = Holdfast(sqlite_url)
    hf.migrate()

    @hf.job
    def receipt(order_id: int) -> None: ...

    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    receipt.using(tx=connection).enqueue(order_id=1)

    assert_enqueued(hf, receipt, order_id=1, tx=connection)
    connection.rollback()
    assert enqueued(hf, receipt) == []
    connection.close()
    hf.close()


def test_effect_and_completion_commit_together_inline(hf):
    with hf.store.link() as link:
        link.raw.execute("create table effects (n integer)")

    @hf.job
    def write(job: Job) -> None:
        with job.transaction() as tx:
            tx.execute("insert into effects values (1)")

    write.enqueue()
    run_due(hf)
    with hf.store.link() as link:
        assert link.raw.execute("select count(*) from effects").fetchone()[0] == 1


async def _count_async(hf):
    @hf.job
    async def counts() -> int:
        return 5

    await counts.aenqueue()
    ran = await arun_due(hf)
    await hf.aclose()
    return ran


def test_it_works_inside_an_event_loop(hf):
    [ran] = asyncio.run(_count_async(hf))
    assert ran.result == 5


def test_the_plugin_gives_fixtures(run_due, arun_due, enqueued, assert_enqueued, aenqueued, aassert_enqueued):
    given = (run_due, arun_due, enqueued, assert_enqueued, aenqueued, aassert_enqueued)
    assert all(callable(one) for one in given)


def test_the_result_is_the_one_that_was_stored(hf):
    @hf.job
    def in_its_transaction(job: Job) -> str:
        with job.transaction():
            job.result = "stored with the effect"
        return "returned"

    @hf.job
    def by_itself(job: Job) -> None:
        with hf.store.link() as link, link.transaction():
            job.complete(link.raw, result={"stored": "by hand"})

    @hf.job
    async def by_itself_async(job: Job) -> None:
        if hf.store.embedded:
            async with aiosqlite.connect(hf.url.removeprefix("sqlite:///")) as tx:
                await tx.execute("begin")
                await job.acomplete(tx, result=[1, 2])
                await tx.commit()
        else:
            async with hf.store.alink() as link, link.transaction() as raw:
                await job.acomplete(raw, result=[1, 2])

    for handler in (in_its_transaction, by_itself, by_itself_async):
        handler.enqueue()
    assert [one.result for one in run_due(hf)] == ["stored with the effect", {"stored": "by hand"}, [1, 2]]


def test_a_queue_that_keeps_nothing_still_shows_the_result(hf):
    hf.queue("default", retention=0)

    @hf.job
    def returns() -> int:
        return 5

    @hf.job
    def in_its_transaction(job: Job) -> None:
        with job.transaction():
            job.result = 6

    returns.enqueue()
    in_its_transaction.enqueue()
    assert [one.result for one in run_due(hf)] == [5, 6]


def test_an_error_without_words_is_shown_all_the_same(hf):
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @hf.job
    def breaks() -> None:
        raise Unspeakable

    breaks.enqueue()
    [ran] = run_due(hf, raise_errors=False)
    assert "cannot be read" in ran.error


@pytest.mark.parametrize("hf", ["pg_url"], indirect=True)
def test_an_async_session_is_looked_into_by_the_async_twins(hf):
    @hf.job
    def receipt(order_id: int) -> None: ...

    async def scene() -> None:
        engine = create_async_engine(hf.url.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(engine) as session, session.begin():
            await receipt.using(tx=session).aenqueue(order_id=1)
            await aassert_enqueued(hf, receipt, order_id=1, times=1, tx=session)
            assert len(await aenqueued(hf, receipt, tx=session)) == 1
            with pytest.raises(AssertionError, match="order_id"):
                await aassert_enqueued(hf, receipt, order_id=2, tx=session)
            with pytest.raises(WrongColour, match=r"Call aassert_enqueued\(\) instead"):
                assert_enqueued(hf, receipt, order_id=1, tx=session)
            with pytest.raises(WrongColour, match=r"Call aenqueued\(\) instead"):
                enqueued(hf, receipt, tx=session)
        with (
            closing(psycopg.connect(hf.url)) as connection,
            pytest.raises(WrongColour, match=r"Call assert_enqueued\(\) instead"),
        ):
            await aassert_enqueued(hf, receipt, order_id=1, tx=connection)
        await aassert_enqueued(hf, receipt, order_id=1)
        await engine.dispose()
        await hf.aclose()

    asyncio.run(scene())


DJANGO = {"sqlite3": "sqlite_url", "postgresql": "pg_url", "mysql": "mariadb_url"}


@pytest.mark.parametrize("engine", DJANGO)
def test_run_due_in_djangos_tests_leaves_the_development_database_alone(engine, request):
    url = request.getfixturevalue(DJANGO[engine])
    command = [sys.executable, "-m", "tests.testing.django_project", engine, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # PostgreSQL's default is to put test_ before the name, which our own names of databases have already.
    early = told.pop("before a test asked for its database")
    assert engine == "postgresql" or "own_database=True" in early
    assert "own_database=True" in told.pop("development")
    if engine == "postgresql":
        assert told.pop("own database") == []
        told["own database"] = early
    assert told == {
        "tests": ["hello"],
        "memory": ["hello"],
        "own database": ["hello"],
        "after the tests": ["hello"],
    }


def test_a_schedule_is_tried_out_by_letting_time_pass(hf):
    days = []

    @hf.job
    def report(job: Job, day: str) -> None:
        days.append((day, job.headers["holdfast-schedule"]))

    hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *", timezone="Europe/Berlin")
    assert run_due(hf) == []
    assert [one.kind for one in run_due(hf, ahead=timedelta(days=1))] == ["report"]
    assert days == [("yesterday", "nightly")]
    # That tick is over; two days from now the next one has come, and only that.
    assert run_due(hf, ahead=timedelta(days=1)) == []
    assert len(run_due(hf, ahead=timedelta(days=2))) == 1


def test_a_schedule_is_tried_out_at_a_time_of_the_tests_choice(hf):
    ran = []

    @hf.job
    def report(job: Job) -> None:
        ran.append(job.headers["holdfast-tick"])

    hf.schedule("hourly", report.bind(), cron="0 * * * *", catch_up="all")
    clock = Clock(hf.store)
    clock.now = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    run_due(hf)
    clock.advance(timedelta(hours=3))
    run_due(hf)
    assert [tick[11:16] for tick in ran] == ["01:00", "02:00", "03:00"]


def test_what_is_paused_does_not_run_inline(hf):
    ran = []

    @hf.job(queue="mail")
    def send(n: int) -> None:
        ran.append(f"send {n}")

    @hf.job(queue="mail")
    def count(n: int) -> None:
        ran.append(f"count {n}")

    @hf.job(queue="orders", key="a")
    async def ship(n: int) -> None:
        ran.append(f"ship {n}")

    hf.queue("orders", ordered=True)
    hf.pause(kind="send")
    hf.pause("orders")
    for n in (1, 2):
        send.enqueue(n)
        count.enqueue(n)
        ship.enqueue(n)
    run_due(hf)
    assert ran == ["count 1", "count 2"]
    hf.pause("mail")
    count.enqueue(3)
    assert run_due(hf) == []
    hf.resume("orders")
    run_due(hf)
    assert ran[2:] == ["ship 1", "ship 2"]
    hf.resume("mail")
    hf.resume(kind="send")
    run_due(hf)
    assert sorted(ran[4:]) == ["count 3", "send 1", "send 2"]


def test_jobs_behind_one_that_is_to_be_cancelled_run_too(hf):
    ran = []

    @hf.job
    def bad() -> None:
        raise Fatal("no")

    @hf.job
    def child() -> None: ...

    @hf.job
    def last() -> None:
        ran.append("last")

    second = child.using(after=[bad.enqueue()], after_dead="cancel").enqueue()
    last.using(after=[second]).enqueue()
    run_due(hf, raise_errors=False)
    assert ran == ["last"]


def test_very_many_jobs_that_wait_for_a_parent_hold_nothing_up(hf):
    @hf.job
    def parent() -> None: ...

    @hf.job
    def child() -> None: ...

    @hf.job
    def other() -> None: ...

    later = parent.using(run_after=3600).enqueue()
    hf.enqueue_many([child.using(after=[later]).bind() for _ in range(1100)])
    other.enqueue()
    assert [one.kind for one in run_due(hf)] == ["other"]
