"""Bulk handlers: many jobs in one call, each with an end of its own, their effects and completions in one commit."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import (
    Bulk,
    BulkHandler,
    Cancel,
    ConfigError,
    Conflict,
    Fatal,
    Job,
    LeasesLost,
    Retry,
    Snooze,
    admin,
    events,
)
from holdfast.store.dialects import mysql
from holdfast.worker import Worker
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])

Act = Callable[[list[int], Bulk], Any]


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.sql("create table effects (what integer)")
    return stage


def written(stage: Stage) -> list[int]:
    return [row[0] for row in stage.sql("select what from effects order by what")]


def insert(what: int) -> str:
    return f"insert into effects (what) values ({what})"  # noqa: S608 - a number of the test


def nothing(_: list[int], __: Bulk) -> None: ...


def plain(stage: Stage, colour: str, act: Act, **options: Any) -> BulkHandler[int, Any]:
    """A bulk handler that gives what `act` gives."""
    options = {"retry": AT_ONCE} | options
    if colour == "async":

        @stage.hf.bulk(**options)
        async def index(pages: list[int], bulk: Bulk) -> Any:
            return act(pages, bulk)
    else:

        @stage.hf.bulk(**options)
        def index(pages: list[int], bulk: Bulk) -> Any:
            return act(pages, bulk)

    return index


def writing(
    stage: Stage, colour: str, before: Act = nothing, inside: Act = nothing, after: Act = nothing, **options: Any
) -> BulkHandler[int, Any]:
    """A bulk handler that writes an effect for each item in `bulk.transaction()`."""
    options = {"retry": AT_ONCE} | options
    if colour == "async":

        @stage.hf.bulk(**options)
        async def index(pages: list[int], bulk: Bulk) -> Any:
            before(pages, bulk)
            async with bulk.transaction() as tx:
                for page in pages:
                    await tx.execute(insert(page))
                inside(pages, bulk)
            return after(pages, bulk)
    else:

        @stage.hf.bulk(**options)
        def index(pages: list[int], bulk: Bulk) -> Any:
            before(pages, bulk)
            with bulk.transaction() as tx:
                for page in pages:
                    tx.execute(insert(page))
                inside(pages, bulk)
            return after(pages, bulk)

    return index


def add(stage: Stage, index: BulkHandler[int, Any], count: int, **options: Any) -> list[Any]:
    return stage.hf.enqueue_many([index.using(**options).bind(n) for n in range(count)])


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


# The transaction


@COLOURS
def test_effects_and_completions_of_all_are_one_commit(stage: Stage, colour: str) -> None:
    seen: list[Any] = []

    def inside(pages: list[int], bulk: Bulk) -> None:
        for job, page in zip(bulk.jobs, pages, strict=True):
            job.result = {"page": page}
        if not stage.is_sqlite:
            seen.append((written(stage), {stage.state(job) for job in bulk.jobs}))

    def after(_: list[int], bulk: Bulk) -> str:
        seen.append((written(stage), {stage.state(job) for job in bulk.jobs}))
        assert bulk.settled
        return "is not read any more"

    jobs = add(stage, writing(stage, colour, inside=inside, after=after), 5)
    stage.work()
    assert seen[-1] == ([0, 1, 2, 3, 4], {"done"})
    assert stage.is_sqlite or seen[0] == ([], {"leased"})
    assert [stage.show(job).result for job in jobs] == [{"page": n} for n in range(5)]
    assert {stage.show(job).attempts for job in jobs} == {1}
    assert len(stage.heard(events.JobDone)) == 5


@COLOURS
def test_an_exception_in_the_block_rolls_everything_back(stage: Stage, colour: str) -> None:
    def inside(_: list[int], bulk: Bulk) -> None:
        if bulk.jobs[0].attempt == 1:
            raise ValueError("not this time")

    jobs = add(stage, writing(stage, colour, inside=inside), 5)
    stage.work(poll=0.05)
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("done", 2)}
    assert written(stage) == [0, 1, 2, 3, 4]


@COLOURS
def test_a_failure_after_the_commit_undoes_nothing(stage: Stage, colour: str) -> None:
    def inside(_: list[int], bulk: Bulk) -> None:
        bulk.leave_out(1, Retry.after(3600))

    def after(_: list[int], __: Bulk) -> None:
        raise ValueError("too late to matter")

    jobs = add(stage, writing(stage, colour, inside=inside, after=after), 3)

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.live() == 1 and stage.heard(events.JobRetried))

    stage.work(body)
    assert [stage.state(job) for job in jobs] == ["done", "pending", "done"]
    assert len(stage.heard(events.FailedAfterDone)) == 2


@COLOURS
def test_items_left_out_end_otherwise_while_the_others_are_completed(stage: Stage, colour: str) -> None:
    outcomes = [Retry.after(3600), Snooze(3600), Cancel("gone"), Fatal("never"), ValueError("odd")]

    def inside(_: list[int], bulk: Bulk) -> None:
        for index, outcome in enumerate(outcomes):
            bulk.leave_out(index, outcome)

    waits = Retry(max_attempts=5, first_delay=3600, max_delay=3600)
    jobs = add(stage, writing(stage, colour, inside=inside, retry=waits), 7)

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.live() == 3 and not worker.held)

    stage.work(body)
    shown = [stage.show(job) for job in jobs]
    assert [one.state for one in shown] == ["pending", "pending", "cancelled", "dead", "pending", "done", "done"]
    assert [one.attempts for one in shown] == [1, 0, 1, 1, 1, 1, 1]
    assert shown[4].errors[0]["message"] == "odd"


def test_leaving_all_out_commits_what_was_written(stage: Stage) -> None:
    def inside(pages: list[int], bulk: Bulk) -> None:
        for index in range(len(pages)):
            bulk.leave_out(index, Cancel())

    jobs = add(stage, writing(stage, "async", inside=inside), 3)
    stage.work()
    assert ([stage.state(job) for job in jobs], written(stage)) == (["cancelled"] * 3, [0, 1, 2])


def test_misuse_of_leave_out_says_what_to_do(sqlite_stage: Stage) -> None:
    said: list[str] = []

    def after(_: list[int], bulk: Bulk) -> None:
        for index, outcome in ((2, Cancel()), (-1, Cancel()), ("0", Cancel()), (0, None), (0, Cancel())):
            with pytest.raises((ConfigError, Conflict)) as refused:
                bulk.leave_out(index, outcome)  # type: ignore[arg-type]
            said.append(str(refused.value))

    sqlite_stage.sql("create table effects (what integer)")
    add(sqlite_stage, writing(sqlite_stage, "async", after=after), 2)
    sqlite_stage.work()
    assert [text.split(";")[0] for text in said[:4]] == [
        "index: must be a whole number from 0 to 1",
        "index: must be a whole number from 0 to 1",
        "index: must be a whole number from 0 to 1",
        "outcome: must be Retry(…), Snooze(…), Cancel(…), Fatal(…) or an exception",
    ]
    assert "complete already" in said[4]


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@COLOURS
def test_a_lost_lease_among_them_commits_nothing_and_costs_the_others_no_attempt(
    stage: Stage, colour: str, swallow: bool
) -> None:
    refused: list[BaseException] = []
    stolen: list[str] = []

    def before(_: list[int], bulk: Bulk) -> None:
        if not stolen:
            stolen.append(bulk.jobs[2].id)
            stage.steal(bulk.jobs[2])

    def note(error: LeasesLost, bulk: Bulk) -> None:
        refused.append(error)
        assert not any(job.settled or job.completing for job in bulk.jobs)
        assert written(stage) == []
        if not swallow:
            raise error

    if colour == "async":

        @stage.hf.bulk(retry=AT_ONCE, lease=1)
        async def index(pages: list[int], bulk: Bulk) -> None:
            before(pages, bulk)
            try:
                async with bulk.transaction() as tx:
                    for page in pages:
                        await tx.execute(insert(page))
            except LeasesLost as error:
                note(error, bulk)
    else:

        @stage.hf.bulk(retry=AT_ONCE, lease=1)
        def index(pages: list[int], bulk: Bulk) -> None:
            before(pages, bulk)
            try:
                with bulk.transaction() as tx:
                    for page in pages:
                        tx.execute(insert(page))
            except LeasesLost as error:
                note(error, bulk)

    jobs = add(stage, index, 5)
    stage.work(poll=0.05)
    assert len(refused) == 1
    assert written(stage) == [0, 1, 2, 3, 4]
    assert [stage.show(job).attempts for job in jobs if job.id not in stolen] == [1] * 4
    assert {stage.state(job) for job in jobs} == {"done"}
    assert {event.id for event in stage.heard(events.LeaseWasLost)} == set(stolen)


def test_a_lease_known_to_be_lost_stops_the_transaction_before_its_block(stage: Stage) -> None:
    entered: list[Any] = []
    seen: list[Any] = []

    @stage.hf.bulk(retry=AT_ONCE, lease=1)
    async def index(pages: list[int], bulk: Bulk) -> None:
        if not seen:
            stage.steal(bulk.jobs[1])
            await stage.until(lambda: bulk.lost)
            seen.append((bulk.lost, bulk.jobs[1].lost))
            with pytest.raises(LeasesLost):
                async with bulk.transaction():
                    entered.append("in vain")
            with pytest.raises(Conflict, match="has lost a lease"):
                bulk.transaction()
            return
        async with bulk.transaction() as tx:
            for page in pages:
                await tx.execute(insert(page))

    add(stage, index, 3)
    stage.work(poll=0.05)
    assert (entered, seen, written(stage)) == ([], [([1], True)], [0, 1, 2])


def test_items_known_to_be_lost_can_be_left_out(stage: Stage) -> None:
    calls: list[list[int]] = []

    @stage.hf.bulk(retry=AT_ONCE, lease=1)
    async def index(pages: list[int], bulk: Bulk) -> None:
        calls.append(list(pages))
        if len(calls) == 1:
            stage.steal(bulk.jobs[1])
            await stage.until(lambda: bulk.lost)
            for n in bulk.lost:
                bulk.leave_out(n, Cancel("somebody else has it"))
        async with bulk.transaction() as tx:
            for n, page in enumerate(pages):
                if n not in bulk.lost:
                    await tx.execute(insert(page))

    jobs = add(stage, index, 3)
    stage.work(poll=0.05)
    assert calls == [[0, 1, 2], [1]]
    assert (written(stage), {stage.state(job) for job in jobs}) == ([0, 1, 2], {"done"})


@COLOURS
def test_a_second_completion_is_refused_before_it_does_anything(stage: Stage, colour: str) -> None:
    refused: list[BaseException] = []

    def again(_: list[int], bulk: Bulk) -> None:
        try:
            with bulk.transaction():
                pass
        except Conflict as error:
            refused.append(error)

    jobs = add(stage, writing(stage, colour, inside=again, after=again), 3)
    stage.work()
    assert len(refused) == 2
    assert "one attempt completes once" in str(refused[0])
    assert (written(stage), {stage.state(job) for job in jobs}) == ([0, 1, 2], {"done"})


def test_jobs_completed_one_by_one_are_not_completed_again(stage: Stage) -> None:
    @stage.hf.bulk(retry=AT_ONCE)
    async def index(pages: list[int], bulk: Bulk) -> None:
        async with bulk.jobs[1].transaction() as tx:
            await tx.execute(insert(pages[1]))
        async with bulk.transaction() as tx:
            await tx.execute(insert(pages[0]))
            await tx.execute(insert(pages[2]))

    jobs = add(stage, index, 3)
    stage.work()
    assert (written(stage), {stage.state(job) for job in jobs}) == ([0, 1, 2], {"done"})


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_completion_in_a_transaction_of_the_handlers_own(stage: Stage, end: str) -> None:
    def connect() -> Any:
        if stage.is_sqlite:
            return sqlite3.connect(stage.url.removeprefix("sqlite:///"), timeout=20)
        if stage.url.startswith("mysql"):
            return mysql.sync_class()(**(mysql.split_url(stage.url).arguments() | {"autocommit": False}))
        return psycopg.connect(stage.url)

    @stage.hf.bulk(retry=AT_ONCE)
    def index(pages: list[int], bulk: Bulk) -> None:
        first = bulk.jobs[0].attempt == 1
        connection = connect()
        try:
            for page in pages:
                connection.execute(insert(page))
            bulk.complete(connection)
            getattr(connection, end if first else "commit")()
        finally:
            connection.close()
        if first:
            raise ValueError("after the end of its own transaction")

    jobs = add(stage, index, 4)
    stage.work(poll=0.05)
    last = 1 if end == "commit" else 2
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("done", last)}
    assert written(stage) == [0, 1, 2, 3]


def test_async_completion_in_a_transaction_of_the_handlers_own(pg_stage: Stage) -> None:
    stage = pg_stage
    stage.sql("create table effects (what integer)")

    @stage.hf.bulk
    async def index(pages: list[int], bulk: Bulk) -> None:
        async with await psycopg.AsyncConnection.connect(stage.url) as connection:
            for page in pages:
                await connection.execute(insert(page).encode())
            await bulk.acomplete(connection)
            with pytest.raises(Conflict):
                await bulk.acomplete(connection)

    jobs = add(stage, index, 4)
    stage.work()
    assert (written(stage), {stage.state(job) for job in jobs}) == ([0, 1, 2, 3], {"done"})


def test_leases_renewed_during_the_commit_are_not_called_lost(stage: Stage) -> None:
    finished: list[int] = []

    @stage.hf.bulk(lease=1)
    async def index(pages: list[int], bulk: Bulk) -> None:
        async with bulk.transaction() as tx:
            for page in pages:
                await tx.execute(insert(page))
        ends = time.monotonic() + 0.7
        while time.monotonic() < ends:  # noqa: ASYNC110 - renewals must come by while it runs
            await asyncio.sleep(0.02)
        finished.extend(pages)

    add(stage, index, 3)

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobDone, 3)

    stage.work(body)
    assert finished == [0, 1, 2]
    assert not stage.heard(events.LeaseWasLost)


def test_a_thousand_items_are_completed_at_once(stage: Stage) -> None:
    sizes: list[int] = []
    index = writing(stage, "async", before=lambda pages, _: sizes.append(len(pages)), size=1000)
    jobs = add(stage, index, 1000)
    stage.work()
    assert sizes == [1000]
    assert written(stage) == list(range(1000))
    assert {stage.state(job) for job in jobs[::100]} == {"done"}


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


# Registering and enqueueing


class Page(msgspec.Struct):
    url: str
    depth: int = 0


@dataclass
class Note:
    text: str


def test_an_item_may_be_whatever_a_payload_takes(stage: Stage) -> None:
    got: list[Any] = []

    @stage.hf.bulk
    async def structs(pages: list[Page]) -> None:
        got.extend(pages)

    @stage.hf.bulk
    def notes(notes: Sequence[Note]) -> None:
        got.extend(notes)

    @stage.hf.bulk
    def anything(things: list) -> None:  # type: ignore[type-arg]
        got.extend(things)

    structs.enqueue(Page("/a", 3))
    notes.using(key="n", priority=3).enqueue(Note("x"))
    anything.enqueue([1, 2])
    stage.hf.enqueue("structs", {"pages": {"url": "/b"}})
    stage.work()
    assert sorted(got, key=repr) == sorted([Page("/a", 3), Page("/b"), Note("x"), [1, 2]], key=repr)


def test_a_kind_may_change_between_one_job_and_many(sqlite_stage: Stage) -> None:
    """The payload of a bulk handler's job is that of an ordinary one with a single parameter."""
    stage, got = sqlite_stage, []

    @stage.hf.job
    def index(page: Page) -> None:
        got.append(page)

    index.enqueue(Page("/a"))
    index.enqueue(page=Page("/b"))
    later = stage.app()

    @later.bulk(kind="index", item="page")
    def index_many(pages: list[Page]) -> None:
        got.extend(pages)

    assert index_many.bind(Page("/c")).payload == index.bind(Page("/c")).payload
    stage.work(None, later)
    assert got == [Page("/a"), Page("/b")]
    index_many.enqueue(Page("/d"))
    stage.work()
    assert got[-1] == Page("/d")
    later.close()


def test_the_worker_and_enqueue_check_the_item(sqlite_stage: Stage) -> None:
    index = plain(sqlite_stage, "async", nothing)
    for wrong in ("one", [1], None):
        with pytest.raises(Exception, match="Invalid argument 'pages' of 'index'"):
            index.enqueue(wrong)  # type: ignore[arg-type]


def one(page: Page) -> None: ...
def none() -> None: ...
def bare(pages) -> None: ...  # type: ignore[no-untyped-def]
def two(pages: list[Page], depth: int) -> None: ...
def with_job(job: Job, pages: list[Page]) -> None: ...
def with_default(pages: list[Page] = []) -> None: ...  # noqa: B006
def bulk_first(bulk: Bulk, pages: list[Page]) -> None: ...
def mapping(pages: dict[str, Page]) -> None: ...


@pytest.mark.parametrize(
    "fn", [one, none, bare, two, with_job, with_default, bulk_first, mapping], ids=lambda fn: fn.__name__
)
def test_another_shape_is_refused_with_the_one_to_write(sqlite_stage: Stage, fn: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        sqlite_stage.hf.bulk(fn)
    text = str(refused.value)
    assert f"`async def {fn.__name__}(pages: list[Page], bulk: Bulk) -> None`" in text
    assert sqlite_stage.hf.handlers == {}


def test_options_are_checked(sqlite_stage: Stage) -> None:
    hf: Any = sqlite_stage.hf
    for options, said in (
        ({"size": 0}, "size: must be a whole number from 1 to"),
        ({"size": "x"}, "size: must be a whole number"),
        ({"item": "not a name"}, "item: must be a name"),
        ({"sizes": 3}, r"hf.bulk\(\) takes no such option \(did you mean size\?\)"),
        ({"lease": 0}, "lease: must be"),
    ):
        with pytest.raises(ConfigError, match=said):

            @hf.bulk(**options)
            def index(pages: list[int]) -> None: ...

    @hf.bulk
    def index(pages: list[int]) -> None: ...

    with pytest.raises(ConfigError, match="each kind has one handler"):
        hf.job(kind="index")(lambda: None)


def test_an_ordinary_handler_gets_no_bulk(sqlite_stage: Stage) -> None:
    with pytest.raises(ConfigError, match="bulk"):

        @sqlite_stage.hf.job
        def index(pages: list[int], bulk: Bulk) -> None: ...


def test_middlewares_and_blocks_around_one_job_are_not_called(sqlite_stage: Stage) -> None:
    called: list[str] = []

    @sqlite_stage.hf.middleware
    async def watch(job: Job, call_next: Any) -> Any:
        called.append("middleware")
        return await call_next(job)

    @sqlite_stage.hf.around_handler
    def around(job: Job) -> Any:
        called.append("around")
        raise AssertionError

    jobs = add(sqlite_stage, plain(sqlite_stage, "def", nothing), 2)
    sqlite_stage.work()
    assert (called, [sqlite_stage.state(job) for job in jobs]) == ([], ["done", "done"])
