"""When a worker's own jobs are due again: it looks then, and not at its next poll only.

A job that was put back for a while, or a run that sleeps, is a row like any other, and who looks first takes it. The
one who wrote it knows the moment without asking. What it does not know, because another worker has written it or
because there are too many, is found by polling.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

# The nearest moments are kept.
MOST_KEPT = 1_000


class Due:
    """Moments of the monotonic clock, sorted."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def add(self, delays: Sequence[float]) -> None:
        """Note that jobs are due after these seconds, as was just committed."""
        if delays:
            now = time.monotonic()
            self._moments = sorted([*self._moments, *(now + delay for delay in delays)])[:MOST_KEPT]

    def again_in(self) -> float | None:
        """Say in how many seconds to look; at once, and once, for moments that have passed."""
        now, moments = time.monotonic(), self._moments
        passed = 0
        while passed < len(moments) and moments[passed] <= now:
            passed += 1
        if passed:
            del moments[:passed]
            return 0.0
        return moments[0] - now if moments else None
