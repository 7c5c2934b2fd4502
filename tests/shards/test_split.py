"""Limits of a queue that are split over the shards: what all parts together let through."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Rate, admin, lines
from holdfast.cli import dealing
from holdfast.errors import ConfigError
from holdfast.values.queues import Share
from holdfast.values.shards import stamp_of
from tests.shards.stage import COUNT, key_in, shards, until

PATIENCE = 60


@pytest.fixture(params=["files", "schemas", "databases"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Holdfast]]:
    with shards(request.param, request) as maker:
        yield maker


def limited(hf: Holdfast, **limits: Any) -> Any:
    hf.queue("calls", across="split", **limits)

    @hf.job(queue="calls")
    async def call(n: int = 0) -> int:
        return n

    return call


def declared(hf: Holdfast) -> None:
    """Do what workers do at their start."""
    for store in hf.stores.ours:
        store.run(lines.declare({name: one.settings for name, one in hf.context.queues.items()}))


def claimed(hf: Holdfast) -> list[int]:
    """Take what each shard gives now."""
    return [len(_claim(store)) for store in hf.stores.ours]


def _claim(store: Any) -> Any:
    settings = store.run(lines.stored("calls"))["calls"].settings
    return store.run(lines.claim("calls", settings, limit=100)).leases


def enqueue_everywhere(hf: Holdfast, call: Any, each: int = 20) -> None:
    for shard in range(COUNT):
        key = key_in(hf, shard)
        hf.enqueue_many([call.using(key=key).bind(n) for n in range(each)])


def parts_of(hf: Holdfast) -> list[int | None]:
    return [store.run(lines.stored("calls"))["calls"].settings.here.concurrency for store in hf.stores.ours]


def test_jobs_of_a_split_queue_go_by_their_keys(make: Callable[..., Holdfast]) -> None:
    hf = make()
    call = limited(hf, concurrency=5)
    assert [stamp_of(call.using(key=key_in(hf, shard)).enqueue().id) for shard in range(COUNT)] == [0, 1, 2]
    assert {stamp_of(call.enqueue().id) for _ in range(60)} == {0, 1, 2}


def test_all_shards_together_run_as_many_as_the_limit_says(make: Callable[..., Holdfast]) -> None:
    hf = make()
    call = limited(hf, concurrency=5)
    declared(hf)
    enqueue_everywhere(hf, call)
    assert claimed(hf) == [2, 2, 1]
    assert claimed(hf) == [0, 0, 0]


def test_a_change_while_all_runs_gives_each_shard_its_part_and_people_see_the_whole(
    make: Callable[..., Holdfast],
) -> None:
    hf = make()
    call = limited(hf, concurrency=5)
    declared(hf)
    enqueue_everywhere(hf, call)
    claimed(hf)
    before, now = hf.store.run(admin.change_queue("calls", {"concurrency": 10, "rate": None}, "ann"))
    assert (before.concurrency, now.concurrency) == (5, 10)
    assert claimed(hf) == [2, 1, 2]
    seen = hf.store.run(lines.stored())["calls"]
    assert (str(seen.settings), seen.held) == ("concurrency 10, across split", 10)
    assert "share" not in seen.to_dict()["settings"]


def test_a_rate_is_kept_by_all_shards_together_in_any_period(make: Callable[..., Holdfast]) -> None:
    hf = make()
    call = limited(hf, rate=Rate(8, per=3600))
    declared(hf)
    enqueue_everywhere(hf, call)
    assert hf.shards is not None
    began = datetime(2030, 1, 1, tzinfo=UTC)
    starts: list[datetime] = []
    for minute in range(0, 180, 5):
        hf.shards.clock_at(at := began + timedelta(minutes=minute))
        starts += [at] * sum(claimed(hf))
    in_hours = [sum(at <= start < at + timedelta(hours=1) for start in starts) for at in starts]
    assert max(in_hours) == 8
    assert len(starts) >= 20


def test_workers_never_run_more_than_the_limit_over_all_shards(make: Callable[..., Holdfast]) -> None:
    running, most, seen = 0, 0, set[int | None]()
    done = 0

    def application() -> tuple[Holdfast, Any]:
        hf = make()
        hf.queue("calls", concurrency=4, across="split")

        @hf.job(queue="calls")
        async def call(shard: int) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            seen.add(shard)
            await asyncio.sleep(0.005)
            running -= 1
            done += 1

        return hf, call

    hf, call = application()
    other, _ = application()
    for shard in range(COUNT):
        hf.enqueue_many([call.using(key=key_in(hf, shard)).bind(shard) for _ in range(20)])

    async def scene() -> None:
        async with hf.worker(poll=0.05), other.worker(poll=0.05):
            await asyncio.wait_for(until(lambda: done == 20 * COUNT), PATIENCE)
        await other.aclose()
        await hf.aclose()

    asyncio.run(scene())
    assert most <= 4
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("limits", [{"concurrency": 2}, {"rate": Rate(2, per=1)}, {"concurrency": 9, "rate": Rate(1)}])
def test_a_limit_that_is_too_small_to_be_split_is_refused(files: Callable[..., Holdfast], limits: Any) -> None:
    with pytest.raises(ConfigError, match=r'must be 3 or more with across="split".*across="one"'):
        files().queue("calls", across="split", **limits)


def test_a_change_to_a_limit_that_is_too_small_is_refused_and_changes_nothing(files: Callable[..., Holdfast]) -> None:
    hf = files()
    limited(hf, concurrency=5)
    declared(hf)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="must be 3 or more"):
            hf.store.run(admin.change_queue("calls", {"concurrency": 2}, "ann", dry_run))
    assert parts_of(hf) == [2, 2, 1]


def test_the_word_changes_nothing_without_shards(tmp_path: Path) -> None:
    with Holdfast(f"sqlite:///{tmp_path}/one.db") as hf:
        hf.migrate()
        call = limited(hf, concurrency=1)
        declared(hf)
        hf.enqueue_many([call.bind(n) for n in range(5)])
        assert claimed(hf) == [1]


def test_a_shard_that_is_added_gets_its_part_of_what_the_others_give_away(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(3)]
    with Holdfast(shards=urls[:2]) as hf:
        hf.migrate()
        limited(hf, concurrency=9)
        declared(hf)
        # What was said by hand counts for the new one, and not what the code says.
        hf.store.run(admin.change_queue("calls", {"concurrency": 7}, "ann"))
        assert parts_of(hf) == [4, 3]
    with Holdfast(shards=urls) as hf:
        hf.migrate()
        limited(hf, concurrency=9)
        declared(hf)
        assert parts_of(hf)[:2] == [4, 3]
        assert hf.shards is not None
        hf.shards.go(dealing.add(hf.shards, 2, actor="ann"))
        assert parts_of(hf) == [3, 2, 2]
        assert {store.run(lines.stored())["calls"].changed_by for store in hf.stores.ours} == {"ann"}
        declared(hf)
        assert parts_of(hf) == [3, 2, 2]


def test_a_shard_is_not_added_while_a_limit_is_too_small_for_one_more(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(3)]
    with Holdfast(shards=urls[:2]) as hf:
        hf.migrate()
        limited(hf, concurrency=2)
        declared(hf)
    with Holdfast(shards=urls) as hf:
        hf.migrate()
        assert hf.shards is not None
        with pytest.raises(ConfigError, match="must be 3 or more"):
            hf.shards.go(dealing.add(hf.shards, 2))
        assert hf.shards.go(hf.shards.map()).count == 2


def test_a_queue_that_was_kept_in_one_shard_is_split_when_the_code_says_so(files: Callable[..., Holdfast]) -> None:
    before = files()
    before.queue("calls", concurrency=6)
    declared(before)
    assert parts_of(before) == [6, 6, 6]
    now = files()
    limited(now, concurrency=6)
    declared(now)
    assert parts_of(now) == [2, 2, 2]


@pytest.mark.parametrize("limit", [3, 4, 5, 10, 1000])
def test_the_parts_are_the_whole_and_shrink_with_each_shard_that_comes(limit: int) -> None:
    for count in range(1, min(limit, 12) + 1):
        parts = [Share(number, count).of(limit) for number in range(count)]
        assert sum(parts) == limit
        assert max(parts) - min(parts) <= 1
        if count > 1:
            assert all(Share(number, count - 1).of(limit) >= part for number, part in enumerate(parts[:-1]))
