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


@flow
def compare_clocks() -> Steps[float]:
    """Return by how many seconds the database's clock is ahead of the monotonic one.

    It is taken to have been read halfway between question and answer.
    """
    asked_at = time.monotonic()
    [[now]] = yield from ask("clock", alone=True)
    return when(now).timestamp() - (asked_at + time.monotonic()) / 2


class DbClock:
    """The time of one store, in seconds since 1970; a clock that a test has set counts as it is.

    Without a store nothing is known of it.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._offset = 0.0
        self._good_until = 0.0

    @property
    def known(self) -> bool:
        return self._told() is not None or time.monotonic() < self._good_until

    def learn(self, moment: float) -> None:
        """Take in what the database has just said."""
        self.learn_offset(moment - time.monotonic())

    def learn_offset(self, offset: float) -> None:
        """Take in what `compare_clocks` has found."""
        self._offset = offset
        self._good_until = time.monotonic() + GOOD_FOR_SECONDS

    def now(self) -> float:
        told = self._told()
        return time.monotonic() + self._offset if told is None else told.timestamp()

    def at(self, moment: float) -> float:
        """Return what it was at a moment of the monotonic clock; by the host's, if the database never said its own."""
        told = self._told()
        if told is not None:
            return told.timestamp()
        return moment + self._offset if self._good_until else time.time() - (time.monotonic() - moment)

    def _told(self) -> datetime | None:
        return None if self._store is None else self._store.clock()
