"""Lingering: items of a bulk handler that wait a moment for others, so that one call takes more of them.

They wait here and not in a slot, which goes on with other jobs meanwhile. Their leases are renewed as those of all jobs
that a worker holds, and a stop gives them back like whatever else has not begun. The time is counted from the claim of
the first of them: what has waited for a slot that long does not wait again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from holdfast.worker.work import Work

# A timer of the event loop may be early by its resolution.
EARLY_SECONDS = 0.001
# How long before the end of a wait the queues are looked at once more, because not every database tells of new jobs.
LAST_LOOK_SECONDS = 0.01


class _Group:
    """Works that will make one call, in their order, and the timers of their wait."""

    __slots__ = ("timers", "works")

    def __init__(self, works: list[Work], *timers: asyncio.TimerHandle) -> None:
        self.works = works
        self.timers = timers

    def stop(self) -> None:
        for timer in self.timers:
            timer.cancel()


class Lingering:
    """The works that wait for others of their handler; `look` has more claimed, `over` gets what has waited enough."""

    def __init__(self, look: Callable[[], None], over: Callable[[list[Work]], None]) -> None:
        self._look = look
        self._over = over
        # By source, handler and share: what may run in one call.
        self._groups: dict[Any, _Group] = {}

    def __len__(self) -> int:
        return sum(len(group.works) for group in self._groups.values())

    def waiting(self) -> list[Work]:
        """List what waits here."""
        return [work for group in self._groups.values() for work in group.works]

    def joined(self, works: list[Work], share: int) -> list[Work]:
        """Put works together with those of their handler that wait, and return them, in their order.

        Nothing is returned while they are fewer than `share`, which is what one call takes, and their time is not over:
        they wait. They may be more than that, too.
        """
        key = (works[0].source, works[0].handler, share)
        group = self._groups.get(key)
        if group is not None:
            works = group.works + works
        left = works[0].ready - time.monotonic()
        if len(works) >= share or left <= EARLY_SECONDS:
            self._forget(key)
            return works
        if group is not None:
            group.works = works
        else:
            later = asyncio.get_running_loop().call_later
            self._groups[key] = _Group(works, later(left - LAST_LOOK_SECONDS, self._look), later(left, self._end, key))
        return []

    def _end(self, key: Any) -> None:
        works = self._groups[key].works
        self._forget(key)
        self._over(works)

    def _forget(self, key: Any) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            group.stop()

    def remove(self, work: Work) -> bool:
        """Take a work away; False if it does not wait here."""
        for key, group in self._groups.items():
            if work in group.works:
                group.works.remove(work)
                if not group.works:
                    self._forget(key)
                return True
        return False

    def clear(self) -> None:
        """Forget all waits, so that none of them ends."""
        for key in list(self._groups):
            self._forget(key)
