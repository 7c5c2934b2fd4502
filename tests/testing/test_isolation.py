"""What keeps tests of an application apart, and what they see of a failure."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Conflict, Continue, Holdfast, Job, Rate, Retry
from holdfast.flow import flow, run_text
from holdfast.store import migrate
from holdfast.testing.inline import aassert_enqueued, assert_enqueued, enqueued, run_due
from holdfast.testing.isolation import isolated, moved_clock
from holdfast.worker import registry

pytest_plugins = ["pytester"]


@pytest.fixture(params=["sqlite_url", "pg_url", "mariadb_url"])
def hf(request: pytest.FixtureRequest) -> Any:
    app = Holdfast(request.getfixturevalue(request.param))
    yield app
    app.close()


def add_to(app: Holdfast) -> Any:
    @app.job(queue="orders")
    def add(n: int) -> int:
        return n

    return add


def test_a_block_begins_without_jobs_and_leaves_none(hf: Holdfast) -> None:
    add = add_to(hf)
    with isolated(hf):  # which makes the tables, too
        add.enqueue(n=1)
        run_due(hf)
        add.enqueue(n=2)
        hf.store.now = None
    assert enqueued(hf) == []
    job = add.enqueue(n=3)
    with isolated(hf):
        assert hf.store.now is None
        with pytest.raises(Exception, match="There is no job"):
            hf.get(job.id)


def test_a_database_in_which_a_worker_is_alive_is_not_emptied(hf: Holdfast) -> None:
    add = add_to(hf)
    hf.migrate()

    async def main() -> None:
        async with hf.worker(queues=["other"]):
            job = add.enqueue(n=1)
            with pytest.raises(Conflict, match="is this the database of your tests"):
                await asyncio.to_thread(isolated(hf).__enter__)
            assert (await hf.aget(job.id)).state == "pending"
        await hf.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("ahead", [0, 120, -120])
def test_whether_a_worker_is_there_does_not_go_by_the_clock_of_a_test(hf: Holdfast, ahead: int) -> None:
    hf.migrate()
    hf.store.run(registry.beat("of-another", "{}"))
    job = add_to(hf).enqueue(n=1)
    with moved_clock(hf) as clock:
        clock.advance(ahead)
        # It may also have fallen silent, and come back.
        with pytest.raises(Conflict, match="of-another"), isolated(hf):
            raise AssertionError("it began")
    assert hf.get(job.id).state == "pending"
    hf.store.run(registry.mark("of-another", "dead"))
    with isolated(hf):
        assert enqueued(hf) == []


@pytest.mark.parametrize("version", [1, 12])
def test_a_database_with_a_worker_is_not_migrated_either(hf: Holdfast, version: int) -> None:
    hf.store.run(migrate.apply(hf.store.migrations, version))
    at = "0" if hf.store.embedded else "'2026-01-01'"
    # As one of that version has written it.
    columns, values = "id, started_at, seen_at, info", f"'of-another', {at}, {at}, '{{}}'"
    beat = f"insert into holdfast_workers ({columns}) values ({values})"  # noqa: S608 - constants of the test
    hf.store.run(flow(run_text)("beat", beat))
    with pytest.raises(Conflict), isolated(hf):
        raise AssertionError("it began")
    assert hf.store.run(migrate.version()) == version


def test_a_worker_that_came_during_the_block_keeps_its_jobs(hf: Holdfast) -> None:
    add = add_to(hf)
    block = isolated(hf)
    block.__enter__()
    hf.store.run(registry.beat("of-another", "{}"))
    job = add.enqueue(n=1)
    with pytest.raises(Conflict, match="of-another"):
        block.__exit__(None, None, None)
    assert hf.get(job.id).state == "pending"
    with isolated(hf, own_database=True):
        assert enqueued(hf) == []
        hf.store.run(registry.beat("of-another", "{}"))
    assert hf.store.run(registry.workers()) == []


def test_the_fixtures_keep_tests_apart_and_move_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from holdfast import Holdfast

        hf = Holdfast("sqlite:///shop.db")

        @hf.job
        def add(n: int) -> int:
            return n

        def test_one(isolate, hf_clock, run_due, skip):
            isolate(hf)
            clock = hf_clock(hf)
            add.using(run_after=60).enqueue(n=1)
            assert run_due(hf) == []
            clock.advance(61)
            assert [one.result for one in run_due(hf)] == [1]
            add.using(run_after=60).enqueue(n=2)
            assert [one.result for one in skip(hf, minutes=2)] == [2]
            add.enqueue(n=3)

        def test_two(isolate, enqueued, askip):
            assert hf.store.now is None
            isolate(hf)
            assert enqueued(hf) == []
            add.using(run_after=60).enqueue(n=4)
            assert [one.result for one in asyncio.run(askip(hf, minutes=2))] == [4]
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "ignore").assert_outcomes(passed=2)


@pytest.mark.parametrize("job, arguments", [("add", {"n": 9}), ("ad", {}), ("add", {"m": 1})])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_failed_assertion_points_at_the_test_and_not_at_the_helper(
    sqlite_url: str, colour: str, job: str, arguments: dict[str, int]
) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    add_to(hf).enqueue(n=1)
    look = {"sync": assert_enqueued, "async": lambda *given, **named: asyncio.run(aassert_enqueued(*given, **named))}
    with pytest.raises(AssertionError) as caught:
        look[colour](hf, job, **arguments)
    seen = [entry.path for entry in caught.traceback if not entry.ishidden(caught)]
    assert [path for path in seen if "holdfast" in str(path) and "tests" not in str(path)] == []
    hf.close()


def test_run_due_does_ordered_limited_chained_and_scheduled_work_as_a_worker_would(hf: Holdfast) -> None:
    did: list[str] = []
    hf.queue("orders", ordered=True)
    hf.queue("slow", rate=Rate(1, timedelta(hours=1)))

    @hf.job(queue="orders", key="{order}", retry=Retry(first_delay=60))
    def ship(job: Job, order: str, step: int) -> Continue | None:
        if (order, step, job.attempt) == ("a", 1, 1):
            raise ConnectionError
        did.append(f"{order}{step}")
        return Continue(bill.bind(order=order)) if step == 2 else None

    @hf.job(queue="slow")
    def bill(order: str) -> None:
        did.append(f"bill {order}")

    @hf.job
    def report() -> None:
        did.append("report")

    # Once a day, and not in the hours to come, whenever that is.
    hf.schedule("nightly", report.bind(), cron=f"0 {(datetime.now(UTC).hour + 12) % 24} * * *")
    with isolated(hf):
        for order in ("a", "b"):
            for step in (1, 2):
                ship.enqueue(order=order, step=step)
        run_due(hf, raise_errors=False)
        # The key of `a` waits for its first job; `b` goes on, and its bill is the first of this hour.
        assert did == ["b1", "b2", "bill b"]
        did.clear()
        run_due(hf, ahead=120)
        assert did == ["a1", "a2"]
        did.clear()
        run_due(hf, ahead=2 * 3600)
        assert did == ["bill a"]
        did.clear()
        run_due(hf, ahead=timedelta(days=1, hours=1))
        assert did == ["report"]
