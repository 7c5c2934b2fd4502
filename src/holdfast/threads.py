"""Threads for `def` handlers: daemons, so that a handler that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Threads:
    """Runs calls on up to `limit` threads; one that was given up on no longer counts."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `fn` on a thread, in the caller's context, and return a future of the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                value, error = context.run(fn), None
            except BaseException as raised:
                value, error = None, raised
            _deliver(loop, future, value, error)

        self._start_one_if_needed()
        self._calls.put(call)
        return future

    def abandon(self) -> None:
        """Give up on one running call: its thread may end whenever it likes, another may start in its place."""
        with self._lock:
            self._limit += 1

    def close(self) -> None:
        for _ in range(self._started):
            self._calls.put(None)

    def _start_one_if_needed(self) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                return
            if self._started >= self._limit:
                return
            self._started += 1
        threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._idle += 1


def _deliver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):
            # A future refuses StopIteration; a handler that leaks one has failed all the same.
            future.set_exception(RuntimeError(f"the handler raised {error!r}"))
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop is closed: the worker stopped and nobody waits any more.
        return
