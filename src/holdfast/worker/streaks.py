"""Streaks: a thread runs `def` handlers job after job, in a slot that was lent to it.

The hop to a thread and back costs more than all the rest of a job. So a thread that has run a job takes the next one
out of the buffer itself, if that is for a thread, too. No job is handed over ahead of its turn: until its handler is
called it waits in the buffer, where any slot may take it and a stop gives it back.

How many threads work at once depends on the handlers. While they take their time, which is to say that they wait for
something, every slot has its thread, and the loop is told of each outcome. While they are quick, one thread works at a
time, for a millisecond, and the loop is told at the end: more threads would only compete for the interpreter. If one of
these handlers takes longer after all, the loop collects what came before it and lets the other slots at the buffer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.errors import TimedOut
from holdfast.worker.handler_threads import Errand, Given, NoThread
from holdfast.worker.work import Ended, Hidden, Work

# Handlers that take less than this on average are quick: about as long as a hop, so that little is lost if they could
# have waited side by side.
QUICK_SECONDS = 0.00005
# One handler that was kept from the processor says little: no time counts for more than this, and each for an eighth.
LONGEST_PACE_SECONDS = 4 * QUICK_SECONDS
PACE_SHARE = 0.125
# Quick handlers leave the interpreter to the loop after this time. After twice that, one of them must be slow.
TURN_SECONDS = 0.001

# A job, what its handler gave (`Ended` where nothing is left to judge), and when by the monotonic clock.
Outcome = tuple[Work, Ended | Given, float]


class Streak(Errand):
    """Jobs on one thread, one after the other. The lock of `Streaks` guards what is changed on both sides."""

    __slots__ = (
        "_exchange",
        "_flaw",
        "_loop",
        "_news",
        "_told",
        "ends",
        "full",
        "hidden",
        "outcomes",
        "quick",
        "task",
        "work",
    )

    def __init__(
        self, first: Work, task: asyncio.Task[Any], exchange: Callable[[Streak, Any, float, float], Work | None]
    ) -> None:
        super().__init__()
        self.task = task
        # What the thread is at; None once it has given the slot back, or was given up on.
        self.work: Work | None = first
        # The thread appends, the loop takes away.
        self.outcomes: deque[Outcome] = deque()
        # What is left of the last job, for the loop to run.
        self.hidden: tuple[Work, Hidden] | None = None
        # Whether it is the one streak of quick handlers, and until when.
        self.quick = False
        self.ends = 0.0
        # Too many outcomes are unwritten: it takes no further job.
        self.full = False
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None
        self._told = False
        self._flaw: BaseException | None = None

    def run(self) -> Given:
        """Run jobs until there is none for this thread; on the thread."""
        try:
            work = self.work
            # The first time includes the hop: quick handlers are worth a streak of their own only where several of them
            # follow one another.
            began = 0.0 if work is None else work.started
            while work is not None:
                executor: Any = work.executor
                given = executor.call(work)
                now = time.monotonic()
                work = self._exchange(self, given, began, now)
                began = now
        except BaseException as flaw:
            # Ours, not the handler's. The slot must not wait for ever.
            return None, flaw
        return None, None

    def settle(self, given: Given) -> None:
        self._told, self._flaw = True, given[1]
        self._wake()

    async def news(self, within: float | None) -> None:
        """Wait until the thread tells of something, or for some seconds."""
        if not self._told:
            self._news = self._loop.create_future()
            timer = None if within is None else self._loop.call_later(within, self._wake)
            try:
                await self._news
            finally:
                self._news = None
                if timer is not None:
                    timer.cancel()
        self._told = False
        if self._flaw is not None:
            raise self._flaw

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Streaks:
    """The streaks in one worker's slots.

    `draw` takes the next job out of the buffer if it is for a thread, and is called with `lock` held. `take_down` hands
    an outcome on, and gives what to wait for before the next job. `let_others_in` wakes the slots that wait.
    """

    def __init__(
        self,
        lock: threading.Lock,
        draw: Callable[[asyncio.Task[Any], float], Work | None],
        take_down: Callable[[Work, Ended, float], asyncio.Event | None],
        let_others_in: Callable[[], None],
    ) -> None:
        # How many there are: without any, no thread looks at the buffer.
        self.count = 0
        # The one streak of quick handlers, as long as it has not taken too long.
        self.quick: Streak | None = None
        self._lock = lock
        self._draw = draw
        self._take_down = take_down
        self._let_others_in = let_others_in
        # What a handler takes on average. None is quick until it has been.
        self._pace = LONGEST_PACE_SECONDS

    async def run(self, task: asyncio.Task[Any], first: Work) -> None:
        """Lend a slot to a thread from this job on, and hand on what comes of it and of those that follow.

        A cancellation of the slot gives up on the job that the thread is at, and on no other.
        """
        streak, room = self._begin(task, first), None
        try:
            _threads_of(first).run(streak)
            while streak.work is not None:
                await streak.news(self._patience(streak))
                self._look(streak)
                room = self._collect(streak) or room
                streak.full = room is not None
        except NoThread as refused:
            streak.outcomes.append((first, (None, refused), time.monotonic()))
        except asyncio.CancelledError as cut:
            self._give_up(streak, cut)
        finally:
            self._end(streak)
        room = self._collect(streak) or room
        if streak.hidden is not None:
            room = await self._finish(*streak.hidden) or room
        if room is not None:
            await room.wait()

    # On the event loop

    def _begin(self, task: asyncio.Task[Any], first: Work) -> Streak:
        executor: Any = first.executor
        executor.prepare(first)
        now = first.started = time.monotonic()
        streak = Streak(first, task, self._exchange)
        if self.quick is None and self._pace < QUICK_SECONDS:
            self.quick, streak.quick, streak.ends = streak, True, now + TURN_SECONDS
        self.count += 1
        return streak

    def _end(self, streak: Streak) -> None:
        self.count -= 1
        if self.quick is streak:
            self.quick = None

    def _patience(self, streak: Streak) -> float | None:
        """Return after how many seconds to look at a streak that says nothing."""
        work = streak.work
        limit = None if work is None else work.handler.options.timeout
        if streak.quick:
            return 2 * TURN_SECONDS
        return None if limit is None or work is None else max(0.0, work.started + limit - time.monotonic())

    def _look(self, streak: Streak) -> None:
        """See to a handler that takes its time: to the jobs that wait behind it, and to its time-out."""
        work = streak.work
        if work is None:
            return
        if streak.quick:
            with self._lock:
                streak.quick, self.quick = False, None
            self._let_others_in()
        limit = work.handler.options.timeout
        if limit is not None and time.monotonic() - work.started >= limit:
            self._give_up(streak, TimedOut(limit), work)

    def _collect(self, streak: Streak) -> asyncio.Event | None:
        """Hand on what the thread has told; gives what the slot must wait for before its next job."""
        room = None
        while streak.outcomes:
            work, given, at = streak.outcomes.popleft()
            executor: Any = work.executor
            ended = given if isinstance(given, Ended) else executor.judge(work, *given)
            work.slot = None
            room = self._take_down(work, ended, at) or room
        return room

    def _give_up(self, streak: Streak, error: BaseException, only: Work | None = None) -> None:
        """Leave a thread to itself: it cannot be stopped, only told, and the fence refuses what it may still write.

        If the thread has moved on from `only`, nothing is given up.
        """
        with self._lock:
            work = streak.work
            if only is not None and work is not only:
                return
            streak.work = None
        if work is not None:
            if work.job is not None:
                work.job.lost = True
            _threads_of(work).abandon(streak)
        elif streak.hidden is not None:
            (work, hidden), streak.hidden = streak.hidden, None
            hidden.coroutine.close()
        else:
            return
        streak.outcomes.append((work, (None, error), time.monotonic()))

    async def _finish(self, work: Work, hidden: Hidden) -> asyncio.Event | None:
        """Run what is left of a job on the loop, as an async handler."""
        self._let_others_in()
        executor: Any = work.executor
        ended = await executor.finish(work, hidden)
        work.slot = None
        return self._take_down(work, ended, time.monotonic())

    # On the thread

    def _exchange(self, streak: Streak, given: Any, began: float, now: float) -> Work | None:
        """Hand over what a handler gave, and take the next job; None: the streak is over."""
        with self._lock:
            self._pace += PACE_SHARE * (min(now - began, LONGEST_PACE_SECONDS) - self._pace)
            work = streak.work
            if work is None:
                # It was given up on.
                return None
            if given.__class__ is Hidden:
                streak.hidden, streak.work = (work, given), None
                return None
            streak.outcomes.append((work, given, now))
            following = streak.work = self._next(streak, now)
            untold = following is not None and not streak.quick
        if untold:
            _threads_of(work).tell(streak)
        return following

    def _next(self, streak: Streak, now: float) -> Work | None:
        """Take the next job. A streak does not outlive a change of pace: its slot begins another."""
        quick = self._pace < QUICK_SECONDS
        if streak.full or streak.quick is not quick or (quick and now > streak.ends):
            return None
        return self._draw(streak.task, now)


def _threads_of(work: Work) -> Any:
    executor: Any = work.executor
    return executor.threads
