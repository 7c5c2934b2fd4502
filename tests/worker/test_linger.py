"""Bulk handlers that wait a moment for more items: for as long as they say, without a slot, and without losing any."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import BulkHandler, ConfigError, Retry, admin, events
from holdfast.testing import new_job
from holdfast.testing.inline import run_due
from holdfast.values.rows import Lease
from holdfast.worker import Worker
from holdfast.worker.lingering import Lingering
from holdfast.worker.rounds import give_back
from holdfast.worker.work import Work
from tests.worker.bulk import COLOURS, add, plain
from tests.worker.stage import Stage

LONG = 60.0


def indexing(stage: Stage, colour: str = "async", **options: Any) -> tuple[BulkHandler[int, Any], list[list[int]]]:
    calls: list[list[int]] = []
    return plain(stage, colour, lambda pages, _: calls.append(pages), **options), calls


def lingers(stage: Stage, worker: Worker, count: int) -> Any:
    return stage.until(lambda: len(worker.slots.lingering) == count, f"{count} that wait for more")


@COLOURS
def test_a_call_waits_for_more_and_begins_when_it_is_full(stage: Stage, colour: str) -> None:
    index, calls = indexing(stage, colour, size=5, linger=LONG)
    add(stage, index, 2)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 2)
        assert calls == []
        await index.aenqueue(2)
        await lingers(stage, worker, 3)
        await stage.hf.aenqueue_many([index.bind(n) for n in range(3, 7)])
        await stage.until(lambda: calls, "the call")
        await lingers(stage, worker, 2)

    stage.work(scene, poll=0.05)
    assert calls == [[0, 1, 2, 3, 4]]


def test_a_call_begins_with_what_there_is_when_its_wait_is_over(stage: Stage) -> None:
    index, calls = indexing(stage, size=100, linger=0.2)
    add(stage, index, 3)
    began = time.monotonic()
    stage.work()
    assert sorted(n for pages in calls for n in pages) == [0, 1, 2]
    assert time.monotonic() - began >= 0.2
    assert len(calls) == 1


def test_what_comes_while_it_waits_is_in_the_same_call(stage: Stage) -> None:
    index, calls = indexing(stage, size=100, linger=1)
    index.enqueue(0)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 1)
        await index.aenqueue(1)
        await stage.until_empty()

    # No poll comes by in time: the last look does, or the database tells of the job.
    stage.work(scene, poll=30)
    assert calls == [[0, 1]]


def test_a_slot_serves_others_while_items_wait(stage: Stage) -> None:
    index, calls = indexing(stage, size=5, linger=LONG)
    ran: list[int] = []

    @stage.hf.job
    async def other(n: int) -> None:
        ran.append(n)

    add(stage, index, 2)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 2)
        assert worker.slots.occupied == 0
        await stage.hf.aenqueue_many([other.bind(n) for n in range(20)])
        await stage.until(lambda: len(ran) == 20, "the others")

    stage.work(scene, concurrency=1)
    assert calls == []


def test_a_stop_gives_what_waits_back_at_once(stage: Stage) -> None:
    index, calls = indexing(stage, size=5, linger=LONG)
    added = add(stage, index, 3)

    async def scene(worker: Worker) -> float:
        await lingers(stage, worker, 3)
        return time.monotonic()

    stopped = stage.work(scene, drain=30)
    assert time.monotonic() - stopped < 20
    assert calls == []
    assert [(stage.state(job), stage.show(job).attempts) for job in added] == [("pending", 0)] * 3


def test_leases_are_renewed_while_items_wait(stage: Stage) -> None:
    index, _ = indexing(stage, size=5, linger=LONG, lease=1)
    job = index.enqueue(1)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 1)
        first = stage.show(job).lease_expires_at
        assert first is not None
        await stage.until(lambda: (stage.show(job).lease_expires_at or first) > first, "a renewal")
        await lingers(stage, worker, 1)

    stage.work(scene)
    assert not stage.heard(events.JobReaped)


def test_an_item_that_is_lost_or_cancelled_while_it_waits_is_in_no_call(stage: Stage) -> None:
    index, calls = indexing(stage, size=4, linger=LONG, lease=1)
    lost, cancelled, *_ = add(stage, index, 4 - 1)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 3)
        stage.steal(lost)
        await stage.arun(admin.cancel(cancelled.id, None))
        await stage.until_said(events.LeaseWasLost)
        await stage.until_said(events.JobCancelled)
        await lingers(stage, worker, 1)
        await stage.hf.aenqueue_many([index.bind(n) for n in (7, 8, 9)])
        await stage.until(lambda: calls, "the call")

    stage.work(scene, poll=0.05)
    assert calls == [[2, 7, 8, 9]]
    assert stage.state(cancelled) == "cancelled"


def test_all_items_that_wait_may_be_taken_away(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    index, calls = indexing(stage, size=4, linger=0.3, lease=1)
    added = add(stage, index, 2)

    async def scene(worker: Worker) -> None:
        await lingers(stage, worker, 2)
        for job in added:
            worker.holdings.cancel(worker.held[job.id])
        await lingers(stage, worker, 0)
        await stage.until_empty()

    stage.work(scene)
    assert calls == []


def test_a_job_that_must_run_alone_does_not_wait(stage: Stage) -> None:
    index, calls = indexing(stage, size=5, linger=LONG)
    index.using(max_attempts=1).enqueue(1)
    suspect = index.enqueue(2)
    stage.sql("update holdfast_jobs set lapses = 1 where id = ?", suspect.id)
    stage.work()
    assert sorted(calls) == [[1], [2]]


def test_items_of_another_share_wait_for_their_like(stage: Stage) -> None:
    """What failed in a batch of twenty runs with one other, and such batches wait, too."""
    failed: list[int] = []
    calls: list[list[int]] = []

    def act(pages: list[int], _: Any) -> None:
        if not failed:
            failed.extend(pages)
            raise ValueError("no")
        calls.append(pages)

    retry = Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0)
    index = plain(stage, "async", act, size=20, linger=LONG, retry=retry)
    add(stage, index, 20)

    async def scene(worker: Worker) -> None:
        await stage.until(lambda: len(calls) == 10, "ten calls")

    stage.work(scene, poll=0.05)
    assert len(failed) == 20
    assert [len(pages) for pages in calls] == [2] * 10


def test_a_full_call_waits_for_its_handlers_turn_and_not_for_more(stage: Stage) -> None:
    go_on, calls = asyncio.Event(), []

    @stage.hf.bulk(size=2, linger=LONG, concurrency=1)
    async def index(pages: list[int]) -> None:
        calls.append(pages)
        await go_on.wait()

    stage.hf.enqueue_many([index.bind(n) for n in range(4)])

    async def scene(worker: Worker) -> None:
        await stage.until(lambda: len(calls) == 1, "the first call")
        go_on.set()
        await stage.until_empty()

    stage.work(scene, poll=0.05, concurrency=3)
    assert calls == [[0, 1], [2, 3]]


def test_items_that_wait_are_not_given_back_for_waiting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(give_back, "LEAST_PAUSE_SECONDS", 0.01)
    index, calls = indexing(stage, size=5, linger=0.4)
    add(stage, index, 3)
    stage.work()
    assert calls == [[0, 1, 2]]
    assert not stage.heard(events.JobReleased)


def test_the_wait_counts_from_the_claim() -> None:
    """What has waited for a slot as long as that does not wait for others again."""

    async def scene() -> None:
        lingering = Lingering(lambda: None, lambda works: None)
        waited = work_of(linger=5, claimed=time.monotonic() - 6)
        assert lingering.joined([waited], 9) == [waited]
        assert lingering.joined([fresh := work_of(linger=5)], 9) == []
        assert lingering.waiting() == [fresh]
        lingering.clear()

    asyncio.run(scene())


def test_run_due_does_not_wait(sqlite_stage: Stage) -> None:
    index, calls = indexing(sqlite_stage, size=5, linger=LONG)
    add(sqlite_stage, index, 3)
    assert [one.outcome for one in run_due(sqlite_stage.hf)] == ["done"] * 3
    assert calls == [[0, 1, 2]]


@pytest.mark.parametrize("wrong", [-1, 61, "a while", None, timedelta(minutes=2)])
def test_a_wait_that_cannot_be_is_refused(sqlite_stage: Stage, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="linger"):
        sqlite_stage.hf.bulk(linger=wrong)


def test_the_queues_are_looked_at_before_a_wait_ends() -> None:
    told: list[str] = []

    async def scene() -> None:
        over = asyncio.Event()

        def end(works: list[Work]) -> None:
            told.append(f"over with {len(works)}")
            over.set()

        lingering, work = Lingering(lambda: told.append("look"), end), work_of(linger=0.04)
        assert lingering.joined([work], 2) == []
        await over.wait()
        assert len(lingering) == 0
        assert lingering.joined([work], 2) == [work]

    asyncio.run(scene())
    assert told == ["look", "over with 1"]


def work_of(linger: float, claimed: float | None = None) -> Work:
    lease = Lease(new_job().id, "q", "k", "{}", None, None, 0, 1, 5, 1, 1_000, 0, 0)
    handler: Any = type("Handler", (), {"linger": linger})()
    return Work(lease, handler, True, time.monotonic() if claimed is None else claimed)
