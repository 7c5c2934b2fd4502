"""The thread that async transactions of an embedded database have in common: it serves one after the other.

Such a database has one writer at a time. With a thread for each transaction all of them woke for the same lock and
competed for the interpreter; here they stand in line without a thread. To wake a thread, or the event loop, costs more
than most statements do. So the thread goes on with the first statement of the next transaction when one is over, and
then tells the loop of both at once; it tells when it has nothing to do. A loop that is not told looks by itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from holdfast.errors import DatabaseBusy, DatabaseUnavailable
from holdfast.store.turns import not_over

# A thread that nobody needed for this time ends; to start one takes 100 µs and more.
IDLE_SECONDS = 10.0
# How often to look for those whose patience is over, while a transaction is held open.
LOOK_SECONDS = 0.25
# After this time an event loop looks by itself what was done: the thread may be at a long statement of the next one.
UNTOLD_SECONDS = 0.005


class Call:
    """A call on the thread, and the future that a task waits for.

    Not an executor's: those have a lock and a condition for each future, and one more future for the event loop.
    """

    __slots__ = ("_error", "_fn", "_value", "future", "loop", "told")

    def __init__(self, fn: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._fn = fn
        self._value: Any = None
        self._error: BaseException | None = None
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.told = False

    def run(self) -> None:
        """Make the call; on the thread."""
        try:
            self._value = self._fn()
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        """Wake who waits, if anybody still does; on the loop."""
        self.told = True
        error, self._error = self._error, None
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self._value)
        else:
            # A future refuses a StopIteration.
            stopped = isinstance(error, StopIteration)
            self.future.set_exception(RuntimeError(f"a call raised {error!r}") if stopped else error)

    async def over(self) -> None:
        """Wait until it was made; also when the task is cancelled, which then goes on as cancelled."""
        try:
            await self.future
        except asyncio.CancelledError:
            if not self.told:
                self.future = self.loop.create_future()
                # Whom an error concerns was told on the thread.
                with suppress(Exception):
                    await self.future
            raise


class Served:
    """What the thread serves: the calls of one transaction, in their order."""

    __slots__ = ("begun", "calls", "deadline", "in_line", "late", "over")

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        # Whether the transaction has begun, and whether it is over; the thread says so.
        self.begun = False
        self.over = False
        # Whether it stands in line or is served. One that could not begin stands in line anew with its next call.
        self.in_line = False
        # Until when it waits in line for others, and whether it has waited for longer.
        self.deadline = 0.0
        self.late = False


class Writer:
    """A thread for the transactions of one store. `patience` is how many seconds one waits in line.

    The lock guards what is changed on both sides.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._line: deque[Served] = deque()
        # Who is served, until its transaction is over.
        self._current: Served | None = None
        self._running = False
        self._closed = False
        # The thread waits until it is woken, by a caller that finds it asleep and has something for it.
        self._asleep = False
        self._woken = threading.Semaphore(0)
        # What was done and is still to be told; and the event loops that look by themselves.
        self._done: list[Call] = []
        self._looking: set[asyncio.AbstractEventLoop] = set()

    def start(self) -> None:
        """Start the thread if there is none. Raises: DatabaseUnavailable, if the process may have no more threads."""
        if not self._running:
            with self._lock:
                self._start()

    def _start(self) -> None:
        if self._running:
            return
        try:
            threading.Thread(target=self._serve, name="holdfast-transaction", daemon=True).start()
        except RuntimeError as error:
            raise DatabaseUnavailable(f"no thread could be started for it: {error}") from error
        self._running, self._closed = True, False

    def call(self, served: Served, fn: Callable[[], Any]) -> Call:
        """Have a function called on the thread, behind what was called before.

        Raises: as `start`; nothing is called then, nor ever will be.
        """
        loop = asyncio.get_running_loop()
        call = Call(fn, loop)
        with self._lock:
            self._start()
            served.calls.append(call)
            if not served.in_line:
                served.in_line = True
                served.deadline = time.monotonic() + self._patience
                self._line.append(served)
            wakes = self._asleep and (self._current is None or self._current is served)
            self._asleep = self._asleep and not wakes
            looks = loop not in self._looking
            if looks:
                self._looking = {loop, *(one for one in self._looking if not one.is_closed())}
        if wakes:
            self._woken.release()
        if looks:
            loop.call_later(UNTOLD_SECONDS, self._look, loop)
        return call

    def refusal(self) -> DatabaseBusy:
        """Say to one that is late that it has waited for too long."""
        return not_over(self._patience)

    def close(self) -> None:
        """Have the thread end when nobody is in line; the next call starts another."""
        with self._lock:
            self._closed = True
            wakes, self._asleep = self._asleep, False
        if wakes:
            self._woken.release()

    # On an event loop

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell of what the thread has done and not told, as long as anybody waits here."""
        with self._lock:
            mine = [call for call in self._done if call.loop is loop]
            self._done = [call for call in self._done if call.loop is not loop]
            # Before it sleeps, the thread tells of everything.
            looks_on = not self._asleep and self._running
            if not looks_on:
                self._looking.discard(loop)
        _tell(mine)
        if looks_on:
            loop.call_later(UNTOLD_SECONDS, self._look, loop)

    # On the thread

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            with self._lock:
                self._done.append(call)
                self._part()
            # The frame outlives the wait for the next.
            del call

    def _part(self) -> None:
        """Let go of a transaction that is over, or could not begin, once nothing is left to do for it."""
        served = self._current
        if served is not None and (served.over or not served.begun) and not served.calls:
            served.in_line = False
            self._current = None

    def _next(self) -> Call | None:
        """Return what to do next, if need be after a sleep; None when the thread is not needed any more."""
        while True:
            if self._current is not None and self._line:
                self._refuse_late()
            with self._lock:
                if self._current is None and self._line:
                    self._current = self._line.popleft()
                    self._current.late = time.monotonic() > self._current.deadline
                if self._current is not None and self._current.calls:
                    return self._current.calls.popleft()
                done, self._done = self._done, []
                # A name of its own: as soon as the lock is free, another thread may be started in the place of this.
                goes_on = self._running = self._current is not None or not self._closed
                self._asleep = goes_on
            _tell_loops(done)
            del done
            if not goes_on or not self._sleep():
                return None

    def _sleep(self) -> bool:
        """Wait for something to do; False if nobody came for long."""
        waited_for = self._current is not None
        if self._woken.acquire(timeout=LOOK_SECONDS if waited_for else IDLE_SECONDS):
            return True
        with self._lock:
            woken = not self._asleep
            self._asleep = False
            goes_on = self._running = woken or waited_for
        if woken:
            # Between the end of the wait and here.
            self._woken.acquire()
        return goes_on

    def _refuse_late(self) -> None:
        """Tell those who have waited for too long that the transaction before them is still open."""
        now, current = time.monotonic(), self._current
        while self._line and self._line[0].deadline < now:
            with self._lock:
                late = self._current = self._line.popleft()
                late.late = True
            while self._current is late:
                call = late.calls.popleft()
                call.run()
                with self._lock:
                    self._done.append(call)
                    self._part()
        self._current = current


def _tell(calls: Iterable[Call]) -> None:
    for call in calls:
        call.tell()


def _tell_loops(calls: list[Call]) -> None:
    """Have calls told on their event loops, with one wake-up for each loop."""
    for loop in {call.loop for call in calls}:
        # A closed loop refuses: nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_tell, [call for call in calls if call.loop is loop])
