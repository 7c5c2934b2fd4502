"""Workers that serve a part of the shards: groups of workers for groups of shards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.worker import registry
from holdfast.worker.rounds.ring import RingRound
from tests.shards.stage import COUNT, key_in, until

PATIENCE = 60


def serving(hf: Holdfast, done: list[int]) -> Any:
    @hf.job(kind="send")
    async def send(shard: int) -> None:
        done.append(shard)

    return send


def play(*apps: Holdfast, scene: Callable[[], Any]) -> None:
    async def whole() -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await scene()
        finally:
            for hf in apps:
                await hf.aclose()

    asyncio.run(whole())


def enqueue_in_each(hf: Holdfast, send: Any) -> None:
    for shard in range(COUNT):
        send.using(key=key_in(hf, shard)).enqueue(shard)


def test_a_worker_serves_the_shards_that_it_names_and_no_others(hf: Holdfast) -> None:
    done: list[int] = []
    enqueue_in_each(hf, serving(hf, done))

    async def scene() -> None:
        async with hf.worker(shards=[2, 1], poll=0.02) as worker:
            await until(lambda: len(done) == 2)
            # Another look at all that it serves, which finds nothing.
            for branch in worker.branches:
                branch.wake.set()
            assert [len(await store.arun(registry.workers())) for store in hf.stores.ours] == [0, 1, 1]
        assert sorted(done) == [1, 2]
        async with hf.worker(shards=[0], poll=0.02):
            await until(lambda: sorted(done) == [0, 1, 2])

    play(hf, scene=scene)


@pytest.mark.parametrize("said", [[3], [-1], [0, 7], [], [True], ["0"]])
def test_a_number_that_no_shard_has_is_refused(files: Callable[..., Holdfast], said: Any) -> None:
    hf = files()
    serving(hf, [])
    with pytest.raises(ConfigError, match=r"shards: (there is no shard|must be a list of whole numbers)"):
        hf.worker(shards=said)


def test_an_application_without_shards_has_no_numbers() -> None:
    hf = Holdfast("sqlite:///:memory:")
    serving(hf, [])
    with pytest.raises(ConfigError, match="shards: is for an application with shards"):
        hf.worker(shards=[0])
    hf.close()


def test_a_ring_shares_each_shard_among_those_that_serve_it(
    files: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RingRound, "every_seconds", 0.1)
    first, second = files(), files()
    for hf in (first, second):
        serving(hf, [])

    async def scene() -> None:
        async with (
            first.worker(ring=True, shards=[0, 1], poll=0.05) as one,
            second.worker(ring=True, shards=[1, 2], poll=0.05) as two,
        ):
            # Shard 1 is seen to by one of them, and each has its own other one.
            await until(lambda: one.branches[1].aside != two.branches[0].aside)
            assert not one.branches[0].aside
            assert not two.branches[1].aside

    play(first, second, scene=scene)
