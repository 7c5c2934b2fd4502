"""A worker inside an application: when it breaks from inside, its host hears of it."""

# ruff: noqa: PT012 - what raises is the end of the block

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from holdfast import Retry, events
from holdfast.errors import WorkerFailed
from holdfast.worker import Worker, process
from holdfast.worker.demand import Demand
from tests.worker.stage import Stage


@pytest.fixture
def hosting(sqlite_stage: Stage) -> Stage:
    @sqlite_stage.hf.job
    async def act() -> None: ...

    return sqlite_stage


def break_claims(worker: Worker) -> None:
    worker.demand.plan = lambda _: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    worker._wake()


def run(stage: Stage, scene: Any) -> None:
    async def whole() -> None:
        try:
            async with asyncio.timeout(60):
                await scene
        finally:
            await stage.hf.aclose()

    asyncio.run(whole())


def test_a_worker_that_breaks_cancels_its_host_and_raises(hosting: Stage) -> None:
    async def scene() -> None:
        after: list[str] = []
        with pytest.raises(WorkerFailed, match="holdfast-claiming") as caught:
            async with hosting.hf.worker() as worker:
                break_claims(worker)
                await asyncio.Event().wait()
                after.append("never")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert (caught.value.worker, after, worker.failure) == (worker.id, [], caught.value.__cause__)
        # The cancellation is used up: the host goes on.
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    run(hosting, scene())
    [broke] = hosting.heard(events.WorkerBroke)
    assert (broke.part, "ZeroDivisionError" in broke.error) == ("holdfast-claiming", True)
    assert len(hosting.heard(events.WorkerStopped)) == 1


def test_a_host_that_swallows_the_cancellation_hears_of_it_at_the_end(hosting: Stage) -> None:
    async def scene() -> None:
        with pytest.raises(WorkerFailed):
            async with hosting.hf.worker() as worker:
                break_claims(worker)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(hosting, scene())


def test_an_error_of_the_host_itself_is_not_hidden(hosting: Stage) -> None:
    async def scene() -> None:
        with pytest.raises(KeyError):
            async with hosting.hf.worker() as worker:
                break_claims(worker)
                try:
                    await asyncio.Event().wait()
                finally:
                    raise KeyError("the host's own")

    run(hosting, scene())


def test_a_host_that_is_cancelled_as_well_stays_cancelled(hosting: Stage) -> None:
    async def host() -> None:
        async with hosting.hf.worker() as worker:
            break_claims(worker)
            try:
                await asyncio.Event().wait()
            finally:
                asyncio.current_task().cancel()  # type: ignore[union-attr]

    async def scene() -> None:
        hosted = asyncio.create_task(host())
        await asyncio.wait([hosted])
        assert hosted.cancelled()

    run(hosting, scene())


def test_a_time_out_around_the_block_is_still_a_time_out(hosting: Stage) -> None:
    async def scene() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), hosting.hf.worker():
                await asyncio.Event().wait()

    run(hosting, scene())


def test_a_worker_that_works_alone_raises_what_broke_it(hosting: Stage) -> None:
    async def scene() -> None:
        worker = hosting.hf.worker()
        running = asyncio.create_task(worker.run())
        await hosting.until_said(events.WorkerStarted)
        break_claims(worker)
        with pytest.raises(WorkerFailed) as caught:
            await running
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    run(hosting, scene())


@pytest.mark.parametrize("part", ["claiming", "settler", "renew", "reap", "beat", "prune", "give-back", "waker"])
def test_a_part_that_somebody_ends_from_outside_is_a_broken_worker(hosting: Stage, part: str) -> None:
    async def scene() -> None:
        with pytest.raises(WorkerFailed, match=f"holdfast-{part}"):
            async with hosting.hf.worker(drain=1):
                [task] = [one for one in asyncio.all_tasks() if one.get_name() == f"holdfast-{part}"]
                task.cancel()
                await asyncio.Event().wait()

    run(hosting, scene())


def test_a_process_whose_worker_breaks_ends_with_1(hosting: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Demand, "plan", lambda *_: 1 / 0)
    assert process.run_one(hosting.hf, drain=1) == 1


def test_a_handlers_traceback_says_nothing_of_a_missing_uvloop(hosting: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    @hosting.hf.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("of the handler")

    job = fails.enqueue()
    worker = hosting.hf.worker()
    hosting.hf.on(events.JobDead, lambda _: worker.stop())
    monkeypatch.setattr(hosting.hf, "worker", lambda **_: worker)
    assert process.run_one(hosting.hf) == 0
    traceback = hosting.show(job).errors[0]["traceback"]
    assert "of the handler" in traceback
    assert ("uvloop" in traceback, "During handling" in traceback) == (False, False)


def test_a_worker_without_foreign_tables_does_not_import_what_serves_them() -> None:
    code = (
        "import sys; from holdfast import Holdfast; from holdfast.sinks import Function\n"
        "hf = Holdfast('sqlite:///shop.db'); hf.route('x.*', to=Function(print), name='x')\n"
        "hf.worker(); hf.relay()\n"
        "print([name for name in sys.modules if name.startswith('holdfast.foreign')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
