"""The ends of a stint are committed in their order, also where one of its jobs completes itself, or cannot be ended."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Bulk, Holdfast, Job, Retry, events
from holdfast.worker.settler import Settler
from tests.worker.stage import Stage
from tests.worker.test_odd_handlers import refuse
from tests.worker.test_stints import ordered

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)


class Gate:
    """What the settler waits at before it writes: until it is opened, no end that a worker was told of is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        write = Settler._write

        async def late(settler: Settler, batch: Any) -> None:
            while not self.is_open.is_set():  # noqa: ASYNC110 - it is opened from any thread
                await asyncio.sleep(0.005)
            await write(settler, batch)

        monkeypatch.setattr(Settler, "_write", late)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def stop_refusing(stage: Stage) -> None:
    on = "" if stage.is_sqlite or stage.url.startswith("mysql") else " on holdfast_finished"
    stage.sql(f"drop trigger refuse{on}")


# How a job completes itself: each registers the handler of the kind `own`, which notes itself and does so.


def by_transaction(hf: Holdfast, note: Callable[[int], None]) -> None:
    @hf.job(kind="own", queue="orders", key="a", retry=AT_ONCE)
    async def own(n: int, job: Job) -> None:
        note(n)
        async with job.transaction():
            pass


def by_transaction_on_a_thread(hf: Holdfast, note: Callable[[int], None]) -> None:
    @hf.job(kind="own", queue="orders", key="a", retry=AT_ONCE)
    def own(n: int, job: Job) -> None:
        note(n)
        with job.transaction():
            pass


def by_a_shared_transaction(hf: Holdfast, note: Callable[[int], None]) -> None:
    @hf.job(kind="own", queue="orders", key="a", retry=AT_ONCE, commit="together")
    async def own(n: int, job: Job) -> None:
        note(n)
        async with job.transaction():
            pass


def by_hand(hf: Holdfast, note: Callable[[int], None]) -> None:
    @hf.job(kind="own", queue="orders", key="a", retry=AT_ONCE)
    def own(n: int, job: Job) -> None:
        note(n)
        with hf.store.link() as link, link.transaction():
            job.complete(link.raw)


WAYS = (by_transaction, by_transaction_on_a_thread, by_a_shared_transaction, by_hand)


@pytest.mark.parametrize("keep", [3600, 0], ids=["kept", "dropped"])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_completes_itself_takes_the_ends_before_it_along(
    stage: Stage, gate: Gate, way: Callable[..., None], keep: int
) -> None:
    hf, ran = ordered(stage, retention=keep, concurrency=9), []

    @hf.job(queue="orders", key="a")
    async def plain(n: int) -> None:
        ran.append(n)

    way(hf, ran.append)
    own: Any = hf.handlers["own"]
    bound = [plain.bind(0), plain.bind(1), own.bind(2), plain.bind(3), own.bind(4), plain.bind(5)]
    ids = [one.id for one in hf.enqueue_many(bound)]

    async def body(_: Any) -> None:
        await stage.until(lambda: stage.live() <= 1, "the last that completes itself")
        # A kill now would run the last one again and no other.
        assert [str(row[0]) for row in stage.sql("select id from holdfast_jobs")] == ids[5:]
        gate.is_open.set()
        await stage.until_empty()

    stage.work(body, concurrency=8, drain=2)
    assert ran == [0, 1, 2, 3, 4, 5]
    assert {event.id for event in stage.heard(events.JobDone)} == set(ids)
    assert not stage.heard(events.LeaseWasLost)
    assert stage.sql("select count(*) from holdfast_lines")[0][0] == 0
    assert stage.sql("select held from holdfast_queues")[0][0] == 0


def test_a_bulk_handler_that_completes_its_items_takes_the_ends_before_them_along(stage: Stage, gate: Gate) -> None:
    hf, ran = ordered(stage), []

    @hf.bulk(queue="orders", retry=AT_ONCE, size=5)
    async def act(ns: list[int], bulk: Bulk) -> None:
        ran.extend(ns)
        if ns == [2]:
            async with bulk.transaction():
                pass

    ids = [one.id for one in hf.enqueue_many(act.using(key="a").bind(n) for n in range(4))]

    async def body(_: Any) -> None:
        await stage.until(lambda: len(ran) == 4, "all have run")
        assert [str(row[0]) for row in stage.sql("select id from holdfast_jobs")] == ids[3:]
        gate.is_open.set()
        await stage.until_empty()

    stage.work(body, concurrency=8, drain=2)
    assert ran == [0, 1, 2, 3]
    assert {event.id for event in stage.heard(events.JobDone)} == set(ids)


def test_a_completion_that_is_rolled_back_takes_no_end_along(stage: Stage, gate: Gate) -> None:
    hf, ran = ordered(stage), []

    @hf.job(queue="orders", key="a")
    async def plain(n: int) -> None:
        ran.append(n)

    @hf.job(queue="orders", key="a", retry=AT_ONCE)
    def own(n: int, job: Job) -> None:
        ran.append(n)
        with hf.store.link() as link, link.transaction():
            job.complete(link.raw)
            if job.attempt == 1:
                raise ValueError("not yet")

    first, second = hf.enqueue_many([plain.bind(0), own.bind(1)])

    async def body(_: Any) -> None:
        await stage.until(lambda: ran == [0, 1])
        await asyncio.sleep(0.02)
        assert {stage.state(first), stage.state(second)} == {"leased"}
        gate.is_open.set()
        await stage.until_empty()

    stage.work(body, concurrency=8, drain=2)
    assert ran == [0, 1, 1]
    assert len(stage.heard(events.JobDone)) == 2
    assert not stage.heard(events.LeaseWasLost)


@pytest.mark.parametrize("behind", ["plain", "own"])
def test_nothing_ends_before_a_job_whose_end_is_refused(stage: Stage, gate: Gate, behind: str) -> None:
    """Its lease runs out and it runs again: what was behind it in its stint has to come after that."""
    hf, ran = ordered(stage), []
    refuse(stage, "kind", "cursed")

    @hf.job(queue="orders", key="a", lease=1, retry=AT_ONCE)
    async def cursed() -> None:
        ran.append("cursed")

    @hf.job(queue="orders", key="a", retry=Retry(max_attempts=1))
    async def plain() -> None:
        ran.append("plain")

    @hf.job(queue="orders", key="a", retry=Retry(max_attempts=1))
    async def own(job: Job) -> None:
        ran.append("own")
        async with job.transaction():
            pass

    first, *others = hf.enqueue_many([cursed.bind(), {"plain": plain, "own": own}[behind].bind(), plain.bind()])

    async def body(_: Any) -> None:
        if behind == "plain":
            await stage.until(lambda: len(ran) == 3, "all have run")
        else:
            await stage.until(lambda: len(ran) == 2, "the second has run")
        gate.is_open.set()
        await stage.until_said(events.SettleRefused)
        await stage.until_said(events.JobReleased, len(others))
        assert {stage.state(one) for one in others} <= {"pending", "waiting"}
        stop_refusing(stage)
        await stage.until_empty()

    stage.work(body, concurrency=8, drain=2, poll=0.05)
    assert [event.id for event in stage.heard(events.JobDone)] == [first.id, *(one.id for one in others)]
    assert {stage.state(one) for one in (first, *others)} == {"done"}
