"""Our own tables as a worker's source: the flows of a job's life, and where the next claim begins."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast import jobs
from holdfast.flow import Flow, Steps
from holdfast.jobs.lanes import Lanes, LookBack, Start
from holdfast.life.expiry import Backoff
from holdfast.life.source import LearningFlow, Renewed, Settled, Source
from holdfast.values.rows import Completion, End, Lease, PutBack, Reaped


class JobsSource:
    """Our own tables.

    `floors` is for databases that leave done jobs in their indexes for a while: claims and reaps then begin where the
    last ones ended.
    """

    name = "jobs"
    ours = True

    def __init__(self, queues: Sequence[str], handlers: Mapping[str, Any], *, floors: bool = False) -> None:
        self.queues = queues
        self.handlers = handlers
        self._floors = floors
        # By the kinds that are claimed together, and whether suspects are among them.
        self._lanes: dict[tuple[tuple[str, ...], bool], Lanes] = {}
        self._look_back = LookBack()

    def check(self) -> None:
        """Nothing: a worker has compared the version of these tables at its start."""

    def executor(self, kind: str) -> str:
        return str(self.handlers[kind].executor)

    def claim(self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True) -> Flow[list[Lease]]:
        if not self._floors:
            return jobs.claim(self.queues, limit=limit, worker=worker, leases=leases, suspects=suspects)
        lanes = self._lanes.setdefault((tuple(leases), suspects), Lanes(self.queues))
        trip = _Trip()

        def steps() -> Steps[list[Lease]]:
            trip.began = time.monotonic()
            trip.start = lanes.start(trip.began)
            claiming = jobs.claim(
                self.queues, limit=limit, worker=worker, leases=leases, lanes=trip.start.lanes, suspects=suspects
            )
            claimed = yield from claiming.start()
            trip.ended = time.monotonic()
            return claimed

        return LearningFlow(
            "claim", steps, lambda claimed: lanes.learn(trip.start, claimed, limit, trip.began, trip.ended)
        )

    def begin(self, lease: Lease) -> Flow[None]:
        return jobs.begin(lease)

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return jobs.renew([(lease, lease.lease_ms) for lease in leases], begun)

    def settle(self, ends: Sequence[End], worker: str) -> Flow[Settled]:
        settling = jobs.settle(ends)
        # The set first: it is made without a step of ours for each job, and a batch with returns is rare.
        if PutBack in set(map(type, ends)) and any(isinstance(end, PutBack) and end.delay_ms is None for end in ends):
            return LearningFlow("settle", settling.start, self._step_back)
        return settling

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        return jobs.complete(lease, result, keep=keep)

    def complete_all(self, completions: Sequence[Completion], worker: str) -> Flow[None]:
        return jobs.complete_all(completions)

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> Flow[list[Reaped]]:
        held, kinds = [lease.id for lease in exclude], list(self.handlers)
        trip = _Trip()

        def steps() -> Steps[list[Reaped]]:
            trip.began = time.monotonic()
            trip.look_back = self._look_back.seconds(trip.began) if self._floors else None
            reaping = jobs.reap(kinds=kinds, exclude=held, limit=limit, backoff=backoff, look_back=trip.look_back)
            reaped = yield from reaping.start()
            trip.ended = time.monotonic()
            return reaped

        def learn(reaped: list[Reaped]) -> None:
            self._look_back.learn(trip.look_back, not reaped, trip.began, trip.ended)
            if any(one.outcome == "released" for one in reaped):
                self._step_back()

        return LearningFlow("reap", steps, learn)

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int]:
        releasing = jobs.release_strays(worker, [lease.id for lease in known])
        return LearningFlow("release_strays", releasing.start, self._step_back)

    def _step_back(self, _: object = None) -> None:
        """Forget the floors: jobs went back to their old places below them."""
        for lanes in self._lanes.values():
            lanes.forget()


class _Trip:
    """The latest try of one flow: where it began to look, and when it began and ended by the monotonic clock."""

    __slots__ = ("began", "ended", "look_back", "start")

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.start = Start("all")
        self.look_back: float | None = None


# For work that is made outside a worker: it belongs to our own tables, and nothing is claimed through it.
OURS: Source = JobsSource((), {})
