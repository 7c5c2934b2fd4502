"""The effects and completions of many jobs in one commit: bulk.transaction(), bulk.complete(tx=), leave_out."""

import asyncio
import sqlite3
import time
from typing import Any

import psycopg
import pytest

from holdfast import (
    Bulk,
    Cancel,
    ConfigError,
    Conflict,
    Fatal,
    LeasesLost,
    Retry,
    Snooze,
    events,
)
from holdfast.store.dialects import mysql
from holdfast.worker import Worker
from tests.worker.bulk import AT_ONCE, COLOURS, add, insert, writing, written
from tests.worker.stage import Stage


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.sql("create table effects (what integer)")
    return stage


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


def test_a_failure_of_the_whole_counts_for_items_left_out_too(stage: Stage) -> None:
    def inside(_: list[int], bulk: Bulk) -> None:
        if bulk.jobs[0].attempt == 1:
            bulk.leave_out(0, Cancel("by what is rolled back now"))
            raise ValueError("not this time")

    jobs = add(stage, writing(stage, "async", inside=inside), 3)
    stage.work(poll=0.05)
    assert {(stage.state(job), stage.show(job).attempts) for job in jobs} == {("done", 2)}


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
    assert len(stage.heard(events.FailedAfterDone)) == (4 if end == "commit" else 0)
    assert not stage.heard(events.LeaseWasLost)


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
