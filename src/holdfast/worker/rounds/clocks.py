"""Clocks: compare the database's clock with the worker's own: jobs are due by the one, and begin by the other."""

from __future__ import annotations

from holdfast.worker.db_clock import GOOD_FOR_SECONDS, compare_clocks
from holdfast.worker.rounds.base import Round


class Clocks(Round):
    name = "clocks"
    every_seconds = GOOD_FOR_SECONDS

    async def run(self) -> None:
        context = self.context
        context.clock.learn_offset(await context.patience.outlive(compare_clocks()))
