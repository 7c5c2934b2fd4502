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


class Errand:
    """What a thread is sent to do: `run` on the thread, then `settle` on the event loop with what came of it."""

    __slots__ = ("abandoned", "over")

    def __init__(self) -> None:
        # Nobody waits any more: it need not start, and its thread is no longer counted.
        self.abandoned = False
        self.over = False

    def run(self) -> Given:
        raise NotImplementedError

    def settle(self, given: Given) -> None:
        raise NotImplementedError


class Call(Errand):
    """One call on a thread, and the future that the event loop waits for.

    The future gives what came of it, a value or an exception, as a pair: a future refuses some exceptions and treats
    others in its own way, and an exception that nobody picks up is none of its business.
    """

    __slots__ = ("_context", "_fn", "entered", "future")

    def __init__(self, fn: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.future: asyncio.Future[Given] = loop.create_future()
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
    """Runs errands on up to `limit` threads; one whose errand was given up on no longer counts, and ends with it."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        # Errands handed in and not yet over: more than threads means that one more thread is needed.
        self._load = 0
        self._named = 0
        # What there is to settle since the loop was last told: one wake-up serves all of it.
        self._untold: list[tuple[Errand, Given]] = []

    def submit(self, fn: Callable[[], Any]) -> Call:
        """Run `fn` on a thread, in the caller's context.

        Raises: NoThread as `run`.
        """
        call = Call(fn, asyncio.get_running_loop())
        self.run(call)
        return call

    def run(self, errand: Errand) -> None:
        """Send a thread on an errand.

        Raises: NoThread when one more is needed and cannot be had now.
        """
        with self._lock:
            self._load += 1
            needed = self._load > self._started and self._started < self._limit
            if needed:
                self._started += 1
                self._named += 1
        if needed:
            self._start(asyncio.get_running_loop())
        # After the thread has started: an errand that is refused must never run.
        self._errands.put(errand)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        try:
            threading.Thread(target=self._serve, name=f"{self._name}-{self._named}", daemon=True).start()
        except BaseException as error:
            with self._lock:
                self._started -= 1
                self._load -= 1
            raise NoThread(error) from error

    def abandon(self, errand: Errand) -> None:
        """Give up on an errand: it starts no more, or ends whenever it likes while another thread takes over."""
        with self._lock:
            if not errand.over and not errand.abandoned:
                errand.abandoned = True
                self._started -= 1
                self._load -= 1

    def close(self) -> None:
        with self._lock:
            idle_and_busy = self._started
        for _ in range(idle_and_busy):
            self._errands.put(None)

    def tell(self, errand: Errand, given: Given = (None, None)) -> None:
        """Have an errand settled on the event loop; from its thread, and as often as it likes."""
        with self._lock:
            self._untold.append((errand, given))
            first = len(self._untold) == 1
        if first:
            self._wake_loop()

    def _wake_loop(self) -> None:
        # A closed loop refuses: the worker stopped, and nobody waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        with self._lock:
            untold, self._untold = self._untold, []
        for errand, given in untold:
            errand.settle(given)

    def _serve(self) -> None:
        while (errand := self._errands.get()) is not None:
            given = (None, None) if errand.abandoned else errand.run()
            with self._lock:
                errand.over = True
                if errand.abandoned:
                    # Its place was given away when it was abandoned.
                    return
                self._load -= 1
                self._untold.append((errand, given))
                first = len(self._untold) == 1
            if first:
                self._wake_loop()
            # The frame outlives the wait for the next errand, and must not keep this one's objects alive.
            del errand, given
