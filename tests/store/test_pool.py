"""Lending links: the last one given back first, and nobody in line forgotten."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from holdfast.errors import DatabaseBusy
from holdfast.store.pool import AsyncPool, Pool


class Alive:
    """A link as a pool sees it."""

    raw = None

    @property
    def dialect(self) -> Any:
        return self

    def is_closed(self, raw: object) -> bool:
        return False

    def is_idle(self) -> bool:
        return True

    def close(self) -> None: ...


async def opened() -> Any:
    return Alive()


def test_the_last_link_given_back_is_lent_first() -> None:
    pool: Any = Pool(2, Alive, patience=1)
    with pool.link() as first:
        with pool.link() as second:
            assert second is not first
        with pool.link() as again:
            assert again is second
    with pool.link() as last:
        assert last is first


def test_a_link_given_back_goes_to_who_waits_for_it() -> None:
    pool: Any = Pool(1, Alive, patience=20)
    lent: list[Any] = []

    def borrow() -> None:
        with pool.link() as link:
            lent.append(link)

    with pool.link() as mine:
        waiting = threading.Thread(target=borrow)
        waiting.start()
    waiting.join(20)
    assert lent == [mine]


def test_a_used_up_pool_says_so() -> None:
    pool: Any = Pool(1, Alive, patience=0.01)
    with pool.link(), pytest.raises(DatabaseBusy, match="pool_size"):
        pool.take()


def test_a_used_up_async_pool_says_so_and_works_on() -> None:
    async def main() -> None:
        pool = AsyncPool(1, opened, patience=0.01)
        async with pool.link() as mine:
            with pytest.raises(DatabaseBusy, match="pool_size"):
                await pool.take()
        async with pool.link() as again:
            assert again is mine

    asyncio.run(main())


def test_who_is_cancelled_when_called_calls_the_next_in_line() -> None:
    async def main() -> None:
        pool = AsyncPool(1, opened, patience=20)
        mine = await pool.take()
        first, gone, second = (asyncio.create_task(pool.take()) for _ in range(3))
        await asyncio.sleep(0)
        gone.cancel()
        pool.put(mine)
        # The first has been called and has not run yet.
        first.cancel()
        assert await asyncio.wait_for(second, 20) is mine
        assert first.cancelled()
        assert gone.cancelled()

    asyncio.run(main())


def test_who_waits_is_served_before_who_comes_back_for_more() -> None:
    async def main() -> None:
        pool = AsyncPool(1, opened, patience=20)
        turns: list[str] = []

        async def borrow(name: str, times: int) -> None:
            for _ in range(times):
                async with pool.link():
                    await asyncio.sleep(0)
                    turns.append(name)

        await asyncio.gather(borrow("busy", 5), borrow("other", 1))
        assert turns == ["busy", "other", "busy", "busy", "busy", "busy"]

    asyncio.run(main())


def test_a_link_handed_over_while_the_pool_closes_is_closed_when_it_comes_back() -> None:
    async def main() -> None:
        pool = AsyncPool(1, opened, patience=20)
        mine = await pool.take()
        waiting = pool.link()
        entering = asyncio.create_task(waiting.__aenter__())
        await asyncio.sleep(0)
        pool.put(mine or await opened())
        pool.close()
        await entering
        await waiting.__aexit__(None, None, None)
        assert pool.slots == [None]

    asyncio.run(main())


def test_a_pool_that_others_use_all_the_time_keeps_its_patience() -> None:
    pool: Any = Pool(1, Alive, patience=0.05)
    over = threading.Event()
    heard: list[str] = []

    def hog() -> None:
        while not over.is_set():
            with suppress(DatabaseBusy), pool.link():
                over.wait(0.001)

    def ask() -> None:
        for _ in range(20):
            try:
                with pool.link():
                    heard.append("lent")
            except DatabaseBusy:
                heard.append("busy")

    hogs, asking = [threading.Thread(target=hog) for _ in range(2)], threading.Thread(target=ask)
    for thread in (*hogs, asking):
        thread.start()
    asking.join(60)
    over.set()
    for thread in hogs:
        thread.join(60)
    assert len(heard) == 20


def test_a_closed_async_pool_lends_new_links() -> None:
    async def main() -> None:
        pool = AsyncPool(2, opened, patience=1)
        async with pool.link() as old:
            pool.close()
        async with pool.link() as new:
            assert new is not old

    asyncio.run(main())
