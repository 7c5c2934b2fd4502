"""A clock that only a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.store import Store
from holdfast.values.rows import Lease

TICK = timedelta(milliseconds=1)


class Clock:
    """The time that a store's statements see. It stands still until it is told to go on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Near the real time, so that ids made during the test and times of the test sort alike.
        self.now = datetime.now(UTC).replace(microsecond=0)

    @property
    def now(self) -> datetime:
        assert self._store.now is not None
        return self._store.now

    @now.setter
    def now(self, moment: datetime) -> None:
        self._store.now = moment

    def advance(self, by: float | timedelta) -> datetime:
        """Go on by that many seconds, and return the new time."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now

    def pass_lease(self, lease: Lease) -> datetime:
        """Go on until just past the end of a lease that was claimed or renewed now."""
        return self.advance(timedelta(milliseconds=lease.lease_ms) + TICK)
