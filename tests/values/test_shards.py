"""Which shard a key belongs to, which one an id names, and how the map changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Conflict
from holdfast.values.ids import bucket, new_id, next_id, parse_id, tick_id
from holdfast.values.shards import MOST_SHARDS, ShardMap, beside, stamp_of, stamped


@given(st.integers(0, MOST_SHARDS - 1))
def test_an_id_says_its_shard_and_stays_a_uuid(shard: int) -> None:
    plain = new_id()
    made = stamped(plain, shard)
    assert parse_id(made) == made
    assert stamp_of(made) == shard
    assert made[:13] == plain[:13]
    assert stamp_of(next_id(made)) == stamp_of(next_id(next_id(made))) == shard
    assert stamp_of(beside(made, new_id())) == shard


def test_ids_from_before_there_were_shards_say_nothing() -> None:
    from datetime import UTC, datetime

    assert {stamp_of(new_id()) for _ in range(1000)} == {None}
    assert {stamp_of(next_id(new_id())) for _ in range(1000)} == {None}
    assert stamp_of(tick_id("nightly", datetime(2026, 1, 1, tzinfo=UTC))) is None
    assert stamp_of("order-1") is None
    assert beside(new_id(), "same") == "same"


def test_vectors() -> None:
    """The same in any language: FNV-1a of the key, modulo the buckets, modulo the shards there were at first."""
    known = ShardMap.first(3, 1024)
    keys = ["order:1", "order:2", "customer:7", "ü"]
    assert [bucket(key) for key in keys] == [146, 767, 874, 74]
    assert [known.owners[bucket(key)] for key in keys] == [146 % 3, 767 % 3, 874 % 3, 74 % 3]
    assert stamped("01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f", 5) == "01997a3e-5b1c-8d20-bf4e-0a1b2c3d4005"


@given(st.integers(1, 39), st.integers(40, 1024))
def test_a_new_shard_gets_its_share_and_nothing_else_moves(shards: int, buckets: int) -> None:
    first = ShardMap.first(shards, buckets)
    grown = first.with_shard(shards)
    shares = grown.shares()
    assert sum(shares.values()) == buckets
    assert max(shares.values()) - min(shares.values()) <= 2 or shares[shards] == buckets // (shards + 1)
    for part, (before, after) in enumerate(zip(first.owners, grown.owners, strict=True)):
        assert after == before or (after == shards and grown.moving[part] == before)
    assert len(grown.moving) == shares[shards]
    assert grown.version == first.version + 1
    assert ShardMap.read(grown.text) == grown


def test_one_change_at_a_time() -> None:
    grown = ShardMap.first(2, 1024).with_shard(2)
    for change in (lambda: grown.with_shard(3), lambda: grown.without_shard(0), lambda: grown.moved([1], 0)):
        with pytest.raises(Conflict, match="on their way"):
            change()
    settled = grown.arrived(grown.moving)
    assert not settled.moving
    drained = settled.without_shard(0)
    assert 0 not in drained.shares()
    assert drained.open(range(3)) == [1, 2]
    with pytest.raises(Conflict, match="being drained"):
        drained.arrived(drained.moving).moved([1], 0)


def test_the_last_shard_is_not_drained() -> None:
    with pytest.raises(Conflict, match="last one"):
        ShardMap.first(1, 1024).without_shard(0)


def test_more_shards_than_buckets_are_refused() -> None:
    with pytest.raises(ConfigError, match="each has one of the buckets"):
        ShardMap.first(9, 8)
