"""How often a busy or lost database is asked again, and after which pauses."""

from __future__ import annotations

import random

# A busy or lost database is tried again for a few seconds, then the caller hears of it. A worker tries on for ever.
TRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


def pause_after(tries: int) -> float:
    """Return how long to wait before the next try, with full jitter."""
    return random.uniform(0.5, 1.0) * min(LONGEST_PAUSE, FIRST_PAUSE * 3.0 ** (tries - 1))
