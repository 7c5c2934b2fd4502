"""A circuit breaker for each sink of a worker: while a sink is down, nothing is claimed for it, and a few messages try.

It is closed while all is well. The first call that finds the sink down opens it: the routes of that sink claim nothing
in this worker. When the pause is over, one call with few messages goes through as a probe. If that finds the sink down
again, the next pause is longer; otherwise the breaker closes. Other workers find out by themselves.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from holdfast import events
from holdfast.sinks import Sink
from holdfast.values.failure import words

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
GROWS_BY = 2.0
# Workers that lost a sink at the same moment do not all come back at the same moment.
JITTER = 0.2
# How many messages a probe takes.
PROBE_MESSAGES = 5


class Breaker:
    """What a worker knows of one sink; all calls come from the worker's event loop.

    `enter` gives a ticket for one call of the sink. `down` and `up` count only with the ticket of the latest state, so
    that calls which were under way when the breaker opened do not count a second time.
    """

    def __init__(
        self, worker: str, sink: object, emit: Callable[[events.Event], None], wake: Callable[[], None]
    ) -> None:
        self._worker = worker
        self._sink = sink
        self._emit = emit
        self._wake = wake
        self._ticket = 0
        # When it was found down, and when to try it again, by the monotonic clock.
        self._down_since: float | None = None
        self._again_at = 0.0
        self._pause = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._down_since is not None

    def room(self) -> int | None:
        """Say how many messages may be claimed now; None: any number."""
        if not self.is_open:
            return None
        return PROBE_MESSAGES if self._probe_is_due else 0

    def again_in(self) -> float | None:
        """Say in how many seconds a probe is due; None where none is awaited."""
        left = self._again_at - time.monotonic()
        return left if self.is_open and not self._probing and left > 0 else None

    def enter(self) -> int | None:
        """Take a ticket for a call of the sink; None where it may not be called now."""
        if self.is_open:
            if not self._probe_is_due:
                return None
            self._probing = True
            self._ticket += 1
        return self._ticket

    @property
    def _probe_is_due(self) -> bool:
        return not self._probing and time.monotonic() >= self._again_at

    def down(self, ticket: int, reason: str, retry_after: float | None = None) -> None:
        """Note that a call found the sink down; `retry_after` is the least pause that it asked for."""
        if ticket != self._ticket:
            return
        now = time.monotonic()
        self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * GROWS_BY) or FIRST_PAUSE_SECONDS
        pause = max(self._pause * random.uniform(1 - JITTER, 1 + JITTER), retry_after or 0.0)
        self._ticket += 1
        self._probing = False
        self._again_at = now + pause
        if self._down_since is None:
            self._down_since = now
            self._emit(events.SinkDown(self._worker, words(self._sink), reason, pause))

    def up(self, ticket: int) -> None:
        """Note that a call reached the sink."""
        if ticket != self._ticket or self._down_since is None:
            return
        down_for = time.monotonic() - self._down_since
        self._ticket += 1
        self._probing, self._down_since, self._pause = False, None, 0.0
        self._emit(events.SinkBack(self._worker, words(self._sink), down_for))
        self._wake()

    def left(self, ticket: int) -> None:
        """Note that a call ended without telling anything of the sink: the next one may try."""
        if ticket == self._ticket:
            self._probing = False

    def try_now(self) -> None:
        """Have the next call probe the sink, however long the pause would have been."""
        self._again_at = 0.0


class Breakers:
    """The breakers of one worker, one for each sink."""

    def __init__(self, worker: str, emit: Callable[[events.Event], None], wake: Callable[[], None]) -> None:
        self._worker = worker
        self._emit = emit
        self._wake = wake
        # By identity: a sink need not be hashable. It is kept, so that its id stays its own.
        self._made: dict[int, tuple[Sink, Breaker]] = {}

    def of(self, sink: Sink) -> Breaker:
        if id(sink) not in self._made:
            self._made[id(sink)] = (sink, Breaker(self._worker, sink, self._emit, self._wake))
        return self._made[id(sink)][1]

    @property
    def sinks(self) -> list[Sink]:
        return [sink for sink, _ in self._made.values()]

    async def close_sinks(self, limit: float) -> None:
        """Close all sinks, each within this time."""
        closing = (asyncio.wait_for(sink.close(), limit) for sink in self.sinks)
        for ended in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(ended, BaseException):
                events.log.warning("a sink could not be closed: %s", words(ended))
