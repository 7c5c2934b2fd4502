"""Bulk handlers: many jobs in one call, each with an end of its own."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import (
    Bulk,
    BulkHandler,
    Cancel,
    Fatal,
    LeasesLost,
    Retry,
    Snooze,
    admin,
    events,
    jobs,
)
from holdfast.jobs.source import JobsSource
from holdfast.worker import Worker
from holdfast.worker.bulk_executor import BulkExecutor
from holdfast.worker.handler_threads import Threads
from holdfast.worker.slots import Slots
from holdfast.worker.work import Work
from tests.worker.bulk import AT_ONCE, COLOURS, add, insert, nothing, plain, writing, written
from tests.worker.processes import Crew, until
from tests.worker.stage import Stage


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.sql("create table effects (what integer)")
    return stage


# Which items run together


@COLOURS
def test_a_call_takes_what_is_due_in_its_order_up_to_its_size(stage: Stage, colour: str) -> None:
    calls: list[list[int]] = []
    index = plain(stage, colour, lambda pages, _: calls.append(list(pages)), size=4)
    jobs = add(stage, index, 10)
    stage.work(concurrency=1)
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("done", 1)}
    assert [len(stage.heard(kind)) for kind in (events.JobStarted, events.JobDone)] == [10, 10]


def test_batches_are_full_however_few_slots_there_are(stage: Stage) -> None:
    sizes: list[int] = []

    @stage.hf.bulk(size=100)
    async def index(pages: list[int]) -> None:
        sizes.append(len(pages))

    add(stage, index, 1000)
    stage.work(concurrency=2)
    assert sizes == [100] * 10


def test_other_jobs_and_other_bulk_handlers_stay_apart(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    calls: list[Any] = []

    @stage.hf.bulk
    async def index(pages: list[int]) -> None:
        calls.append(("index", pages))

    @stage.hf.bulk(size=3)
    def forget(pages: Sequence[int]) -> None:
        calls.append(("forget", pages))

    @stage.hf.job
    async def single(n: int) -> None:
        calls.append(("single", n))

    stage.hf.enqueue_many([one for n in range(3) for one in (index.bind(n), single.bind(n), forget.bind(n))])
    stage.work()
    assert sorted(calls, key=str) == [
        ("forget", [0, 1, 2]),
        ("index", [0, 1, 2]),
        ("single", 0),
        ("single", 1),
        ("single", 2),
    ]


@COLOURS
def test_a_bad_item_ends_alone_and_its_neighbours_are_done(stage: Stage, colour: str) -> None:
    calls: list[tuple[int, list[int]]] = []

    def act(pages: list[int], bulk: Bulk) -> None:
        calls.append((bulk.jobs[0].attempt, list(pages)))
        if 77 in pages:
            raise ValueError("the page has no end")

    index = writing(stage, colour, before=act, size=100)
    jobs = add(stage, index, 100)
    stage.work(poll=0.05, concurrency=1)
    states = [stage.state(job) for job in jobs]
    assert [n for n, state in enumerate(states) if state != "done"] == [77]
    assert states[77] == "dead"
    assert written(stage) == [n for n in range(100) if n != 77]
    longest = {attempt: max(len(pages) for at, pages in calls if at == attempt) for attempt, _ in calls}
    assert longest == {1: 100, 2: 10, 3: 1, 4: 1, 5: 1}
    # The nine beside it in the second attempt are done in the third.
    assert sorted(stage.show(job).attempts for job in jobs) == [2] * 90 + [3] * 9 + [5]


def test_a_last_attempt_runs_alone(stage: Stage) -> None:
    calls: list[list[int]] = []

    def act(pages: list[int], _: Bulk) -> None:
        calls.append(list(pages))
        if 3 in pages:
            raise ValueError("bad")

    index = plain(stage, "async", act, size=1000, retry=Retry(max_attempts=2, first_delay=0, max_delay=0))
    jobs = add(stage, index, 6)
    stage.work(poll=0.05)
    assert [stage.state(job) for job in jobs] == ["done", "done", "done", "dead", "done", "done"]
    assert sorted(calls, key=len) == [[n] for n in sorted(range(6), key=[c[0] for c in calls[1:]].index)] + [
        list(range(6))
    ]


@COLOURS
def test_a_job_whose_process_died_runs_alone_and_on_record(stage: Stage, colour: str) -> None:
    calls: list[list[int]] = []
    began: list[Any] = []

    def act(pages: list[int], bulk: Bulk) -> None:
        calls.append(list(pages))
        if bulk.jobs[0].lease.lapses:
            [[one]] = stage.sql("select began from holdfast_jobs where id = ?", bulk.jobs[0].id)
            began.append(bool(one))

    index = plain(stage, colour, act)
    jobs = add(stage, index, 5)
    stage.sql("update holdfast_jobs set lapses = 1 where id = ?", jobs[2].id)
    stage.work()
    assert sorted(calls) == [[0, 1, 3, 4], [2]]
    assert began == [True]


def test_the_limit_of_a_kind_counts_calls(stage: Stage) -> None:
    now, most, sizes = 0, 0, []

    @stage.hf.bulk(size=10, concurrency=2, retry=AT_ONCE)
    async def index(pages: list[int], bulk: Bulk) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        sizes.append(len(pages))
        await asyncio.sleep(0.02)
        now -= 1
        if bulk.jobs[0].attempt == 1 and pages[0] % 3 == 0:
            raise ValueError("again, in smaller batches")

    jobs = add(stage, index, 60)
    stage.work(poll=0.05)
    assert (most, max(sizes)) == (2, 10)
    assert {stage.state(job) for job in jobs} == {"done"}


def test_what_waits_for_its_handler_can_be_taken_back(stage: Stage) -> None:
    """Jobs with one attempt run alone, so that one of them runs and the others wait although there are slots."""
    begun = threading.Event()

    @stage.hf.bulk(concurrency=1, size=10, lease=1)
    async def index(pages: list[int]) -> None:
        begun.set()
        await asyncio.sleep(60)

    @stage.hf.job
    async def other() -> None: ...

    jobs = add(stage, index, 5, max_attempts=1)

    async def body(worker: Worker) -> None:
        await stage.until(lambda: begun.is_set() and len(worker.slots.held_up) == 4)
        assert worker.slots.running_of(worker.sources[0], "index") == 5
        # Nobody else waits behind them.
        done = await other.aenqueue()
        await stage.until(lambda: stage.state(done) == "done")
        await stage.arun(admin.cancel(jobs[-1].id, actor="test"))
        await stage.until(lambda: stage.state(jobs[-1]) == "cancelled")

    stage.work(body, drain=0, poll=0.05)
    assert [stage.state(job) for job in jobs] == ["pending"] * 4 + ["cancelled"]
    assert {stage.show(job).attempts for job in jobs[:4]} == {0}


# Which jobs go together, when all of them wait for the same slot


def waiting(stage: Stage, handler: BulkHandler[Any, Any], executor: BulkExecutor, **fields: Any) -> Work:
    job = handler.enqueue(1)
    [lease] = stage.run(jobs.claim("default", limit=1, leases={handler.kind: 30_000}))
    assert lease.job_id == job.id
    return Work(lease._replace(**fields), handler, True, 0.0, executor=executor)


def test_a_batch_is_of_one_handler_and_one_share(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    index = plain(stage, "async", nothing, size=100)
    forget = stage.hf.bulk(size=100, kind="forget")(index.fn)
    executor = BulkExecutor(stage.hf.context, "w", Threads(1, "test"))
    first = waiting(stage, index, executor)
    alike, again, other, suspect, last = (
        waiting(stage, index, executor),
        waiting(stage, index, executor, attempt=2),
        waiting(stage, forget, executor),
        waiting(stage, index, executor, lapses=1),
        waiting(stage, index, executor, attempt=5),
    )
    elsewhere = waiting(stage, index, executor)
    elsewhere.source = JobsSource((), {})
    assert [executor.batch_of(work) for work in (first, again, other, suspect, last)] == [100, 10, 100, 1, 1]
    slots = Slots(1, lambda _: None, lambda: None)
    slots.buffer.extend([again, other, alike, elsewhere, suspect, last])
    assert slots._alike(first, 99) == [alike]
    assert list(slots.buffer) == [again, other, elsewhere, suspect, last]


@pytest.mark.parametrize(
    "attempt, max_attempts, lapses, share",
    [
        (1, 5, 0, 250),
        (2, 5, 0, 25),
        (3, 5, 0, 2),
        (4, 9, 0, 1),
        (60, 90, 0, 1),
        (2, 2, 0, 1),
        (1, 1, 0, 1),
        (1, 5, 1, 1),
    ],
)
def test_each_attempt_takes_a_tenth_and_the_last_one_job(
    sqlite_stage: Stage, attempt: int, max_attempts: int, lapses: int, share: int
) -> None:
    assert plain(sqlite_stage, "def", nothing, size=250).share(attempt, max_attempts, lapses) == share


# What a handler gives


@COLOURS
def test_a_list_gives_each_item_an_end_of_its_own(stage: Stage, colour: str) -> None:
    def act(pages: list[int], bulk: Bulk) -> list[Any] | None:
        if bulk.jobs[0].attempt > 1 or len(pages) < 5:
            return None
        return [{"page": 0}, Retry.after(0, "later"), Snooze(3600), Cancel("not wanted"), Fatal("never")]

    jobs = add(stage, plain(stage, colour, act, size=5), 5)

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.live() == 1)

    stage.work(body, poll=0.05)
    shown = [stage.show(job) for job in jobs]
    assert [one.state for one in shown] == ["done", "done", "pending", "cancelled", "dead"]
    assert [one.attempts for one in shown] == [1, 2, 0, 1, 1]
    assert shown[0].result == {"page": 0}
    assert "not wanted" in shown[3].errors[0]["message"]


@pytest.mark.parametrize("value", [[1], 7, {"a": 1}, "text", Snooze(1), (1, 2, 3, 4)], ids=str)
def test_what_is_neither_none_nor_a_list_of_their_length_is_a_failure_of_all(sqlite_stage: Stage, value: Any) -> None:
    stage = sqlite_stage
    index = plain(stage, "async", lambda *_: value, retry=Retry(max_attempts=2, first_delay=3600, max_delay=3600))
    jobs = add(stage, index, 3)

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobRetried, 3)

    stage.work(body)
    for job in jobs:
        shown = stage.show(job)
        assert (shown.state, shown.attempts) == ("pending", 1)
        assert shown.errors[0]["type"].endswith("Unusable")
        assert "an entry for each of the 3 items" in shown.errors[0]["message"]


def test_odd_values_end_their_own_items_and_no_worker(sqlite_stage: Stage) -> None:
    class Odd(list[int]):
        def __len__(self) -> int:
            raise RuntimeError("no length")

    class Lazy:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no class")

    stage = sqlite_stage
    values: list[Any] = [Odd([1]), [Lazy(), object()]]
    index = plain(stage, "async", lambda *_: values.pop(0) if values else None, retry=AT_ONCE)
    jobs = add(stage, index, 2)
    stage.work(poll=0.05)
    assert [stage.state(job) for job in jobs] == ["done", "done"]
    assert len(stage.heard(events.ResultDropped)) == 2


@COLOURS
def test_what_a_handler_raises_is_a_failure_of_each(stage: Stage, colour: str) -> None:
    def act(pages: list[int], bulk: Bulk) -> None:
        if bulk.jobs[0].attempt == 1:
            raise ValueError("the index is away")

    jobs = add(stage, plain(stage, colour, act, size=30), 3)
    stage.work(poll=0.05)
    for job in jobs:
        shown = stage.show(job)
        assert (shown.state, shown.attempts, len(shown.errors)) == ("done", 2, 1)
        assert shown.errors[0]["message"] == "the index is away"


@COLOURS
def test_what_is_fatal_for_one_item_is_not_for_its_neighbours(stage: Stage, colour: str) -> None:
    def act(pages: list[int], _: Bulk) -> None:
        if 5 in pages:
            raise Fatal("a page without an address")

    jobs = add(stage, plain(stage, colour, act, size=10), 10)
    stage.work(poll=0.05)
    shown = [stage.show(job) for job in jobs]
    assert [one.state for one in shown] == ["done"] * 5 + ["dead"] + ["done"] * 4
    # It counts as soon as it runs alone.
    assert {one.attempts for one in shown} == {2}


def test_a_payload_that_cannot_be_read_costs_its_own_job_alone(stage: Stage) -> None:
    calls: list[list[int]] = []
    index = plain(stage, "async", lambda pages, _: calls.append(list(pages)))
    first, last = index.enqueue(1), index.enqueue(2)
    bad = stage.put("index", '{"pages": "one"}')
    stage.work()
    assert sorted(calls[0]) == [1, 2]
    assert [stage.state(job) for job in (first, last, bad)] == ["done", "done", "dead"]


def test_a_batch_of_nothing_but_bad_payloads_calls_nobody(sqlite_stage: Stage) -> None:
    calls: list[Any] = []
    plain(sqlite_stage, "async", lambda pages, _: calls.append(pages))
    bad = [sqlite_stage.put("index", '{"pages": "one"}') for _ in range(3)]
    sqlite_stage.work()
    assert (calls, [sqlite_stage.state(job) for job in bad]) == ([], ["dead"] * 3)


# What may happen meanwhile


@COLOURS
def test_a_time_out_counts_for_the_call(stage: Stage, colour: str) -> None:
    release = threading.Event()
    wrote: list[str] = []
    if colour == "async":

        @stage.hf.bulk(retry=AT_ONCE, timeout=0.1, size=30)
        async def index(pages: list[int], bulk: Bulk) -> None:
            if bulk.jobs[0].attempt == 1:
                await asyncio.sleep(30)
    else:

        @stage.hf.bulk(retry=AT_ONCE, timeout=0.1, size=30)
        def index(pages: list[int], bulk: Bulk) -> None:
            if bulk.jobs[0].attempt > 1:
                return
            release.wait(30)
            # It was given up on: whatever it does now is refused.
            try:
                with bulk.transaction() as tx:
                    tx.execute(insert(99))
                wrote.append("too late")
            except LeasesLost:
                wrote.append("refused")

    jobs = add(stage, index, 3)

    async def body(_: Worker) -> None:
        await stage.until_empty()
        release.set()
        await stage.until(lambda: wrote or colour == "async")

    stage.work(body, poll=0.05)
    for job in jobs:
        shown = stage.show(job)
        assert (shown.state, shown.attempts) == ("done", 2)
        assert shown.errors[0]["type"].endswith("TimedOut")
    assert wrote == ([] if colour == "async" else ["refused"])
    assert written(stage) == []


@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
def test_an_item_that_is_cancelled_meanwhile_ends_so_and_the_others_go_on(stage: Stage, completes: bool) -> None:
    seen: list[bool] = []

    @stage.hf.bulk(lease=1)
    async def index(pages: list[int], bulk: Bulk) -> None:
        await asyncio.to_thread(stage.run, admin.cancel(bulk.jobs[1].id, actor="test"))
        await stage.until(lambda: bulk.jobs[1].cancel_requested)
        seen.extend(job.cancel_requested for job in bulk.jobs)
        if completes:
            async with bulk.transaction():
                pass

    jobs = add(stage, index, 3)
    stage.work()
    assert seen == [False, True, False]
    assert [stage.state(job) for job in jobs] == ["done", "done" if completes else "cancelled", "done"]


def test_a_call_that_nobody_needs_any_more_is_cancelled(stage: Stage) -> None:
    cancelled: list[int] = []

    @stage.hf.bulk(lease=1)
    async def index(pages: list[int], bulk: Bulk) -> None:
        for job in bulk.jobs:
            await asyncio.to_thread(stage.run, admin.cancel(job.id, actor="test"))
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.extend(pages)
            raise

    jobs = add(stage, index, 3)
    stage.work()
    assert cancelled == [0, 1, 2]
    assert [stage.state(job) for job in jobs] == ["cancelled"] * 3


@COLOURS
def test_a_stop_gives_all_back_without_an_attempt_used(stage: Stage, colour: str) -> None:
    begun, release = threading.Event(), threading.Event()
    refused: list[str] = []
    if colour == "async":

        @stage.hf.bulk
        async def index(pages: list[int], bulk: Bulk) -> None:
            begun.set()
            async with bulk.transaction() as tx:
                if not stage.is_sqlite:
                    # There it would have the file to itself, and the worker could not write.
                    await tx.execute(insert(1))
                await asyncio.sleep(60)
    else:

        @stage.hf.bulk
        def index(pages: list[int], bulk: Bulk) -> None:
            begun.set()
            release.wait(30)
            try:
                with bulk.transaction() as tx:
                    tx.execute(insert(1))
            except LeasesLost:
                refused.append("refused")

    jobs = add(stage, index, 4)

    async def body(_: Worker) -> None:
        await stage.until(begun.is_set)

    stage.work(body, drain=0)
    release.set()
    deadline = time.monotonic() + 20
    while colour == "def" and not refused:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("pending", 0)}
    assert written(stage) == []
    assert len(stage.heard(events.JobReleased)) == 4


def test_a_death_between_effects_and_commit_leaves_nothing_and_repeats_everything_once(
    stage: Stage, crew: Crew
) -> None:
    """The items come back as suspects: one by one, so that a killer among them would be found."""
    stage.sql("drop table effects")
    stage.sql("create table effects (n integer)")
    jobs = stage.hf.enqueue_many(
        [stage.hf.bind("bulk_effects", {"numbers": n}, check=False, max_attempts=3) for n in range(5)]
    )
    assert crew.start("--processes", "1").wait() == -9
    assert stage.sql("select n from effects") == []
    crew.start().started()
    until(lambda: not stage.live())
    assert [n for (n,) in stage.sql("select n from effects order by n")] == [0, 1, 2, 3, 4]
    for job in jobs:
        shown = stage.show(job)
        assert (shown.state, shown.attempts, len(shown.errors)) == ("done", 1, 1)
        assert "not counted" in shown.errors[0]["message"]
