"""What an application's own tests get from Holdfast: jobs run inline, and a look at what was enqueued."""

import sqlite3

import pytest

from holdfast import Fatal, Holdfast, Job, Retry
from holdfast.testing.inline import arun_due, assert_enqueued, enqueued, run_due


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
    import asyncio

    [ran] = asyncio.run(_count_async(hf))
    assert ran.result == 5


def test_the_plugin_gives_fixtures(run_due, arun_due, enqueued, assert_enqueued):
    assert all(callable(one) for one in (run_due, arun_due, enqueued, assert_enqueued))
