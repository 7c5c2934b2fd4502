"""Children of runs: they are where their parent is, and no other run has their ids."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Run
from holdfast.errors import Conflict
from holdfast.store import growing
from holdfast.values.ids import bucket
from holdfast.values.shards import stamp_of
from tests.shards.stage import key_in, until

PATIENCE = 60


def workflows(hf: Holdfast) -> tuple[Any, Any, list[str]]:
    shipped: list[str] = []

    @hf.workflow
    async def ship(run: Run, n: int) -> int:
        shipped.append(run.id)
        return n

    @hf.workflow
    async def fulfil(run: Run, n: int) -> int:
        return await run.child(ship, n)

    return ship, fulfil, shipped


def work(hf: Holdfast, seen: Callable[[], object]) -> None:
    async def scene() -> None:
        async with hf.worker(poll=0.05):
            await asyncio.wait_for(until(seen), PATIENCE)
        await hf.aclose()

    asyncio.run(scene())


def test_a_child_is_found_by_those_who_start_its_id(hf: Holdfast) -> None:
    ship, fulfil, shipped = workflows(hf)
    named = [fulfil.start(n, id=f"order-{n}") for n in range(4)]
    drawn = [fulfil.start(4)]
    keyed = [fulfil.using(key=key_in(hf, n)).start(5, id=f"keyed-{n}") for n in range(3)]
    handles = [*named, *drawn, *keyed]
    work(hf, lambda: all(one.get().status == "done" for one in handles))
    for one in handles:
        n = one.result()
        assert not ship.start(n, id=f"{one.id}/ship").created
        assert hf.run(f"{one.id}/ship").get().status == "done"
    assert sorted(shipped) == sorted(f"{one.id}/ship" for one in handles)


def test_a_run_of_a_childs_id_is_where_its_parent_will_be(hf: Holdfast) -> None:
    ship, fulfil, shipped = workflows(hf)
    for n in range(6):
        alone = ship.start(n, id=f"order-{n}/ship")
        parent = fulfil.start(n, id=f"order-{n}")
        assert stamp_of(alone.get().job_id) == stamp_of(parent.get().job_id) == hf.shard_of(f"order-{n}")
    work(hf, lambda: len(hf.runs(workflow="fulfil", status="done")) == 6)
    assert sorted(shipped) == [f"order-{n}/ship" for n in range(6)]


def test_a_child_whose_id_another_shard_has_is_refused(
    files: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture
) -> None:
    """Its parent is not in the shard that its id says: it has a key, or the keys of its id have moved since."""
    hf = files()
    ship, fulfil, shipped = workflows(hf)
    home = hf.shard_of("order-1")
    ship.start(1, id="order-1/ship")
    parent = fulfil.using(key=key_in(hf, (home + 1) % 3)).start(1, id="order-1")
    moved = key_in(hf, 0, "moved")
    late = fulfil.start(1, id=moved)
    assert hf.shards is not None
    hf.shards.go(growing.move(hf.shards, [bucket(moved)], 1))
    assert stamp_of(ship.start(1, id=f"{moved}/ship").get().job_id) == 1
    work(hf, lambda: all(one.get().status == "stuck" for one in (parent, late)))
    assert f"Run order-1/ship of ship was started by itself, in shard {home}" in caplog.text
    assert f"Run {moved}/ship of ship was started by itself, in shard 1" in caplog.text
    assert sorted(shipped) == sorted(["order-1/ship", f"{moved}/ship"])


def test_an_id_is_one_run_with_any_key(files: Callable[..., Holdfast]) -> None:
    hf = files()
    ship, _, _ = workflows(hf)
    first = ship.start(1, id="order-1")
    for shard in range(3):
        again = ship.using(key=key_in(hf, shard)).start(1, id="order-1")
        assert (again.created, again.get().job_id) == (False, first.get().job_id)
        with pytest.raises(Conflict, match="other arguments"):
            ship.using(key=key_in(hf, shard)).start(2, id="order-1")


def test_a_child_whose_queue_is_kept_in_another_shard_is_refused(
    files: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture
) -> None:
    """Each shard would allow the whole limit."""
    hf = files()
    hf.queue("ship", concurrency=1)
    shipped: list[str] = []

    @hf.workflow(queue="ship")
    async def ship(run: Run) -> None:
        shipped.append(run.id)

    @hf.workflow
    async def fulfil(run: Run) -> None:
        await run.child(ship)

    home = hf.shard_of("ship")
    parents = [fulfil.start(id=key_in(hf, shard, "order")) for shard in range(3)]
    work(hf, lambda: {one.get().status for one in parents} == {"done", "stuck"})
    assert [one.get().status for one in parents] == ["done" if n == home else "stuck" for n in range(3)]
    assert shipped == [f"{parents[home].id}/ship"]
    assert f"goes to the queue ship, which is kept in shard {home} because it has limits" in caplog.text
