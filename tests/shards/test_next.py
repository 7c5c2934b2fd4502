"""What continues a job is added in its transaction, in its shard: a job that belongs to another one is refused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Continue, Holdfast, Job, Retry
from holdfast.store import growing
from holdfast.values.ids import bucket
from holdfast.values.shards import stamp_of
from tests.shards.stage import key_in, until

PATIENCE = 60
WAYS = ("answer", "then", "transaction")


def play(hf: Holdfast, scene: Callable[[], Any]) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            answer = await scene()
        await hf.aclose()
        return answer

    return asyncio.run(whole())


def first_of(hf: Holdfast, following: Callable[[], Any], way: str = "answer") -> Any:
    """Make a handler whose job is continued in one of the ways that there are."""

    @hf.job(retry=Retry(max_attempts=1))
    async def first(job: Job) -> Any:
        if way == "answer":
            return Continue(following())
        job.then(following())
        if way == "transaction":
            async with job.transaction():
                pass

    return first


@pytest.mark.parametrize("way", WAYS)
def test_no_job_is_continued_by_one_whose_key_is_in_another_shard(hf: Holdfast, way: str) -> None:
    """It would run beside the jobs of its key, of which the other shard knows."""
    hf.queue("orders", ordered=True)
    gate, began, running, beside = asyncio.Event(), list[str](), 0, 0

    @hf.job(queue="orders")
    async def step(job: Job) -> None:
        nonlocal running, beside
        beside += running
        running += 1
        began.append(job.id)
        await gate.wait()
        running -= 1

    key = key_in(hf, 1)
    first = first_of(hf, step.using(key=key).bind, way)

    async def scene() -> None:
        stray = await first.using(key=key_in(hf, 0)).aenqueue()
        await until(lambda: began or hf.get(stray).state == "dead")
        own = await step.using(key=key).aenqueue()
        await until(lambda: own.id in began)
        gate.set()
        await hf.aresult(own, PATIENCE)
        shown = hf.get(stray)
        assert beside == 0
        assert shown.last_error is not None
        assert "belongs to shard 1" in shown.last_error["message"]
        assert "in shard 0: have the handler enqueue it" in shown.last_error["message"]

    play(hf, scene)


def test_no_job_is_continued_into_a_queue_that_is_kept_in_another_shard(files: Callable[..., Holdfast]) -> None:
    """Each shard would allow the whole limit."""
    hf = files()
    hf.queue("stripe", concurrency=1)
    ran: list[str] = []

    @hf.job(queue="stripe")
    async def charge(job: Job) -> None:
        ran.append(job.id)

    first = first_of(hf, charge.bind)
    home = hf.shard_of("stripe")

    async def scene() -> None:
        added = [await first.using(key=key_in(hf, shard)).aenqueue() for shard in range(3)]
        await until(lambda: all(hf.get(one).state in ("done", "dead") for one in added))
        assert [hf.get(one).state for one in added] == ["done" if n == home else "dead" for n in range(3)]
        await until(lambda: ran)

    play(hf, scene)
    assert len(ran) == 1


def test_a_chain_goes_on_with_its_key_and_without_any(files: Callable[..., Holdfast]) -> None:
    hf = files()

    @hf.job
    async def last(job: Job) -> int | None:
        return stamp_of(job.id)

    @hf.job
    async def first(key: str | None) -> Any:
        return Continue(last.using(key=key).bind())

    async def scene() -> None:
        for shard in range(3):
            key = key_in(hf, shard)
            for then in (key, key_in(hf, shard, "other"), None):
                added = await first.using(key=key).aenqueue(key=then)
                assert await hf.aresult(added, PATIENCE) == shard

    play(hf, scene)


def test_a_chain_stays_where_it_is_when_its_key_moves(files: Callable[..., Holdfast]) -> None:
    hf = files()
    gate, done = asyncio.Event(), list[str | None]()

    @hf.job
    async def last(job: Job) -> None:
        done.append(job.key)

    @hf.job
    async def first(key: str) -> Any:
        await gate.wait()
        return Continue(last.using(key=key).bind())

    key, other = key_in(hf, 0), key_in(hf, 0, "other")

    async def scene() -> None:
        for then in (key, other):
            await first.using(key=key).aenqueue(key=then)
        shards = hf.shards
        assert shards is not None
        await shards.ago(growing.move(shards, [bucket(key), bucket(other)], 1))
        # One is on its way still; the other counts as arrived.
        await shards.ago(growing.arrive(shards, [bucket(key)]))
        gate.set()
        await until(lambda: sorted(map(str, done)) == sorted([key, other]))

    play(hf, scene)
