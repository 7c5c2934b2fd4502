"""Jobs that expire in a worker: no attempt begins too late, and the job says so; whatever begins in time goes on."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Debounce, Job, JobCancelled, Retry, admin, events, jobs
from holdfast.errors import DatabaseUnavailable
from holdfast.flow import Steps, flow
from holdfast.jobs.source import OURS
from holdfast.testing import new_job
from holdfast.testing.inline import run_due
from holdfast.values.rows import Lease
from holdfast.worker.expiry import Expiry
from holdfast.worker.work import Work
from tests.worker.bulk import COLOURS, add, insert, plain, writing, written
from tests.worker.stage import Stage

PAST, FUTURE = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)


def handler(stage: Stage, colour: str, ran: list[int], **options: Any) -> Any:
    if colour == "async":

        @stage.hf.job(**options)
        async def act(n: int) -> None:
            ran.append(n)

    elif colour == "def":

        @stage.hf.job(**options)
        def act(n: int) -> None:
            ran.append(n)
    else:

        @stage.hf.job(**options)
        async def act(job: Job, n: int) -> None:
            ran.append(n)

    return act


@pytest.mark.parametrize("colour", ["async", "def", "with job"])
def test_a_job_that_has_expired_is_cancelled_instead_of_run(stage: Stage, colour: str, pace: str) -> None:
    ran: list[int] = []
    act = handler(stage, colour, ran)
    late, moment, early = (act.using(expires=said).enqueue(n) for n, said in enumerate((0.001, PAST, FUTURE)))
    never = act.enqueue(3)
    stage.work()
    assert sorted(ran) == [2, 3]
    assert {stage.state(job) for job in (early, never)} == {"done"}
    for job in (late, moment):
        view = stage.show(job)
        [record] = view.errors
        assert (view.state, view.attempts, record["type"]) == ("cancelled", 1, "Expired")
        assert record["message"] == f"expired at {view.expires_at.isoformat()}"  # type: ignore[union-attr]
    told = stage.heard(events.JobExpired)
    assert {event.id for event in told} == {late.id, moment.id}
    assert {event.id for event in stage.heard(events.JobStarted)} == {early.id, never.id}
    with pytest.raises(JobCancelled, match=r"has not run: expired at .* Nothing begins after `expires`"):
        stage.hf.result(late, timeout=5)
    # A listener to cancelled jobs hears of these, too.
    assert stage.heard(events.JobCancelled) == told


def test_every_attempt_is_looked_at_retries_too(sqlite_stage: Stage) -> None:
    stage, ran = sqlite_stage, []

    @stage.hf.job(retry=Retry(first_delay=10, jitter=0))
    def act(n: int) -> None:
        ran.append(n)
        raise ValueError("again")

    kept, late = act.using(expires=3_600).enqueue(1), act.using(expires=30).enqueue(2)
    assert [one.outcome for one in run_due(stage.hf, raise_errors=False)] == ["retried"] * 2
    assert [one.outcome for one in run_due(stage.hf, raise_errors=False, ahead=60)] == ["retried", "cancelled"]
    assert ran == [1, 2, 1]
    assert stage.state(kept) == "pending"
    assert [error["type"] for error in stage.show(late).errors] == ["ValueError", "Expired"]


@COLOURS
def test_a_bulk_handler_gets_only_items_that_have_not_expired(stage: Stage, colour: str) -> None:
    got: list[list[int]] = []
    index = plain(stage, colour, lambda pages, _: got.append(pages))
    stage.hf.enqueue_many(
        [index.using(expires=PAST if n % 3 == 0 else FUTURE if n % 3 == 1 else None).bind(n) for n in range(9)]
    )
    stage.work(concurrency=1)
    assert sorted(n for pages in got for n in pages) == [1, 2, 4, 5, 7, 8]
    assert len(stage.heard(events.JobExpired)) == 3


@COLOURS
def test_a_call_of_which_all_items_have_expired_is_not_made(stage: Stage, colour: str) -> None:
    got: list[list[int]] = []
    index = plain(stage, colour, lambda pages, _: got.append(pages))
    add(stage, index, 3, expires=PAST)
    index.using(expires=PAST, max_attempts=1).enqueue(9)
    index.using(expires=FUTURE, max_attempts=1).enqueue(10)
    stage.work()
    assert got == [[10]]
    assert len(stage.heard(events.JobExpired)) == 4


def test_effects_of_items_in_time_commit_without_the_others(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    stage.sql("create table effects (what integer)")
    index = writing(stage, "async")
    stage.hf.enqueue_many([index.using(expires=PAST if n % 2 else None).bind(n) for n in range(6)])
    stage.work()
    assert written(stage) == [0, 2, 4]


def test_jobs_that_share_a_commit_expire_too(stage: Stage) -> None:
    stage.sql("create table if not exists effects (what integer)")

    @stage.hf.job(commit="together")
    async def act(job: Job, n: int) -> None:
        async with job.transaction() as tx:
            await tx.execute(insert(n))

    stage.hf.enqueue_many([act.using(expires=PAST if n % 2 else FUTURE).bind(n) for n in range(10)])
    stage.work()
    assert [row[0] for row in stage.sql("select what from effects order by what")] == [0, 2, 4, 6, 8]


def test_the_line_of_an_expired_job_goes_on(stage: Stage) -> None:
    ran: list[int] = []
    stage.hf.queue("orders", ordered=True)

    @stage.hf.job(queue="orders", key="all")
    async def act(n: int) -> None:
        ran.append(n)

    stage.hf.enqueue_many([act.using(expires=PAST if n in (0, 3, 4) else None).bind(n) for n in range(8)])
    stage.work()
    assert ran == [1, 2, 5, 6, 7]
    assert stage.sql("select count(*) from holdfast_lines")[0][0] == 0


def test_a_place_in_a_limited_queue_comes_back_from_an_expired_job(stage: Stage) -> None:
    ran: list[int] = []
    stage.hf.queue("few", concurrency=1)
    act = handler(stage, "async", ran, queue="few")
    stage.hf.enqueue_many([act.using(expires=PAST).bind(n) for n in range(3)])
    act.enqueue(9)
    stage.work()
    assert ran == [9]
    assert stage.sql("select held from holdfast_queues where name = 'few'")[0][0] == 0


def test_a_replayed_job_runs_after_its_time(stage: Stage) -> None:
    ran: list[int] = []
    act = handler(stage, "async", ran)
    job = act.using(expires=PAST).enqueue(1)
    stage.work()
    assert (stage.state(job), ran) == ("cancelled", [])
    stage.run(admin.retry(job.id, "a person"))
    stage.work(None, again(stage, ran))
    assert (stage.state(job), ran) == ("done", [1])


def again(stage: Stage, ran: list[int]) -> Any:
    """Another application with the same handler: the first was closed with its worker."""
    hf = stage.app()

    @hf.job
    async def act(n: int) -> None:
        ran.append(n)

    return hf


def test_a_debounced_job_that_expires_is_cancelled(stage: Stage) -> None:
    ran: list[int] = []
    act = handler(stage, "async", ran)
    act.using(debounce=Debounce("doc:7", wait=0), expires=FUTURE).enqueue(1)
    job = act.using(debounce=Debounce("doc:7", wait=0), expires=PAST).enqueue(2)
    stage.work()
    assert (stage.state(job), ran) == ("cancelled", [])


def test_a_suspect_is_looked_at_before_its_begin_is_recorded(stage: Stage) -> None:
    ran: list[int] = []
    act = handler(stage, "async", ran)
    late, early = act.using(expires=PAST).enqueue(1), act.using(expires=FUTURE).enqueue(2)
    stage.sql("update holdfast_jobs set lapses = 1")
    stage.work()
    assert (ran, stage.state(late), stage.state(early)) == ([2], "cancelled", "done")


@COLOURS
def test_a_job_whose_time_cannot_be_looked_up_goes_back_without_an_attempt(
    stage: Stage, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    failed: list[int] = []
    looking = jobs.expired

    @flow
    def expired(leases: Sequence[Lease]) -> Steps[set[str]]:
        if not failed:
            failed.append(len(leases))
            raise DatabaseUnavailable("for a moment")
        return (yield from looking(leases))

    monkeypatch.setattr(jobs, "expired", expired)
    monkeypatch.setattr("holdfast.worker.patience.BEGIN_TRIES", 1)
    act = handler(stage, colour, ran)
    index = plain(stage, colour, lambda pages, _: ran.extend(pages))
    jobs_added = [act.using(expires=FUTURE).enqueue(1), index.using(expires=FUTURE).enqueue(2), index.enqueue(3)]
    stage.work(concurrency=1)
    assert failed
    assert sorted(ran) == [1, 2, 3]
    assert {stage.show(job).attempts for job in jobs_added} == {1}
    assert len(stage.heard(events.JobReleased)) >= 1


def test_a_worker_that_stops_during_a_look_gives_the_job_back(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, ran = sqlite_stage, []
    looks = asyncio.Event()

    async def of(self: Expiry, works: Sequence[Work]) -> set[str]:
        looks.set()
        await asyncio.sleep(60)
        return set()

    monkeypatch.setattr(Expiry, "of", of)
    act = handler(stage, "async", ran)
    index = plain(stage, "async", lambda pages, _: ran.extend(pages))
    added = [act.using(expires=FUTURE).enqueue(1), *add(stage, index, 3, expires=FUTURE)]

    async def scene(worker: Any) -> None:
        await looks.wait()
        await stage.until(lambda: len(worker.slots.running) == 4)

    stage.work(scene, drain=0)
    assert ran == []
    assert [(stage.state(job), stage.show(job).attempts) for job in added] == [("pending", 0)] * 4


def test_slots_that_ask_at_the_same_time_share_a_look() -> None:
    asked: list[int] = []

    async def scene() -> list[set[str]]:
        under_way, go_on = asyncio.Event(), asyncio.Event()

        async def run(looking: Any) -> set[str]:
            steps = looking.start()
            ids = next(steps).params["ids"]
            asked.append(len(ids))
            under_way.set()
            await go_on.wait()
            return {ids[0]}

        expiry = Expiry(run)
        first = asyncio.create_task(expiry.of([work()]))
        await under_way.wait()
        others = [asyncio.create_task(expiry.of([work()])) for _ in range(50)]
        await asyncio.sleep(0)
        others[0].cancel()
        go_on.set()
        return [await one for one in (first, *others[1:])]

    def work() -> Work:
        lease = Lease(new_job().id, "q", "k", "{}", None, None, 0, 1, 5, 1, 1_000, 0, 0)
        return Work(lease, None, True, 0.0, OURS)  # type: ignore[arg-type]

    answers = asyncio.run(scene())
    assert asked == [1, 50]
    assert len(answers) == 50
