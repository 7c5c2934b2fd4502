"""Turns to write, where the database has one writer: waiting in line here beats its own polling for the lock."""

from __future__ import annotations

import threading
import time
from typing import Any

from holdfast.errors import DatabaseBusy


class Line:
    """A lock for the turn to write, which somebody who has just given it back cannot take again before one who waits.

    Two locks: a thread that waits for the turn holds the first one meanwhile, and one that comes back has to pass it.
    With a single lock a thread that does one transaction after the other keeps claims and settlements waiting, because
    Python's locks go to the thread that is running and not to the one that has waited longest.
    """

    __slots__ = ("_first", "_turn")

    def __init__(self) -> None:
        # They know their owner, and so what to give back when a signal came in between.
        self._first: Any = threading.RLock()
        self._turn: Any = threading.RLock()

    def acquire(self, timeout: float) -> bool:
        """Wait for the turn; False if it did not come in time. After an exception, call `give_up`."""
        until = time.monotonic() + timeout
        got = self._first.acquire(timeout=timeout)
        if got:
            got = self._turn.acquire(timeout=max(0.0, until - time.monotonic()))
            self._first.release()
        return bool(got)

    def is_mine(self) -> bool:
        """Say whether this thread has the turn."""
        return bool(self._turn._is_owned())

    def release(self) -> None:
        self._turn.release()

    def give_up(self) -> None:
        """Give back what this thread has, whatever that is."""
        for lock in (self._first, self._turn):
            if lock._is_owned():
                lock.release()


class Turn:
    """Wait in line where the database has one writer; a thread that holds the turn already would wait for ever.

    A signal handler may raise at any moment (Ctrl-C, an alarm). A lock that nobody gives back then would end all use of
    the database in this process.
    """

    __slots__ = ("_line", "_patience")

    def __init__(self, line: Line, patience: float) -> None:
        self._line = line
        self._patience = patience

    def __enter__(self) -> None:
        if self._line.is_mine():
            raise DatabaseBusy(
                "busy", "this thread is inside a transaction on the same file; give its connection as tx="
            )
        try:
            if not self._line.acquire(timeout=self._patience):
                raise not_over(self._patience)
        except BaseException:
            self._line.give_up()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._line.release()


def not_over(patience: float) -> DatabaseBusy:
    """Say that somebody has waited for too long for a transaction of the same process."""
    why = f"another transaction of this process was not over within {patience:g} s"
    return DatabaseBusy("busy", f"{why}; inside job.transaction(), enqueue with tx=tx")
