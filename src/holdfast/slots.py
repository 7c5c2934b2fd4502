"""Slots: coroutines that live as long as the worker and take claimed jobs from one buffer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import events
from holdfast.executor import Ended, Executor, Work

# A handler that never waits would keep the loop to itself: let others in after so many seconds.
TURN = 0.005


class Slots:
    """Runs up to `count` attempts at once; what ends goes to `on_end`, which may make the slot wait (back pressure)."""

    def __init__(
        self,
        count: int,
        executor: Executor,
        on_end: Callable[[Ended], Awaitable[None] | None],
        on_free: Callable[[], None],
    ) -> None:
        self.count = count
        self.buffer: deque[Work] = deque()
        self.running: set[Work] = set()
        self.finished = 0
        self._executor = executor
        self._on_end = on_end
        self._on_free = on_free
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._serve(), name=f"holdfast-slot-{n}") for n in range(self.count)]

    @property
    def idle(self) -> int:
        return max(0, self.count - len(self.running) - len(self.buffer))

    def feed(self, works: list[Work]) -> None:
        self.buffer.extend(works)
        for _ in works:
            if not self._wake_one():
                return

    def take_back(self, older_than: float = float("inf")) -> list[Work]:
        """Take waiting jobs out of the buffer: all, or those claimed before a moment."""
        taken = [work for work in self.buffer if work.taken < older_than]
        self.buffer = deque(work for work in self.buffer if work.taken >= older_than)
        return taken

    def running_of(self, kind: str) -> int:
        return sum(1 for work in (*self.running, *self.buffer) if work.lease.kind == kind)

    def interrupt(self, work: Work, why: str) -> None:
        """Stop an attempt: an async handler is cancelled, a `def` one is told by its job's flags."""
        if work.slot is None or work.interrupt is not None:
            return
        if work.job is not None:
            work.job.lost = why != "cancelled"
            work.job.cancel_requested = why == "cancelled"
        if work.handler.is_async or why == "stop":
            work.interrupt = why
            work.slot.cancel()

    async def quiet(self) -> None:
        """Wait until no attempt runs."""
        await self._quiet.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self) -> None:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        turn_ends = time.monotonic() + TURN
        while True:
            if not self.buffer:
                await self._job_comes()
                turn_ends = time.monotonic() + TURN
                continue
            work = self.buffer.popleft()
            ended = await self._attempt(work, task)
            self.finished += 1
            pressure = self._on_end(ended)
            if pressure is not None:
                await pressure
            if not self.buffer:
                self._on_free()
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN

    async def _attempt(self, work: Work, task: asyncio.Task[Any]) -> Ended:
        work.slot = task
        self.running.add(work)
        self._quiet.clear()
        try:
            return await self._executor.attempt(work)
        except asyncio.CancelledError:
            if work.interrupt is None:
                raise
            return self._interrupted(work)
        finally:
            work.slot = None
            self.running.discard(work)
            if not self.running:
                self._quiet.set()
            if work.interrupt is not None:
                while task.cancelling():
                    task.uncancel()

    def _interrupted(self, work: Work) -> Ended:
        match work.interrupt:
            case "cancelled":
                return self._executor.cancelled(work, "cancelled while it ran")
            case "stop":
                return self._executor.released(work)
            case _:
                return Ended(work, None, events.LeaseWasLost(*self._executor.about(work)))

    async def _job_comes(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            elif self.buffer:
                self._wake_one()
            raise

    def _wake_one(self) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False
