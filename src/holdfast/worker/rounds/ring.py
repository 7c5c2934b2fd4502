"""Ring: find the workers that share buckets with this one, and prefer the jobs of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from holdfast import events
from holdfast.errors import DatabaseBusy, DatabaseUnavailable
from holdfast.jobs.source import JobsSource
from holdfast.values.ring import Ring
from holdfast.values.views import WorkerInfo
from holdfast.worker import registry
from holdfast.worker.rounds.base import Round, RoundContext

# A worker that gave no sign of life for this long owns nothing; one that lives gives three in that time.
SILENT_AFTER = timedelta(seconds=30)


class RingRound(Round):
    """Asks the registry who is in the ring and works out what belongs to this worker.

    Everyone works it out alike from the same registry. Views that differ for a moment do no harm: a job is run by the
    worker that holds its lease, and one that nobody takes is overdue soon and anyone's.
    """

    name = "ring"
    every_seconds = 2.0

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._is_first_turn = True

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return context.is_first and context.buckets is not None

    async def pause(self) -> None:
        """Look at once when the worker starts."""
        if not self._is_first_turn:
            await super().pause()
        self._is_first_turn = False

    async def run(self) -> None:
        context = self.context
        found = [one for one in await context.patience.outlive(registry.workers()) if _is_member(one)]
        members = {context.worker, *(one.id for one in found)}
        if context.set_aside is not None:
            await self._share_shards(found)
            return
        owned = Ring(members).owned(context.worker, context.buckets or 0)
        ours = [source for source in context.sources if isinstance(source, JobsSource)]
        moved = [source for source in ours if source.own(owned)]
        if moved:
            context.emit(events.RingMoved(context.worker, len(members), len(owned), context.buckets or 0))
            context.wake()

    async def _share_shards(self, found: Sequence[WorkerInfo]) -> None:
        """Own whole shards: each has connections of its own, which fewer workers then need.

        Each is shared by those of the ring that serve it, and they are in its own registry.
        """
        context = self.context
        assert context.shard is not None  # noqa: S101 - as `run` has found
        assert context.set_aside is not None  # noqa: S101
        shards, here = context.shard
        members: set[str] = set()
        owned: list[int] = []
        for number in context.shards:
            with suppress(DatabaseUnavailable, DatabaseBusy):
                if number != here:
                    found = await shards.stores[number].arun_once(registry.workers())
            serving = {context.worker, *(one.id for one in found if _is_member(one) and _serves(one, number))}
            members |= serving
            if Ring(serving).owner(number) == context.worker:
                owned.append(number)
        if context.set_aside(owned):
            context.emit(events.RingMoved(context.worker, len(members), len(owned), len(context.shards)))


def _serves(worker: WorkerInfo, number: int) -> bool:
    """Tell whether a worker serves a shard; one of an earlier version does not say so, and serves all."""
    said = worker.info.get("shards")
    return not isinstance(said, list) or number in said


def _is_member(worker: WorkerInfo) -> bool:
    return worker.status == "alive" and worker.silent_for < SILENT_AFTER and worker.info.get("ring") is True
