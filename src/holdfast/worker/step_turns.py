"""What is done for the runs of a worker, in few tasks: one takes step after step, until one of them waits.

A task of its own takes four times as long for a step that does nothing. A step that waits keeps the task that it is in,
and the steps behind it get another one: each sees a task of its own, with its time-outs and its cancellation.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from holdfast.worker.attempt_context import rest

# How long steps that wait for nothing keep the loop: meanwhile no checkpoint is sent and no job is claimed.
TURN_SECONDS = 0.001


class Doing:
    """Something that is to be done for a run, or is being done: what begins it, and the context that it runs in."""

    __slots__ = ("_task", "begin", "dropped", "variables")

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]], variables: Context) -> None:
        self.begin = begin
        self.variables = variables
        self.dropped = False
        # The one that it is being done in.
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Stop it where it waits; what has not begun never does."""
        self.dropped = True
        if self._task is not None:
            self._task.cancel()

    async def done_in(self, task: asyncio.Task[None], on_wait: Callable[[], None]) -> bool:
        """Do it, and tell whether it waited for something; `on_wait` is called before it does for the first time."""
        waited, self._task = False, task
        try:
            coroutine = self.begin()
            try:
                waits_for = self.variables.run(coroutine.send, None)
            except StopIteration:
                return False
            waited = True
            on_wait()
            await rest(self.variables, coroutine, waits_for)
        except asyncio.CancelledError:
            # What it was done for knows: it has asked for it, or has heard of it.
            pass
        finally:
            self._task = None
        return waited


class StepTurns:
    """Does what the runs of one worker and store need done."""

    def __init__(self) -> None:
        self._waiting: deque[Doing] = deque()
        # Whether there is a task for those that wait.
        self._served = False

    def add(self, doing: Doing) -> None:
        self._waiting.append(doing)
        if not self._served:
            self._serve_on()

    def _serve_on(self) -> None:
        """Have those that wait served by a new task."""
        self._served = bool(self._waiting)
        if self._served:
            asyncio.get_running_loop().create_task(self._serve(), name="holdfast-runs")

    async def _serve(self) -> None:
        task: Any = asyncio.current_task()
        waiting, ends = self._waiting, time.monotonic() + TURN_SECONDS
        while waiting:
            doing = waiting.popleft()
            if doing.dropped:
                continue
            if await doing.done_in(task, self._serve_on):
                return
            if task.cancelling():
                # It has cancelled the task that it was in: nobody else is to be hit by that.
                self._serve_on()
                return
            if time.monotonic() > ends:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    # A step that is over has asked for it, in a callback of the loop: those that wait are not meant.
                    self._serve_on()
                    return
                ends = time.monotonic() + TURN_SECONDS
        self._served = False
