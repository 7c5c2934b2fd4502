"""Our own tables as a worker's source: the flows of a job's life, and where the next claim begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from holdfast import jobs
from holdfast.flow import Flow, Steps
from holdfast.jobs.due import Due
from holdfast.jobs.lanes import Lanes, LookBack, Start
from holdfast.jobs.special import Special
from holdfast.life.expiry import Backoff
from holdfast.life.source import LearningFlow, Renewed, Settled, Source
from holdfast.lines import LinedLease
from holdfast.values.pauses import NOTHING_PAUSED, Paused
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Completion, End, Lease, NewJob, Park, PutBack, Reaped


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
        # The buckets whose jobs are claimed before they are overdue; None: all.
        self._buckets: tuple[int, ...] | None = None
        # What may not begin now.
        self.paused = NOTHING_PAUSED
        # Those of the queues that have order or limits are claimed from apart from the others.
        self._special = Special(queues, floors=floors)
        # When jobs are due that were put back from here.
        self._due = Due()
        # With shards: refuses a job that belongs to another one than this, and is to continue a job of here.
        self.check_next: Callable[[Lease, NewJob], None] | None = None

    def own(self, buckets: Sequence[int] | None) -> bool:
        """Prefer the jobs of these buckets from now on; returns whether that is a change."""
        owned = None if buckets is None else tuple(buckets)
        if owned == self._buckets:
            return False
        self._buckets = owned
        # Jobs of buckets that are new to us wait below the floors.
        self._step_back()
        return True

    def learn_settings(self, said: Mapping[str, QueueSettings]) -> None:
        """Take in what is stored of queues; until then all are plain."""
        if self._special.learn(said):
            self._lanes = {}

    def keyless(self) -> list[tuple[str, str]]:
        """List queues with lines and the kinds of which a job came there without a key, each once."""
        return self._special.keyless()

    def pause(self, paused: Paused) -> bool:
        """Claim nothing of these queues and kinds from now on; returns whether that is a change for this source."""
        paused = Paused(paused.queues & set(self.queues), paused.kinds & self.handlers.keys())
        if paused == self.paused:
            return False
        self.paused = paused
        self._special.pause(paused.queues)
        # What is resumed waits below the floors, and floors are for one set of queues and kinds.
        self._lanes = {}
        self._special.forget()
        return True

    def turns(self) -> list[str | None]:
        return self._special.turns()

    def again_in(self) -> float | None:
        return min(
            (wait for wait in (self._special.again_in(), self._due.again_in()) if wait is not None), default=None
        )

    def check(self) -> None:
        """Nothing: a worker has compared the version of these tables at its start."""

    def executor(self, kind: str) -> str:
        return str(self.handlers[kind].executor)

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]] | None:
        buckets, special = self._buckets, self._special
        if self.paused.kinds:
            leases = {kind: lease_ms for kind, lease_ms in leases.items() if kind not in self.paused.kinds}
        # What is known of queues may have changed since `turns`: a claim from another one was under way.
        if not leases or (turn is None and not special.plain) or (turn is not None and turn not in special.settings):
            return None
        if turn is not None:
            return special.claim(turn, leases, limit, worker, suspects, buckets)
        queues = special.plain
        if not self._floors:
            return jobs.claim(queues, limit=limit, worker=worker, leases=leases, suspects=suspects, buckets=buckets)
        lanes = self._lanes.setdefault((tuple(leases), suspects), Lanes(queues))
        trip = _Trip()

        def steps() -> Steps[list[Lease]]:
            trip.began = time.monotonic()
            trip.start = lanes.start(trip.began)
            claiming = jobs.claim(
                queues,
                limit=limit,
                worker=worker,
                leases=leases,
                lanes=trip.start.lanes,
                suspects=suspects,
                buckets=buckets,
            )
            claimed = yield from claiming.start()
            trip.ended = time.monotonic()
            return claimed

        return LearningFlow(
            "claim", steps, lambda claimed: lanes.learn(trip.start, claimed, limit, trip.began, trip.ended)
        )

    def ready(self, claimed: Sequence[Lease]) -> Flow[list[Lease]] | None:
        # First what few jobs have: a call for each would take a hundredth of the time of a job that does nothing.
        with_headers = [lease for lease in claimed if lease[4] is not None]
        if not with_headers or not any(map(jobs.has_parents, with_headers)):
            return None
        return jobs.meet(claimed)

    def expired(self, leases: Sequence[Lease]) -> Flow[set[str]]:
        return jobs.expired(leases)

    def begin(self, lease: Lease) -> Flow[None]:
        return jobs.begin(lease)

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return jobs.renew([(lease, lease.lease_ms) for lease in leases], begun)

    def settle(self, ends: Sequence[End], worker: str, leases: Sequence[Lease] = ()) -> Flow[Settled]:
        settling = jobs.settle(ends, [lease for lease in leases if isinstance(lease, LinedLease)])
        # The set first: it is made without a step of ours for each job, and a batch with returns is rare.
        if set(map(type, ends)).isdisjoint((PutBack, Park)):
            return settling
        returned = [end for end in ends if isinstance(end, PutBack | Park)]

        def learn(_: Settled) -> None:
            if any(isinstance(end, PutBack) and end.delay_ms is None for end in returned):
                self._step_back()
            self._due.add([end.delay_ms / 1000 for end in returned if end.delay_ms])

        return LearningFlow("settle", settling.start, learn)

    def complete(self, completion: Completion, worker: str) -> Flow[None]:
        return jobs.complete(
            completion.lease,
            completion.result,
            keep=completion.keep,
            then=completion.then,
            before=completion.before,
        )

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
        self._special.forget()


class _Trip:
    """The latest try of one flow: where it began to look, and when it began and ended by the monotonic clock."""

    __slots__ = ("began", "ended", "look_back", "start")

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.start = Start("all")
        self.look_back: float | None = None


# For work that is made outside a worker: it belongs to our own tables, and nothing is claimed through it.
OURS: Source = JobsSource((), {})
