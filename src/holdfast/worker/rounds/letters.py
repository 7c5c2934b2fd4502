"""Letters: wake runs for what a caller's transaction has sent them, where it could not see to that itself."""

from __future__ import annotations

from holdfast import runs
from holdfast.worker.rounds.base import Round, RoundContext

AT_ONCE = 500


class Letters(Round):
    name = "letters"
    every_seconds = 1.0
    for_all = True

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        kinds = (handler for source in context.sources if source.ours for handler in source.handlers.values())
        return any(handler.executor == "run" for handler in kinds)

    async def run(self) -> None:
        told = AT_ONCE
        while told >= AT_ONCE and not self.context.stopping.is_set():
            told = await self.context.patience.outlive(runs.tell(limit=AT_ONCE))
            if told:
                self.context.wake()
