"""Shards that come and go: the map is changed on the first shard, and the others get copies.

`also` is done in the transaction of the change, such as a line for the audit. What dies between two steps leaves a
newer map on the first shard than on others; those who read go by the newest, and workers copy it on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.errors import ConfigError, Conflict, DatabaseBusy, DatabaseUnavailable
from holdfast.flow import Flow
from holdfast.store import shard_map
from holdfast.store.sharded import Shards
from holdfast.store.trips import Asked, Trips, value_of
from holdfast.values.shards import ShardMap


def add(
    shards: Shards, number: int, also: Flow[None] | None = None, before: Callable[[ShardMap], Trips[None]] | None = None
) -> Trips[ShardMap]:
    """Give a shard its part of the keys; `before` is done once that is possible. Raises: ConfigError, Conflict."""
    check_number(shards, number)
    return (yield from _change(shards, lambda known: known.with_shard(number), also, before))


def drain(shards: Shards, number: int, also: Flow[None] | None = None) -> Trips[ShardMap]:
    """Give the keys of a shard to others, and no new work to it; what is there goes on.

    Raises: ConfigError, Conflict.
    """
    check_drained(shards, number)
    return (yield from _change(shards, lambda known: known.without_shard(number), also))


def check_drained(shards: Shards, number: int) -> None:
    """Raises: ConfigError for a shard that there is not; Conflict for the first."""
    check_number(shards, number)
    if number == 0:
        raise Conflict(
            "Shard 0 is not drained: schedules, messages of brokers and the map of the shards are there. Move its keys "
            "with `holdfast shards move` if it should have less to do."
        )


def move(shards: Shards, buckets: Collection[int], number: int, also: Flow[None] | None = None) -> Trips[ShardMap]:
    """Give buckets to a shard by hand. Raises: ConfigError, Conflict."""
    check_number(shards, number)
    check_buckets(shards, buckets)
    return (yield from _change(shards, lambda known: known.moved(buckets, number), also))


def arrive(shards: Shards, buckets: Collection[int], source: int | None = None) -> Trips[ShardMap]:
    """Note that nothing of these buckets is left where they came from: in `source`, or wherever that was."""
    return (yield from _change(shards, lambda known: known.arrived(buckets, source)))


def _change(
    shards: Shards,
    new: Callable[[ShardMap], ShardMap],
    also: Flow[None] | None = None,
    before: Callable[[ShardMap], Trips[None]] | None = None,
) -> Trips[ShardMap]:
    # Every shard must answer: one that is away would go by the old map, and its keys might be in two places.
    # Only what was drained before is not needed any more.
    seen = yield [Asked(store, shard_map.read(), once=True) for store in shards.stores]
    here = [
        number
        for number, answer in enumerate(seen)
        if not (isinstance(answer, DatabaseUnavailable | DatabaseBusy) and shards.is_over(number))
    ]
    stored = {number: value_of(seen[number]) for number in here}
    known = [shards.learn(number, one) for number, one in stored.items()][-1]
    behind = [number for number, one in stored.items() if one.map.version < known.version]
    if behind:
        # An earlier change did not reach them. A worker that serves them alone goes by what they have.
        for answer in (yield [Asked(shards.stores[number], shard_map.copy(known)) for number in behind]):
            value_of(answer)
    changed = new(known)
    if changed.owners == known.owners and changed.moving == known.moving and changed.closed == known.closed:
        raise Conflict("The shards are like that already.")
    if before is not None:
        yield from before(changed)
    home, *others = (shards.stores[number] for number in here)
    [answer] = yield [Asked(home, shard_map.change(changed, known.version, also), once=True)]
    value_of(answer)
    for answer in (yield [Asked(store, shard_map.copy(changed)) for store in others]):
        value_of(answer)
    return (yield from shards.map())


def check_buckets(shards: Shards, buckets: Collection[int]) -> None:
    """Raises: ConfigError for a bucket that there is not."""
    for bucket in buckets:
        if not 0 <= bucket < shards.options.buckets:
            raise ConfigError("bucket", f"must be 0 to {shards.options.buckets - 1}", bucket)


def check_number(shards: Shards, number: int) -> None:
    """Raises: ConfigError for a shard that the application does not name."""
    if not 0 <= number < len(shards.stores):
        rule = (
            f"there is no shard {number}; the application has 0 to {len(shards.stores) - 1}. Put a new one at the end "
            "of shards=, run `holdfast migrate apply`, deploy it everywhere, and then give it keys"
        )
        raise ConfigError("shard", rule, number)
