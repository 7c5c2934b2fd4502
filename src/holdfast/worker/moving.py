"""Keys on their way from one shard to another: their order must hold while there are jobs of theirs in both.

The new shard's jobs wait until the line in the old one is empty, and a job that is late in the old one, because its
transaction was, waits for one that runs in the new. Each worker looks at the other shard only after its claim is
committed: of two that look at each other, one at least sees the other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.jobs.source import JobsSource
from holdfast.life.source import Source
from holdfast.lines import InLine, StintLease, in_line
from holdfast.store import Shards, shard_map
from holdfast.values.ids import bucket
from holdfast.values.rows import Lease, PutBack
from holdfast.values.shards import ShardMap
from holdfast.worker.patience import Patience

# How old a map must be before jobs of keys that came with it begin: by then every worker goes by it.
SETTLED_SECONDS = 5.0
# How long a look at another shard may take: what was claimed is leased meanwhile.
LOOK_SECONDS = 5.0
# After which a job that has to wait is looked at again.
AGAIN_MS = 500


class _Other(NamedTuple):
    """The other shard that a key has to do with, and whether that one's jobs come first."""

    shard: int
    is_older: bool


class MovingKeys:
    """Holds back jobs of ordered queues on one shard, while their key has something to finish in another."""

    def __init__(self, shards: Shards, number: int, worker: str, patience: Patience) -> None:
        self._shards = shards
        self._number = number
        self._worker = worker
        self._patience = patience

    async def sifted(self, source: Source, claimed: Sequence[Lease]) -> Sequence[Lease]:
        """Return those of the claimed jobs that may run now; the others have gone back to the head of their lines."""
        if not isinstance(source, JobsSource):
            return claimed
        # A worker that has just begun must not run a job before it knows of moves, either.
        known = self._shards.known or self._shards.learn(self._number, await self._patience.outlive(shard_map.read()))
        asked = self._concerns(known, claimed)
        if any(not other.is_older for other, _ in asked):
            # A key of another shard, or one that has come here since the map was read.
            asked = self._concerns(await self._map_of_now() or known, claimed)
        if not asked:
            return claimed
        waiting: set[tuple[str, str]] = set()
        for (other, queue), keys in asked.items():
            there = await self._look(other, queue, keys)
            held = there.live if other.is_older else there.leased
            waiting |= {(queue, key) for key in held}
        back = [lease for lease in claimed if (lease.queue, lease.key) in waiting]
        if back:
            ends = [PutBack(lease.id, lease.fence, AGAIN_MS, 1) for lease in back]
            await self._patience.outlive(source.settle(ends, self._worker, back))
        return [lease for lease in claimed if (lease.queue, lease.key) not in waiting]

    def _concerns(self, known: ShardMap, claimed: Sequence[Lease]) -> dict[tuple[_Other, str], set[str]]:
        """Tell which keys have to do with which other shard, by queue."""
        asked: dict[tuple[_Other, str], set[str]] = defaultdict(set)
        for lease in claimed:
            if not isinstance(lease, StintLease) or not lease.key:
                continue
            # A queue that is kept in one shard goes by its own name.
            place = lease.queue if self._shards.in_one(lease.queue) else lease.key
            if (other := self._other(known, place)) is not None:
                asked[other, lease.queue].add(lease.key)
        return asked

    async def _map_of_now(self) -> ShardMap | None:
        with suppress(Exception):
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._shards.ago(self._shards.map())
        return None

    def _other(self, known: ShardMap, place: str) -> _Other | None:
        part = bucket(place, known.buckets)
        owner, source = known.owners[part], known.moving.get(part)
        if owner != self._number:
            return _Other(owner, False)
        return None if source is None else _Other(source, True)

    async def _look(self, other: _Other, queue: str, keys: set[str]) -> InLine:
        if other.is_older and self._shards.known_for < SETTLED_SECONDS:
            return InLine(keys, keys)
        with suppress(Exception):
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._shards.of(other.shard).arun_once(in_line(queue, keys))
        # Nobody knows what runs there, or this process does not name the shard yet: all of them wait.
        return InLine(keys, keys)
