"""One connection that is kept for looks at a database from outside.

Tests look hundreds of times, some each hundredth of a second, and each look on a connection of its own made the server
start a process: that was most of what some tests cost.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Keeper:
    """Lends one connection, which `close` ends; opens it again where it was lost."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._kept: Any = None
        self._owner = os.getpid()
        self._lent = threading.Lock()

    def run(self, statement: Any, params: Any = None) -> list[Any]:
        """Run one statement, which commits by itself, and return its rows."""
        with self._any() as connection:
            try:
                return answers(connection, statement, params)
            except Exception:
                # Its server was restarted, or its session ended, since the last look.
                if connection is not self._kept or not lost(connection):
                    raise
            self._kept = self._connect()
            return answers(self._kept, statement, params)

    def close(self) -> None:
        if self._kept is not None and self._owner == os.getpid():
            self._kept.close()
        self._kept = None

    @contextlib.contextmanager
    def _any(self) -> Iterator[Any]:
        """Lend the kept connection, or a new one while another thread has that, or in a child that was forked."""
        if self._owner != os.getpid() or not self._lent.acquire(blocking=False):
            with contextlib.closing(self._connect()) as another:
                yield another
            return
        try:
            if self._kept is None:
                self._kept = self._connect()
            yield self._kept
        finally:
            self._lent.release()


def answers(connection: Any, statement: Any, params: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall()) if cursor.description else []


def lost(connection: Any) -> bool:
    """Say whether a connection of psycopg or PyMySQL has ended."""
    return bool(connection.closed) if hasattr(connection, "closed") else not connection.open
