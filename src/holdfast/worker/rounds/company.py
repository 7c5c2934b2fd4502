"""Company: see due jobs that no live worker has a handler for, and workers of another application with the same kinds.

Each worker looks soon after its start, and one of them for all from then on.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from holdfast import events
from holdfast.life.findings import ANY_KIND
from holdfast.observe.sampling import DueKind, due_kinds
from holdfast.values.payload import decode_value
from holdfast.values.views import WorkerInfo
from holdfast.worker import registry
from holdfast.worker.rounds.base import Round, RoundContext, jittered

# Not at once: of workers that start together, each is to find the others in the registry.
FIRST_LOOK_SECONDS = 2.0
# Each takes a statement or more. Where a worker serves more queues, a look is at some of them, others each time.
QUEUES_OF_A_LOOK = 100


class Company(Round):
    name = "company"
    every_seconds = 60.0
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._is_first_turn = True
        self._told: set[tuple[str, str]] = set()

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.is_first

    async def pause(self) -> None:
        if self._is_first_turn:
            await asyncio.sleep(jittered(min(FIRST_LOOK_SECONDS, self.every_seconds)))
        else:
            await super().pause()

    async def _is_ours(self) -> bool:
        return self._is_first_turn or await super()._is_ours()

    async def run(self) -> None:
        first = self._is_first_turn
        mine: dict[str, Any] = decode_value(self.context.describe())
        queues = mine["queues"]
        if len(queues) > QUEUES_OF_A_LOOK:
            queues = random.sample(queues, QUEUES_OF_A_LOOK)
        lacking = [one for one in await self._due(queues) if one.kind not in mine["kinds"]]
        # The registry is read where it has something to say.
        alive = await self._alive() if first or lacking else []
        self._tell_of_unhandled(queues, lacking, alive)
        if first:
            self._tell_of_strangers(mine, alive)
        self._is_first_turn = False

    async def _due(self, queues: list[str]) -> list[DueKind]:
        return await self.context.patience.outlive(due_kinds(queues)) if queues else []

    async def _alive(self) -> list[WorkerInfo]:
        known = await self.context.patience.outlive(registry.workers())
        return [worker for worker in known if registry.status_of(worker) == "alive"]

    def _tell_of_unhandled(self, queues: list[str], lacking: list[DueKind], alive: list[WorkerInfo]) -> None:
        served = registry.served(alive)
        unserved = [one for one in lacking if not {one.kind, ANY_KIND} & served.get(one.queue, set())]
        found = {(one.queue, one.kind): one for one in unserved}
        for where in sorted(found.keys() - self._told):
            self.context.emit(events.KindUnhandled(self.context.worker, *found[where]))
        # What is there again after it was gone is told again.
        self._told = {where for where in self._told if where[0] not in queues} | set(found)

    def _tell_of_strangers(self, mine: dict[str, Any], alive: list[WorkerInfo]) -> None:
        """Tell of each other application once, whatever the number of its workers."""
        told: set[tuple[str, ...]] = set()
        for other in alive:
            packages = tuple(other.info.get("packages", ()))
            shared = registry.shared_kinds(mine, other.info)
            if shared and packages not in told:
                told.add(packages)
                self.context.emit(events.KindShared(self.context.worker, other.id, list(packages), shared))
