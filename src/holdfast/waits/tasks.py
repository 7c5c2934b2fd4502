"""Those who wait on one event loop: one task looks for all of them, and is there only while somebody waits."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterable
from contextlib import suppress

from holdfast.errors import DatabaseUnavailable
from holdfast.waits.board import Answer, Looked, Plan, TooLong, Waiter
from holdfast.waits.ears import TaskEars
from holdfast.waits.looking import looking, marking
from holdfast.waits.setting import Setting

# A connection that does not answer for this long is given up: it may be dead without knowing.
ANSWER_WITHIN_SECONDS = 15.0


class TaskWaits:
    """Waiting on the running event loop. Everything but `hint` is called there."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._loop = asyncio.get_running_loop()
        self.board = setting.board(self._hears)
        self._ears: TaskEars | None = None
        self._task: asyncio.Task[None] | None = None
        # The task before it, which may still be closing its connection.
        self._last: asyncio.Task[None] | None = None
        self._poke = asyncio.Event()
        # Whether a statement is under way.
        self._looking = False

    async def wait(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job to end, for this many seconds.

        Raises: TooLong.
        """
        began = time.monotonic()
        event = asyncio.Event()
        waiter = Waiter(job_id, event.set)
        self.board.join(waiter, began)
        self._begin()
        try:
            # The job is looked at once, however short the time is.
            await self._woken(event, None if seconds is None else max(seconds, self._setting.first_look_seconds))
            while waiter.answer is None:
                event.clear()
                await self._woken(event, None if seconds is None else began + seconds - time.monotonic())
            return waiter.answer
        except TimeoutError:
            if waiter.answer is not None:
                return waiter.answer
            raise TooLong from waiter.failure
        finally:
            self.board.leave(waiter)
            await self._end()

    async def _woken(self, event: asyncio.Event, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            raise TimeoutError
        async with asyncio.timeout(seconds):
            await event.wait()

    def hint(self, ids: Iterable[str] | None) -> None:
        """Take a hint that jobs have ended; from any thread."""
        # A closed loop refuses: nobody is left to wake.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hint, ids)

    def _hint(self, ids: Iterable[str] | None) -> None:
        if self.board.hint(ids, time.monotonic()):
            self._poke.set()

    def _hears(self) -> bool:
        return self._ears is not None and self._ears.ears.hear

    def _begin(self) -> None:
        self._poke.set()
        if self._task is None:
            # In a context of its own: it looks for others, too.
            self._task = self._loop.create_task(self._serve(), name="holdfast-results", context=contextvars.Context())

    async def _end(self) -> None:
        """Leave nothing behind when the last one has left; a statement under way ends by itself, and the task then."""
        if self.board.jobs or self._looking:
            return
        if self._task is not None:
            self._task.cancel()
            self._last, self._task = self._task, None
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def _serve(self) -> None:
        ears: TaskEars | None = None
        try:
            while self.board.jobs:
                plan = self.board.take(time.monotonic())
                if plan is None:
                    await self._pause()
                    continue
                if plan.long and ears is None and self._setting.can_hear:
                    ears = self._ears = TaskEars(self._setting.ears(self._hint))
                await self._look(plan)
        except Exception as error:
            # A defect: better that they hear of it than that they wait for ever.
            self.board.fail(list(self.board.jobs), error, time.monotonic())
        finally:
            if self._task is asyncio.current_task():
                self._last, self._task = self._task, None
            if ears is not None:
                if self._ears is ears:
                    self._ears = None
                await ears.close()

    async def _pause(self) -> None:
        self._poke.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.board.rest(time.monotonic())):
                await self._poke.wait()

    async def _look(self, plan: Plan) -> None:
        self._looking = True
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                looked = await self._looked(plan)
        except TimeoutError:
            silent = DatabaseUnavailable(f"no answer within {ANSWER_WITHIN_SECONDS:g} s")
            self.board.fail(plan.ids, silent, time.monotonic())
        except Exception as error:
            self.board.fail(plan.ids, error, time.monotonic())
        else:
            self.board.learn(plan, looked, time.monotonic())
        finally:
            self._looking = False

    async def _looked(self, plan: Plan) -> Looked:
        store = self._setting.store
        for work in marking(plan, self._setting.keeping_nothing()):
            if await store.arun_once(work):
                self._setting.wake_workers()
        return await store.arun_once(looking(plan))
