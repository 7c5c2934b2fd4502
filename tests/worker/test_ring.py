"""Workers of a ring share keys by bucket, and no bucket is left without a taker."""

import asyncio
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import events
from holdfast.store import Store
from holdfast.testing import Clock
from holdfast.values.ids import bucket
from holdfast.values.ring import Ring
from holdfast.worker import Worker, registry
from holdfast.worker.rounds import ring
from tests.worker.stage import Stage

IN_RING = '{"ring": true}'
KEYS = [f"order:{n}" for n in range(40)]


async def settled_ring(stage: Stage, members: int) -> None:
    """Wait until every member has heard of all the others."""
    await stage.until(
        lambda: len({one.worker for one in stage.heard(events.RingMoved) if one.workers == members}) == members,
        f"a ring of {members}",
    )


def test_each_key_is_run_by_the_worker_that_owns_its_bucket(stage: Stage) -> None:
    ran: dict[str, set[str]] = defaultdict(set)
    apps = [stage.app() for _ in range(3)]
    for number, app in enumerate(apps):

        @app.job(kind="act")
        async def act(key: str, number: int = number) -> None:
            ran[key].add(workers[number].id)

    workers = [app.worker(ring=True, name=f"w{number}") for number, app in enumerate(apps)]

    async def scene() -> None:
        async with workers[0], workers[1], workers[2]:
            await settled_ring(stage, 3)
            await asyncio.to_thread(apps[0].enqueue_many, [apps[0].bind("act", {"key": key}, key=key) for key in KEYS])
            await stage.until_empty()
        for app in apps:
            await app.aclose()

    asyncio.run(scene())
    owners = Ring(worker.id for worker in workers)
    # What a slow machine lets lie for ten seconds is anyone's; that would show as another owner.
    assert ran == {key: {owners.owner(bucket(key))} for key in KEYS}
    assert len(set().union(*ran.values())) == 3


def test_no_bucket_without_taker(stage: Stage) -> None:
    """The others of the ring are dead and the registry does not know it yet: what is overdue is anyone's."""
    for number in range(20):
        stage.run(registry.beat(f"dead-{number}", '{"ring": true}'))
    ran: set[str] = set()

    @stage.hf.job
    async def act(key: str) -> None:
        ran.add(key)

    overdue = datetime.now(UTC) - timedelta(minutes=1)
    stage.hf.enqueue_many([act.using(key=key, run_after=overdue).bind(key=key) for key in KEYS])
    stage.work(ring=True)
    assert ran == set(KEYS)
    [moved] = stage.heard(events.RingMoved)
    assert (moved.workers, moved.buckets) == (21, 1024)
    assert moved.owned < 200


def test_a_worker_that_leaves_hands_its_buckets_over(stage: Stage) -> None:
    leaver = stage.app()

    @stage.hf.job(kind="act")
    @leaver.job(kind="act")
    async def act(key: str) -> None: ...

    async def scene() -> None:
        async with stage.hf.worker(ring=True) as stays:
            async with leaver.worker(ring=True):
                await settled_ring(stage, 2)
            await stage.until(
                lambda: [one.owned for one in stage.heard(events.RingMoved) if one.worker == stays.id][-1] == 1024,
                "all buckets",
            )
        await leaver.aclose()
        await stage.hf.aclose()

    asyncio.run(scene())


def test_a_silent_member_and_one_that_drains_are_out_of_the_ring(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @stage.hf.job
    async def act(key: str) -> None: ...

    def members() -> int:
        told = stage.heard(events.RingMoved)
        return told[-1].workers if told else 0

    with closing(Store(stage.url)) as past:
        Clock(past).now = datetime.now(UTC) - ring.SILENT_AFTER - timedelta(seconds=1)
        past.run(registry.beat("silent", IN_RING))
    for name in ("drains", "falls silent"):
        stage.run(registry.beat(name, IN_RING))

    async def body(_: Worker) -> None:
        await stage.until(lambda: members() == 3, "itself and two that live")
        await asyncio.to_thread(stage.run, registry.mark("drains", "draining"))
        await stage.until(lambda: members() == 2, "the one that drains has left")
        monkeypatch.setattr(ring, "SILENT_AFTER", timedelta(0))
        await stage.until(lambda: members() == 1, "the one that fell silent has left")

    stage.work(body, ring=True)
    assert [one.workers for one in stage.heard(events.RingMoved)] == [3, 2, 1]
    assert stage.heard(events.RingMoved)[-1].owned == 1024


def test_a_worker_outside_of_the_ring_owns_nothing_of_it_and_takes_everything(stage: Stage) -> None:
    @stage.hf.job
    async def act(key: str) -> None: ...

    stage.run(registry.beat("member", '{"ring": true}'))
    stage.hf.enqueue_many([act.using(key=key).bind(key=key) for key in KEYS])
    stage.work()
    assert stage.heard(events.RingMoved) == []


def test_a_rebalance_during_a_slow_stint_runs_nothing_twice_at_once(stage: Stage) -> None:
    """Another worker joins, and leaves again, while every key has a stint under way: lines stay the guard."""
    ran: dict[str, list[int]] = defaultdict(list)
    inside: dict[str, int] = defaultdict(int)
    overlaps: list[str] = []
    apps = [stage.app(), stage.app()]
    for app in apps:
        app.queue("orders", ordered=True)

        @app.job(kind="act", queue="orders", key="{key}")
        async def act(key: str, n: int) -> None:
            inside[key] += 1
            if inside[key] > 1:
                overlaps.append(key)
            ran[key].append(n)
            await asyncio.sleep(0.02)
            inside[key] -= 1

    keys = KEYS[:8]
    stays, joins = apps
    stays.enqueue_many(stays.bind("act", {"key": key, "n": n}, key=key) for n in range(25) for key in keys)

    async def scene() -> None:
        async with stays.worker(ring=True, concurrency=8):
            await stage.until(lambda: len(ran) == len(keys), "stints under way")
            async with joins.worker(ring=True, concurrency=8):
                await settled_ring(stage, 2)
                await stage.until(lambda: min(map(len, ran.values())) > 12, "half of them")
            await stage.until_empty()
        for app in apps:
            await app.aclose()

    asyncio.run(scene())
    assert overlaps == []
    assert ran == {key: list(range(25)) for key in keys}
