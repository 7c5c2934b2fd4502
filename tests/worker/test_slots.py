"""Slots by themselves: handlers that never wait leave the loop to others, those that wait leave it to each other."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.lines.claiming import StintLease
from holdfast.worker import slots
from holdfast.worker.slots import Slots

COUNT = 20


class Acts:
    """Stands in for the executor: runs what the work says."""

    batch_limit = 1

    async def attempt(self, work: Any) -> Any:
        work.started = time.monotonic()
        await work.act()
        return work


def works(number: int, act: Any) -> list[Any]:
    return [SimpleWork(act) for _ in range(number)]


class SimpleWork(SimpleNamespace):
    def __init__(self, act: Any) -> None:
        super().__init__(
            act=act,
            executor=Acts(),
            handler=SimpleNamespace(is_async=True),
            lease=SimpleNamespace(lapses=0),
            slot=None,
            interrupt=None,
            job=None,
            next=None,
            started=0.0,
            ready=0.0,
        )

    __hash__ = object.__hash__


async def no_wait() -> None:
    pass


def serving(ended: list[Any]) -> Slots:
    made = Slots(COUNT, lambda one: ended.append(one), lambda: None)  # type: ignore[arg-type,func-returns-value]
    made.start()
    return made


async def until(true: Any) -> int:
    """Wait until something is true, and tell how often the loop came round."""
    rounds = 0
    while not true():
        rounds += 1
        assert rounds < 100_000
        await asyncio.sleep(0)
    return rounds


def test_the_loop_comes_round_after_each_turn_however_many_slots_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "TURN_SECONDS", 0.0)

    async def scene() -> int:
        ended: list[Any] = []
        made = serving(ended)
        made.feed(works(200, no_wait))
        rounds = await until(lambda: len(ended) == 200)
        await made.close()
        return rounds

    assert asyncio.run(scene()) > 150


def test_handlers_that_wait_use_every_slot() -> None:
    async def scene() -> int:
        ended: list[Any] = []
        release = asyncio.Event()
        made = serving(ended)
        made.feed(works(COUNT + 5, release.wait))
        await until(lambda: len(made.running) == COUNT)
        release.set()
        await until(lambda: len(ended) == COUNT + 5)
        await made.close()
        return len(ended)

    assert asyncio.run(scene()) == COUNT + 5


def test_quick_jobs_pass_by_one_that_waits() -> None:
    async def scene() -> int:
        ended: list[Any] = []
        release = asyncio.Event()
        made = serving(ended)
        made.feed([*works(3, no_wait), *works(1, release.wait), *works(50, no_wait)])
        await until(lambda: len(ended) == 53)
        made.feed(works(50, no_wait))
        await until(lambda: len(ended) == 103)
        release.set()
        await made.quiet()
        await made.close()
        return len(ended)

    assert asyncio.run(scene()) == 104


def test_jobs_fed_one_by_one_while_others_wait_are_begun_at_once() -> None:
    async def scene() -> int:
        ended: list[Any] = []
        release = asyncio.Event()
        made = serving(ended)
        for n in range(COUNT):
            made.feed(works(1, release.wait))
            await until(lambda n=n: len(made.running) == n + 1)
        release.set()
        await made.quiet()
        await made.close()
        return len(ended)

    assert asyncio.run(scene()) == COUNT


def test_a_slot_whose_turn_is_cut_short_lets_another_sprint() -> None:
    async def scene() -> int:
        ended: list[Any] = []
        made = serving(ended)

        async def cut() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

        made.feed([*works(1, cut), *works(100, no_wait)])
        await until(lambda: len(ended) == 101)
        await made.close()
        return len(ended)

    assert asyncio.run(scene()) == 101


class InBatches(Acts):
    batch_limit = 10
    takes_stints = False

    def batch_of(self, first: Any) -> int:
        return 10

    def goes_with(self, first: Any, other: Any) -> bool:
        return True

    async def attempt_batch(self, batch: list[Any]) -> list[Any]:
        return [SimpleNamespace(work=work) for work in batch]


class Handled:
    is_async = True
    linger = 0.0
    options = SimpleNamespace(concurrency=None)


def test_every_end_of_a_batch_is_handed_on_before_its_slot_waits_for_room() -> None:
    async def scene() -> None:
        ended: list[Any] = []
        room = asyncio.Event()

        def end(one: Any) -> asyncio.Event:
            ended.append(one)
            return room

        made = Slots(1, end, lambda: None)
        made.start()
        executor, handler = InBatches(), Handled()
        batch = works(10, no_wait)
        for work in batch:
            work.executor, work.handler, work.source = executor, handler, None
        made.feed(batch)
        await until(lambda: ended)
        # A cancellation that a handler asked for, and that comes only now.
        for task in made._tasks:
            task.cancel()
        await asyncio.sleep(0.01)
        assert len(ended) == 10
        assert not made.running
        await made.close()

    asyncio.run(scene())


def test_what_is_taken_back_takes_along_what_is_behind_it_in_its_stint() -> None:
    """Those behind may wait for longer, as jobs of a handler that lingers: left here, they would come before it."""

    async def scene() -> None:
        made = Slots(1, lambda _: None, lambda: None)
        stint = works(3, no_wait)
        for n, work in enumerate(stint):
            work.source, work.stint, work.ready = None, None, 60.0 if n == 1 else 1.0
            work.lease = StintLease(str(n), "orders", "act", "{}", None, "a", 0, 1, 5, 1, 1000, 0, 0, False, 0)
        made.feed(list(stint))
        assert made.take_back(older_than=2.0) == stint[::-1]
        assert made.waiting() == []

    asyncio.run(scene())
