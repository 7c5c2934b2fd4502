"""Our own tables as a worker's source: the flows of a job's life, and where the next claim begins."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast import jobs
from holdfast.flow import Flow, Steps, flow
from holdfast.jobs.positions import Lanes, LookBack, Start
from holdfast.life.expiry import Backoff
from holdfast.life.source import Renewed, Settled, Source
from holdfast.values.rows import Finish, Lease, PutBack, Reaped


class JobsSource:
    """Our own tables.

    `floors` is for databases that leave done jobs in their indexes for a while: claims and reaps then begin where the
    last ones ended.
    """

    name = "jobs"

    def __init__(self, queues: Sequence[str], handlers: Mapping[str, Any], *, floors: bool = False) -> None:
        self.queues = queues
        self.handlers = handlers
        self._floors = floors
        # By the kinds that are claimed together, and whether suspects are among them.
        self._lanes: dict[tuple[tuple[str, ...], bool], Lanes] = {}
        self._look_back = LookBack()

    def check(self) -> None:
        """Nothing: whoever uses these tables has compared their version."""

    def claim(self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True) -> Flow[list[Lease]]:
        lanes = self._lanes.setdefault((tuple(leases), suspects), Lanes(self.queues))
        return self._claim_from(lanes, leases, limit, worker, suspects)

    @flow
    def _claim_from(
        self, lanes: Lanes, leases: Mapping[str, int], limit: int, worker: str, suspects: bool
    ) -> Steps[list[Lease]]:
        began = time.monotonic()
        start = lanes.start(began) if self._floors else Start("all")
        claiming = jobs.claim(
            self.queues, limit=limit, worker=worker, leases=leases, lanes=start.lanes, suspects=suspects
        )
        claimed = yield from claiming.start()
        if self._floors:
            lanes.learn(start, claimed, limit, began, time.monotonic())
        return claimed

    def begin(self, lease: Lease) -> Flow[None]:
        return jobs.begin(lease)

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return jobs.renew([(lease, lease.lease_ms) for lease in leases], begun)

    @flow
    def settle(self, finishes: Sequence[Finish], returns: Sequence[PutBack], worker: str) -> Steps[Settled]:
        settled = yield from jobs.settle(finishes, returns).start()
        if any(one.delay_ms is None for one in returns):
            self._step_back()
        return settled

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        return jobs.complete(lease, result, keep=keep)

    @flow
    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> Steps[list[Reaped]]:
        began = time.monotonic()
        look_back = self._look_back.seconds(began) if self._floors else None
        held = [lease.id for lease in exclude]
        kinds = list(self.handlers)
        reaping = jobs.reap(kinds=kinds, exclude=held, limit=limit, backoff=backoff, look_back=look_back)
        reaped = yield from reaping.start()
        self._look_back.learn(look_back, not reaped, began, time.monotonic())
        if any(one.outcome == "released" for one in reaped):
            self._step_back()
        return reaped

    @flow
    def release_strays(self, worker: str, known: Sequence[Lease]) -> Steps[int]:
        released = yield from jobs.release_strays(worker, [lease.id for lease in known]).start()
        self._step_back()
        return released

    def _step_back(self) -> None:
        """Forget the floors: jobs went back to their old places below them."""
        for lanes in self._lanes.values():
            lanes.forget()


# For work that is made outside a worker: it belongs to our own tables, and nothing is claimed through it.
OURS: Source = JobsSource((), {})
