"""Leases in a worker's hands: renewed, lost, cancelled, claimed again, taken back."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Job, Retry, admin, events, jobs
from holdfast.worker import Worker
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)


def test_a_job_longer_than_its_lease_runs_once(stage: Stage) -> None:
    ran: list[int] = []

    @stage.hf.job(lease=1)
    async def long(job: Job) -> None:
        ran.append(job.attempt)
        await asyncio.sleep(2.2)

    job = long.enqueue()

    async def two_workers(_: Worker) -> None:
        async with stage.hf.worker(poll=0.05):
            await stage.until_empty()

    stage.work(two_workers, poll=0.05)
    assert (ran, stage.state(job), stage.show(job).attempts) == ([1], "done", 1)
    assert not stage.heard(events.JobReaped)


def test_a_lease_of_one_job_shorter_than_its_handlers_is_renewed_in_time(stage: Stage) -> None:
    @stage.hf.job(lease=60)
    async def long() -> None:
        await asyncio.sleep(1.6)

    job = long.using(lease=1).enqueue()

    async def body(_: Worker) -> None:
        async with stage.hf.worker(poll=0.05):
            await stage.until_empty()

    stage.work(body, poll=0.05)
    assert stage.show(job).attempts == 1
    assert not stage.heard(events.JobReaped)


def test_a_lost_lease_cancels_an_async_handler(stage: Stage) -> None:
    cancelled: list[str] = []

    @stage.hf.job(lease=1)
    async def act(job: Job) -> None:
        stage.steal(job)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(job.id)
            assert job.lost
            raise

    job = act.enqueue()

    async def body(worker: Worker) -> None:
        await stage.until_said(events.LeaseWasLost)
        await stage.until(lambda: not worker.held)

    stage.work(body)
    assert cancelled == [job.id]
    shown = stage.show(job)
    assert (shown.state, shown.leased_by) == ("leased", "thief")


def test_a_lost_lease_tells_a_def_handler_and_refuses_its_late_result(stage: Stage) -> None:
    told: list[bool] = []

    @stage.hf.job(lease=1)
    def act(job: Job) -> str:
        stage.steal(job)
        deadline = time.monotonic() + 30
        while not job.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        told.append(job.lost)
        return "too late"

    job = act.enqueue()
    stage.work(lambda _: stage.until_said(events.LeaseWasLost))
    assert told == [True]
    shown = stage.show(job)
    assert (shown.state, shown.leased_by, shown.result) == ("leased", "thief", None)
    assert not stage.heard(events.JobDone)


def test_a_late_result_is_refused_even_before_anyone_noticed(stage: Stage) -> None:
    @stage.hf.job
    async def act(job: Job) -> str:
        stage.steal(job)
        return "too late"

    job = act.enqueue()
    stage.work(lambda _: stage.until_said(events.LeaseWasLost))
    assert (stage.state(job), len(stage.heard(events.JobDone))) == ("leased", 0)


@pytest.mark.parametrize("colour", ["async", "def"])
def test_cancelling_a_running_job_reaches_its_handler(stage: Stage, colour: str) -> None:
    if colour == "async":

        @stage.hf.job(lease=1)
        async def act() -> None:
            await asyncio.sleep(30)
    else:

        @stage.hf.job(lease=1)
        def act(job: Job) -> None:
            deadline = time.monotonic() + 30
            while not job.cancel_requested and time.monotonic() < deadline:
                time.sleep(0.01)
            raise RuntimeError("stopped as asked")

    job = act.enqueue()

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobStarted)
        assert await stage.arun(admin.cancel(job.id, "test")) == "requested"
        await stage.until_said(events.JobCancelled)

    stage.work(body)
    assert (stage.state(job), stage.show(job).attempts) == ("cancelled", 1)


def test_a_cancel_that_came_too_late_for_one_attempt_stops_the_next(stage: Stage) -> None:
    ran: list[int] = []

    @stage.hf.job(retry=AT_ONCE)
    async def act(job: Job) -> None:
        ran.append(job.attempt)
        await stage.arun(admin.cancel(job.id, "test"))
        raise ValueError("before the request was seen")

    job = act.enqueue()
    stage.work(poll=0.05)
    assert (ran, stage.state(job)) == ([1], "cancelled")


def test_buffered_jobs_whose_lease_is_lost_or_cancelled_never_start(stage: Stage) -> None:
    started: list[str] = []

    @stage.hf.job(lease=1)
    async def act(name: str) -> None:
        started.append(name)
        await asyncio.sleep(30)

    running = act.enqueue(name="running")
    stolen, unwanted = act.enqueue(name="stolen"), act.enqueue(name="unwanted")

    async def body(worker: Worker) -> None:
        await stage.until(lambda: started)
        # As if claimed ahead: a buffer is only filled by fast handlers.
        leases = stage.run(jobs.claim("default", limit=2, worker=worker.id, lease_ms=1000))
        worker.claims[0].take(worker.sources[0], leases, time.monotonic())
        stage.steal(stolen)
        await stage.arun(admin.cancel(unwanted.id, "test"))
        await stage.until_said(events.JobCancelled)
        await stage.until_said(events.LeaseWasLost)
        assert [work.lease.job_id for work in worker.held.values()] == [running.id]

    stage.work(body, concurrency=1, drain=0)
    assert started == ["running"]
    assert (stage.state(stolen), stage.state(unwanted)) == ("leased", "cancelled")


def test_jobs_that_wait_too_long_in_the_buffer_go_back(stage: Stage) -> None:
    release = asyncio.Event()
    first = True

    @stage.hf.job
    async def act(n: int) -> None:
        nonlocal first
        if n == 0:
            await release.wait()

    blocker = act.enqueue(n=0)
    waiting = [act.enqueue(n=n) for n in range(1, 4)]

    async def body(worker: Worker) -> None:
        await stage.until_said(events.JobStarted)
        leases = stage.run(jobs.claim("default", limit=3, worker=worker.id))
        worker.claims[0].take(worker.sources[0], leases, time.monotonic() - 60)
        await stage.until_said(events.JobReleased, 3)
        shown = [stage.show(job) for job in waiting]
        assert {(job.state, job.attempts) for job in shown} == {("pending", 0)}
        release.set()
        await stage.until_empty()

    stage.work(body, concurrency=1)
    assert stage.state(blocker) == "done"


def test_a_job_claimed_again_while_the_old_attempt_still_runs_keeps_its_own_lease(stage: Stage) -> None:
    """The old attempt's end must not make the worker forget the new one: nobody would renew it."""
    attempts: list[int] = []
    go = threading.Event()

    @stage.hf.job(lease=1, retry=AT_ONCE)
    def act(job: Job) -> str:
        attempts.append(job.attempt)
        go.wait(30)
        if job.attempt == 2:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline and not job.lost:
                time.sleep(0.01)
            return "lost" if job.lost else "second"
        return "first"

    job = act.enqueue()

    async def body(worker: Worker) -> None:
        await stage.until(lambda: attempts == [1])
        # Reaped by another worker, and free again.
        stage.sql(
            "update holdfast_jobs set state = 'pending', fence = fence + 2, leased_by = null, lease_expires_at = null"
            " where id = ?",
            job.id,
        )
        await stage.until(lambda: attempts == [1, 2])
        go.set()
        await stage.until_empty()
        await stage.until(lambda: not worker.held)

    stage.work(body, poll=0.05)
    assert stage.show(job).result == "second"
    assert len(stage.heard(events.LeaseWasLost)) == 1
    assert not stage.heard(events.JobReaped)


def test_a_worker_reaps_what_others_left_and_not_what_it_runs(stage: Stage) -> None:
    started: list[str] = []

    @stage.hf.job(retry=AT_ONCE)
    async def act(name: str) -> None:
        started.append(name)
        if name == "mine" and started.count("mine") == 1:
            await asyncio.sleep(2.5)

    left = act.enqueue(name="left")
    stage.run(jobs.claim("default", limit=1, worker="dead-worker", lease_ms=1))
    mine = act.enqueue(name="mine")

    async def body(_: Worker) -> None:
        await stage.until(lambda: "mine" in started)
        # Expired while it runs here (a renewal was late): its own worker must not take it away from itself.
        stage.sql("update holdfast_jobs set lease_expires_at = created_at where id = ?", mine.id)
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert sorted(started) == ["left", "mine"]
    assert [event.id for event in stage.heard(events.JobReaped)] == [left.id]
    assert stage.show(left).attempts == 1
    assert stage.show(left).errors[0]["type"] == "LeaseExpired"
    assert stage.show(mine).attempts == 1


def test_reaping_at_the_last_attempt_makes_a_dead_letter(stage: Stage) -> None:
    @stage.hf.job(retry=Retry(max_attempts=1))
    async def act() -> None: ...

    job = act.enqueue()
    [lease] = stage.run(jobs.claim("default", limit=1, worker="dead-worker", lease_ms=1))
    stage.run(jobs.begin(lease))
    stage.work()
    assert stage.state(job) == "dead"
    assert [event.id for event in stage.heard(events.JobDead)] == [job.id]


def test_a_worker_reaps_only_kinds_it_serves(stage: Stage) -> None:
    @stage.hf.job
    async def known() -> None: ...

    stranger = stage.hf.enqueue("stranger", {}, check=False)
    mine = known.enqueue()
    stage.run(jobs.claim("default", limit=2, worker="dead-worker", lease_ms=1))

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobReaped)

    stage.work(body)
    assert [event.id for event in stage.heard(events.JobReaped)] == [mine.id]
    assert stage.state(stranger) == "leased"


def test_a_handler_that_raises_somebody_elses_lost_lease_has_failed(stage: Stage) -> None:
    from holdfast import LeaseLost

    @stage.hf.job(retry=AT_ONCE)
    async def act(job: Job) -> str:
        if job.attempt == 1:
            raise LeaseLost("another job", 7)
        return "second"

    job = act.enqueue()
    stage.work(poll=0.05)
    assert (stage.show(job).result, len(stage.show(job).errors)) == ("second", 1)


def test_a_lost_answer_to_a_claim_leaves_no_lease_behind(pg_stage: Stage, request: pytest.FixtureRequest) -> None:
    proxy = request.getfixturevalue("pg_proxy")
    stage = Stage(pg_stage.url)
    hf = stage.hf = type(stage.hf)(proxy.url(pg_stage.url), notify=False)
    hf.on(events.Event, stage.said.append)

    @hf.job(lease=300)
    async def act(n: int) -> None: ...

    async def body(_: Worker) -> None:
        proxy.drop_reply(lambda tag: tag.startswith("UPDATE 3"))
        await hf.aenqueue_many([act.bind(n=n) for n in range(3)])
        await stage.until_empty()

    stage.work(body, poll=0.05)
    stage.close()
    assert proxy.cuts == 1
    rows = pg_stage.sql("select attempts, count(*) from holdfast_finished group by attempts")
    assert rows == [(1, 3)]


def test_a_drained_worker_finishes_its_work_claims_no_more_and_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.rounds.beat.Beat.every_seconds", 0.05)
    ran: list[int] = []
    may_end = asyncio.Event()

    @stage.hf.job
    async def act(n: int) -> None:
        await may_end.wait()
        ran.append(n)

    async def scene() -> None:
        worker = stage.hf.worker(concurrency=1, buffer=0, poll=0.05, drain=60)
        running = asyncio.create_task(worker.run())
        act.enqueue(n=1)
        await stage.until_said(events.JobStarted)
        answer = await stage.hf.adrain(worker.id, actor="ann")
        assert answer.asked == [worker.id]
        assert (await stage.hf.adrain(worker.id)).left == {worker.id: "draining"}
        await stage.until_said(events.WorkerStopping)
        act.enqueue(n=2)
        assert dict(stage.sql("select id, status from holdfast_workers"))[worker.id] == "draining"
        may_end.set()
        await running

    asyncio.run(scene())
    assert ran == [1]
    assert stage.sql("select state, attempts from holdfast_jobs") == [("pending", 0)]
    assert [row[0] for row in stage.sql("select status from holdfast_workers")] == ["dead"]


def test_the_registry_knows_the_worker_and_can_drain_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.rounds.beat.Beat.every_seconds", 0.05)

    @stage.hf.job
    async def act() -> None: ...

    def status(worker: Worker) -> Any:
        return dict(stage.sql("select id, status from holdfast_workers"))[worker.id]

    async def body(worker: Worker) -> None:
        assert status(worker) == "alive"
        stage.sql("update holdfast_workers set status = 'dead'")
        await stage.until(lambda: status(worker) == "alive", "a beat revives the buried")
        stage.sql("update holdfast_workers set status = 'draining'")
        [stopping] = await stage.until_said(events.WorkerStopping)
        assert "draining" in stopping.why

    stage.work(body)
    assert [row[0] for row in stage.sql("select status from holdfast_workers")] == ["dead"]
