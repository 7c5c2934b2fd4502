"""What all rounds share: what they are given, how they wait, and how a failure is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast import events
from holdfast.errors import StoreError
from holdfast.life.source import Source
from holdfast.observe import Folded, Tallies
from holdfast.remote import Engine
from holdfast.schedules import Schedule
from holdfast.store import Shards
from holdfast.values.options import QueueOptions
from holdfast.worker import registry
from holdfast.worker.db_clock import DbClock
from holdfast.worker.demand import Demand
from holdfast.worker.holdings import Holdings
from holdfast.worker.patience import Patience
from holdfast.worker.pauses import Pauses

# What one worker does for all stays its own for this many turns: one that comes late costs it nothing.
TURNS_PER_LEASE = 2.5


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What a round may use: one store with its sources, and what belongs to the whole worker."""

    worker: str
    emit: Callable[[events.Event], None]
    stopping: asyncio.Event
    stop: Callable[[str], None]
    # What the registry keeps of the worker.
    describe: Callable[[], str]
    queue_options: Callable[[str], QueueOptions]
    retention_digest: Callable[[], str]
    # For how many seconds audit lines are kept.
    audit_retention: float
    # What the application declares to come again and again.
    schedules: Mapping[str, Schedule]
    holdings: Holdings
    # What the worker counts, and what it has counted since the last beat.
    tallies: Tallies
    counted: Callable[[], Folded]
    # Called when a beat was committed.
    beaten: Callable[[], None]
    demand: Demand
    # The store.
    patience: Patience
    pauses: Pauses
    # What its time is.
    clock: DbClock
    sources: Sequence[Source]
    # Whether it is the application's own store, and so the one place for what is done once for each worker.
    is_first: bool
    has_our_tables: bool
    # Whether the worker is in the registry there: of the application's store, or of each shard.
    registers: bool = False
    # Leaves shards to other workers of a ring, by the numbers of its own ones; returns whether that is a change.
    set_aside: Callable[[Collection[int]], bool] | None = None
    # The shards, and which of them this store is; None: there is one store only, or this is no shard.
    shard: tuple[Shards, int] | None = None
    # The numbers of those that the worker serves.
    shards: Sequence[int] = (0,)
    # How many buckets the workers of a ring share; None: this one is in no ring.
    buckets: int | None = None
    # Lets the claims of this store look again at once.
    wake: Callable[[], None] = lambda: None
    # Where remote steps are dispatched, by name, and those who are told of each dispatch.
    engines: Mapping[str, Engine] = field(default_factory=dict[str, Engine])
    dispatch_hints: set[Callable[[str], None]] = field(default_factory=set[Callable[[str], None]])


class Round:
    """One thing that a worker does every `every_seconds`, on each store that it `runs_on`."""

    name: ClassVar[str]
    every_seconds: ClassVar[float]
    # Whether one worker does it for all that share the tables; when it falls silent, another takes over.
    for_all: ClassVar[bool] = False

    def __init__(self, context: RoundContext) -> None:
        self.context = context

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        """Tell whether this store needs the round."""
        return True

    async def run(self) -> None:
        """Do it once. Raises: StoreError, when the database refuses; it is told, and the next round tries again."""
        raise NotImplementedError

    async def _is_ours(self) -> bool:
        lease_ms = round(TURNS_PER_LEASE * self.every_seconds * 1000)
        taking = registry.take_round(self.name_for_all(), self.context.worker, lease_ms)
        return await self.context.patience.outlive(taking)

    def name_for_all(self) -> str:
        """Name what one worker does for all that would do the same."""
        return self.name

    async def pause(self) -> None:
        """Wait for the next turn."""
        await asyncio.sleep(jittered(self.every_seconds))

    async def serve(self) -> None:
        """Take turns for ever; a failure is told once for as long as it stays the same."""
        said = ""
        while True:
            await self.pause()
            try:
                if not self.for_all or await self._is_ours():
                    await self.run()
                said = ""
            except StoreError as error:
                if str(error) != said:
                    said = str(error)
                    self.context.emit(events.UpkeepFailed(self.context.worker, self.name, said))


def jittered(seconds: float) -> float:
    """Shorten a pause by chance, so that workers drift apart."""
    return random.uniform(0.8, 1.0) * seconds
