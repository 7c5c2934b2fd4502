"""The line of suspects: jobs whose process died before start one after the other, so that a death tells which it was.

Ordinary jobs run beside them as usual. A suspect blocks the others until it has ended or has run for a while, which
is longer the more deaths either has seen: one that kills its process late is found out, too, and one that runs for
hours does not keep the others waiting for ever. What waits too long in line goes back to the queue with the rest of
the buffer, where another worker may take it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from holdfast.worker.work import Work

# A suspect of one death blocks the others for this long; each further death makes it four times longer.
PROBATION_SECONDS = 5.0
LONGEST_PROBATION_SECONDS = 3600.0
# The first suspect starts this long after the worker: by then a killer among the ordinary jobs has shown itself,
# and its death is not taken for that of a suspect beside it.
CALM_SECONDS = 1.0
# With this many in line, claims leave suspects out; they take some again when the line is half as long.
LINE_LIMIT = 50


class Line:
    """Suspects that wait, and those let in that have not ended; `let_in` starts one, `on_room` asks for more."""

    def __init__(self, let_in: Callable[[Work], None], on_room: Callable[[], None]) -> None:
        self.waiting: deque[Work] = deque()
        # Claims leave suspects out.
        self.full = False
        self._inside: list[Work] = []
        self._let_in = let_in
        self._on_room = on_room
        self._opens_at = time.monotonic() + CALM_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def add(self, works: list[Work]) -> None:
        self.waiting.extend(works)
        self._step()

    def ended(self, work: Work) -> None:
        """Note that a suspect is no longer here: its outcome is written, or it was taken back before it began.

        Not before it is written: the next one's death would be taken for its own.
        """
        if work in self._inside:
            self._inside.remove(work)
        self._step()

    def _step(self) -> None:
        """Let in who may start now, and look again when the next may."""
        now = time.monotonic()
        while (work := self._next(now)) is not None:
            self.waiting.remove(work)
            self._inside.append(work)
            self._let_in(work)
        length = len(self.waiting)
        if self.full and length <= LINE_LIMIT // 2:
            self._on_room()
        self.full = length >= LINE_LIMIT or (self.full and length > LINE_LIMIT // 2)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if length:
            self._timer = asyncio.get_running_loop().call_later(self._wait(now), self._step)

    def _next(self, now: float) -> Work | None:
        if now < self._opens_at:
            return None
        return next((work for work in self.waiting if self._free_at(work, now) <= now), None)

    def _free_at(self, newcomer: Work, now: float) -> float:
        """Return when every suspect inside has run long enough for this one to start beside it.

        Each would be blamed for a death that the other causes. One that has not begun yet is counted from now.
        """
        return max(
            ((work.started or now) + max(apart(work), apart(newcomer)) for work in self._inside), default=self._opens_at
        )

    def _wait(self, now: float) -> float:
        """Return after how many seconds time alone may let the next one in."""
        if now < self._opens_at:
            return self._opens_at - now
        return min(self._free_at(work, now) for work in self.waiting) - now


def apart(work: Work) -> float:
    """Return for how many seconds a suspect is kept apart from others."""
    return float(min(LONGEST_PROBATION_SECONDS, PROBATION_SECONDS * 4.0 ** min(work.lease.lapses - 1, 10)))
