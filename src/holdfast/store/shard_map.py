"""The map of the shards as it is stored: one row in each of them, all alike except for the shard's own number.

The row of the first shard is the one that is changed; the others are copies, for when the first cannot be reached.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from holdfast.errors import Conflict
from holdfast.flow import Flow, Rows, Steps, ask, flow, number_of, text_of
from holdfast.values.rows import when
from holdfast.values.shards import ShardMap


class StoredMap(NamedTuple):
    """What a shard says of itself: its number, the map that it has, and how long ago that was stored."""

    number: int
    map: ShardMap
    age: timedelta

    @property
    def not_alone(self) -> str | None:
        """Say that this is one of several, to those who take it for all; None while all keys are here."""
        if self.number == 0 and self.map.left_out(1) is None:
            return None
        return f"this database is shard {self.number} of {max(self.map.count, self.number + 1)}: name all in shards="


@flow
def read() -> Steps[StoredMap | None]:
    """Read which shard this is, and its map; None where nobody has said so."""
    return _stored((yield from ask("shard_map_read", alone=True)))


@flow
def alone() -> Steps[str | None]:
    """Say that this is one of several, to those who take it for all; None where it is all, or may not be read.

    A caller's transaction goes on in any case: a refused statement would end it, so the right to read is asked first.
    """
    [[allowed]] = yield from ask("shard_map_allowed")
    stored = _stored((yield from ask("shard_map_read"))) if allowed else None
    return None if stored is None else stored.not_alone


@flow
def in_use() -> Steps[bool]:
    """Tell whether there are live jobs with keys here."""
    [[used]] = yield from ask("shard_map_in_use", alone=True)
    return bool(used)


@flow
def place(number: int, map: ShardMap) -> Steps[StoredMap]:
    """Say which shard this is, with the map that it begins with, unless that was said before.

    Commits: its own. Raises: Conflict for a store that is another shard.
    """
    yield from ask("shard_map_add", number=number, version=map.version, map=map.text)
    found = _stored((yield from ask("shard_map_read")))
    assert found is not None  # noqa: S101 - added above, or there before
    if found.number != number:
        raise Conflict(
            f"The store that is named as shard {number} says that it is shard {found.number}. Keep the order in which "
            "the shards were named first: a key belongs to a shard by its number."
        )
    return found


@flow
def change(map: ShardMap, expected: int, also: Flow[None] | None = None) -> Steps[None]:
    """Store a newer map in the place of version `expected`, and do what goes with it.

    Commits: its own. Raises: Conflict if somebody else has changed it.
    """
    found = _stored((yield from ask("shard_map_lock")))
    if found is None or found.map.version != expected:
        raise Conflict("Somebody else has changed the shards meanwhile. Look with `holdfast shards list`; try again.")
    yield from ask("shard_map_set", version=map.version, map=map.text)
    if also is not None:
        yield from also


@flow
def copy(map: ShardMap) -> Steps[None]:
    """Store a map where an older one is. Commits: its own; to do it again changes nothing."""
    yield from ask("shard_map_set", version=map.version, map=map.text)


def _stored(rows: Rows) -> StoredMap | None:
    if not rows:
        return None
    number, text, set_at, now = rows[0]
    return StoredMap(number_of(number), ShardMap.read(text_of(text)), when(now) - when(set_at))
