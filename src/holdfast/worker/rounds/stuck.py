"""Stuck: name rows, written by hand, that nobody can ever claim or reap."""

from __future__ import annotations

from holdfast import events, jobs
from holdfast.worker.rounds.base import Round, RoundContext


class Stuck(Round):
    name = "stuck"
    every_seconds = 60.0
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._named: set[str] = set()

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.has_our_tables

    async def run(self) -> None:
        for job_id, why in await self.context.patience.outlive(jobs.stuck()):
            if job_id not in self._named:
                self._named.add(job_id)
                self.context.emit(events.JobStuck(self.context.worker, job_id, why))
