"""The board: which jobs are waited for, by whom, and when to look at each; no thread, no task and no database here.

A job is looked at soon after somebody begins to wait for it, then with growing pauses. Jobs that are due for a look at
about the same time share one: however many are waited for, a look is one statement. A hint (a notification, a worker
of this process) brings the look forward; where hints come for sure, looks are rare.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.errors import DatabaseBusy, DatabaseUnavailable, JobNotFound
from holdfast.results import LEFT, MOVED_ON, Seen
from holdfast.values.views import JobView
from holdfast.waits.verdicts import Kept, final

# The pause between the first two looks at a job, what it grows by, and how far.
FIRST_PAUSE_SECONDS = 0.01
PAUSE_GROWS_BY = 1.5
# The first pause where a job is still to be marked of which nothing is kept: its row was locked, mostly by its claim.
FIRST_PAUSE_UNMARKED_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 1.0
# The pause where the end is told: what is told may still get lost, or the end be of a transaction that tells nobody.
HEARD_PAUSE_SECONDS = 2.0
# Most jobs end before this; for the others a connection that listens is worth its while, and a mark on the job.
MARK_AFTER_SECONDS = 0.1
# The most jobs that one look asks for; the others are next.
MOST_AT_ONCE = 2_000
# How long looks may fail before those who wait without a time-out hear of it.
OUTAGE_SECONDS = 60.0

Answer = JobView | Kept | Exception


class TooLong(Exception):
    """The time of a waiter is over; the error of the last look, if that failed, is its cause."""


class Waiter:
    """One caller that waits for one job. `wake` is called once it was looked at, and when there is an answer."""

    __slots__ = ("answer", "failure", "job_id", "looked", "wake")

    def __init__(self, job_id: str, wake: Callable[[], None]) -> None:
        self.job_id = job_id
        self.wake = wake
        self.answer: Answer | None = None
        self.looked = False
        # Why the last look failed.
        self.failure: Exception | None = None

    def see(self, failure: Exception | None = None) -> None:
        """Take in that the job was looked at, or could not be."""
        self.failure = failure
        if not self.looked:
            self.looked = True
            self.wake()

    def tell(self, answer: Answer) -> None:
        self.answer = answer
        self.wake()


class Awaited:
    """A job that is waited for."""

    __slots__ = ("began", "failing_since", "marked", "next_at", "pause", "place", "queue", "restless", "waiters")

    def __init__(self, now: float) -> None:
        self.waiters: list[Waiter] = []
        self.began = now
        self.next_at = now
        self.pause = 0.0
        # Whether it is to be looked at again, whatever the look under way finds.
        self.restless = False
        # As far as it is known; no queue: never seen.
        self.queue: str | None = None
        self.marked = False
        # The job that continues it by now; None: itself.
        self.place: str | None = None
        self.failing_since: float | None = None

    def look_at(self, now: float) -> None:
        self.next_at, self.restless = now, True

    def rest(self, now: float, pause: float) -> None:
        """Say when to look next, at a moment spread by chance."""
        self.pause = pause
        self.next_at = now if self.restless else now + random.uniform(0.8, 1.2) * pause


class Plan(NamedTuple):
    """One look: at which jobs, which of them to mark before, and which of those only in queues that keep nothing.

    `long` says that one of them has been waited for long enough to listen for its end. `places` has those that others
    continue, each with the one that was found last; what is to be marked is named by that.
    """

    ids: list[str]
    marks: list[str]
    fresh: list[str]
    long: bool
    places: Mapping[str, str] = MappingProxyType({})


class Looked(NamedTuple):
    """What a look found: how each job is, and those that are over as people see them.

    Of a job that another continues, both are those of the last of its chain; `places` names that one.
    """

    seen: Mapping[str, Seen]
    views: Mapping[str, JobView]
    places: Mapping[str, str] = MappingProxyType({})


class Board:
    """The jobs that are waited for in one place: on one event loop, or by threads.

    keeps_nothing: tells whether a queue may keep nothing of done jobs. hears: whether ends of marked jobs are told here
    now. listens: whether they ever are.
    """

    def __init__(self, keeps_nothing: Callable[[str], bool], hears: Callable[[], bool], *, listens: bool) -> None:
        self.jobs: dict[str, Awaited] = {}
        # By job: those of which it is the last of the chain that is known.
        self._chains: dict[str, set[str]] = {}
        self._keeps_nothing = keeps_nothing
        self._hears = hears
        self._listens = listens

    def join(self, waiter: Waiter, now: float) -> None:
        """Begin to wait: the job is looked at now."""
        awaited = self.jobs.get(waiter.job_id)
        if awaited is None:
            awaited = self.jobs[waiter.job_id] = Awaited(now)
        awaited.waiters.append(waiter)
        awaited.pause = 0.0
        awaited.look_at(now)

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting, with an answer or without."""
        awaited = self.jobs.get(waiter.job_id)
        if awaited is not None and waiter in awaited.waiters:
            awaited.waiters.remove(waiter)
            if not awaited.waiters:
                self._forget(waiter.job_id)

    def hint(self, ids: Iterable[str] | None, now: float) -> bool:
        """Bring the look at these jobs forward, or at all; tell whether any of them is waited for."""
        named = self.jobs if ids is None else {one for job_id in ids for one in (job_id, *self._chains.get(job_id, ()))}
        found = [self.jobs[job_id] for job_id in named if job_id in self.jobs]
        for awaited in found:
            awaited.look_at(now)
        return bool(found)

    def rest(self, now: float) -> float:
        """Return how long there is nothing to do."""
        return max(0.0, min((awaited.next_at for awaited in self.jobs.values()), default=now + 1e6) - now)

    def take(self, now: float) -> Plan | None:
        """Plan a look at what is due, and what will be soon; None while nothing is due."""
        if not any(awaited.next_at <= now for awaited in self.jobs.values()):
            return None
        near = [job_id for job_id, one in self.jobs.items() if one.next_at <= now + one.pause / 2][:MOST_AT_ONCE]
        chosen = {job_id: self.jobs[job_id] for job_id in near}
        for awaited in chosen.values():
            awaited.restless = False
        marks = [one.place or job_id for job_id, one in chosen.items() if self._is_to_mark(one, now)]
        fresh = [one.place or job_id for job_id, one in chosen.items() if one.queue is None]
        places = {job_id: one.place for job_id, one in chosen.items() if one.place is not None}
        return Plan(near, marks, fresh, any(now - one.began >= MARK_AFTER_SECONDS for one in chosen.values()), places)

    def _is_to_mark(self, awaited: Awaited, now: float) -> bool:
        if awaited.marked or awaited.queue is None:
            return False
        if self._keeps_nothing(awaited.queue):
            return True
        return self._listens and now - awaited.began >= MARK_AFTER_SECONDS

    def learn(self, plan: Plan, looked: Looked, now: float) -> None:
        """Take in what a look found: answer those whose job is over, and say when to look at the others."""
        for job_id in plan.ids:
            awaited = self.jobs.get(job_id)
            if awaited is None:
                continue
            seen = looked.seen.get(job_id)
            answer = _answer(job_id, seen, looked.views.get(job_id), was_there=awaited.queue is not None)
            if answer is not None:
                self._tell(job_id, answer)
            elif seen is not None:
                self._move(job_id, looked.places.get(job_id))
                self._see(awaited, seen, now)

    def _move(self, job_id: str, place: str | None) -> None:
        """Note which job continues one that is waited for: what is told of that one is for those who wait, too."""
        awaited = self.jobs[job_id]
        if place == awaited.place:
            return
        self._unlink(job_id, awaited.place)
        awaited.place = place
        if place is not None:
            self._chains.setdefault(place, set()).add(job_id)

    def _unlink(self, job_id: str, place: str | None) -> None:
        if place is not None and (linked := self._chains.get(place)) is not None:
            linked.discard(job_id)
            if not linked:
                del self._chains[place]

    def _forget(self, job_id: str) -> Awaited:
        awaited = self.jobs.pop(job_id)
        self._unlink(job_id, awaited.place)
        return awaited

    def _see(self, awaited: Awaited, seen: Seen, now: float) -> None:
        awaited.queue, awaited.marked, awaited.failing_since = seen.queue, seen.marked, None
        for waiter in awaited.waiters:
            waiter.see()
        if awaited.marked and self._hears():
            awaited.rest(now, HEARD_PAUSE_SECONDS)
        elif not awaited.marked and self._keeps_nothing(awaited.queue):
            awaited.rest(now, _grown(awaited.pause, FIRST_PAUSE_UNMARKED_SECONDS))
        else:
            awaited.rest(now, _grown(awaited.pause, FIRST_PAUSE_SECONDS))

    def fail(self, ids: Collection[str], error: Exception, now: float) -> None:
        """Take in that a look failed: an outage is outlived for a while, and everything else is told."""
        passes = isinstance(error, DatabaseUnavailable | DatabaseBusy)
        for job_id in ids:
            awaited = self.jobs.get(job_id)
            if awaited is None:
                continue
            awaited.failing_since = now if awaited.failing_since is None else awaited.failing_since
            if not passes or now - awaited.failing_since >= OUTAGE_SECONDS:
                self._tell(job_id, error)
                continue
            for waiter in awaited.waiters:
                waiter.see(error)
            awaited.rest(now, _grown(awaited.pause, FIRST_PAUSE_SECONDS))

    def _tell(self, job_id: str, answer: Answer) -> None:
        for waiter in self._forget(job_id).waiters:
            waiter.tell(answer)


def _grown(pause: float, first: float) -> float:
    return min(LONGEST_PAUSE_SECONDS, max(first, pause * PAUSE_GROWS_BY))


def _answer(job_id: str, seen: Seen | None, view: JobView | None, *, was_there: bool) -> Answer | None:
    """Return what those who wait for a job get; None while it is not over."""
    if seen is None or seen.state == MOVED_ON:
        # Of the job that continues it nothing is left, either.
        return JobNotFound(job_id, ended=was_there or seen is not None)
    if seen.state == LEFT:
        return Kept(job_id, seen.kind, seen.result)
    # A job that was over a moment ago may be back in its queue, or pruned: the next look tells.
    return view if view is not None and final(view) else None
