"""Looking at jobs and waiting for what they give: `hf.get`, `hf.result` and their async twins."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    Cancel,
    ConfigError,
    Fatal,
    InvalidPayload,
    Job,
    JobCancelled,
    JobDead,
    JobNotFound,
    Retry,
    WouldBlock,
    admin,
    events,
    jobs,
    results,
)
from holdfast.testing.inline import run_due
from holdfast.values.ids import new_id
from holdfast.values.rows import Finish, Lease
from holdfast.waits import board
from tests.worker.asking import Asker, claimed, is_at_rest, run_soon, scene, waited_for
from tests.worker.stage import DEADLINE, Stage

# What comes of a job


@dataclass
class Sent:
    to: str
    at: datetime


def test_a_result_is_what_the_handler_returned(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def add(a: int, b: int) -> int:
        return a + b

    @stage.hf.job
    def send(to: str) -> Sent:
        return Sent(to, datetime.fromisoformat("2026-05-01T12:00:00+00:00"))

    @stage.hf.job
    async def nothing() -> None: ...

    async def body(_: Any) -> None:
        assert await asker.result(stage.hf, add.enqueue(1, 2)) == 3
        sent = send.enqueue("ada")
        assert await asker.result(stage.hf, sent) == {"to": "ada", "at": "2026-05-01T12:00:00Z"}
        assert await asker.result(stage.hf, sent.id, type=Sent) == Sent("ada", datetime.fromisoformat("2026-05-01T12Z"))
        assert await asker.result(stage.hf, nothing.enqueue()) is None

    stage.work(body)


def test_a_result_that_does_not_fit_its_type_is_refused_with_the_reason(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    def word() -> str:
        return "seven"

    job = word.enqueue()
    run_due(stage.hf)

    async def body() -> None:
        with pytest.raises(InvalidPayload, match=rf"result of job {job.id} \(word\) as int: Expected `int`, got `str`"):
            await asker.result(stage.hf, job, type=int)
        with pytest.raises(ConfigError, match="type: must be a type that msgspec can read"):
            await asker.result(stage.hf, job, type=threading.Lock)

    scene(stage, body)


def test_a_job_that_ends_while_it_is_waited_for_answers_all_who_wait(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = [asker.asking(stage.hf, job) for _ in range(3)]
        await waited_for(stage.hf, job)
        stage.run(jobs.complete(lease, '{"n": 1}'))
        assert await asyncio.gather(*asking) == [{"n": 1}] * 3
        assert await stage.until(lambda: is_at_rest(stage.hf))

    scene(stage, body)


def test_a_dead_job_raises_its_last_error_and_carries_all_of_it(stage: Stage, asker: Asker) -> None:
    @stage.hf.job(retry=Retry(max_attempts=2, first_delay=0, max_delay=0, jitter=0))
    async def act(n: int) -> None:
        raise ValueError("not " + "a" * 600)

    async def body(_: Any) -> None:
        job = act.enqueue(1)
        with pytest.raises(
            JobDead, match=f"Job {job.id} .act. is dead after 2 of 2 attempts: ValueError: not aaa"
        ) as dead:
            await asker.result(stage.hf, job)
        error = dead.value
        assert (error.job_id, error.kind, error.error_type) == (job.id, "act", "ValueError")
        assert error.error_message == "not " + "a" * 600
        assert (error.job.state, len(error.job.errors), error.job.payload) == ("dead", 2, '{"n":1}')
        assert f"holdfast dead replay --id {job.id}" in str(error)

    stage.work(body)


def test_a_cancelled_job_raises_the_reason(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> Cancel:
        return Cancel("nobody wants it")

    async def body() -> None:
        by_handler = act.enqueue()
        await run_soon(stage.hf)
        by_hand = act.enqueue()
        await stage.arun(admin.cancel(by_hand.id, "ada"))
        with pytest.raises(JobCancelled, match="was cancelled: nobody wants it") as first:
            await asker.result(stage.hf, by_handler)
        with pytest.raises(JobCancelled, match="was cancelled before it ran") as second:
            await asker.result(stage.hf, by_hand)
        assert (first.value.reason, second.value.reason) == ("nobody wants it", "")
        assert (second.value.job_id, second.value.kind, second.value.job.state) == (by_hand.id, "act", "cancelled")

    scene(stage, body)


def test_a_job_that_is_cancelled_while_it_is_waited_for_ends_the_wait(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        asking = asker.asking(stage.hf, job)
        await waited_for(stage.hf, job)
        await stage.arun(admin.cancel(job.id, None))
        with pytest.raises(JobCancelled):
            await asking

    scene(stage, body)


def test_a_job_that_died_and_is_replayed_before_anybody_looked_is_waited_for_on(
    stage: Stage, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter that sees the dead letter raises; one that sees the job live again gets what comes of that."""
    monkeypatch.setattr(board, "FIRST_PAUSE_SECONDS", 0.5)

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(stage.hf, job)
        await waited_for(stage.hf, job)
        stage.run(_died_and_replayed(lease))
        again = claimed(stage)
        stage.run(jobs.complete(again, '"second"'))
        assert await asking == "second"

    def _died_and_replayed(lease: Lease) -> Any:
        from holdfast.flow import Steps, flow
        from holdfast.testing import failure

        @flow
        def both() -> Steps[None]:
            # In one transaction: between the two, no look can see it dead.
            yield from jobs.kill(lease, failure(), "group")
            yield from admin.replay(admin.Filter(ids=(lease.job_id,)), 1, None)

        return both()

    scene(stage, body)


def test_a_job_that_is_replayed_after_its_death_was_told_can_be_waited_for_again(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    def act() -> str:
        if not stage.heard(events.JobDead):
            raise Fatal("once")
        return "after all"

    async def body(_: Any) -> None:
        job = act.enqueue()
        with pytest.raises(JobDead):
            await asker.result(stage.hf, job)
        await stage.arun(admin.replay(admin.Filter(ids=(job.id,)), 1, None))
        assert await asker.result(stage.hf, job) == "after all"

    stage.work(body)


def test_retries_are_waited_through(stage: Stage, asker: Asker) -> None:
    @stage.hf.job(retry=Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0))
    async def act(job: Job) -> int:
        if job.attempt < 3:
            raise ValueError("again")
        return job.attempt

    async def body(_: Any) -> None:
        assert await asker.result(stage.hf, act.enqueue()) == 3

    stage.work(body)


# What cannot be waited for


def test_a_job_that_is_not_there_is_told_at_once(stage: Stage, asker: Asker) -> None:
    async def body() -> None:
        for ask in (asker.result, asker.get):
            with pytest.raises(JobNotFound, match=r"never committed.*discarded.*retention=0"):
                await ask(stage.hf, new_id())

    scene(stage, body)


@pytest.mark.parametrize("strange", ["", "41", 41, None, "send:step-1", b"01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f"])
def test_what_names_no_job_of_ours_is_refused(sqlite_stage: Stage, strange: Any) -> None:
    for ask in (sqlite_stage.hf.get, sqlite_stage.hf.result):
        with pytest.raises(ConfigError, match=r"job: must be the id of a job .*foreign tables"):
            ask(strange)


def test_an_id_may_be_typed_in_capitals(sqlite_stage: Stage) -> None:
    @sqlite_stage.hf.job
    def act() -> int:
        return 7

    job = act.enqueue()
    run_due(sqlite_stage.hf)
    assert sqlite_stage.hf.result(f" {job.id.upper()}\n", 0) == 7


@pytest.mark.parametrize("strange", [-1, "5", float("nan"), True])
def test_a_timeout_that_is_not_a_time_is_refused(sqlite_stage: Stage, strange: Any) -> None:
    with pytest.raises(ConfigError, match="timeout: "):
        sqlite_stage.hf.result(new_id(), strange)


def test_a_sync_wait_on_an_event_loop_is_refused(stage: Stage) -> None:
    @stage.hf.job
    def act() -> int:
        return 7

    async def body() -> None:
        job = act.enqueue()
        with pytest.raises(WouldBlock, match=r"hf.result\(\) would block this event loop.*await hf.aresult\(\)"):
            stage.hf.result(job, timeout=1)
        # One look is like any other sync call.
        with pytest.raises(TimeoutError):
            stage.hf.result(job, timeout=0)
        assert stage.hf.get(job).state == "pending"

    scene(stage, body)


# How long


def test_no_time_looks_once(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    def act() -> int:
        return 7

    async def body() -> None:
        job = act.enqueue()
        with pytest.raises(TimeoutError, match="has not ended yet: it is pending, due"):
            await asker.result(stage.hf, job, 0)
        await run_soon(stage.hf)
        assert await asker.result(stage.hf, job, timedelta(0)) == 7
        assert await stage.until(lambda: is_at_rest(stage.hf))

    scene(stage, body)


def test_a_timeout_says_that_no_worker_serves_the_queue(stage: Stage, asker: Asker) -> None:
    @stage.hf.job(queue="slow")
    async def act() -> None: ...

    @stage.hf.job
    async def other() -> None: ...

    async def body(_: Any) -> None:
        job = act.enqueue()
        words = (
            rf"Job {job.id} \(act, queue slow\) has not ended within 0.05 seconds: it is pending, due .*"
            r"No live worker serves its queue: start one .*holdfast doctor"
        )
        with pytest.raises(TimeoutError, match=words):
            await asker.result(stage.hf, job, 0.05)
        later = other.using(run_after=600).enqueue()
        with pytest.raises(TimeoutError, match=r"it is pending, due .* 1 live worker serves its queue"):
            await asker.result(stage.hf, later, 0.05)

    stage.work(body, queues=["default"])


def test_a_timeout_says_who_runs_the_job_and_why_it_failed_before(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        with pytest.raises(TimeoutError, match="it runs on worker, attempt 1 of 5"):
            await asker.result(stage.hf, job, 0.05)
        await stage.arun(admin.cancel(job.id, None))
        with pytest.raises(TimeoutError, match="it runs on worker and is asked to stop"):
            await asker.result(stage.hf, job, 0.05)
        stage.sql("update holdfast_jobs set lease_expires_at = leased_at where id = ?", job.id)
        with pytest.raises(
            TimeoutError, match=r"its lease on worker has run out, and no worker has taken it back yet\. No li"
        ):
            await asker.result(stage.hf, job, 0.05)
        stage.run(jobs.park(lease, "children"))
        stage.sql("update holdfast_jobs set state = 'waiting', waits_for = 'children' where id = ?", job.id)
        with pytest.raises(TimeoutError, match="it waits for children"):
            await asker.result(stage.hf, job, 0.05)

    scene(stage, body)


def test_whether_a_lease_has_run_out_is_told_by_the_clock_of_the_database(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        stage.hf.store.now = datetime.now(UTC) - timedelta(hours=1)
        job = act.enqueue()
        claimed(stage)
        with pytest.raises(TimeoutError, match="it runs on worker, attempt 1 of 5"):
            await asker.result(stage.hf, job, 0.05)

    scene(stage, body)


def test_a_job_that_ends_in_the_last_moment_is_answered(
    stage: Stage, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that says how the job is may find that it has ended."""
    monkeypatch.setattr(board, "FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(board, "LONGEST_PAUSE_SECONDS", 1000.0)

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(stage.hf, job, 0.4)
        await waited_for(stage.hf, job)
        stage.run(jobs.complete(lease, "7"))
        assert await asking == 7

    scene(stage, body)


# Queues that keep nothing


def test_a_queue_that_keeps_nothing_leaves_the_result_to_those_who_asked_before_the_end(
    stage: Stage, asker: Asker
) -> None:
    stage.hf.queue("fast", retention=0)

    @stage.hf.job(queue="fast")
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        asking = asker.asking(stage.hf, job)
        await waited_for(stage.hf, job, marked=True)
        lease = claimed(stage, "fast")
        stage.run(jobs.settle([Finish(lease.id, lease.fence, "done", '{"n": 1}', keep=False)]))
        assert await asking == {"n": 1}
        # For some minutes; there is no job to look at.
        assert await asker.result(stage.hf, job, 0) == {"n": 1}
        with pytest.raises(JobNotFound):
            await asker.get(stage.hf, job)

    scene(stage, body)


def test_a_worker_keeps_the_result_for_those_who_wait_where_its_queue_keeps_nothing(stage: Stage, asker: Asker) -> None:
    stage.hf.queue("fast", retention=0)
    begun = threading.Event()

    @stage.hf.job(queue="fast")
    def act(n: int) -> int:
        assert begun.wait(DEADLINE)
        return n

    async def body(_: Any) -> None:
        mine = [act.enqueue(n) for n in range(5)]
        asking = [asker.asking(stage.hf, job) for job in mine]
        for job in mine:
            await waited_for(stage.hf, job, marked=True)
        begun.set()
        assert await asyncio.gather(*asking) == list(range(5))

    stage.work(body)
    assert stage.sql("select count(*) from holdfast_finished")[0][0] == 0


def test_jobs_of_which_nothing_is_kept_are_marked_with_the_first_look_and_no_others(stage: Stage, asker: Asker) -> None:
    """Between a look and a mark the job could end, and nothing would be left of it."""
    stage.hf.queue("fast", retention=0)

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        fast, kept = act.using(queue="fast").enqueue(), act.enqueue()
        for job in (fast, kept):
            with pytest.raises(TimeoutError):
                await asker.result(stage.hf, job, 0)
        rows = stage.sql("select queue, followers from holdfast_jobs order by queue")
        assert [tuple(row) for row in rows] == [("default", None), ("fast", results.WAITED_FOR)]
        # Where nobody knows the queues, any may keep nothing.
        stage.hf.context.waits.knows_queues = False
        with pytest.raises(TimeoutError):
            await asker.result(stage.hf, kept, 0)
        assert len(stage.sql("select id from holdfast_jobs where followers is not null")) == 2

    scene(stage, body)


def test_a_worker_deletes_what_was_kept_for_long_enough(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.rounds.prune.Prune.every_seconds", 0.02)
    monkeypatch.setattr("holdfast.results.ends.KEPT_SECONDS", 0.0)

    @stage.hf.job
    async def act() -> None: ...

    job = act.enqueue()
    lease = claimed(stage)
    stage.run(results.mark([job.id]))
    stage.run(jobs.settle([Finish(lease.id, lease.fence, "done", "7", keep=False)]))
    assert stage.hf.result(job, timeout=0) == 7

    async def body(_: Any) -> None:
        await stage.until(lambda: not stage.sql("select job_id from holdfast_results"))

    stage.work(body)
    with pytest.raises(JobNotFound):
        stage.hf.result(job, timeout=0)


def test_who_comes_after_the_end_of_a_job_that_was_not_kept_is_told_so(stage: Stage, asker: Asker) -> None:
    stage.hf.queue("fast", retention=0)

    @stage.hf.job(queue="fast")
    def act() -> int:
        return 7

    job = act.enqueue()
    run_due(stage.hf)

    async def body() -> None:
        with pytest.raises(JobNotFound, match="with retention=0 nothing is kept of done jobs") as gone:
            await asker.result(stage.hf, job)
        assert not gone.value.ended

    scene(stage, body)


def test_who_does_not_know_that_a_queue_keeps_nothing_is_told_what_to_do(stage: Stage, asker: Asker) -> None:
    hf = stage.app(notify=False)

    @hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(hf, job)
        await waited_for(hf, job)
        stage.run(jobs.settle([Finish(lease.id, lease.fence, "done", "1", keep=False)]))
        with pytest.raises(JobNotFound, match=r"has ended, and nothing is left of it: .*also where you wait") as gone:
            await asking
        assert gone.value.ended

    scene(stage, body, hf)


# Inline


def test_what_ran_inline_has_its_result_at_once(stage: Stage) -> None:
    @stage.hf.job
    def act(n: int) -> int:
        return n * 2

    job = act.enqueue(4)
    run_due(stage.hf)
    assert stage.hf.result(job, timeout=0) == 8
    view = stage.hf.get(job)
    assert (view.state, view.result, view.attempts) == ("done", 8, 1)


def test_progress_is_seen_while_a_job_runs(stage: Stage, asker: Asker) -> None:
    begun, go = threading.Event(), threading.Event()

    @stage.hf.job
    def act(job: Job) -> None:
        job.progress({"percent": 40})
        begun.set()
        assert go.wait(DEADLINE)

    async def body(_: Any) -> None:
        job = act.enqueue()
        await stage.until(begun.is_set)
        view = await asker.get(stage.hf, job)
        assert (view.state, view.progress, view.result) == ("leased", {"percent": 40}, None)
        go.set()
        assert await asker.result(stage.hf, job) is None

    stage.work(body)


def test_a_look_that_fails_in_a_way_of_its_own_ends_the_wait(
    sqlite_stage: Stage, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect must not leave somebody waiting for ever."""

    @sqlite_stage.hf.job
    async def act() -> None: ...

    def broken(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(board.Board, "learn", broken)

    async def body() -> None:
        with pytest.raises(RuntimeError, match="a defect"):
            await asker.result(sqlite_stage.hf, act.enqueue())

    scene(sqlite_stage, body)
