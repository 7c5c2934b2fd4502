"""Threads for `def` handlers: daemons, so that a handler that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from holdfast.errors import HoldfastError

Given = tuple[Any, BaseException | None]


class NoThread(HoldfastError):
    """The system refused one more thread; nothing was run."""

    def __init__(self, why: BaseException) -> None:
        super().__init__(f"No thread could be started for a `def` handler: {why}")


class Call:
    """One call on a thread, and the future that the event loop waits for.

    The future gives what came of it, a value or an exception, as a pair: a future refuses some exceptions and treats
    others in its own way, and an exception that nobody picks up is none of its business.
    """

    __slots__ = ("_context", "_fn", "abandoned", "entered", "future", "over")

    def __init__(self, fn: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Given] = loop.create_future()
        # Nobody waits any more: it need not start, and its thread is no longer counted.
        self.abandoned = False
        self.over = False
        # The function is being called, or was.
        self.entered = False
        self._fn = fn
        self._context = contextvars.copy_context()

    def run(self) -> Given:
        self.entered = True
        try:
            return self._context.run(self._fn), None
        except BaseException as error:
            return None, error

    def settle(self, given: Given) -> None:
        """Tell the attempt that waits; on the event loop."""
        if not self.future.done():
            self.future.set_result(given)


class Threads:
    """Runs calls on up to `limit` threads; one whose call was given up on no longer counts, and ends with that call."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        # Calls handed in and not yet over: more than threads means that one more thread is needed.
        self._load = 0
        self._named = 0
        # What has ended since the loop was last told: one wake-up serves all of it.
        self._ended: list[tuple[Call, Given]] = []

    def submit(self, fn: Callable[[], Any]) -> Call:
        """Run `fn` on a thread, in the caller's context.

        Raises: NoThread when one more is needed and cannot be had now.
        """
        loop = asyncio.get_running_loop()
        call = Call(fn, loop)
        with self._lock:
            self._load += 1
            needed = self._load > self._started and self._started < self._limit
            if needed:
                self._started += 1
                self._named += 1
        if needed:
            self._start(loop)
        # After the thread has started: a call that is refused must never run.
        self._calls.put(call)
        return call

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            threading.Thread(target=self._serve, args=(loop,), name=f"{self._name}-{self._named}", daemon=True).start()
        except BaseException as error:
            with self._lock:
                self._started -= 1
                self._load -= 1
            raise NoThread(error) from error

    def abandon(self, call: Call) -> None:
        """Give up on a call: it does not start any more, or ends whenever it likes while another thread takes over."""
        call.future.cancel()
        with self._lock:
            if not call.over and not call.abandoned:
                call.abandoned = True
                self._started -= 1
                self._load -= 1

    def close(self) -> None:
        with self._lock:
            idle_and_busy = self._started
        for _ in range(idle_and_busy):
            self._calls.put(None)

    def _tell(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        for call, given in ended:
            call.settle(given)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (call := self._calls.get()) is not None:
            given = (None, None) if call.abandoned else call.run()
            with self._lock:
                call.over = True
                if call.abandoned:
                    # Its place was given away when it was abandoned.
                    return
                self._load -= 1
                self._ended.append((call, given))
                first = len(self._ended) == 1
            if first:
                # A closed loop refuses: the worker stopped, and nobody waits any more.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._tell)
            # The frame outlives the wait for the next call, and must not keep this one's objects alive.
            del call, given
