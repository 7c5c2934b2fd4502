"""How a worker reaches its database: it waits out every outage, and knows when an answer may have been lost."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from holdfast.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from holdfast.events import log
from holdfast.flow import Flow
from holdfast.store import Store
from holdfast.values.rows import Lease
from holdfast.worker.outage import LONGEST_PAUSE, Outage, refused

T = TypeVar("T")

# A database that says nothing for so long is taken for lost: a cut cable sends no error.
ANSWER = 30.0
# How often an error that no dialect knows is outlived before it is called a defect.
STRANGE = 3


class Reach:
    """Runs a worker's flows. `strays`: leases may be ours without our knowing, because a claim's answer was lost."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self.strays = False
        self._store = store
        self._outage = outage
        self._failed_claims = 0

    async def claim(self, work: Flow[list[Lease]]) -> list[Lease]:
        """Try a claim once, and wait a while if the database is away: by then something else may be wanted."""
        asked_at = time.monotonic()
        try:
            claimed = await self._ask(work, ANSWER)
        except StoreError as error:
            # The claim may have been committed without our hearing of it: such leases are given back once we can.
            self.strays = self.strays or not isinstance(error, DatabaseBusy)
            self._failed_claims += 1
            await self._outage.pause(error, self._failed_claims)
            return []
        self._failed_claims = 0
        self._outage.over(asked_at)
        return claimed

    async def outlive(self, work: Flow[T], *, within: float = ANSWER) -> T:
        """Run a flow however long the database is away; every flow of the worker is safe to repeat.

        Raises: StoreError when the database is there and refuses the data itself.
        """
        tries = 0
        while True:
            asked_at = time.monotonic()
            try:
                value = await self._ask(work, within)
            except StoreError as error:
                if refused(error):
                    raise
                tries += 1
                await self._outage.pause(error, tries, min(LONGEST_PAUSE, within / 3))
            else:
                self._outage.over(asked_at)
                return value

    async def _ask(self, work: Flow[T], within: float) -> T:
        """Run a flow once; silence and errors that no dialect knows count as a lost database, for a while."""
        strange = 0
        while True:
            try:
                # A thread cannot be called back, and SQLite's own time-out bounds it.
                async with asyncio.timeout(None if self._store.embedded else within):
                    return await self._store.arun_once(work)
            except TimeoutError as error:
                raise DatabaseUnavailable(f"no answer within {within:g} s") from error
            except StoreError:
                raise
            except Exception as error:
                # A driver may break in ways of its own when its connection does. A defect shows by repeating.
                strange += 1
                self.strays = True
                if strange >= STRANGE:
                    raise
                log.warning("%s failed: %r; trying again", work, error)
                await asyncio.sleep(strange * 0.1)
