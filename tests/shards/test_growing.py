"""Shards come and go while all runs: keys move, nothing is lost or doubled, and their order holds."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Run
from holdfast.errors import ConfigError, Conflict
from holdfast.store import Shards, growing
from holdfast.store.trips import Trips
from holdfast.values.ids import bucket
from holdfast.values.shards import ShardMap, stamp_of
from holdfast.worker import moving
from holdfast.worker.rounds import shards as shard_round
from tests.shards.stage import COUNT, count_in, key_in, until

PATIENCE = 90
KEYS = 24


def change(hf: Holdfast, trips: Callable[..., Any], *said: Any) -> ShardMap:
    assert hf.shards is not None
    found: ShardMap = hf.shards.go(trips(hf.shards, *said))
    return found


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "SETTLED_SECONDS", 0.5)
    monkeypatch.setattr(moving, "AGAIN_MS", 50)
    monkeypatch.setattr(shard_round, "EMPTY_SECONDS", 0.5)
    monkeypatch.setattr(shard_round, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(shard_round.ShardMaps, "every_seconds", 0.1)


class Orders:
    """Jobs of an ordered queue, of which each tells its number, and whether another of its key ran beside it."""

    def __init__(self, hf: Holdfast) -> None:
        self.ran: dict[int, list[int]] = defaultdict(list)
        self.running: set[int] = set()
        self.overlaps = 0
        # The first job of each key waits for this: its line is long when the key moves.
        self.gate = asyncio.Event()
        hf.queue("orders", ordered=True)

        @hf.job(queue="orders", key="order:{order}", kind="step")
        async def step(order: int, n: int) -> None:
            self.overlaps += order in self.running
            self.running.add(order)
            await (asyncio.sleep(0.003) if n else self.gate.wait())
            self.ran[order].append(n)
            self.running.discard(order)

        self.step = step


@pytest.mark.parametrize("deed", ["add", "drain", "move"])
def test_order_holds_while_keys_move(make: Callable[..., Holdfast], deed: str) -> None:
    hf = make()
    if deed == "add":
        # Before it was drained it had keys; that is settled, and it comes back as a new one does.
        change(hf, growing.drain, 2)
        known = change(hf, growing.arrive, range(1024))
        assert known.closed == {2}
    orders = Orders(hf)
    before = hf.shards.go(hf.shards.map())  # type: ignore[union-attr]

    async def enqueue(first: int, last: int) -> None:
        for n in range(first, last):
            for order in range(KEYS):
                await orders.step.aenqueue(order=order, n=n)

    async def scene() -> None:
        shards = hf.shards
        assert shards is not None
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05, concurrency=4 * KEYS):
            await enqueue(0, 6)
            await until(lambda: len(orders.running) == KEYS)
            trips = {
                "add": lambda: growing.add(shards, 2),
                "drain": lambda: growing.drain(shards, 1),
                "move": lambda: growing.move(shards, [n for n, one in enumerate(before.owners) if one == 0][:200], 2),
            }[deed]
            await shards.ago(trips())
            await enqueue(6, 12)
            # Time for jobs of the new shards to begin, as they must not.
            await asyncio.sleep(4 * moving.SETTLED_SECONDS)
            orders.gate.set()
            await until(lambda: all(len(orders.ran[order]) == 12 for order in range(KEYS)))
            # Once nothing is left where the keys came from, the map says so.
            await until(lambda: shards.known is not None and not shards.known.moving)
        await hf.aclose()

    asyncio.run(scene())
    assert dict(orders.ran) == {order: list(range(12)) for order in range(KEYS)}
    assert orders.overlaps == 0
    after = hf.shards.go(hf.shards.map())  # type: ignore[union-attr]
    assert after.owners != before.owners
    stored = [store.run(growing.shard_map.read()) for store in hf.stores.ours]
    assert all(one is not None and one.map.owners == after.owners for one in stored)


def test_a_worker_that_has_just_begun_keeps_the_order_of_keys_that_moved(
    files: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its round has not read the map yet, and nothing was enqueued in its process.
    monkeypatch.setattr(shard_round.ShardMaps, "every_seconds", 60.0)
    caller, fresh = files(), files()
    enqueued, orders = Orders(caller), Orders(fresh)
    order = next(n for n in range(1000) if caller.shard_of(f"order:{n}") == 0)
    enqueued.step.enqueue(order=order, n=0)
    change(caller, growing.move, [bucket(f"order:{order}")], 2)
    enqueued.step.enqueue(order=order, n=1)

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE), fresh.worker(poll=0.05):
            await until(lambda: order in orders.running)
            # Time for the one in the new shard to begin, as it must not.
            await asyncio.sleep(2 * moving.SETTLED_SECONDS)
            assert orders.ran[order] == []
            orders.gate.set()
            await until(lambda: len(orders.ran[order]) == 2)
        await fresh.aclose()

    asyncio.run(scene())
    assert orders.ran[order] == [0, 1]
    assert orders.overlaps == 0


def test_new_keys_go_to_a_new_shard_and_a_drained_one_gets_none(files: Callable[..., Holdfast]) -> None:
    hf = files()
    change(hf, growing.drain, 1)
    assert count_in(hf, 1) == 0

    @hf.job
    async def send() -> None: ...

    added = [send.enqueue() for _ in range(40)] + [send.using(key=f"key:{n}").enqueue() for n in range(40)]
    assert {stamp_of(one.id) for one in added} == {0, 2}
    with pytest.raises(Conflict, match="on their way"):
        change(hf, growing.add, 1)
    change(hf, growing.arrive, range(1024))
    with pytest.raises(Conflict, match="like that already"):
        change(hf, growing.arrive, [])
    change(hf, growing.add, 1)
    assert 1 in {stamp_of(send.using(key=f"key:{n}").enqueue().id) for n in range(40)}
    with pytest.raises(ConfigError, match="Put a new one at the end"):
        change(hf, growing.add, COUNT)


def test_a_run_is_found_where_it_was_started(files: Callable[..., Holdfast]) -> None:
    hf = files()

    @hf.workflow
    async def fulfil(run: Run) -> Any:
        return await run.signal("go")

    name = key_in(hf, 1, "order")
    first = fulfil.start(id=name)
    change(hf, growing.drain, 1)
    other = files()
    other.handlers.update(hf.handlers)
    assert other.run(name).get().job_id == first.get().job_id
    again = fulfil.start(id=name)
    assert not again.created
    assert again.get().job_id == first.get().job_id

    async def scene() -> Any:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            assert await hf.asignal(name, "go", 7)
            return await first.aresult(PATIENCE)

    assert asyncio.run(scene()) == 7


def test_an_application_that_does_not_name_a_new_shard_says_so(files: Callable[..., Holdfast]) -> None:
    hf = files()
    change(hf, growing.drain, 2)
    change(hf, growing.arrive, range(1024))
    old = Holdfast(shards=[store.url for store in hf.stores.ours[:2]])

    @old.job
    async def send() -> None: ...

    send.using(key="a").enqueue()
    change(hf, growing.add, 2)
    old.shards._read_at = 0.0  # type: ignore[union-attr]
    key = key_in(hf, 2)
    with pytest.raises(ConfigError, match=r"lists 2 of them, and what is asked for belongs to shard 2: deploy it"):
        send.using(key=key).enqueue()
    old.close()


def test_two_who_change_the_shards_at_once(files: Callable[..., Holdfast]) -> None:
    first, second = files(), files()
    assert first.shards is not None

    def late(shards: Shards) -> Trips[ShardMap]:
        """Drain a shard, while somebody else drains another between its look and its change."""
        trips = growing.drain(shards, 1)
        seen = yield next(trips)
        change(second, growing.drain, 2)
        [answer] = yield trips.send(seen)
        return trips.throw(answer)  # type: ignore[return-value]

    with pytest.raises(Conflict, match="Somebody else has changed the shards"):
        change(first, late)
    assert first.shards.go(first.shards.map()).closed == {2}


def test_a_late_job_of_the_old_shard_waits_for_the_one_that_runs_in_the_new(files: Callable[..., Holdfast]) -> None:
    """A process that still goes by the old map enqueues where a key was, while a job of it runs where it is now."""
    hf, late = files(), files()
    orders, stale = Orders(hf), Orders(late)
    order = next(n for n in range(100) if hf.shard_of(f"order:{n}") == 0)
    assert late.shard_of(f"order:{order}") == 0
    change(hf, growing.move, [n for n in range(1024) if n % COUNT == 0], 1)
    late.shards._read_at = float("inf")  # type: ignore[union-attr]

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            await orders.step.aenqueue(order=order, n=0)
            await until(lambda: orders.running)
            added = await stale.step.aenqueue(order=order, n=1)
            assert stamp_of(added.id) == 0
            await asyncio.sleep(1.0)
            assert not orders.overlaps
            orders.gate.set()
            await until(lambda: orders.ran[order] == [0, 1])
        await hf.aclose()
        await late.aclose()

    asyncio.run(scene())
    assert orders.overlaps == 0
