"""How the shards of an application stand: what each says of itself, and what the newest map says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.errors import DatabaseBusy, DatabaseUnavailable, FileRefused
from holdfast.flow import Steps, ask, flow, number_of
from holdfast.store import shard_map
from holdfast.store.shard_map import StoredMap
from holdfast.store.sharded import Shards
from holdfast.store.store import FILE_MISSING, Store
from holdfast.store.trips import Asked, Trips
from holdfast.values.shards import ShardMap
from holdfast.values.urls import shown
from holdfast.values.words import one_line

LIVE = ["pending", "waiting", "leased"]


class Standing(NamedTuple):
    """What a shard says of itself: which it is and by which map it goes, where that was said; and its live jobs."""

    stored: StoredMap | None
    live: int


@flow
def standing() -> Steps[Standing]:
    """Read what a shard says of itself."""
    stored = yield from shard_map.read().start()
    [[live]] = yield from ask("jobs_count", alone=True, states=LIVE, only_live=True)
    return Standing(stored, number_of(live))


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as people see it.

    state: open, or draining, which gets no new work; None where no map was read. buckets: how many it has. moving_in,
    moving_out: buckets that came to it, or left it, and of which there may be live jobs elsewhere, or here. live: its
    live jobs. version: of the map that it has. said: the number that it says it has. error: why it was not read. away:
    whether it does not answer; else its tables are not there, or not as they should be. map: the newest that was read.
    """

    shard: int
    url: str
    schema: str | None
    state: str | None = None
    buckets: int | None = None
    moving_in: int | None = None
    moving_out: int | None = None
    live: int | None = None
    version: int | None = None
    said: int | None = None
    error: str | None = None
    age: timedelta | None = None
    away: bool = False
    map: ShardMap | None = None

    @property
    def reachable(self) -> bool:
        return self.error is None

    @property
    def where(self) -> str:
        return f"{self.url}, schema {self.schema}" if self.schema else self.url

    def to_dict(self) -> dict[str, Any]:
        named = ("shard", "url", "schema", "state", "buckets", "moving_in", "moving_out", "live", "version")
        return {name: getattr(self, name) for name in named} | {"reachable": self.reachable, "error": self.error}


def look(shards: Shards) -> Trips[list[ShardView]]:
    """Look at every shard, once."""
    # To open a file that is not there would make it, empty.
    absent = {number: why for number, store in enumerate(shards.stores) if (why := absence(store)) is not None}
    asked = [number for number in range(len(shards.stores)) if number not in absent]
    answers = (yield [Asked(shards.stores[number], standing(), once=True) for number in asked]) if asked else []
    told: dict[int, Standing | Exception] = absent | dict(zip(asked, answers, strict=True))
    return views(shards, [told[number] for number in range(len(shards.stores))])


def absence(store: Store) -> Exception | None:
    """Say that the file of a shard is not there."""
    if store.file is None or store.file.exists():
        return None
    return FileRefused(str(store.file), FILE_MISSING)


def views(shards: Shards, answers: Sequence[Standing | Exception]) -> list[ShardView]:
    """Make of what each shard answered, or of why it did not, how they stand."""
    newest = newest_map(answers)
    return [_view(shards, number, answer, newest) for number, answer in enumerate(answers)]


def newest_map(answers: Sequence[Standing | Exception]) -> ShardMap | None:
    known = [one.stored.map for one in answers if isinstance(one, Standing) and one.stored is not None]
    return max(known, key=lambda map: map.version, default=None)


def _view(shards: Shards, number: int, answer: Standing | Exception, newest: ShardMap | None) -> ShardView:
    store = shards.stores[number]
    view = dict(_by_map(number, newest)) | {"map": newest} if newest is not None else dict[str, Any]()
    if isinstance(answer, Exception):
        view |= {"error": one_line(answer, 300), "away": isinstance(answer, DatabaseUnavailable | DatabaseBusy)}
    else:
        view["live"] = answer.live
        if answer.stored is not None:
            view |= {"version": answer.stored.map.version, "said": answer.stored.number, "age": answer.stored.age}
    return ShardView(number, shown(store.url), store.options.schema, **view)


def _by_map(number: int, map: ShardMap) -> Iterator[tuple[str, Any]]:
    yield "state", "draining" if number in map.closed else "open"
    yield "buckets", map.shares().get(number, 0)
    yield "moving_in", sum(map.owners[bucket] == number for bucket in map.moving)
    yield "moving_out", Counter(map.moving.values())[number]
