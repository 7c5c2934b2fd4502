"""Slots: coroutines that live as long as the worker and take claimed jobs from one buffer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.life.source import Source
from holdfast.worker.executor import Executor
from holdfast.worker.suspects import Line
from holdfast.worker.work import Ended, Interrupt, Work

# Handlers that never wait would keep the loop to themselves: let others in after so many seconds.
TURN = 0.001
# How long handlers that ignore their cancellation are waited for at the very end.
CLOSING = 1.0


class Slots:
    """Runs up to `count` attempts at once; what ends goes to `on_end`, which may make the slot wait (back pressure)."""

    def __init__(
        self,
        count: int,
        executor: Executor,
        on_end: Callable[[Ended], Awaitable[Any] | None],
        on_hunger: Callable[[], None],
    ) -> None:
        self.count = count
        # Call `on_hunger` when an attempt ends and no more than so many jobs wait; -1: never.
        self.hungry_at = -1
        self.buffer: deque[Work] = deque()
        self.line = Line(self._let_in, on_hunger)
        self.running: set[Work] = set()
        self.finished = 0
        # Seconds that attempts took, all together.
        self.busy = 0.0
        self._executor = executor
        self._on_end = on_end
        self._on_hunger = on_hunger
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False
        self._sprinting = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        self._tasks = [asyncio.create_task(self._serve(), name=f"holdfast-slot-{n}") for n in range(self.count)]
        return self._tasks

    def feed(self, works: list[Work]) -> None:
        suspects = [work for work in works if work.lease.lapses]
        if suspects:
            self.buffer.extend(work for work in works if not work.lease.lapses)
            self.line.add(suspects)
        else:
            self.buffer.extend(works)
        self._announce()

    def _let_in(self, suspect: Work) -> None:
        self.buffer.appendleft(suspect)
        self._announce()

    def _announce(self) -> None:
        if not self._sprinting:
            self._wake_one()
        self._relay()

    def take_back(self, older_than: float = float("inf")) -> list[Work]:
        """Take waiting jobs out of the buffer and the line: all, or those claimed before a moment."""
        taken = [work for work in self.waiting() if work.taken < older_than]
        for work in taken:
            self.withdraw(work)
        return taken

    def waiting(self) -> list[Work]:
        """List the jobs that wait for a slot, or in line for their turn."""
        return [*self.buffer, *self.line.waiting]

    def withdraw(self, work: Work) -> bool:
        """Take a job out of the buffer or the line; False if it is in neither."""
        for place in (self.buffer, self.line.waiting):
            if work in place:
                place.remove(work)
                if work.lease.lapses:
                    self.line.ended(work)
                return True
        return False

    def running_of(self, source: Source, kind: str) -> int:
        return sum(w.lease.kind == kind and w.source is source for w in (*self.running, *self.waiting()))

    def interrupt(self, work: Work, why: Interrupt) -> None:
        """Stop an attempt: an async handler is cancelled, a `def` one is told by its job's flags."""
        job = work.job
        if work.slot is None or work.interrupt is not None:
            return
        if job is not None and why != "stop" and job.completing:
            # Its own commit is under way, or done, and took the row: the fence has the word there, not this news.
            return
        if job is not None:
            job.cancel_requested = job.cancel_requested or why == "cancelled"
            job.lost = job.lost or why != "cancelled"
        if work.handler.is_async or why == "stop" or not work.started:
            work.interrupt = why
            work.slot.cancel()

    async def quiet(self) -> None:
        """Wait until no attempt runs and every outcome has been handed on."""
        await self._quiet.wait()

    async def close(self) -> int:
        """End every slot and return how many handlers would not end."""
        self._closing = True
        for work in self.running:
            work.interrupt = work.interrupt or "stop"
        for task in self._tasks:
            task.cancel()
        _, stuck = await asyncio.wait(self._tasks, timeout=CLOSING)
        return len(stuck)

    async def _serve(self) -> None:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        while not self._closing:
            try:
                await self._take_turn(task)
            except asyncio.CancelledError:
                # Either the worker closes, or a handler had kept hold of this task: a slot outlives that.
                _calm(task)

    async def _take_turn(self, task: asyncio.Task[Any]) -> None:
        if not self.buffer or (self._sprinting and not self.running):
            await self._job_comes()
        self._quiet.clear()
        # One slot at a time may run job after job; if each did so, claims would wait for all of them in turn. While no
        # handler waits, the others would only get in its way.
        sprints, self._sprinting = not self._sprinting, True
        if sprints:
            asyncio.get_running_loop().call_soon(self._relay)
        ends = time.monotonic() + TURN if sprints else 0.0
        work: Any = None
        try:
            while self.buffer and not self._closing:
                work = self.buffer.popleft()
                self.running.add(work)
                work.slot = task
                ended = await self._executor.attempt(work)
                work.slot = None
                if task.cancelling() and not self._closing:
                    await self._let_it_strike(task)
                now = time.monotonic()
                pressure = self._take_down(work, ended, now)
                if pressure is not None:
                    await pressure
                if now > ends:
                    break
            if not self.running:
                self._quiet.set()
            await asyncio.sleep(0)
        finally:
            self.running.discard(work)
            if not self.running:
                self._quiet.set()
            # Not before the loop has come round: another slot would sprint on in its stead.
            self._sprinting = self._sprinting and not sprints

    def _relay(self) -> None:
        """Let the other slots at the buffer, if a handler waits for something: the loop is free then."""
        if self.running:
            self._sprinting = False
            for _ in range(len(self.buffer)):
                if not self._wake_one():
                    return

    def _take_down(self, work: Work, ended: Ended, now: float) -> Awaitable[Any] | None:
        """Hand an outcome on; gives what the slot must wait for before its next job."""
        self.finished += 1
        self.busy += now - work.started
        pressure = self._on_end(ended)
        # Only now, so that whoever waits for quiet finds the outcome handed on.
        self.running.discard(work)
        if len(self.buffer) <= self.hungry_at:
            self._on_hunger()
        return pressure

    async def _let_it_strike(self, task: asyncio.Task[Any]) -> None:
        """Take a cancellation that the handler never waited for: here it hits no other job."""
        _calm(task)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

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


def _calm(task: asyncio.Task[Any]) -> None:
    while task.cancelling():
        task.uncancel()
