"""How a worker reaches its database: it waits out every outage, and knows when an answer may have been lost."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, TypeVar

from holdfast.errors import Conflict, DatabaseBusy, DatabaseUnavailable, LeaseLost, RunFinished, RunNotFound, StoreError
from holdfast.events import log
from holdfast.flow import Flow
from holdfast.life.source import LearningFlow
from holdfast.store import Store
from holdfast.values.rows import Lease
from holdfast.worker.outage import LONGEST_OUTAGE_PAUSE_SECONDS, Outage, refused

T = TypeVar("T")

# A database that says nothing for this long is taken for lost: a cut cable sends no error.
ANSWER_SECONDS = 30.0
# How often an error that no dialect knows is outlived before it is called a defect.
STRANGE_TRIES = 3
STRANGE_PAUSE_SECONDS = 0.1
# What a flow may say of what it found, which is the same the next time.
_ANSWERS = (Conflict, LeaseLost, RunFinished, RunNotFound)
# A slot waits no longer than this, and this often, for the record that a handler begins.
BEGIN_ANSWER_SECONDS = 5.0
BEGIN_TRIES = 2


class Patience:
    """Runs a worker's flows on one store. `strays`: leases may be ours unknown to us: a claim's answer was lost.

    first: what must have succeeded once before anything else is asked of the store.
    """

    def __init__(self, store: Store, outage: Outage, first: Flow[Any] | None = None) -> None:
        self.strays = False
        self._first = first
        self._store = store
        self._outage = outage
        self._failed_claims = 0

    async def claim(self, work: Flow[list[Lease]]) -> list[Lease]:
        """Try a claim once, and wait a while if the database is away: by then something else may be wanted."""
        if self._first is not None:
            # It was made before anything was known of the queues, and so without their order, limits and pauses. The
            # look may well be made twice.
            await self.once(self._first)
            return []
        # It may have been committed without our hearing of it: such leases are given back once we can.
        return await self.once(work, leaves_strays=True) or []

    async def once(self, work: Flow[T], *, leaves_strays: bool = False) -> T | None:
        """Try what a claim needs once, and wait a while if the database is away; None then."""
        asked_at = time.monotonic()
        try:
            answer = await self._ask(work, ANSWER_SECONDS)
        except StoreError as error:
            self.strays = self.strays or (leaves_strays and not isinstance(error, DatabaseBusy))
            self._failed_claims += 1
            await self._outage.pause(error, self._failed_claims)
            return None
        self._failed_claims = 0
        self._outage.over(asked_at)
        return answer

    async def begin(self, work: Flow[T]) -> T:
        """Run what a slot waits for; while the database is away, that slot is for the jobs of other stores.

        Raises: DatabaseUnavailable; StoreError as `outlive`.
        """
        if self._outage.known:
            raise DatabaseUnavailable("it has been away for a while")
        return await self.outlive(work, within=BEGIN_ANSWER_SECONDS, tries=BEGIN_TRIES)

    async def outlive(self, work: Flow[T], *, within: float = ANSWER_SECONDS, tries: float = math.inf) -> T:
        """Run a flow however long the database is away; every flow of the worker is safe to repeat.

        Raises: StoreError when the database is there and refuses the data itself; DatabaseUnavailable after the last
        of the tries, whatever was wrong.
        """
        failed = 0
        while True:
            asked_at = time.monotonic()
            try:
                value = await self._ask(work, within)
            except StoreError as error:
                failed += not isinstance(error, DatabaseBusy)
                if refused(error):
                    raise
                if failed >= tries:
                    raise DatabaseUnavailable(f"{work} failed {failed} times: {error}") from error
                await self._outage.pause(error, failed, min(LONGEST_OUTAGE_PAUSE_SECONDS, within / 3))
            else:
                self._outage.over(asked_at)
                return value

    async def _ask(self, work: Flow[T], within: float) -> T:
        """Run a flow once and let its source learn from the answer."""
        if self._first is not None:
            answer = await self._answer(self._first, within)
            if isinstance(self._first, LearningFlow):
                self._first.learn(answer)
            self._first = None
        value = await self._answer(work, within)
        if isinstance(work, LearningFlow):
            work.learn(value)
        return value

    async def _answer(self, work: Flow[T], within: float) -> T:
        """Run a flow once; silence and errors that no dialect knows count as a lost database, for a while."""
        strange = 0
        while True:
            try:
                # A thread cannot be called back, and SQLite's own time-out bounds it.
                async with asyncio.timeout(None if self._store.embedded else within):
                    return await self._store.arun_once(work)
            except TimeoutError as error:
                raise DatabaseUnavailable(f"no answer within {within:g} s") from error
            except (StoreError, *_ANSWERS):
                raise
            except Exception as error:
                # A driver may break in ways of its own when its connection does. A defect shows by repeating.
                strange += 1
                self.strays = True
                if strange >= STRANGE_TRIES:
                    raise
                log.warning("%s failed: %r; trying again", work, error)
                await asyncio.sleep(strange * STRANGE_PAUSE_SECONDS)
