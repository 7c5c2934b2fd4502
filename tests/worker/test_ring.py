"""Workers of a ring share keys by bucket, and no bucket is left without a taker."""

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from holdfast import events
from holdfast.values.ids import bucket
from holdfast.values.ring import Ring
from holdfast.worker import registry
from tests.worker.stage import Stage

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
    ring = Ring(worker.id for worker in workers)
    # What a slow machine lets lie for ten seconds is anyone's; that would show as another owner.
    assert ran == {key: {ring.owner(bucket(key))} for key in KEYS}
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
