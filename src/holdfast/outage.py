"""An outage of the database, said once, with pauses that grow."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from holdfast import events
from holdfast.errors import DatabaseBusy, StoreError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Outage:
    """Keeps track of whether the database answers: one event when it stops, one when it is back."""

    def __init__(self, worker: str, emit: Callable[[events.Event], None]) -> None:
        self._worker = worker
        self._emit = emit
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    async def pause(self, error: StoreError) -> None:
        """Note a failure and wait before the next try; a deadlock or a busy file is no outage."""
        if isinstance(error, DatabaseBusy):
            await asyncio.sleep(random.uniform(0.005, 0.05))
            return
        if self._since is None:
            self._since = time.monotonic()
            self._pause = FIRST_PAUSE
            self._emit(events.DatabaseLost(self._worker, str(error)))
        pause, self._pause = self._pause, min(LONGEST_PAUSE, self._pause * 2)
        await asyncio.sleep(random.uniform(0.5, 1.0) * pause)

    def over(self) -> None:
        """Note that the database answers."""
        if self._since is not None:
            self._emit(events.DatabaseRegained(self._worker, time.monotonic() - self._since))
            self._since = None
