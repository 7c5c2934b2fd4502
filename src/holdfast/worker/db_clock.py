"""The database's time as a worker works it out, between two answers that say it."""

from __future__ import annotations

import time
from datetime import datetime

from holdfast.flow import Steps, ask, flow
from holdfast.store import Store
from holdfast.values.rows import when

# An answer counts for this long: two clocks that drift apart by a second a day are a millisecond apart by then.
GOOD_FOR_SECONDS = 60.0


@flow
def read_clock() -> Steps[datetime]:
    """Read the database's time."""
    [[now]] = yield from ask("clock", alone=True)
    return when(now)


class DbClock:
    """The time of one store, in seconds since 1970; a clock that a test has set counts as it is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._offset = 0.0
        self._good_until = 0.0

    @property
    def known(self) -> bool:
        return self._store.clock() is not None or time.monotonic() < self._good_until

    def learn(self, moment: float) -> None:
        """Take in what the database has just said."""
        now = time.monotonic()
        self._offset = moment - now
        self._good_until = now + GOOD_FOR_SECONDS

    def now(self) -> float:
        told = self._store.clock()
        return time.monotonic() + self._offset if told is None else told.timestamp()
