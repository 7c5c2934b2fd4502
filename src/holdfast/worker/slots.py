"""Slots: coroutines that live as long as the worker and take claimed jobs from one buffer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from holdfast.handlers import Registration
from holdfast.life.source import Source
from holdfast.values.rows import Lease
from holdfast.worker.lingering import Lingering
from holdfast.worker.stints import Stints
from holdfast.worker.streaks import Streaks
from holdfast.worker.suspects import Line
from holdfast.worker.work import Ended, Interrupt, Work

# Handlers that never wait would keep the loop to themselves: others get it after this time.
TURN_SECONDS = 0.001
# How long handlers that ignore their cancellation are waited for at the very end.
CLOSING_SECONDS = 1.0


class Slots:
    """Runs up to `count` attempts at once, each by the executor that the job names.

    What ends goes to `on_end`, which may name an event for the slot to wait for (back pressure).
    """

    def __init__(self, count: int, on_end: Callable[[Ended], asyncio.Event | None], on_low: Callable[[], None]) -> None:
        self.count = count
        # Call `on_low` when an attempt ends and no more jobs than this wait; -1: never.
        self.low_at = -1
        self.buffer: deque[Work] = deque()
        self.line = Line(self._let_in, on_low)
        # What waits although there are slots: its handler makes as many calls at once as it may.
        self.held_up: deque[Work] = deque()
        # What waits for others to come, so that its handler takes them together.
        self.lingering = Lingering(on_low, self._let_on)
        # What waits for another of its key to end.
        self.stints = Stints()
        self.running: set[Work] = set()
        # How many of those run in the slot of another, and how many calls with a batch each handler is at.
        self.beside = 0
        self.batches: Counter[Registration[..., Any]] = Counter()
        self.finished = 0
        # Seconds that slots were busy, all together.
        self.busy = 0.0
        self._on_end = on_end
        self._on_low = on_low
        # Threads take jobs out of the buffer, too: looking and taking, or looking twice, needs the lock.
        self._lock = threading.Lock()
        self._streaks = Streaks(self._lock, self._draw, self._take_down, self._let_others_in)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False
        self._sprinting = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        self._tasks = [asyncio.create_task(self._serve(), name=f"holdfast-slot-{n}") for n in range(self.count)]
        return self._tasks

    def feed(self, works: list[Work]) -> None:
        if works and works[0].lease.__class__ is not Lease:
            works = self.stints.link(works)
        suspects = [work for work in works if work.lease.lapses and work.lease.lapses > work.handler.free_lapses]
        with self._lock:
            self.buffer.extend([work for work in works if work not in suspects] if suspects else works)
        if suspects:
            self.line.add(suspects)
        self._announce()

    def _let_in(self, suspect: Work) -> None:
        with self._lock:
            self.buffer.appendleft(suspect)
        self._announce()

    def _announce(self) -> None:
        if not self._sprinting:
            self._wake_one()
        self._let_others_in()

    def take_back(self, older_than: float = float("inf")) -> list[Work]:
        """Take waiting jobs out of the buffer and the line: all, or those that could have begun before a moment."""
        back: list[Work] = []
        for work in self.waiting():
            if work.ready < older_than:
                # What is behind it in its stint must not come before it, however long it may wait.
                stint = [*reversed(self.stints.rest(work)), work]
                back += [one for one in stint if self.withdraw(one)]
        return back

    def waiting(self) -> list[Work]:
        """List the jobs that wait for a slot, for their handler, for others, or in line for their turn."""
        with self._lock:
            waiting = [*self.stints.waiting(), *self.buffer, *self.held_up, *self.line.waiting]
        return [*waiting, *self.lingering.waiting()] if self.lingering else waiting

    def withdraw(self, work: Work) -> bool:
        """Take a job out of where it waits; False if it waits nowhere, because it was begun."""
        if work.slot is not None:
            return False
        if work in self.stints:
            self.stints.remove(work)
            return True
        for place in (self.buffer, self.held_up, self.line.waiting):
            with self._lock:
                found = work in place
                if found:
                    place.remove(work)
            if found:
                if work.lease.lapses:
                    self.line.ended(work)
                self._put_in_front(self.stints.let_go(work))
                return True
        if self.lingering.remove(work):
            self._put_in_front(self.stints.let_go(work))
            return True
        return False

    def _put_in_front(self, work: Work | None) -> None:
        """Let the next of a stint begin."""
        if work is not None:
            with self._lock:
                self.buffer.appendleft(work)
            self._announce()

    @property
    def occupied(self) -> int:
        """How many slots run something."""
        return len(self.running) - self.beside

    def waiting_of(self, source: Source, kind: str) -> int:
        return sum(work.lease.kind == kind and work.source is source for work in self.waiting())

    def running_of(self, source: Source, kind: str) -> int:
        """Count the jobs of a kind that run or wait here."""
        with self._lock:
            held = [*self.running, *self.buffer, *self.held_up, *self.line.waiting, *self.lingering.waiting()]
        return sum(work.lease.kind == kind and work.source is source for work in held)

    def interrupt(self, work: Work, why: Interrupt) -> None:
        """Stop an attempt: an async handler is cancelled, a `def` one is told by its job's flags."""
        job = work.job
        if work.slot is None or work.interrupt is not None:
            return
        if job is not None and why != "stop" and job.completing:
            # Its own commit is under way, or done, and took the row: the fence has the word there, not this news.
            return
        if job is not None:
            job.cancel_requested = job.cancel_requested or why == "cancelled"
            job.lost = job.lost or why != "cancelled"
        if work.executor is not None and work.executor.batch_limit > 1:
            work.interrupt = why
            if why == "stop" or (work.handler.is_async and self._nobody_needs(work.slot)):
                work.slot.cancel()
        elif work.handler.is_async or why == "stop" or not work.started:
            work.interrupt = why
            work.slot.cancel()

    def _nobody_needs(self, slot: Any) -> bool:
        """Tell whether every job in a slot is lost or cancelled."""
        # Copied at once: threads add to it.
        return all(work.interrupt is not None for work in [*self.running] if work.slot is slot)

    async def quiet(self) -> None:
        """Wait until no attempt runs and every outcome has been handed on."""
        await self._quiet.wait()

    async def close(self) -> int:
        """End every slot and return how many handlers would not end."""
        self._closing = True
        self.lingering.clear()
        for work in list(self.running):
            work.interrupt = work.interrupt or "stop"
        for task in self._tasks:
            task.cancel()
        _, stuck = await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)
        return len(stuck)

    async def _serve(self) -> None:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        while not self._closing:
            try:
                await self._take_turn(task)
            except asyncio.CancelledError:
                # Either the worker closes, or a handler had kept hold of this task: a slot outlives that.
                _calm(task)

    async def _take_turn(self, task: asyncio.Task[Any]) -> None:
        while not self.buffer or (self._sprinting and not self.running) or self._streaks.quick is not None:
            await self._job_comes()
        self._quiet.clear()
        # One slot at a time may run job after job; if each did so, claims would wait for all of them in turn. While no
        # handler waits, the others would only get in its way.
        sprints, self._sprinting = not self._sprinting, True
        if sprints:
            asyncio.get_running_loop().call_soon(self._let_others_in)
        try:
            await self._run_jobs(task, time.monotonic() + TURN_SECONDS if sprints else 0.0)
            if not self.running:
                self._quiet.set()
            await asyncio.sleep(0)
        finally:
            if not self.running:
                self._quiet.set()
            # Not before the loop has come round: another slot would sprint on in its stead.
            self._sprinting = self._sprinting and not sprints

    async def _run_jobs(self, task: asyncio.Task[Any], ends: float) -> None:
        """Run one job, and those behind it until the turn ends; a batch or a streak is a turn of its own."""
        # Once for all jobs of the turn: each look-up takes a two-hundredth of a job's time.
        buffer, running, streaks, on_end, monotonic = (
            self.buffer,
            self.running,
            self._streaks,
            self._on_end,
            time.monotonic,
        )
        work: Any = None
        try:
            while buffer and not self._closing:
                work = self._pop() if streaks.count else buffer.popleft()
                if work is None:
                    break
                executor = work.executor
                if executor.batch_limit > 1:
                    if self._is_full(work.handler):
                        self.held_up.append(work)
                        continue
                    works = self._batch(work)
                    if not works:
                        continue
                    await self._run_batch(task, works)
                    break
                running.add(work)
                work.slot = task
                if not work.handler.is_async and executor.takes_streak(work):
                    await streaks.run(task, work)
                    if task.cancelling() and not self._closing:
                        await self._let_it_strike(task)
                    break
                ended = await executor.attempt(work)
                work.slot = None
                if task.cancelling() and not self._closing:
                    await self._let_it_strike(task)
                now = monotonic()
                # What `_take_down` does, without its frame: a twentieth of the time of a job that does nothing.
                self.finished += 1
                work.took = took = now - work.started
                self.busy += took
                room = on_end(ended)
                running.discard(work)
                if work.next is not None:
                    self._put_in_front(self.stints.after(ended))
                if len(buffer) <= self.low_at:
                    self._on_low()
                if room is not None:
                    await room.wait()
                if now > ends:
                    break
        finally:
            running.discard(work)

    def _pop(self) -> Work | None:
        """Take the next job for a slot while threads do the same."""
        with self._lock:
            return self.buffer.popleft() if self.buffer else None

    def _draw(self, task: asyncio.Task[Any], now: float) -> Work | None:
        """Take the next job for a thread in that slot, if it is for one; on the thread, with the lock held."""
        if self._closing or not self.buffer:
            return None
        executor: Any = self.buffer[0].executor
        if not executor.takes_streak(self.buffer[0]):
            return None
        work = self.buffer.popleft()
        executor.prepare(work)
        work.started = now
        self.running.add(work)
        work.slot = task
        return work

    def _batch(self, first: Work) -> list[Work]:
        """Take what its executor takes in one call together with a job; nothing where that waits for more."""
        executor: Any = first.executor
        share = executor.batch_of(first)
        works = [first, *self._alike(first, share - 1)]
        if executor.takes_stints and self.stints:
            self._take_stints(works, share)
        if not first.handler.linger:
            return works
        works = self.lingering.joined(works, share)
        if len(works) > share:
            self._let_on(works[share:])
        return works[:share]

    def _take_stints(self, works: list[Work], share: int) -> None:
        """Add what waits behind works of a batch, as far as it goes with them: first come those of the first one."""
        first, executor = works[0], cast("Any", works[0].executor)
        for head in tuple(works):
            work = head
            while len(works) < share and work.next is not None and executor.goes_with(first, work.next):
                following = self.stints.let_go(work)
                if following is None:
                    break
                works.append(following)
                work = following

    def _let_on(self, works: list[Work]) -> None:
        """Have works begin before all others."""
        with self._lock:
            self.buffer.extendleft(reversed(works))
        self._announce()

    async def _run_batch(self, task: asyncio.Task[Any], works: list[Work]) -> None:
        """Run jobs in one call of their executor."""
        first, executor = works[0], cast("Any", works[0].executor)
        began, beside = time.monotonic(), len(works) - 1
        self.beside += beside
        self.batches[first.handler] += 1
        try:
            self.running.update(works)
            for work in works:
                work.slot, work.started = task, began
            ends = await executor.attempt_batch(works)
            for work in works:
                work.slot = None
            if task.cancelling() and not self._closing:
                await self._let_it_strike(task)
            # All of them before anything is waited for: a cancellation that comes late would lose the rest.
            room = self._take_all_down(ends)
            self.beside -= beside
            beside = 0
            if room is not None:
                await room.wait()
        finally:
            self.running.difference_update(works)
            self.beside -= beside
            self._let_go(first.handler)

    def _is_full(self, handler: Registration[..., Any]) -> bool:
        limit = handler.options.concurrency
        return limit is not None and self.batches[handler] >= limit

    def _let_go(self, handler: Registration[..., Any]) -> None:
        """Note that a call with a batch is over; what waited for that is next."""
        self.batches[handler] -= 1
        freed = [work for work in self.held_up if work.handler is handler]
        if freed:
            self.held_up = deque(work for work in self.held_up if work.handler is not handler)
            self._let_on(freed)

    def _alike(self, first: Work, most: int) -> list[Work]:
        """Take jobs out of the buffer that can run together with this one, in their order."""
        executor: Any = first.executor
        found: list[Work] = []
        passed: list[Work] = []
        with self._lock:
            while self.buffer and len(found) < most:
                work = self.buffer.popleft()
                of_a_kind = work.executor is first.executor and work.source is first.source
                (found if of_a_kind and executor.goes_with(first, work) else passed).append(work)
            self.buffer.extendleft(reversed(passed))
        return found

    def _let_others_in(self) -> None:
        """Let the other slots at the buffer, if a handler waits for something: the loop is free then."""
        if self.running and self._streaks.quick is None:
            self._sprinting = False
            for _ in range(len(self.buffer)):
                if not self._wake_one():
                    return

    def _take_all_down(self, ends: Sequence[Ended]) -> asyncio.Event | None:
        """Hand the outcomes of one call on, as `_take_down` does for one, in less time for each."""
        now, on_end, running, room = time.monotonic(), self._on_end, self.running, None
        for ended in ends:
            work = ended.work
            work.took = now - work.started
            self.busy += work.took / len(ends)
            room = on_end(ended) or room
            running.discard(work)
            if work.next is not None:
                self._put_in_front(self.stints.after(ended))
        self.finished += len(ends)
        if len(self.buffer) <= self.low_at:
            self._on_low()
        return room

    def _take_down(self, work: Work, ended: Ended, now: float) -> asyncio.Event | None:
        """Hand an outcome on; gives what the slot must wait for before its next job."""
        self.finished += 1
        work.took = now - work.started
        self.busy += work.took
        room = self._on_end(ended)
        # Only now, so that quiet() returns only once it finds the outcome handed on.
        self.running.discard(work)
        if work.next is not None:
            self._put_in_front(self.stints.after(ended))
        if len(self.buffer) <= self.low_at:
            self._on_low()
        return room

    async def _let_it_strike(self, task: asyncio.Task[Any]) -> None:
        """Take a cancellation that the handler never waited for: here it hits no other job."""
        _calm(task)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    async def _job_comes(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            elif self.buffer:
                self._wake_one()
            raise

    def _wake_one(self) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False


def _calm(task: asyncio.Task[Any]) -> None:
    while task.cancelling():
        task.uncancel()
