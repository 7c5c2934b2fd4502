"""The queues of a worker: which are paused, and how it claims from those with order or limits, each in its turn."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from holdfast import lines
from holdfast.flow import Steps
from holdfast.jobs.lanes import Lanes, Start
from holdfast.life.source import LearningFlow
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Lease

# How many tickets to pick at least, so that there are keys for all slots, and by how much fewer than jobs at most.
LEAST_LOOK = 32
MOST_PER_TICKET = 64.0


class Special:
    """What a worker knows of its queues: which are plain, and the settings of the others, as they were last read.

    Queues that are paused are in neither.
    """

    def __init__(self, queues: Sequence[str], *, floors: bool) -> None:
        self._queues = list(queues)
        self._floors = floors
        self.plain: Sequence[str] = queues
        self.settings: dict[str, QueueSettings] = {}
        self._said: Mapping[str, QueueSettings] = {}
        self._paused: Collection[str] = ()
        # Where the next claim begins, by queue, kinds and whether suspects are among them.
        self._lanes: dict[tuple[str, tuple[str, ...], bool], Lanes] = {}
        # How many jobs a ticket is expected to bring: several, where keys have more than one job waiting.
        self._per_ticket: dict[str, float] = {}
        # When, by the monotonic clock, a rate lets the next job start.
        self._again_at: dict[str, float] = {}
        self._turn = 0
        # Kinds of which a job came without a key, in queues with lines: as they were found, and not told yet.
        self._keyless: dict[tuple[str, str], bool] = {}

    def learn(self, said: Mapping[str, QueueSettings]) -> bool:
        """Take in what is stored now; tell whether the plain queues are others than before."""
        self._said = said
        return self._sort()

    def pause(self, queues: Collection[str]) -> bool:
        """Take in which queues are paused; tell whether the plain queues are others than before."""
        self._paused = queues
        return self._sort()

    def _sort(self) -> bool:
        said = self._said
        special = {name: said[name] for name in self._queues if name in said and not said[name].is_plain}
        plain = [name for name in self._queues if name not in special and name not in self._paused]
        changed = plain != list(self.plain)
        self.settings = {name: one for name, one in special.items() if name not in self._paused}
        if changed:
            self.plain = plain
            self.forget()
        return changed

    def turns(self) -> list[str | None]:
        """List what to claim from, in the order of this turn: None stands for all plain queues together."""
        if not self.settings:
            return [None] if self.plain else []
        all_of_them: list[str | None] = [*([None] if self.plain else []), *self.settings]
        self._turn = (self._turn + 1) % len(all_of_them)
        return all_of_them[self._turn :] + all_of_them[: self._turn]

    def again_in(self) -> float | None:
        """Say in how many seconds a rate lets the next job start; None: none stands in the way."""
        now = time.monotonic()
        self._again_at = {name: at for name, at in self._again_at.items() if name in self.settings}
        return min((max(0.0, at - now) for at in self._again_at.values()), default=None)

    def keyless(self) -> list[tuple[str, str]]:
        """List queues with lines and the kinds of which a job came there without a key, each once."""
        fresh = [found for found, told in self._keyless.items() if not told]
        self._keyless |= dict.fromkeys(fresh, True)
        return fresh

    def forget(self) -> None:
        """Begin at the front of every queue again."""
        for lanes in self._lanes.values():
            lanes.forget()

    def claim(
        self,
        queue: str,
        leases: Mapping[str, int],
        limit: int,
        worker: str,
        suspects: bool,
        buckets: Sequence[int] | None = None,
    ) -> LearningFlow[list[Lease]]:
        """Make a claim from one of these queues; `buckets` as in `jobs.claim`."""
        settings = self.settings[queue]
        lanes = self._lanes.setdefault((queue, tuple(leases), suspects), Lanes([queue])) if self._floors else None
        look = max(LEAST_LOOK, round(limit / self._per_ticket.get(queue, 1.0)))
        trip = _Trip()

        def steps() -> Steps[list[Lease]]:
            trip.began = time.monotonic()
            trip.start = lanes.start(trip.began) if lanes is not None else Start("all")
            claiming = lines.claim(
                queue,
                settings,
                limit=limit,
                worker=worker,
                leases=leases,
                lanes=trip.start.lanes,
                suspects=suspects,
                buckets=buckets,
                look=look,
            )
            trip.claimed = yield from claiming.start()
            trip.ended = time.monotonic()
            return trip.claimed.leases

        def learn(taken: list[Lease]) -> None:
            claimed = trip.claimed
            if settings.is_lined:
                for lease in taken:
                    if lease.key is None:
                        self._keyless.setdefault((queue, lease.kind), False)
            if lanes is not None:
                lanes.learn(
                    trip.start, claimed.tickets, len(claimed.tickets) + (not claimed.full), trip.began, trip.ended
                )
            self._per_ticket[queue] = _expected(self._per_ticket.get(queue, 1.0), claimed, limit)
            self._again_at.pop(queue, None)
            if claimed.again_in is not None:
                self._again_at[queue] = trip.ended + claimed.again_in

        return LearningFlow("claim", steps, learn)


def _expected(before: float, claimed: lines.Claimed, limit: int) -> float:
    """Say how many jobs to expect of a ticket next time: as many as it brought now, and more where lines had more than
    their share of the claim; fewer tickets make that share larger, and the stints longer.

    What was found says nothing where all of it was of busy keys, or where there was no more to find.
    """
    seen = len(claimed.leases) / max(1, len(claimed.tickets))
    if claimed.deep:
        return min(MOST_PER_TICKET, 2 * max(before, seen))
    if claimed.leases and (claimed.full or len(claimed.leases) >= limit):
        return min(MOST_PER_TICKET, max(1.0, seen))
    return before


class _Trip:
    """The latest try of one claim."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.start = Start("all")
        self.claimed = lines.Claimed()
