"""Shards that did not answer of late: what may go to any shard goes to others for a while."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# For how long a shard that did not answer gets no work that may go elsewhere; then one piece of work tries it again.
AVOID_SECONDS = 10.0


class Avoided:
    """Remembers which shards did not answer, each for a while."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def add(self, number: int) -> None:
        """Remember that a shard did not answer just now."""
        self._until[number] = time.monotonic() + AVOID_SECONDS

    def without(self, numbers: list[int]) -> list[int]:
        """Leave out those that did not answer of late; all of them stay where none would be left."""
        if not self._until:
            return numbers
        now = time.monotonic()
        # A list, because other threads remember shards meanwhile.
        self._until = {number: until for number, until in list(self._until.items()) if until > now}
        return [number for number in numbers if number not in self._until] or numbers


class Looks:
    """Which shard to ask for the map: the one that answered last, and no two who ask wait for the same silent one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waits: Counter[int] = Counter()
        self.next = 0

    def likely(self, avoided: Avoided) -> list[int]:
        """List the shards in the order in which to ask them: those that may be silent come last."""
        there = list(range(self._count))
        ready = avoided.without(there)
        return sorted(there, key=lambda one: (self._waits[one] > 0, one not in ready, (one - self.next) % self._count))

    @contextmanager
    def at(self, numbers: Sequence[int]) -> Iterator[None]:
        """Note who is being asked."""
        self._waits.update(numbers)
        try:
            yield
        finally:
            self._waits.subtract(numbers)
