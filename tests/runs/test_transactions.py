"""Transactions of runs whose end nobody knows: the body is told what the journal says, in its order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Holdfast, Retry, Run
from holdfast.errors import DatabaseUnavailable
from holdfast.testing.inline import replay
from holdfast.worker.step_calls import StepCalls

PATIENCE = 60.0

Calls = Callable[[StepCalls, Any, Any, Any], Awaitable[None]]


@pytest.fixture
def hf(everywhere: Holdfast) -> Holdfast:
    with everywhere.store.transaction() as link:
        link.raw.cursor().execute("create table booked (n integer)")
    return everywhere


def book(tx: Any) -> str:
    tx.cursor().execute("insert into booked (n) values (1)")
    return "booked"


def booked(hf: Holdfast) -> int:
    with hf.store.link() as link:
        cursor = link.raw.cursor()
        cursor.execute("select n from booked")
        return len(cursor.fetchall())


def transacting(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Calls], Calls]) -> None:
    monkeypatch.setattr(StepCalls, "transact", wrap(StepCalls.transact))


def test_a_commit_whose_reply_is_lost_is_told_before_what_was_recorded_behind_it(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_through = asyncio.Event()

    def wrap(transact: Calls) -> Calls:
        async def cut_once(*given: Any) -> None:
            await transact(*given)
            if not came_through.is_set():
                came_through.set()
                raise DatabaseUnavailable("the reply was lost")

        return cut_once

    transacting(monkeypatch, wrap)

    async def behind() -> None:
        await came_through.wait()

    @hf.workflow
    async def order(run: Run) -> list[str]:
        told: list[str] = []

        async def one(name: str, work: Awaitable[Any]) -> None:
            await work
            told.append(name)

        await asyncio.gather(one("effect", run.transaction(book)), one("step", run.step(behind)))
        return told

    async def main() -> None:
        async with hf.worker(poll=0.1):
            handle = await order.astart(id="r")
            assert await handle.aresult(PATIENCE) == ["effect", "step"]

    asyncio.run(main())
    assert [row.key for row in hf.run("r").history()] == ["book", "behind"]
    replay(hf, hf.run("r").export())
    assert booked(hf) == 1


def test_a_time_out_in_the_middle_of_a_commit_that_comes_through_is_a_success(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrap(transact: Calls) -> Calls:
        async def late(*given: Any) -> None:
            await transact(*given)
            raise TimeoutError

        return late

    transacting(monkeypatch, wrap)

    @hf.workflow
    async def order(run: Run) -> str:
        return str(await run.transaction(book, retry=Retry(1)))

    async def main() -> None:
        async with hf.worker(poll=0.1):
            assert await (await order.astart(id="r")).aresult(PATIENCE) == "booked"

    asyncio.run(main())
    assert [(row.key, row.ok) for row in hf.run("r").history()] == [("book", 1)]
    assert booked(hf) == 1
