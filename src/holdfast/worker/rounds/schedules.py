"""Schedules: store what the application declares, and do the ticks that are due, also those of others."""

from __future__ import annotations

import asyncio
import random
import time

from holdfast import events, schedules
from holdfast.errors import ConfigError, StoreError
from holdfast.schedules.syncing import Synced
from holdfast.worker.rounds.base import Round, RoundContext, jittered

# The longest pause between two looks: for this long a schedule that another process stored may be overlooked.
LOOK_SECONDS = 2.0
# Where there are no schedules at all.
IDLE_LOOK_SECONDS = 5.0
# After due ticks, and while there is one that cannot be done here.
SOON_SECONDS = 0.1
AGAIN_SECONDS = 1.0
# Workers look at different moments after a tick is due, so that mostly one of them does it and the others see it done.
SPREAD_SECONDS = 0.25
COMPARE_SECONDS = 60.0
SCHEDULES_READ = 100


class Schedules(Round):
    name = "schedules"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self.next_in = 0.0
        # When the declared schedules are compared with the stored ones again. The first time, missing ones are added.
        self._compare_at = 0.0
        self._stored = False
        # What was told already: the trouble of a schedule, and whose other definition stays.
        self._failed: dict[str, str] = {}
        self._kept: set[str] = set()

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    async def pause(self) -> None:
        """Wait until the next tick that is known of, or for the next look."""
        await asyncio.sleep(self.next_in)

    async def run(self) -> None:
        is_home = self.context.shard is None or self.context.shard[1] == 0
        if self.context.is_first and is_home and self.context.schedules and time.monotonic() >= self._compare_at:
            await self._sync()
        first = await self.context.patience.outlive(schedules.coming(SCHEDULES_READ + len(self._failed)))
        due = [one.name for one in first if one.seconds <= 0]
        # In no order that another worker has, too.
        random.shuffle(due)
        done = [await self._tick(name) for name in due]
        waits = [one.seconds for one in first if one.seconds > 0]
        if any(done):
            self.next_in = SOON_SECONDS
        elif due:
            self.next_in = AGAIN_SECONDS
        elif waits and waits[0] < LOOK_SECONDS:
            self.next_in = waits[0] + random.uniform(0.0, SPREAD_SECONDS)
        else:
            self.next_in = jittered(LOOK_SECONDS if first else IDLE_LOOK_SECONDS)

    async def _sync(self) -> None:
        """Store what is declared here. Later it is compared only: a definition may come back when another is gone."""
        context = self.context
        syncing = schedules.sync(context.schedules.values(), "worker", create=not self._stored)
        answer = await context.patience.outlive(syncing)
        self._stored = True
        self._compare_at = time.monotonic() + jittered(COMPARE_SECONDS)
        for name, what in answer.items():
            self._tell(name, what)

    def _tell(self, name: str, what: Synced) -> None:
        context = self.context
        if what in ("created", "changed"):
            context.emit(events.ScheduleStored(context.worker, name, what, str(context.schedules[name].timetable)))
        if what == "kept" and name not in self._kept:
            context.emit(events.ScheduleKept(context.worker, name, str(context.schedules[name].timetable)))
        (self._kept.add if what == "kept" else self._kept.discard)(name)

    async def _tick(self, name: str) -> bool:
        """Do what a schedule owes; tell whether this worker did it. Trouble with one must not hold up the others."""
        context = self.context
        try:
            ticked = await context.patience.outlive(schedules.tick(name))
        except (ConfigError, StoreError) as error:
            if self._failed.get(name) != str(error):
                self._failed[name] = str(error)
                context.emit(events.ScheduleFailed(context.worker, name, str(error)))
            return False
        self._failed.pop(name, None)
        if ticked is None:
            return False
        if ticked.jobs:
            context.wake()
        for event in told(context.worker, ticked):
            context.emit(event)
        return True


def told(worker: str, ticked: schedules.Ticked) -> list[events.Event]:
    """Say what a tick did, as events."""
    one, skipped = ticked.schedule, ticked.skipped
    said: list[events.Event] = []
    if skipped is not None:
        first, last = skipped.first.isoformat(), skipped.last.isoformat()
        said.append(events.TicksSkipped(worker, one.name, skipped.number, first, last, one.catch_up))
    for tick, added in ticked.jobs:
        about = (one.name, tick.isoformat(), added.id, one.kind, one.queue)
        late = (one.now - tick).total_seconds()
        said.append(events.ScheduleTicked(worker, *about, created=added.created, late=late))
    return said
