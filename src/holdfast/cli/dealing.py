"""Limits that are split over shards, when another one comes: all have smaller parts before it gets any keys."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.flow import Flow, Steps, flow
from holdfast.lines import change, stored
from holdfast.store import Shards, growing
from holdfast.store.trips import Asked, Trips, value_of
from holdfast.values.queues import QueueSettings
from holdfast.values.shards import ShardMap


def add(shards: Shards, number: int, also: Flow[None] | None = None, actor: str | None = None) -> Trips[ShardMap]:
    """Give a shard its part of the keys, and of the limits that are split.

    Where it dies between two shards, parts are smaller than they need to be, and not larger; a repeat puts it right.
    Raises: ConfigError, for limits that are too small for one more, too; Conflict.
    """
    return (yield from growing.add(shards, number, also, lambda planned: _deal(shards, planned, number, actor)))


def _deal(shards: Shards, planned: ShardMap, new: int, actor: str | None) -> Trips[None]:
    [answer] = yield [Asked(shards.stores[0], stored())]
    split = {name: one.settings for name, one in value_of(answer).items() if one.settings.is_split}
    if not split:
        return
    for settings in split.values():
        settings.require_parts(planned.count)
    # The others first: they have less from now on, and what they give away is the new one's.
    numbers = [number for number in range(len(shards.stores)) if number != new and not shards.is_over(number)]
    for number in (*numbers, new):
        [answer] = yield [Asked(shards.stores[number], _dealt(split, planned.count, actor))]
        value_of(answer)


@flow
def _dealt(split: Mapping[str, QueueSettings], count: int, actor: str | None) -> Steps[None]:
    for name in sorted(split):
        yield from change(name, vars(split[name]), actor, count)
