"""Those who wait on threads: one of them looks for all, and hands that on when it leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from holdfast.waits.board import Answer, Plan, TooLong, Waiter
from holdfast.waits.ears import ThreadEars
from holdfast.waits.looking import looking, marking
from holdfast.waits.setting import Setting


class ThreadWaiter(Waiter):
    """A waiter on a thread; `event` is set when there is news for it, or when it is to lead."""

    __slots__ = ("began", "event", "until")

    def __init__(self, job_id: str, seconds: float | None, first_look: float) -> None:
        self.event = threading.Event()
        super().__init__(job_id, self.event.set)
        self.began = time.monotonic()
        # The job is looked at once, however short the time is.
        self.until = None if seconds is None else (self.began + seconds, self.began + max(seconds, first_look))

    def left(self) -> float | None:
        """Return how many seconds are left; 0 when the time is over, None when it never is."""
        if self.until is None:
            return None
        end = self.until[0] if self.looked else self.until[1]
        return max(0.0, end - time.monotonic())


class ThreadWaits:
    """Waiting on threads. The lock is held while the board is read or changed, and not while the database is asked."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._lock = threading.Lock()
        self.board = setting.board(self._hears)
        self._ears: ThreadEars | None = None
        self._leader: Waiter | None = None
        # Ends the leader's pause.
        self._poke = threading.Event()

    def wait(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job to end, for this many seconds.

        Raises: TooLong.
        """
        waiter = ThreadWaiter(job_id, seconds, self._setting.first_look_seconds)
        with self._lock:
            self.board.join(waiter, waiter.began)
        self._poke.set()
        try:
            while True:
                with self._lock:
                    if waiter.answer is not None:
                        return waiter.answer
                    if waiter.left() == 0:
                        raise TooLong from waiter.failure
                    leads = self._leader is None
                    if leads:
                        self._leader = waiter
                if leads:
                    self._lead(waiter)
                else:
                    waiter.event.wait(waiter.left())
                    waiter.event.clear()
        finally:
            self._leave(waiter)

    def hint(self, ids: Iterable[str] | None) -> None:
        """Take a hint that jobs have ended; from any thread."""
        with self._lock:
            found = self.board.hint(ids, time.monotonic())
        if found:
            self._poke.set()

    def _hears(self) -> bool:
        return self._ears is not None and self._ears.ears.hear

    def _lead(self, waiter: ThreadWaiter) -> None:
        """Look for all who wait, for as long as this one does."""
        while waiter.answer is None and waiter.left() != 0:
            with self._lock:
                now = time.monotonic()
                plan, rest = self.board.take(now), self.board.rest(now)
            if plan is not None:
                self._look(plan)
                continue
            left = waiter.left()
            self._poke.wait(rest if left is None else min(rest, left))
            # Cleared before the board is read again, so that nothing that is said meanwhile is missed.
            self._poke.clear()

    def _look(self, plan: Plan) -> None:
        store = self._setting.store
        if plan.long and self._ears is None and self._setting.can_hear:
            self._ears = ThreadEars(self._setting.ears(self.hint))
        try:
            for work in marking(plan, self._setting.keeping_nothing()):
                if store.run_once(work):
                    self._setting.wake_workers()
            looked = store.run_once(looking(plan))
        except Exception as error:
            with self._lock:
                self.board.fail(plan.ids, error, time.monotonic())
        else:
            with self._lock:
                self.board.learn(plan, looked, time.monotonic())

    def _leave(self, waiter: ThreadWaiter) -> None:
        """Leave the board, and what was led to another one; the last one closes the ears."""
        with self._lock:
            self.board.leave(waiter)
            if self._leader is waiter:
                self._leader = None
            ears = None
            if not self.board.jobs:
                ears, self._ears = self._ears, None
            elif self._leader is None:
                next(other for one in self.board.jobs.values() for other in one.waiters).wake()
        if ears is not None:
            ears.close()
