"""Turns to write, where the database has one writer: waiting in line here beats its own polling for the lock."""

from __future__ import annotations

from typing import Any

from holdfast.errors import DatabaseBusy


class Turn:
    """Wait in line where the database has one writer; a thread that holds the turn already would wait for ever.

    A signal handler may raise at any moment (Ctrl-C, an alarm). A lock that knows its owner then tells whether it was
    taken: one that nobody gives back would end all use of the database in this process.
    """

    __slots__ = ("_line", "_patience")

    def __init__(self, line: Any, patience: float) -> None:
        self._line = line
        self._patience = patience

    def __enter__(self) -> None:
        if self._line._is_owned():
            raise DatabaseBusy(
                "busy", "this thread is inside a transaction on the same file; give its connection as tx="
            )
        try:
            if not self._line.acquire(timeout=self._patience):
                raise not_over(self._patience)
        except BaseException:
            if self._line._is_owned():
                self._line.release()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._line.release()


def not_over(patience: float) -> DatabaseBusy:
    """Say that somebody has waited for too long for a transaction of the same process."""
    why = f"another transaction of this process was not over within {patience:g} s"
    return DatabaseBusy("busy", f"{why}; inside job.transaction(), enqueue with tx=tx")
