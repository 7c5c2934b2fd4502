"""The two sides of the study of statistics: a worker that counts and is watched, and one that does neither.

No option of a worker turns statistics off: what they cost is measured by taking them out of the child's own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from holdfast.bench.effects import Effects
from holdfast.bench.ours import Ours
from holdfast.observe import Tallies
from holdfast.worker import Worker
from holdfast.worker.monitor import Board, Report, report
from holdfast.worker.rounds.base import RoundContext
from holdfast.worker.rounds.merge import Merge
from holdfast.worker.rounds.sample import Sampling


class Counted(Ours):
    """Statistics as they are, and metrics that are asked for each second, which is oftener than Prometheus does."""

    @asynccontextmanager
    async def _beside(self, worker: Worker) -> AsyncIterator[None]:
        board = Board()

        def post(said: Report) -> bool:
            board.take(said)
            return bool(board.text())

        looks = report(worker.tallies, worker.context.events, lambda: (worker.is_ready, *worker.slots_used), post)
        watching = asyncio.create_task(looks)
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


class Uncounted(Ours):
    """The same worker without statistics: nothing is counted, timed, sampled or merged in this process."""

    def __init__(self, url: str, prefix: str, effect: Effects) -> None:
        switch_off()
        super().__init__(url, prefix, effect)


def switch_off() -> None:
    """Take statistics out of every worker of this process; there is no way back."""
    for where, name, what in (
        (Tallies, "count", _count_nothing),
        (Tallies, "trip", _time_nothing),
        (Sampling, "runs_on", classmethod(_nowhere)),
        (Merge, "runs_on", classmethod(_nowhere)),
    ):
        setattr(where, name, what)


def _count_nothing(tallies: Tallies, batch: Iterable[Any], lost: Collection[str] = ()) -> None:
    pass


def _time_nothing(tallies: Tallies, name: str, seconds: float) -> None:
    pass


def _nowhere(cls: type[Any], context: RoundContext) -> bool:
    return False
