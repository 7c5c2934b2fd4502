"""Sample: see how much waits in the queues, one worker for all, and never for more than a hundredth of the time."""

from __future__ import annotations

import asyncio
import time

from holdfast import observe
from holdfast.flow import Flow, Steps
from holdfast.observe import Folded
from holdfast.observe.keeping import SAMPLER
from holdfast.values.ids import new_id
from holdfast.worker.rounds.base import Round, RoundContext, jittered

# A sample that took a second is not taken again for this many seconds.
PAUSE_PER_SECOND_OF_SAMPLING = 100
LONGEST_SAMPLE_PAUSE_SECONDS = 600.0
FIRST_SAMPLE_SECONDS = 2.0


class Sampling(Round):
    name = "sample"
    every_seconds = 10.0
    for_all = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        # Not before: on a database where it has become slow it must stay a small share of the work.
        self.due = 0.0
        self._is_first_turn = True

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.registers

    async def pause(self) -> None:
        # Soon for the first time: a page about new workers should show something, and their first claims come before.
        if self._is_first_turn:
            self._is_first_turn = False
            await asyncio.sleep(jittered(min(FIRST_SAMPLE_SECONDS, self.every_seconds)))
        else:
            await super().pause()

    async def run(self) -> None:
        if time.monotonic() < self.due:
            return
        outlive = self.context.patience.outlive
        taken, took = await outlive(_timed())
        self.due = time.monotonic() + min(LONGEST_SAMPLE_PAUSE_SECONDS, PAUSE_PER_SECOND_OF_SAMPLING * took)
        await outlive(_write(Folded(depths=taken.queues)))


def _timed() -> Flow[tuple[observe.Sample, float]]:
    """Sample, and tell how long that took; an outage that was waited out before says nothing about the next one."""

    def steps() -> Steps[tuple[observe.Sample, float]]:
        began = time.monotonic()
        taken = yield from observe.sample().start()
        return taken, time.monotonic() - began

    return Flow("sample", steps)


def _write(folded: Folded) -> Flow[None]:
    row_id = new_id()

    def steps() -> Steps[None]:
        yield from observe.note(SAMPLER, folded, row_id)

    return Flow("sample", steps)
