"""Shards that did not answer of late: what may go to any shard goes to others for a while."""

from __future__ import annotations

import time

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
