"""New shards: only a migration makes one, and none in the place of one that has keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.errors import ConfigError, Conflict
from holdfast.flow import Steps, flow
from holdfast.store import migrate, shard_map
from holdfast.store.sharded import Shards
from holdfast.store.trips import Asked, Trips, value_of
from holdfast.values.shards import ShardMap
from holdfast.values.urls import shown
from holdfast.values.words import plural

# The version of the tables that brought the map.
WITH_MAP = 15


class Seen(NamedTuple):
    """Whether a shard has tables, and the map that it goes by."""

    tables: bool
    map: ShardMap | None


@flow
def _seen() -> Steps[Seen]:
    version = yield from migrate.version().start()
    stored = (yield from shard_map.read().start()) if version >= WITH_MAP else None
    return Seen(bool(version), None if stored is None else stored.map)


def lost(shards: Shards, *, lenient: bool = True) -> Trips[dict[int, int]]:
    """Find the shards without tables that have keys by the map of another, each with the number of its buckets.

    lenient: those that do not answer are left out. Raises otherwise: DatabaseUnavailable, DatabaseBusy.
    """
    there = [number for number, store in enumerate(shards.stores) if store.file is None or store.file.exists()]
    answers = (yield [Asked(shards.stores[number], _seen(), once=True) for number in there]) if there else []
    told = {n: one for n, one in zip(there, answers, strict=True) if not (lenient and isinstance(one, Exception))}
    seen: dict[int, Seen] = {number: value_of(one) for number, one in told.items()}
    maps = [one.map for one in seen.values() if one.map is not None]
    known = max(maps, key=lambda map: map.version, default=None)
    empty = [n for n in range(len(shards.stores)) if n not in there or (n in seen and not seen[n].tables)]
    if known is None:
        return {}
    left = {*known.owners, *known.moving.values()}
    return {number: known.shares().get(number, 0) for number in empty if number in left}


def why_lost(shards: Shards, number: int, buckets: int) -> str:
    """Say of a shard that has keys that it is not there."""
    store = shards.stores[number]
    what = f"there is no database file {store.file}" if store.file and not store.file.exists() else "it has no tables"
    return f"shard {number} ({shown(store.url)}): {what}, but by the map it has {plural(buckets, 'bucket')} of keys"


@contextmanager
def making(shards: Shards, new: Collection[int] = ()) -> Iterator[None]:
    """Let a migration make files, and tables, of shards that are not there.

    new: those that may be empty although they have keys. Raises: Conflict for others; ConfigError.
    """
    if strange := [number for number in new if number not in range(len(shards.stores))]:
        raise ConfigError("new_shards", f"the application has shards 0 to {len(shards.stores) - 1}", strange)
    for number, buckets in shards.go(lost(shards, lenient=False)).items():
        if number not in new:
            raise Conflict(
                f"Nothing was made: {why_lost(shards, number, buckets)}. Restore it, or check its URL and the working "
                f"folder. If its jobs are gone for good, `holdfast migrate apply --new-shard {number}` makes an empty "
                "one in its place."
            )
    shards.make_files(True)
    try:
        yield
    finally:
        shards.make_files(False)
