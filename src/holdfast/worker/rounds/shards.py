"""Shards: read the map, copy it to where it is older, and see when keys that went away have left nothing behind."""

from __future__ import annotations

import asyncio
import time

from holdfast import events
from holdfast.errors import Conflict, StoreError
from holdfast.jobs import live_buckets, live_queues
from holdfast.jobs.source import JobsSource
from holdfast.store import shard_map
from holdfast.store.growing import arrive
from holdfast.values.ids import bucket
from holdfast.worker.rounds.base import Round, RoundContext

# For how long a bucket must have been empty where it came from: processes may go by the old map for a moment, and
# their transactions may take a while.
EMPTY_SECONDS = 60.0
# How often that is looked at.
LOOK_SECONDS = 5.0


class ShardMaps(Round):
    name = "shards"
    every_seconds = 2.0

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        # Since when nothing is known to be here of a bucket that has gone.
        self._empty_since: dict[int, float] = {}
        self._look_at = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.shard is not None

    async def run(self) -> None:
        context = self.context
        assert context.shard is not None  # noqa: S101 - as `runs_on` says
        shards, number = context.shard
        try:
            known = shards.learn(number, await context.patience.outlive(shard_map.read()))
        except Conflict as error:
            context.emit(events.UpkeepFailed(context.worker, self.name, str(error)))
            return
        await context.patience.outlive(shard_map.copy(known))
        gone = {part for part, source in known.moving.items() if source == number}
        if not gone or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        # Queues that are kept in one shard go by their own names.
        apart = {name for name in self._queues() if shards.in_one(name)}
        live = await context.patience.outlive(live_buckets(gone, apart))
        live |= {bucket(name, known.buckets) for name in await context.patience.outlive(live_queues(apart))}
        now = time.monotonic()
        self._empty_since = {part: self._empty_since.get(part, now) for part in gone - live}
        done = [part for part, since in self._empty_since.items() if now - since >= EMPTY_SECONDS]
        if done:
            # Another worker may have been first.
            try:
                await asyncio.shield(shards.ago(arrive(shards, done, number)))
            except (Conflict, StoreError):
                self._empty_since = {}

    def _queues(self) -> set[str]:
        return {name for source in self.context.sources if isinstance(source, JobsSource) for name in source.queues}
