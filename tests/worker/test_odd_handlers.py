"""Handlers and outcomes that try to break a worker: each costs its own attempt and nothing else."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Job, Retry, events
from holdfast.worker import Worker
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=2, first_delay=0, max_delay=0, jitter=0)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Peculiar(BaseException):
    pass


RAISED: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "RecursionError": RecursionError,
    "Unspeakable": Unspeakable,
    "Peculiar": Peculiar,
}


@pytest.mark.parametrize("colour", ["async", "def"])
def test_whatever_a_handler_raises_is_a_failed_attempt(sqlite_stage: Stage, colour: str) -> None:
    """Each kills the one slot there is, if anything does."""
    stage = sqlite_stage

    def misbehave(job: Job, what: str) -> str:
        if job.attempt == 1:
            raise RAISED[what]
        return "second"

    if colour == "async":

        @stage.hf.job(retry=AT_ONCE)
        async def act(job: Job, what: str) -> str:
            return misbehave(job, what)
    else:

        @stage.hf.job(retry=AT_ONCE)
        def act(job: Job, what: str) -> str:
            return misbehave(job, what)

    jobs = {what: act.enqueue(what=what) for what in RAISED}
    stage.work(poll=0.05, concurrency=1)
    shown = {what: stage.show(job) for what, job in jobs.items()}
    assert {what: (job.result, len(job.errors)) for what, job in shown.items()} == dict.fromkeys(RAISED, ("second", 1))


def test_a_handler_that_cancels_itself_has_failed_and_the_next_job_is_untouched(stage: Stage) -> None:
    kept: list[asyncio.Task[Any]] = []

    @stage.hf.job(retry=AT_ONCE)
    async def act(job: Job, how: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        if job.attempt == 2:
            return "second"
        if how == "and waits":
            task.cancel()
            await asyncio.sleep(10)
        elif how == "and raises":
            task.cancel()
            raise ValueError("at once")
        elif how == "child":
            child = asyncio.ensure_future(asyncio.sleep(10))
            child.cancel()
            await child
        return "unreachable"

    @stage.hf.job
    async def leaves_it_behind() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        kept.append(task)
        return "ended without waiting"

    @stage.hf.job
    async def bystander(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    failing = [act.enqueue(how=how) for how in ("and waits", "and raises", "child")]
    left = leaves_it_behind.enqueue()
    others = [bystander.enqueue(n=n) for n in range(5)]

    async def body(worker: Worker) -> None:
        await stage.until(lambda: kept)
        await stage.until_empty()
        # And once more from outside, while the slot waits for work.
        kept[0].cancel()
        last = await bystander.aenqueue(n=99)
        await stage.until(lambda: stage.state(last) == "done")
        await stage.until(lambda: not worker.held)

    stage.work(body, poll=0.05, concurrency=1)
    assert [(stage.show(job).result, len(stage.show(job).errors)) for job in failing] == [("second", 1)] * 3
    assert stage.show(left).result == "ended without waiting"
    assert [(stage.show(job).result, stage.show(job).attempts) for job in others] == [(n, 1) for n in range(5)]


def test_threads_that_never_end_are_given_up_on_and_replaced(stage: Stage) -> None:
    release = threading.Event()
    stuck: list[int] = []

    @stage.hf.job(timeout=0.05, retry=Retry(max_attempts=1))
    def never(n: int) -> None:
        stuck.append(n)
        release.wait(60)

    @stage.hf.job
    def quick(n: int) -> int:
        return n

    dead = [never.enqueue(n=n) for n in range(6)]
    done = [quick.enqueue(n=n) for n in range(20)]
    try:
        stage.work(concurrency=2, poll=0.05)
        assert sorted(stuck) == list(range(6))
    finally:
        release.set()
    assert {stage.state(job) for job in dead} == {"dead"}
    assert [stage.show(job).result for job in done] == list(range(20))


def refuse(stage: Stage, column: str, text: str, outcome: str = "") -> None:
    """Make the database refuse finished rows that hold a text, as a trigger or a limit of its own might."""
    also = f"and new.outcome = '{outcome}'" if outcome else ""
    if stage.is_sqlite:
        stage.sql(
            f"create trigger refuse before insert on holdfast_finished when new.{column} like '%{text}%' {also}"
            " begin select raise(abort, 'refused by a trigger'); end"
        )
        return
    if stage.url.startswith("mysql"):
        stage.sql(
            "create trigger refuse before insert on holdfast_finished for each row"
            f" begin if new.{column} like '%{text}%' {also} then"
            " signal sqlstate '45000' set message_text = 'refused by a trigger'; end if; end"
        )
        return
    stage.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        f" if new.{column}::text like '%{text}%' {also} then raise exception 'refused by a trigger'; end if;"
        " return new; end $$"
    )
    stage.sql("create trigger refuse before insert on holdfast_finished for each row execute function refuse()")


def test_a_result_that_the_database_refuses_is_dropped_and_blocks_nobody(stage: Stage) -> None:
    refuse(stage, "result", "poison")

    @stage.hf.job
    async def act(text: str) -> str:
        return text

    jobs = [act.enqueue(text="poison" if n in (3, 7) else "fine") for n in range(10)]
    stage.work(lambda _: stage.until(lambda: not stage.live()))
    assert {stage.state(job) for job in jobs} == {"done"}
    assert [stage.show(job).result for job in jobs].count(None) == 2
    assert [error["type"] for error in stage.show(jobs[3]).errors] == ["ResultDropped"]
    assert {event.id for event in stage.heard(events.ResultDropped)} == {jobs[3].id, jobs[7].id}
    assert len(stage.heard(events.JobDone)) == 10
    assert not stage.heard(events.DatabaseLost)


def test_an_error_that_the_database_refuses_leaves_a_dead_letter_without_it(stage: Stage) -> None:
    refuse(stage, "errors", "poison")

    @stage.hf.job(retry=Retry(max_attempts=1))
    async def act(text: str) -> None:
        raise ValueError(text)

    bad, good = act.enqueue(text="poison"), act.enqueue(text="plain")
    stage.work()
    assert (stage.state(bad), stage.show(bad).errors) == ("dead", [])
    assert stage.show(good).errors[0]["message"] == "plain"


def test_an_outcome_that_cannot_be_stored_at_all_is_said_and_blocks_nobody(stage: Stage) -> None:
    refuse(stage, "kind", "cursed")

    @stage.hf.job(lease=600)
    async def cursed() -> None: ...

    @stage.hf.job
    async def fine(n: int) -> None: ...

    bad = cursed.enqueue()
    good = [fine.enqueue(n=n) for n in range(5)]

    async def body(worker: Worker) -> None:
        await stage.until_said(events.SettleRefused)
        await stage.until(lambda: all(stage.state(job) == "done" for job in good))
        await stage.until(lambda: not worker.held)

    stage.work(body)
    assert stage.heard(events.SettleRefused)[0].id == bad.id
    assert stage.state(bad) == "leased"


def test_a_job_that_is_finished_already_leaves_the_live_table(stage: Stage) -> None:
    """A row in both tables, from whatever cause, must not make the settling fail for ever."""

    @stage.hf.job
    async def act(n: int) -> None:
        if n == 0:
            stage.sql(
                "insert into holdfast_finished (id, fence, available_at, created_at, finished_at, attempts,"
                " max_attempts, replays, priority, outcome, queue, kind, payload)"
                " select id, 0, available_at, created_at, created_at, 0, 5, 0, 0, 'done', queue, kind, payload"
                " from holdfast_jobs where id = ?",
                twin.id,
            )

    twin = act.enqueue(n=0)
    others = [act.enqueue(n=n) for n in range(1, 4)]
    stage.work()
    assert {stage.state(job) for job in (twin, *others)} == {"done"}


def test_a_blocked_loop_is_said_and_a_slow_database_is_not_mistaken_for_it(sqlite_stage: Stage) -> None:
    stage = sqlite_stage

    @stage.hf.job(lease=1)
    async def act(block: bool) -> None:
        if block:
            time.sleep(0.8)  # noqa: ASYNC251 - that is the point
        else:
            await asyncio.sleep(0.8)

    act.enqueue(block=False)
    stage.work()
    assert not stage.heard(events.LoopBlocked)
    act.enqueue(block=True)
    stage.work(lambda _: stage.until_said(events.LoopBlocked))
    assert stage.heard(events.LoopBlocked)[0].seconds > 0.4


def test_a_part_of_the_worker_that_breaks_stops_it_and_says_why(sqlite_stage: Stage) -> None:
    stage = sqlite_stage

    @stage.hf.job
    async def act() -> None: ...

    async def scene() -> None:
        worker = stage.hf.worker()
        worker.describe = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        with pytest.raises(ZeroDivisionError):
            await worker.run()
        broken = stage.hf.worker()
        await broken.start()
        broken.demand.plan = lambda _: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        broken._wake()
        await stage.until(lambda: broken.stopping)
        assert isinstance(broken.failure, ZeroDivisionError)
        await broken._end()
        await stage.hf.aclose()

    asyncio.run(scene())
    assert "holdfast-claiming failed" in stage.heard(events.WorkerStopping)[0].why
