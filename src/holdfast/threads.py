"""Threads for `def` handlers: daemons, so that a handler that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any


class Call:
    """One call on a thread, and the future that the event loop waits for."""

    __slots__ = ("_context", "_fn", "abandoned", "entered", "future", "over")

    def __init__(self, fn: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        # Nobody waits any more: it need not start, and its thread is no longer counted.
        self.abandoned = False
        self.over = False
        # The function is being called, or was.
        self.entered = False
        self._fn = fn
        self._context = contextvars.copy_context()

    def run(self) -> tuple[Any, BaseException | None]:
        self.entered = True
        try:
            return self._context.run(self._fn), None
        except BaseException as error:
            return None, error

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Tell whoever waits; on the event loop."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration | GeneratorExit):
            # A future refuses the first, and the second closes whoever awaits it; the handler has failed all the same.
            self.future.set_exception(RuntimeError(f"the handler raised {error!r}"))
        else:
            self.future.set_exception(error)


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
        self._ended: list[tuple[Call, Any, BaseException | None]] = []

    def submit(self, fn: Callable[[], Any]) -> Call:
        """Run `fn` on a thread, in the caller's context."""
        loop = asyncio.get_running_loop()
        call = Call(fn, loop)
        with self._lock:
            self._load += 1
            needed = self._load > self._started and self._started < self._limit
            if needed:
                self._started += 1
                self._named += 1
        self._calls.put(call)
        if needed:
            threading.Thread(target=self._serve, args=(loop,), name=f"{self._name}-{self._named}", daemon=True).start()
        return call

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
        for call, value, error in ended:
            call.settle(value, error)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (call := self._calls.get()) is not None:
            value, error = (None, None) if call.abandoned else call.run()
            with self._lock:
                call.over = True
                if call.abandoned:
                    # Its place was given away when it was abandoned.
                    return
                self._load -= 1
                self._ended.append((call, value, error))
                first = len(self._ended) == 1
            if first:
                # A closed loop refuses: the worker stopped, and nobody waits any more.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._tell)
            # The frame outlives the wait for the next call, and must not keep this one's objects alive.
            del call, value, error
