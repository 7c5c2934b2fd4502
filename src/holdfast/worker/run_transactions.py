"""Transactions of a run in a worker's hands: effect and record in one commit, also where nobody knows how that ended.

All tries of an attempt share one place in the journal, and what is recorded of the attempt if it fails goes there, too.
A place is written once, so a try that comes through late finds it taken, and undoes its effect. Until it is known what
stands there, nothing behind it is told: the body hears of things in the order in which a replay reads them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from typing import Any

from holdfast import runs
from holdfast.errors import DatabaseBusy, DatabaseUnavailable, LeaseLost
from holdfast.runs import EffectThere, Entry, Kind, Recorded
from holdfast.values.ids import new_id
from holdfast.worker.handler_threads import NoThread
from holdfast.worker.run_remote import RemoteSteps
from holdfast.worker.run_verdicts import Place, is_being_cancelled
from holdfast.worker.step_calls import Effect
from holdfast.workflows import Operation, encoded

# After what time something is tried again that failed for no fault of the run's.
PAUSE_SECONDS = 0.5


class Transactions(RemoteSteps):
    """The part of a driver that makes transactions; what it needs of the rest is named first."""

    _lock: threading.RLock

    @abstractmethod
    def _failure(self, op: Operation, error: BaseException, began: float) -> tuple[Kind, str]: ...
    @abstractmethod
    def _failed(self, op: Operation, error: BaseException, began: float) -> None: ...
    @abstractmethod
    def committed(self, row: Recorded) -> None: ...

    def _entry(
        self,
        place: Place,
        kind: Kind,
        key: str,
        ok: int = 1,
        value: str | None = None,
        op: Operation | None = None,
        began: float | None = None,
        ref: str | None = None,
    ) -> Entry:
        digest, attempt = (None, 1) if op is None else (op.digest, op.attempt + 1)
        took = None if began is None else min(2**31 - 1, round((time.monotonic() - began) * 1000))
        row = Recorded(place.seq, key, kind, ok, value, digest, attempt, self._means.worker, took, ref)
        return Entry(self._run, self._lease.fence, row)

    async def _transact(self, op: Operation) -> None:
        places: list[Place] = []
        try:
            await self._try_on(op, places)
        finally:
            # Of a branch that was cancelled nothing is told, whatever stands there.
            self._give_up([place for place in places if place.row is None])

    async def _try_on(self, op: Operation, places: list[Place]) -> None:
        """Try until the database has answered; `places` gets the place of all tries, once one of them needs it."""
        began = time.monotonic()
        while True:
            effect = Effect()
            try:
                await self._means.calls.transact(op, effect, self._making(op, effect, places, began))
            except BaseException as error:
                with self._lock:
                    effect.given_up = True
                if isinstance(error, EffectThere):
                    self.committed(error.row)
                    return
                if not isinstance(error, (DatabaseUnavailable, DatabaseBusy, NoThread)):
                    stops = self._closed or op.done or is_being_cancelled()
                    if isinstance(error, LeaseLost) or (isinstance(error, asyncio.CancelledError) and stops):
                        raise
                    await self._fail_at(op, error, began, places)
                    return
            else:
                made: Any = effect.entry
                self.committed(made.row._replace(at=effect.at))
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _making(self, op: Operation, effect: Effect, places: list[Place], began: float) -> Any:
        def entry(value: Any) -> Entry:
            written = encoded(value, op, self._means.payload_limit)
            # Under the lock: a thread that was left to itself must take no place, as nobody says what came of it.
            with self._lock:
                if self._closed or op.done or effect.given_up:
                    raise asyncio.CancelledError
                if not places:
                    places[:] = self._reserve()
            return self._entry(places[0], "tx", op.key, value=written, op=op, began=began, ref=new_id())

        return entry

    async def _fail_at(self, op: Operation, error: BaseException, began: float, places: list[Place]) -> None:
        """Record a failed attempt, unless it turns out that its transaction was committed."""
        if not places:
            self._failed(op, error, began)
            return
        kind, value = self._failure(op, error, began)
        failed = self._entry(places[0], kind, op.key, ok=0, value=value, op=op, began=began)
        self.committed(await self._means.insist(runs.decide(failed, self._means.worker)))
