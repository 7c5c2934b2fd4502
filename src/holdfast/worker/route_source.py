"""The deliveries of one route as a worker's source: claimed while its sink takes messages and there is room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast import jobs
from holdfast.flow import Flow, Steps
from holdfast.handlers import Registration
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow
from holdfast.outbox import Route
from holdfast.values.options import HandlerOptions
from holdfast.values.retry import seconds
from holdfast.values.rows import Lease, PutBack
from holdfast.worker.breaker import Breaker

# Of the average size of messages, how much the latest claim counts.
LATEST_COUNTS = 0.3


class Delivery(Registration[[], Any]):
    """What stands for a handler where a route's deliveries are run: their options, and how many go together."""

    executor = "relay"
    # A relay that dies rarely dies of a message, and it holds many: after the first death they go in batches again.
    free_lapses = 1

    def __init__(self, route: Route) -> None:
        async def deliver() -> None: ...

        options = HandlerOptions(queue=route.queue, retry=route.retry, lease=route.lease)
        super().__init__(deliver, route.queue, options)
        self.route = route
        # With one a message would be claimed like an ordinary job, for any free slot.
        self.size = max(2, route.batch)
        self.timeout = seconds(route.timeout, "timeout")


class RouteSource(JobsSource):
    """One route's deliveries.

    A source of its own, and not a queue among others, so that a claim reads this route's rows only, and a sink that is
    down keeps no other route waiting. `held` lists what the worker holds of it.
    """

    def __init__(self, delivery: Delivery, breaker: Breaker, *, floors: bool) -> None:
        super().__init__([delivery.kind], {delivery.kind: delivery}, floors=floors)
        self.breaker = breaker
        self.held: Callable[[], Sequence[Lease]] = list
        self._delivery = delivery
        self._most_bytes = delivery.route.in_flight_bytes
        self._average = 0.0
        # No more than this is held, in bytes: what was when it was last added up, and all that was claimed since.
        self._at_most = 0

    def breaker_for(self, kind: str) -> Breaker:
        return self.breaker

    def turns(self) -> list[str | None]:
        return [] if self.breaker.room() == 0 else super().turns()

    def again_in(self) -> float | None:
        waits = [wait for wait in (super().again_in(), self.breaker.again_in()) if wait is not None]
        return min(waits, default=None)

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]] | None:
        probe = self.breaker.room()
        limit = min(limit, self._room(limit), limit if probe is None else probe)
        if limit <= 0:
            return None
        return super().claim(leases, limit, worker, suspects=suspects, turn=turn)

    def _room(self, wanted: int) -> int:
        """Say how many messages of the average size there is room for; while something is held, that may be none."""
        if self._at_most + wanted * self._average < self._most_bytes:
            self._delivery.waits_for_room = False
            return wanted
        held = self._add_up()
        left = self._most_bytes - held
        # Then the claims look again as soon as a message is let go of.
        self._delivery.waits_for_room = left <= 0
        if left <= 0:
            return 0
        return max(0 if held else 1, int(left / max(1.0, self._average)))

    def _add_up(self) -> int:
        """Return how many bytes are held. Not at each claim: with thousands held, that took a tenth of the time."""
        self._at_most = bytes_of(self.held())
        return self._at_most

    def ready(self, claimed: Sequence[Lease]) -> Flow[list[Lease]] | None:
        """Give back what there is no room for: the last ones, so that those of one key keep their order."""
        taken, kept = bytes_of(claimed), 0
        self._learn(taken / len(claimed))
        if self._at_most + taken <= self._most_bytes or self._add_up() + taken <= self._most_bytes:
            self._at_most += taken
            return super().ready(claimed)
        held = self._at_most
        for lease in claimed:
            size = size_of(lease)
            # One at least: a message that is larger than the limit is sent alone.
            if held + size > self._most_bytes and held:
                break
            held += size
            kept += 1
        self._at_most = held
        if kept == len(claimed):
            return super().ready(claimed)
        self._delivery.waits_for_room = True
        # What is cut is back below the floors.
        return LearningFlow("cut", lambda: _cut(claimed[:kept], claimed[kept:]), self._step_back)

    def _learn(self, latest: float) -> None:
        self._average += (latest - self._average) * (LATEST_COUNTS if self._average else 1.0)


def _cut(kept: Sequence[Lease], cut: Sequence[Lease]) -> Steps[list[Lease]]:
    """Release what was cut, with its attempts, and return the rest.

    Commits: its own. After a crash: what was claimed is leased, and comes back when its lease ends.
    """
    yield from jobs.settle([PutBack(lease.id, lease.fence, None, 1) for lease in cut]).start()
    return list(kept)


def size_of(lease: Lease) -> int:
    """Return about how many bytes a message takes: characters, which are as many bytes or more."""
    return len(lease.payload) + len(lease.headers or "")


def bytes_of(leases: Sequence[Lease]) -> int:
    """Add up the sizes of messages, which may be all that is held."""
    # By their places: the payload is the fourth column, the headers are the fifth.
    return sum([len(lease[3]) for lease in leases]) + sum([len(lease[4] or "") for lease in leases])
