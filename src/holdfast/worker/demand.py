"""How much a worker claims: enough to keep its slots busy through the next claim, and no more."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from holdfast.handlers import Registration
from holdfast.life.source import Source
from holdfast.worker.slots import Slots

# Claim ahead what the slots finish in this time.
AHEAD_SECONDS = 0.25
# Larger claims than this cost no less per job, and the next claim is under way before the buffer is empty.
CLAIM_IS_LARGE_AT = 500
# With this many jobs for each slot behind others of their key, none is claimed: every slot has one to begin with.
CHAINED_PER_SLOT = 100
# The rate is measured over this time at least.
MEASURE_SECONDS = 0.01

# Where to claim, kinds with their leases in milliseconds, and how many jobs of them.
Plan = list[tuple[Source, dict[str, int], int]]


class Demand:
    """Plans claims from what the slots do; `low` is how far the buffer falls before more is claimed."""

    def __init__(self, slots: Slots, most: int) -> None:
        self.low = 0
        self._slots = slots
        self._most = most
        self._rate = 0.0
        self._ahead = 0
        self._measured = (time.monotonic(), 0, 0.0)
        # The claimers that have no room now: there is one for each store.
        self._waiting: set[object] = set()

    def plan(self, sources: Sequence[Source]) -> Plan:
        """Say what to claim from each source: each kind with a limit or with bulk calls by itself, others together."""
        room = self._room()
        return [part for source in sources for part in self._plan_for(source, room)]

    def _plan_for(self, source: Source, room: int) -> Plan:
        free: dict[str, int] = {}
        limited: Plan = []
        for kind, handler in source.handlers.items():
            lease = {kind: round(handler.options.lease * 1000)}
            if handler.size > 1:
                most = self._bulk_room(handler.size) if room > 0 else 0
                limited.append((source, lease, int(min(most, self._left(source, kind, handler)))))
            elif handler.options.concurrency is None:
                free |= lease
            else:
                left = handler.options.concurrency - self._slots.running_of(source, kind)
                limited.append((source, lease, min(room, left)))
        return [(source, free, room), *limited] if free else limited

    def _left(self, source: Source, kind: str, handler: Registration[..., Any]) -> float:
        """Return how many jobs the calls may take that a bulk handler may still begin here."""
        limit = handler.options.concurrency
        if limit is None:
            return math.inf
        return (limit - self._slots.batches[handler]) * handler.size - self._slots.waiting_of(source, kind)

    def wait_for_room(self, claimer: object, waits: bool) -> None:
        """Have a slot that ends an attempt call for more once the buffer is low, while any claimer waits for that."""
        if waits:
            self._waiting.add(claimer)
        else:
            self._waiting.discard(claimer)
        self._slots.low_at = self.low if self._waiting else -1

    def start_anew(self) -> None:
        """Forget the rate: what was claimed ahead was not needed."""
        self._rate = 0.0

    def _room(self) -> int:
        """Return how many jobs to claim now; none until enough of what was claimed ahead is used up."""
        ahead = self._ahead = min(self._most, int(self._finishing_rate() * AHEAD_SECONDS))
        self.low = max(ahead // 2, ahead - CLAIM_IS_LARGE_AT)
        buffered = len(self._slots.buffer)
        if buffered > self.low or len(self._slots.stints) > CHAINED_PER_SLOT * self._slots.count:
            return 0
        return self._slots.count + ahead - self._slots.occupied - buffered

    def _bulk_room(self, size: int) -> int:
        """Return how many jobs of a bulk handler to claim now: a free slot takes a whole batch of them.

        Less than a batch is not claimed ahead: it would be all that the next call gets.
        """
        ahead = self._ahead if self._ahead >= size else 0
        waiting = len(self._slots.buffer) + len(self._slots.lingering)
        wanted = (self._slots.count - self._slots.occupied) * size + ahead - waiting
        return min(wanted, size * max(1, CLAIM_IS_LARGE_AT // size))

    def _finishing_rate(self) -> float:
        """Return attempts finished per second, quick to rise and slow to fall."""
        now, slots = time.monotonic(), self._slots
        since, count, busy = self._measured
        if now - since >= MEASURE_SECONDS:
            finished = slots.finished - count
            # Slots that end in step make a burst; they cannot go on faster than their attempts take.
            steady = slots.count * finished / max(slots.busy - busy, 1e-9)
            latest = min(finished / (now - since), steady)
            self._rate = latest if latest > self._rate else 0.7 * self._rate + 0.3 * latest
            self._measured = (now, slots.finished, slots.busy)
        return self._rate
