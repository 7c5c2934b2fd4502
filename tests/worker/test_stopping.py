"""Starting and stopping: drain, give back, release, embed, cancel, from any thread and at any moment."""

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from holdfast import Holdfast, Job, SchemaMissing, events, jobs
from holdfast.errors import ConfigError, DatabaseUnavailable
from holdfast.worker import Worker
from tests.worker.stage import Stage


def test_stopping_gives_the_buffer_back_and_lets_handlers_finish(stage: Stage) -> None:
    release = asyncio.Event()

    @stage.hf.job
    async def act(n: int) -> str:
        await release.wait()
        return "finished"

    running, *waiting = [act.enqueue(n=n) for n in range(4)]

    async def scene() -> None:
        worker = stage.hf.worker(concurrency=1, drain=30)
        task = asyncio.create_task(worker.run())
        await stage.until_said(events.JobStarted)
        leases = stage.run(jobs.claim("default", limit=3, worker=worker.id))
        worker.claims[0].take(worker.sources[0], leases, time.monotonic())
        worker.stop()
        await stage.until_said(events.JobReleased, 3)
        await stage.until(lambda: stage.sql("select status from holdfast_workers") == [("draining",)])
        assert not task.done()
        release.set()
        await task
        await stage.hf.aclose()

    asyncio.run(scene())
    assert stage.show(running).result == "finished"
    shown = [stage.show(job) for job in waiting]
    assert {(job.state, job.attempts, job.leased_by) for job in shown} == {("pending", 0, None)}
    assert stage.heard(events.WorkerStopped)[0].released == 3


@pytest.mark.parametrize("colour", ["async", "def"])
def test_after_the_drain_time_handlers_are_cancelled_and_released(stage: Stage, colour: str) -> None:
    told: list[str] = []

    if colour == "async":

        @stage.hf.job
        async def never(job: Job) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                told.append("cancelled")
    else:

        @stage.hf.job
        def never(job: Job) -> None:
            deadline = time.monotonic() + 20
            while not job.lost and time.monotonic() < deadline:
                time.sleep(0.01)
            told.append("cancelled")

    job = never.enqueue()
    stage.work(lambda _: stage.until_said(events.JobStarted), drain=0.05)
    deadline = time.monotonic() + 20
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    shown = stage.show(job)
    assert (shown.state, shown.attempts, shown.errors, told) == ("pending", 0, [], ["cancelled"])
    assert [event.name for event in stage.heard(events.JobEvent)] == ["JobStarted", "JobReleased"]


def test_a_handler_that_turns_its_cancellation_into_an_error_is_still_released(stage: Stage) -> None:
    @stage.hf.job
    async def grumpy() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("how dare you") from None

    job = grumpy.enqueue()
    stage.work(lambda _: stage.until_said(events.JobStarted), drain=0)
    shown = stage.show(job)
    assert (shown.state, shown.attempts, shown.errors) == ("pending", 0, [])


def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(sqlite_stage: Stage) -> None:
    stage, gone = sqlite_stage, asyncio.Event()

    @stage.hf.job
    async def deaf() -> None:
        while not gone.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    @stage.hf.job
    async def fine() -> str:
        return "written"

    deaf.enqueue()
    other = fine.enqueue()

    async def scene() -> int:
        async with stage.hf.worker(drain=0) as worker:
            await stage.until_said(events.JobStarted, 2)
        gone.set()
        [slot] = [task for task in asyncio.all_tasks() if task.get_name().startswith("holdfast-slot")]
        slot.cancel()
        await asyncio.wait([slot])
        await stage.hf.aclose()
        return worker.handlers_left

    assert asyncio.run(scene()) == 1
    assert stage.show(other).result == "written"


def test_a_job_whose_effect_is_committed_is_done_even_if_the_stop_cuts_its_handler(stage: Stage) -> None:
    @stage.hf.job
    async def act(job: Job) -> None:
        async with job.transaction():
            pass
        await asyncio.sleep(60)

    job = act.enqueue()

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.state(job) == "done")

    stage.work(body, drain=0.05)
    assert [event.name for event in stage.heard(events.JobEvent)] == ["JobStarted", "JobDone"]


def test_at_once_cuts_the_drain_short(stage: Stage) -> None:
    @stage.hf.job
    async def never() -> None:
        await asyncio.sleep(600)

    job = never.enqueue()

    async def scene() -> None:
        worker = stage.hf.worker(drain=600)
        task = asyncio.create_task(worker.run())
        await stage.until_said(events.JobStarted)
        worker.stop("first")
        await stage.until(lambda: worker.stopping)
        worker.stop("second", at_once=True)
        await asyncio.wait_for(task, 30)
        await stage.hf.aclose()

    asyncio.run(scene())
    assert (stage.state(job), stage.show(job).attempts) == ("pending", 0)
    assert [event.why for event in stage.heard(events.WorkerStopping)] == ["first"]


@pytest.mark.parametrize("how", ["run", "block"])
def test_a_cancelled_worker_releases_what_it_runs(stage: Stage, how: str) -> None:
    @stage.hf.job
    async def never() -> None:
        await asyncio.sleep(600)

    job = never.enqueue()

    async def block() -> None:
        async with stage.hf.worker(drain=600):
            await asyncio.sleep(600)

    async def scene() -> None:
        task = asyncio.create_task(stage.hf.worker(drain=600).run() if how == "run" else block())
        await stage.until_said(events.JobStarted)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        await stage.hf.aclose()

    asyncio.run(scene())
    assert (stage.state(job), stage.show(job).attempts) == ("pending", 0)
    assert len(stage.heard(events.WorkerStopped)) == 1


def test_stop_from_another_thread_and_from_a_handler(stage: Stage) -> None:
    workers: list[Worker] = []

    @stage.hf.job
    def stops_it() -> None:
        workers[0].stop("from a handler's thread")

    stops_it.enqueue()

    async def scene() -> None:
        workers.append(stage.hf.worker(poll=30))
        await asyncio.wait_for(workers[0].run(), 30)
        other = stage.hf.worker(poll=30)
        task = asyncio.create_task(other.run())
        await stage.until_said(events.WorkerStarted, 2)
        threading.Thread(target=other.stop, args=["from a thread"]).start()
        await asyncio.wait_for(task, 30)
        await stage.hf.aclose()

    asyncio.run(scene())
    assert [event.why for event in stage.heard(events.WorkerStopping)] == ["from a handler's thread", "from a thread"]
    assert len(stage.heard(events.JobDone)) == 1


def test_stop_before_and_during_the_start(stage: Stage) -> None:
    @stage.hf.job
    async def act() -> None: ...

    job = act.enqueue()

    async def scene() -> None:
        early = stage.hf.worker()
        early.stop("before")
        await asyncio.wait_for(early.run(), 30)
        during = stage.hf.worker()
        task = asyncio.create_task(during.run())
        await asyncio.sleep(0)
        during.stop("during")
        await asyncio.wait_for(task, 30)
        with pytest.raises(ConfigError, match="runs once"):
            await early.start()
        await stage.hf.aclose()

    asyncio.run(scene())
    assert (stage.state(job), stage.show(job).attempts) == ("pending", 0)


def test_a_stop_does_not_wait_for_a_database_that_is_not_there() -> None:
    hf = Holdfast("postgresql://nobody@127.0.0.1:1/nowhere")

    @hf.job
    async def act() -> None: ...

    async def scene() -> None:
        worker = hf.worker()
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(0.03)
        worker.stop()
        began = time.monotonic()
        await asyncio.wait_for(task, 30)
        assert time.monotonic() - began < 5
        with pytest.raises(DatabaseUnavailable):
            await hf.worker().run()
        await hf.aclose()

    asyncio.run(scene())


def test_a_worker_refuses_a_database_without_tables(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    @hf.job
    async def act() -> None: ...

    async def scene() -> None:
        with pytest.raises(SchemaMissing):
            async with hf.worker():
                pass
        await hf.aclose()

    asyncio.run(scene())


def test_embedded_it_installs_no_signal_handlers_and_never_exits(stage: Stage) -> None:
    @stage.hf.job
    async def act() -> str:
        return "done"

    async def scene() -> dict[str, Any]:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        async with stage.hf.worker():
            during = {number: signal.getsignal(number) for number in before}
            job = await act.aenqueue()
            await stage.until(lambda: stage.state(job) == "done")
        after = {number: signal.getsignal(number) for number in before}
        await stage.hf.aclose()
        return {"before": before, "during": during, "after": after}

    seen = asyncio.run(scene())
    assert seen["before"] == seen["during"] == seen["after"]


def test_two_workers_in_one_process_share_the_work(stage: Stage) -> None:
    ran: dict[int, int] = {}
    both_began = asyncio.Event()

    @stage.hf.job
    async def act(n: int) -> None:
        ran[n] = ran.get(n, 0) + 1
        await both_began.wait()

    stage.hf.enqueue_many([act.bind(n=n) for n in range(60)])

    async def body(first: Worker) -> None:
        async with stage.hf.worker(concurrency=3) as second:
            await stage.until(lambda: len({event.worker for event in stage.heard(events.JobStarted)}) == 2)
            both_began.set()
            await stage.until_empty()
            assert first.id != second.id

    stage.work(body, concurrency=3)
    assert ran == dict.fromkeys(range(60), 1)
    assert len({event.worker for event in stage.heard(events.JobDone)}) == 2


def test_an_error_in_the_application_around_it_still_drains(stage: Stage) -> None:
    @stage.hf.job
    async def act() -> str:
        await asyncio.sleep(0.05)
        return "finished"

    job = act.enqueue()

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobStarted)
        raise ValueError("the application's own")

    with pytest.raises(ValueError, match="own"):
        stage.work(body)
    assert stage.show(job).result == "finished"


def test_a_database_in_memory_serves_one_process(tmp_path: Any) -> None:
    hf = Holdfast("sqlite:///:memory:")
    seen: list[int] = []

    @hf.job
    async def act(job: Job, n: int) -> None:
        async with job.transaction() as tx:
            await tx.execute("select 1")
        seen.append(n)

    async def scene() -> None:
        async with hf.worker():
            await hf.aenqueue_many([act.bind(n=n) for n in range(20)])
            deadline = time.monotonic() + 30
            while len(seen) < 20 and time.monotonic() < deadline:  # noqa: ASYNC110 - polling with a deadline
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    hf.close()
    assert sorted(seen) == list(range(20))
