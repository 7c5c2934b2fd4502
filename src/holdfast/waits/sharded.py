"""All who wait for jobs of an application with shards: each shard has its own who wait, and an id says which."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.values.shards import stamp_of
from holdfast.waits.board import Answer
from holdfast.waits.waits import Waits


class ShardWaits:
    """Hands those who wait to the shard of their job; what says nothing of a shard is in the first."""

    def __init__(self, shards: Sequence[Waits]) -> None:
        self._shards = shards

    @property
    def knows_queues(self) -> bool:
        """Whether it is known which queues keep nothing; see `Waits`."""
        return self._shards[0].knows_queues

    @knows_queues.setter
    def knows_queues(self, known: bool) -> None:
        for waits in self._shards:
            waits.knows_queues = known

    def _of(self, job_id: str) -> Waits:
        number = stamp_of(job_id) or 0
        return self._shards[number if number < len(self._shards) else 0]

    def at(self, number: int) -> Waits:
        """Return those who wait for jobs of a shard."""
        return self._shards[number]

    def wait(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job on this thread. Raises: TooLong."""
        return self._of(job_id).wait(job_id, seconds)

    async def await_(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job on the running event loop. Raises: TooLong."""
        return await self._of(job_id).await_(job_id, seconds)

    @property
    def any(self) -> bool:
        """Whether anybody waits in this process."""
        return any(waits.any for waits in self._shards)

    def ended(self, ids: Sequence[str]) -> None:
        """Say that a worker of this process has ended jobs; from any thread."""
        for waits in self._shards:
            if waits.any:
                waits.ended(ids)
