"""The rule of a line: which of its first jobs may run now, and which is to be called next. No database here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from holdfast.values.queues import QueueSettings, spent, tokens, wait_us

# What a parked job of ours waits for.
WAITS_FOR_LINE = "line"
# A job that a worker holds in another way stands in front, as when its queue has just become ordered: look again then.
LOOK_AGAIN_US = 1_000_000


class Line(NamedTuple):
    """A line whose row is locked: the columns of `lines_lock` in their order."""

    key: str
    held: int
    tat: int | None
    called: str | None
    stopped: Any
    stopped_for: str | None
    now: int

    def room(self, settings: QueueSettings) -> int | None:
        """Say how many jobs may be leased beside those that are; None: any number."""
        if self.stopped:
            return 0
        if settings.ordered:
            # As many as there are in one stint: the worker runs them one after the other.
            return 0 if self.held else None
        return None if settings.key_concurrency is None else max(0, settings.key_concurrency - self.held)

    def starts(self, settings: QueueSettings) -> int | None:
        """Say how many may start now by the key's rate; None: any number."""
        return None if settings.key_rate is None else tokens(settings.key_rate, self.tat, self.now)

    def taken(self, settings: QueueSettings, count: int) -> Line:
        """Return the line after that many jobs were leased and started; it has called nobody."""
        tat = self.tat if settings.key_rate is None else spent(settings.key_rate, self.tat, self.now, count)
        return self._replace(held=self.held + count, tat=tat, called=None)

    def wait_us(self, settings: QueueSettings) -> int:
        """Say in how many microseconds the key's rate lets the next one start."""
        return 0 if settings.key_rate is None else wait_us(settings.key_rate, self.tat, self.now)

    def may_go(self, settings: QueueSettings) -> bool:
        """Tell whether nothing would be forgotten with the row of a line in which nothing is."""
        return not (self.held or self.stopped) and (settings.key_rate is None or (self.tat or 0) <= self.now)


class Head(NamedTuple):
    """One of the first jobs in a line: the columns of `line_heads` in their order.

    Its state is `called` where its line has called it for later.
    """

    key: str
    id: str
    kind: str
    state: str
    due: Any
    attempts: int
    lapses: int
    waits_for: str | None

    @property
    def waits_for_line(self) -> bool:
        return self.state == "waiting" and self.waits_for == WAITS_FOR_LINE

    @property
    def can_run(self) -> bool:
        """Whether it waits for nothing but its line, which may have called it for later."""
        if self.state == "pending":
            return bool(self.due)
        return self.state == "called" or self.waits_for_line


class Wishes(NamedTuple):
    """What a claim takes: kinds (None: all), whether suspects, and how many of one line."""

    kinds: Collection[str] | None = None
    suspects: bool = True
    most: int = 1

    def takes(self, head: Head) -> bool:
        return (self.kinds is None or head.kind in self.kinds) and (self.suspects or not head.lapses)


class Call(NamedTuple):
    """The job that a line calls next, and after how many microseconds it is due."""

    id: str
    delay_us: int = 0


def pick(settings: QueueSettings, heads: Sequence[Head], wishes: Wishes) -> list[Head]:
    """Say which jobs of a free line to lease; `heads` are its first ones in the order of their places."""
    return _first_of(heads, wishes) if settings.ordered else _any_of(heads, wishes)


def _first_of(heads: Sequence[Head], wishes: Wishes) -> list[Head]:
    taken: list[Head] = []
    kinds, suspects = wishes.kinds, wishes.suspects
    for head in heads[: wishes.most]:
        # A job that is not due was tried: it holds its line. Those that never were are not among the heads.
        if not head.can_run or not ((kinds is None or head.kind in kinds) and (suspects or not head.lapses)):
            break
        if head.attempts > 0 or head.lapses > 0:
            # It failed, or its process died: it shares no stint, and alone pays for what it does.
            return taken or [head]
        taken.append(head)
    return taken


def _any_of(heads: Sequence[Head], wishes: Wishes) -> list[Head]:
    return [head for head in heads if head.can_run and wishes.takes(head)][: wishes.most]


def call(settings: QueueSettings, line: Line, heads: Sequence[Head]) -> Call | None:
    """Say whom a line with room calls; None: it is full or stopped, or a ticket of its own will bring it up."""
    if line.room(settings) == 0:
        return None
    for head in heads:
        if head.state == "leased":
            waiting = next((other for other in heads if other.waits_for_line or other.state == "called"), None)
            return None if waiting is None else Call(waiting.id, LOOK_AGAIN_US)
        if head.can_run:
            delay = line.wait_us(settings)
            # A ticket brings its line up when its turn comes by age; where keys take turns, it goes behind the others.
            is_ticket = head.state == "pending"
            return None if is_ticket and not delay and not settings.fair else Call(head.id, delay)
        if settings.ordered and settings.on_retry == "hold":
            # It becomes a ticket by itself once it is due, or what it waits for has come.
            return None
    return None
