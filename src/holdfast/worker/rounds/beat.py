"""Beat: give a sign of life, hear whether to drain, and mark workers dead that gave none."""

from __future__ import annotations

from datetime import timedelta

from holdfast import events
from holdfast.worker import registry
from holdfast.worker.rounds.base import Round, RoundContext

SILENT_AFTER = timedelta(seconds=60)


class Beat(Round):
    name = "beat"
    every_seconds = 10.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.registers

    async def run(self) -> None:
        context = self.context
        # What was counted is about the whole worker: one shard has it.
        counted = context.counted() if context.is_first else None
        # Not kept where the database refuses it: statistics are not worth a beat that fails again and again.
        status = await context.patience.outlive(registry.beat(context.worker, context.describe(), counted))
        context.beaten()
        if status == "draining" and not context.stopping.is_set():
            context.stop("the registry says draining")
        for silent in await context.patience.outlive(registry.bury(SILENT_AFTER)):
            context.emit(events.WorkerBuried(silent))
