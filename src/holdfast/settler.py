"""The settler: writes outcomes in batches, and reports an end only once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import events, jobs
from holdfast.executor import Ended
from holdfast.flow import Flow
from holdfast.model import Finish, PutBack

# Unwritten outcomes above which slots wait: what a crash would run again is bounded by it.
BOUND = 5_000
BATCH = 2_000


class Settler:
    """Collects what slots end with; while one batch is being written the next one grows."""

    def __init__(
        self,
        run: Callable[[Flow[Any]], Awaitable[Any]],
        emit: Callable[[events.Event], None],
        forget: Callable[[Ended], None],
    ) -> None:
        self._run = run
        self._emit = emit
        self._forget = forget
        self._waiting: list[Ended] = []
        self._writing = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + self._writing

    def add(self, ended: Ended) -> Awaitable[None] | None:
        """Take an outcome; returns something to wait for when too many are unwritten."""
        if ended.write is None:
            self._report(ended)
            return None
        self._waiting.append(ended)
        self._empty.clear()
        self._something.set()
        if self.unsettled < BOUND:
            return None
        self._room.clear()
        return self._until_room()

    async def serve(self) -> None:
        while True:
            await self._something.wait()
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            if not self._waiting:
                self._something.clear()
            if batch:
                await self._write(batch)

    async def flushed(self) -> None:
        """Wait until every outcome is written."""
        await self._empty.wait()

    async def _until_room(self) -> None:
        await self._room.wait()

    async def _write(self, batch: list[Ended]) -> None:
        self._writing = len(batch)
        finishes = [ended.write for ended in batch if isinstance(ended.write, Finish)]
        returns = [ended.write for ended in batch if isinstance(ended.write, PutBack)]
        settled = await self._run(jobs.settle(finishes, returns))
        self._writing = 0
        for ended in batch:
            self._report(ended, lost=ended.work.lease.job_id in settled.lost)
        if self.unsettled < BOUND:
            self._room.set()
        if not self._waiting:
            self._empty.set()

    def _report(self, ended: Ended, lost: bool = False) -> None:
        self._forget(ended)
        if lost and isinstance(ended.event, events.JobEvent):
            ended_as = ended.event
            self._emit(
                events.LeaseWasLost(ended_as.worker, ended_as.id, ended_as.kind, ended_as.queue, ended_as.attempt)
            )
        else:
            self._emit(ended.event)
