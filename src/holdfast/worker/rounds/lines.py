"""Lines: compare what limits and lines count with what is leased, and see that no line waits for nobody."""

from __future__ import annotations

from holdfast import events, lines
from holdfast.worker.rounds.base import Round, RoundContext


class Lines(Round):
    name = "lines"
    every_seconds = 10.0
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        # By queue: behind which key the next look begins.
        self._after: dict[str, str | None] = {}

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    async def run(self) -> None:
        outlive = self.context.patience.outlive
        limited = [name for name, one in (await outlive(lines.stored())).items() if one.settings.is_limited]
        for queue in sorted({*limited, *(await outlive(lines.queues_in_lines()))}):
            for wrong in await outlive(lines.recount(queue)):
                self.context.emit(events.LimitMiscounted(self.context.worker, *wrong))
            self._after[queue] = await outlive(lines.tidy(queue, self._after.get(queue)))
