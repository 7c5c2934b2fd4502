"""What is promised of jobs, in plain Python: their states, lines, limits, chains and batches.

Where a store may choose (which keys a claim tries, how long a stint is), the model says which choices are allowed, and
whether there must be one.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from holdfast.life.expiry import must_record
from holdfast.lines import StintLease
from holdfast.values.queues import PLAIN, QueueSettings, Rate
from holdfast.values.rows import AfterDead, Lease, Outcome

State = Literal["live", "parked", "leased", "done", "dead", "cancelled"]
OVER = ("done", "dead", "cancelled")
BACKOFF = timedelta(seconds=5)


@dataclass
class Job:
    """A job, as the model knows it; `place` is its place in the order of enqueues."""

    id: str
    queue: str
    kind: str
    key: str | None
    place: int
    due: datetime
    max_attempts: int = 5
    priority: int = 0
    state: State = "live"
    fence: int = 0
    attempts: int = 0
    lapses: int = 0
    began: bool = False
    expires: datetime | None = None
    cancel_requested: bool = False
    kept: bool = True
    # Whether it is leased with others of its key, which run one after the other.
    in_stint: bool = False
    replayed: bool = False
    # What it runs after, and what continues it.
    parents: list[str] = field(default_factory=list[str])
    on_dead: AfterDead = "run"
    sealed: bool = True
    next: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER


class Wishes:
    """What one claim asks for."""

    def __init__(self, limit: int, suspects: bool, kinds: set[str]) -> None:
        self.limit = limit
        self.suspects = suspects
        self.kinds = kinds

    def takes(self, job: Job) -> bool:
        return job.kind in self.kinds and (self.suspects or not job.lapses)


class Model:
    """All jobs that ever were, and what is said of their queues."""

    def __init__(self, settings: dict[str, QueueSettings], now: datetime) -> None:
        self.settings = settings
        self.now = now
        self.jobs: dict[str, Job] = {}
        # Lines that stand still: for which job, or None where a hand stopped them.
        self.stopped: dict[tuple[str, str], str | None] = {}
        self.starts: dict[tuple[str, str | None], list[datetime]] = defaultdict(list)

    # Looking

    def live(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.is_over]

    def leased(self, queue: str, key: str | None = None) -> list[Job]:
        """List what is leased of a queue, or of one key of it, in the order of places."""
        found = [job for job in self.jobs.values() if job.state == "leased" and job.queue == queue]
        return sorted((job for job in found if key is None or job.key == key), key=lambda job: job.place)

    def settings_of(self, queue: str) -> QueueSettings:
        return self.settings.get(queue, PLAIN)

    def last_of_chain(self, job_id: str) -> Job:
        job = self.jobs[job_id]
        while job.next is not None:
            job = self.jobs[job.next]
        return job

    def is_doomed(self, job: Job) -> bool:
        """Whether a job is to be cancelled for one that it runs after."""
        ends = [self.last_of_chain(parent).state for parent in job.parents]
        return job.on_dead == "cancel" and any(state in ("dead", "cancelled") for state in ends)

    def has_replayed_parents(self, job: Job) -> bool:
        """Whether something that a job runs after came back: it may have been let go before that, or not."""
        return any(self.last_of_chain(parent).replayed for parent in job.parents)

    def may_run(self, job: Job) -> bool:
        """Whether all that a job runs after is over."""
        return job.sealed and all(self.last_of_chain(parent).is_over for parent in job.parents)

    # What a claim may take

    def room(self, queue: str, limit: int) -> int:
        settings = self.settings_of(queue)
        room = limit if settings.concurrency is None else min(limit, settings.concurrency - len(self.leased(queue)))
        return max(0, room if settings.rate is None else min(room, self.tokens(settings.rate, (queue, None))))

    def tokens(self, rate: Rate, place: tuple[str, str | None]) -> int:
        """Say how many may start at most, by what has started within the period."""
        recent = [at for at in self.starts[place] if self.now - at < timedelta(seconds=rate.period)]
        return max(0, rate.count - len(recent))

    def in_line(self, queue: str, key: str, wishes: Wishes) -> list[Job]:
        """List the jobs of a key that a claim may take now, in their order: any of the first of them, none left out."""
        settings = self.settings_of(queue)
        if (queue, key) in self.stopped or (settings.ordered and self.leased(queue, key)):
            return []
        allowed: list[Job] = []
        for job in self._standing(queue, key):
            is_due = job.due <= self.now
            if settings.ordered and settings.on_retry == "hold" and job.fence and not is_due:
                break
            if not is_due:
                continue
            if not wishes.takes(job):
                if settings.ordered:
                    break
                continue
            if settings.ordered and (job.attempts or job.lapses):
                return allowed or [job]
            allowed.append(job)
        if settings.key_concurrency is not None:
            allowed = allowed[: max(0, settings.key_concurrency - len(self.leased(queue, key)))]
        return allowed if settings.key_rate is None else allowed[: self.tokens(settings.key_rate, (queue, key))]

    def _standing(self, queue: str, key: str) -> list[Job]:
        found = [job for job in self.jobs.values() if (job.queue, job.key, job.state) == (queue, key, "live")]
        return sorted(found, key=lambda job: job.place)

    def loose(self, queue: str, wishes: Wishes) -> list[Job]:
        """List the due jobs of a queue that stand in no line, the most urgent first."""
        lined = self.settings_of(queue).is_lined
        found = [
            job
            for job in self.jobs.values()
            if job.queue == queue and job.state == "live" and job.due <= self.now and wishes.takes(job)
        ]
        found = [job for job in found if not (lined and job.key is not None)]
        return sorted(found, key=lambda job: (-job.priority, job.due, job.id))

    def claimed(self, queue: str, leases: Sequence[Lease], wishes: Wishes) -> None:
        """Check what a claim gave, and take it in."""
        jobs = [self.jobs[lease.job_id] for lease in leases]
        settings, room = self.settings_of(queue), self.room(queue, wishes.limit)
        loose = self.loose(queue, wishes)
        lines = self._lines(queue, wishes) if settings.is_lined else {}
        assert len(jobs) <= room, f"{queue}: {len(jobs)} jobs were claimed, and there was room for {room}"
        if not settings.is_lined and settings.rate is None:
            wanted = [job.id for job in loose[:room]]
            assert [job.id for job in jobs] == wanted, f"{queue}: not the most urgent jobs, or not all"
        for key, allowed in lines.items():
            got = [job.id for job in jobs if job.key == key]
            assert got == [job.id for job in allowed[: len(got)]], f"{queue} {key}: not its first jobs"
        taken = {job.id for job in jobs}
        assert taken <= {job.id for job in loose} | {job.id for line in lines.values() for job in line}
        if not jobs and room and settings.rate is None and settings.key_rate is None:
            assert not loose, f"{queue}: nothing was claimed, and {loose[0].id} is due"
            going = [key for key, allowed in lines.items() if allowed and self._is_up(queue, key, wishes)]
            assert not going, f"{queue}: nothing was claimed, and the line of {going[0]} can go on"
        for lease, job in zip(leases, jobs, strict=True):
            self._take(lease, job)

    def _lines(self, queue: str, wishes: Wishes) -> dict[str, list[Job]]:
        keys = {job.key for job in self.live() if job.queue == queue and job.key is not None}
        return {key: self.in_line(queue, key, wishes) for key in keys}

    def _is_up(self, queue: str, key: str, wishes: Wishes) -> bool:
        """Whether a claim must come to a line: where it does not take the first job, those behind it may wait, too."""
        return wishes.takes(next(job for job in self._standing(queue, key) if job.due <= self.now))

    def _take(self, lease: Lease, job: Job) -> None:
        assert (lease.fence, lease.attempt, lease.lapses) == (job.fence + 1, job.attempts + 1, job.lapses)
        job.state, job.fence, job.attempts, job.began = "leased", lease.fence, lease.attempt, False
        job.in_stint = isinstance(lease, StintLease)
        job.expires = self.now + timedelta(milliseconds=lease.lease_ms)
        for place in {(job.queue, None), (job.queue, job.key)}:
            self.starts[place].append(self.now)

    # What becomes of it

    def put_back(self, job: Job, delay: timedelta | None, attempts_back: int, lapses: int | None = None) -> None:
        job.state, job.fence, job.expires = "live", job.fence + 1, None
        job.attempts -= attempts_back
        job.due = job.due if delay is None else self.now + delay
        job.lapses = job.lapses if lapses is None else lapses

    def park(self, job: Job) -> None:
        """A child gives its lease back and waits for its parents; one that is to be cancelled does not wait."""
        self.put_back(job, None, 1)
        job.state = "live" if job.cancel_requested else "parked"

    def end(self, job: Job, outcome: Outcome, kept: bool = True) -> None:
        job.state, job.expires, job.kept = outcome, None, kept
        if outcome == "dead" and job.key is not None and self.settings_of(job.queue).on_dead == "stop":
            self.stopped.setdefault((job.queue, job.key), job.id)
        self.let_children_go()

    def let_children_go(self) -> None:
        for job in self.jobs.values():
            if job.state == "parked" and (self.may_run(job) or self.is_doomed(job)):
                job.state, job.due = "live", self.now

    def replay(self, job: Job) -> None:
        """A dead or cancelled job starts over, at its old place; a line that stopped for it goes on."""
        job.state, job.fence, job.attempts, job.lapses, job.due = "live", job.fence + 1, 0, 0, self.now
        job.cancel_requested, job.replayed = False, True
        if job.key is not None and self.stopped.get((job.queue, job.key)) == job.id:
            del self.stopped[job.queue, job.key]

    def reap(self) -> dict[str, str]:
        """Take back every lease that ran out; return what becomes of each job."""
        expired = [job for job in self.jobs.values() if job.expires is not None and job.expires < self.now]
        verdicts = {job.id: self._verdict(job) for job in expired}
        for job in expired:
            job.fence += 1
            match verdicts[job.id]:
                case "cancelled":
                    self.end(job, "cancelled")
                case "dead":
                    self.end(job, "dead")
                case "released":
                    self.put_back(job, None, 1)
                case _:
                    recorded = must_record(job.lapses, job.max_attempts)
                    self.put_back(job, BACKOFF, 0 if recorded else 1, job.lapses + 1)
        return verdicts

    def _verdict(self, job: Job) -> str:
        recorded = must_record(job.lapses, job.max_attempts)
        behind = job.in_stint and self.leased(job.queue, job.key)[0] is not job
        if job.cancel_requested:
            return "cancelled"
        if not job.began and (behind or recorded):
            return "released"
        return "dead" if recorded and job.attempts >= job.max_attempts else "retry"

    def counts(self) -> Iterator[tuple[str, str | None, int]]:
        """Say what limits and lines count: queue, key or None for the queue itself, and how many are leased."""
        for queue, settings in self.settings.items():
            if settings.is_limited:
                yield queue, None, len(self.leased(queue))
            if settings.is_lined:
                for key in {job.key for job in self.leased(queue) if job.key is not None}:
                    yield queue, key, len(self.leased(queue, key))
