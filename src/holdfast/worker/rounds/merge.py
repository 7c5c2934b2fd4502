"""Merge: make rows of statistics fewer as they grow old, and delete the oldest; one worker for all."""

from __future__ import annotations

from holdfast import observe
from holdfast.worker.rounds.base import Round, RoundContext

CHUNK = 1_000


class Merge(Round):
    name = "merge"
    every_seconds = 60.0
    for_all = True

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.registers

    async def run(self) -> None:
        outlive, stopping = self.context.patience.outlive, self.context.stopping
        while await outlive(observe.merge()) >= CHUNK and not stopping.is_set():
            continue
        while await outlive(observe.prune(limit=CHUNK)) >= CHUNK and not stopping.is_set():
            continue
