"""Shards: which of several stores a key belongs to, and which one an id names.

A shard is a whole store. Keys are hashed into buckets (`ids.bucket`), and a map says which shard has each bucket. The
map has a version: it changes when a shard is added or drained, and everyone goes by the newest that they have seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.errors import ConfigError, Conflict
from holdfast.values.ids import is_id
from holdfast.values.words import plural, shards_named

# The last digits of an id that was made for a shard say which. Such an id is a UUID of version 8 whose variant digit is
# b; those of ticks and of jobs that continue others have an 8 there, unless they follow one for a shard.
STAMP_DIGITS = 3
MOST_SHARDS = 16**STAMP_DIGITS
_VERSION, _VARIANT = 14, 19


def stamped(job_id: str, shard: int) -> str:
    """Return an id that says which shard it is for; its time, and so its place among others, stays as it was."""
    head, middle, tail = job_id[:_VERSION], job_id[_VERSION + 1 : _VARIANT], job_id[_VARIANT + 1 : -STAMP_DIGITS]
    return f"{head}8{middle}b{tail}{shard:0{STAMP_DIGITS}x}"


def stamp_of(text: str) -> int | None:
    """Read which shard an id names; None for one that was made without shards, and for other texts."""
    if len(text) != 36 or text[_VERSION] != "8" or text[_VARIANT] != "b" or not is_id(text):
        return None
    return int(text[-STAMP_DIGITS:], 16)


def root_of(run: str) -> str:
    """Return the part of a run's id that says its shard: children are where their parent is, whose id comes first."""
    return run.partition("/")[0] or run


def beside(there: str, job_id: str) -> str:
    """Return an id for the same shard as another one's, if that is for any."""
    number = stamp_of(there)
    return job_id if number is None else stamped(job_id, number)


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Which shard has each bucket.

    `moving` has the buckets that went to another shard of late, each with the shard that it came from: there may be
    live jobs of it there. `closed` are the shards that get no new work.
    """

    version: int
    owners: tuple[int, ...]
    moving: Mapping[int, int] = field(default_factory=dict[int, int])
    closed: frozenset[int] = frozenset()

    @classmethod
    def first(cls, shards: int, buckets: int) -> ShardMap:
        """Make the map that shards begin with: buckets are dealt out in turn."""
        if not 1 <= shards <= min(MOST_SHARDS, buckets):
            rule = f"must be 1 to {min(MOST_SHARDS, buckets):,}: each has one of the buckets at least"
            raise ConfigError("shards", rule, shards)
        return cls(1, tuple(bucket % shards for bucket in range(buckets)))

    @classmethod
    def read(cls, text: str) -> ShardMap:
        """Read a map as it is stored. Raises: Conflict for another text."""
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except msgspec.MsgspecError as error:
            raise Conflict(f"What is stored as the map of the shards cannot be read: {error}.") from error
        return cls(stored.version, tuple(stored.owners), stored.moving, frozenset(stored.closed))

    @property
    def text(self) -> str:
        """The map as it is stored."""
        return msgspec.json.encode(
            _Stored(self.version, list(self.owners), dict(self.moving), sorted(self.closed))
        ).decode()

    @property
    def buckets(self) -> int:
        return len(self.owners)

    @property
    def count(self) -> int:
        """How many shards have had keys: one more than the highest number."""
        return 1 + max((*self.owners, *self.moving.values(), *self.closed))

    def left_out(self, listed: int) -> str | None:
        """Say which shards with keys are missing in a list of this length; None where none is."""
        having = {*self.owners, *self.moving.values()}
        absent = sorted(number for number in having if number >= listed)
        if not absent:
            return None
        buckets = sum(count for number, count in self.shares().items() if number in absent)
        verb = "is" if len(absent) == 1 else "are"
        return (
            f"the map has {1 + max(having)} shards, but this application lists {listed}: {shards_named(absent)} {verb} "
            f"missing ({plural(buckets, 'bucket')}). Deploy the whole list."
        )

    def open(self, shards: Iterable[int]) -> list[int]:
        """List those of the shards that new work may go to."""
        return [shard for shard in shards if shard not in self.closed]

    def shares(self) -> dict[int, int]:
        """Count the buckets of each shard that has any."""
        return dict(sorted(Counter(self.owners).items()))

    def with_shard(self, shard: int) -> ShardMap:
        """Give a new shard its part of the buckets: as many from each of the others as leaves all with the same."""
        self._settled()
        if shard in self.shares():
            raise Conflict(f"Shard {shard} has keys already. `holdfast shards move` gives it others.")
        counts = Counter(self.owners)
        counts[shard] = 0
        moves: dict[int, int] = {}
        share = self.buckets // len(counts)
        if not share:
            raise Conflict(f"There are {self.buckets} buckets, and each shard needs one: no other can be added.")
        for bucket in reversed(range(self.buckets)):
            if counts[shard] >= share:
                break
            owner = self.owners[bucket]
            if counts[owner] > share:
                counts[owner] -= 1
                counts[shard] += 1
                moves[bucket] = shard
        return self._moved(moves, self.closed - {shard})

    def without_shard(self, shard: int) -> ShardMap:
        """Give the buckets of a shard to those that have fewest, and no new work to it."""
        self._settled()
        counts = Counter(self.owners)
        del counts[shard]
        for closed in self.closed:
            counts.pop(closed, None)
        if not counts:
            raise Conflict(f"Shard {shard} is the last one with keys: add another before it is drained.")
        moves: dict[int, int] = {}
        for bucket, owner in enumerate(self.owners):
            if owner == shard:
                fewest = min(counts, key=lambda one: (counts[one], one))
                counts[fewest] += 1
                moves[bucket] = fewest
        return self._moved(moves, self.closed | {shard})

    def moved(self, buckets: Iterable[int], shard: int) -> ShardMap:
        """Give buckets to a shard by hand."""
        self._settled()
        if shard in self.closed:
            raise Conflict(f"Shard {shard} is being drained: it gets no keys.")
        moves = {bucket: shard for bucket in buckets if self.owners[bucket] != shard}
        return self._moved(moves, self.closed)

    def arrived(self, buckets: Iterable[int], source: int | None = None) -> ShardMap:
        """Return the map once nothing of these buckets is left where they came from: in `source`, where it is said."""
        gone = set(buckets)
        left = {
            bucket: shard
            for bucket, shard in self.moving.items()
            if bucket not in gone or (source is not None and shard != source)
        }
        return replace(self, version=self.version + 1, moving=left)

    def _moved(self, moves: Mapping[int, int], closed: frozenset[int]) -> ShardMap:
        owners = tuple(moves.get(bucket, owner) for bucket, owner in enumerate(self.owners))
        return ShardMap(self.version + 1, owners, {bucket: self.owners[bucket] for bucket in moves}, closed)

    def _settled(self) -> None:
        if self.moving:
            raise Conflict(
                f"{len(self.moving)} buckets are on their way since an earlier change. Let a worker run until "
                "`holdfast shards list` shows none that moves: a minute at least, and as long as jobs are left behind."
            )


class _Stored(msgspec.Struct, forbid_unknown_fields=False):
    version: int
    owners: list[int]
    moving: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    closed: list[int] = msgspec.field(default_factory=list[int])
