"""An outage of the database, said once, with pauses that grow; and what is a refusal instead."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from holdfast import events
from holdfast.errors import DatabaseBusy, SchemaMismatch, SchemaMissing, StoreError

FIRST_OUTAGE_PAUSE_SECONDS, LONGEST_OUTAGE_PAUSE_SECONDS = 0.1, 5.0


def refused(error: Exception) -> bool:
    """Tell whether the database refused this very data, so that repeating the write cannot help."""
    return isinstance(error, StoreError) and error.data_refused


class Outage:
    """Keeps track of whether the database answers: one event when it stops, one when it is back."""

    def __init__(self, worker: str, emit: Callable[[events.Event], None], store: str = "") -> None:
        self._worker = worker
        self._emit = emit
        # What events call the database.
        self._store = store
        self._since: float | None = None
        # Whether it was said that the tables are not there, or of another version: that does not pass by itself.
        self._told_of_tables = False

    @property
    def known(self) -> bool:
        """Tell whether the database is known to be away."""
        return self._since is not None

    async def pause(self, error: StoreError, tries: int, longest: float = LONGEST_OUTAGE_PAUSE_SECONDS) -> None:
        """Note that one piece of work failed `tries` times in a row, and wait before its next try.

        A deadlock or a busy file is not an outage; nor is a single failure, which may be a connection gone stale.
        """
        if isinstance(error, DatabaseBusy):
            await asyncio.sleep(random.uniform(0.005, 0.05))
            return
        # A database may come back without its tables: that is said, too.
        about_tables = isinstance(error, SchemaMissing | SchemaMismatch)
        if tries > 1 and (self._since is None or (about_tables and not self._told_of_tables)):
            self._since = self._since or time.monotonic()
            self._told_of_tables = about_tables
            self._emit(events.DatabaseLost(self._worker, str(error), self._store))
        # By the age of the outage, not by the count of failures: several tasks fail side by side.
        age = 0.0 if self._since is None else time.monotonic() - self._since
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(longest, max(FIRST_OUTAGE_PAUSE_SECONDS, age / 2)))

    def over(self, asked_at: float) -> None:
        """Note that the database answered what it was asked at this moment."""
        # An answer to a question from before the outage says nothing about now.
        if self._since is not None and asked_at > self._since:
            self._emit(events.DatabaseRegained(self._worker, time.monotonic() - self._since, self._store))
            self._since = None
            self._told_of_tables = False
