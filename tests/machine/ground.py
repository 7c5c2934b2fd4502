"""What the state machine stands on: each operation as the flow that runs it and the model that judges its answer.

A worker that dies forgets its leases; they run out when the clock has passed them, and a reaper takes them back. Jobs
of one key that were claimed together end one after the other, as in `worker/stints.py`.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from holdfast import admin, jobs, lines
from holdfast.errors import LeaseLost
from holdfast.jobs.source import JobsSource
from holdfast.life.expiry import must_record
from holdfast.lines import StintLease
from holdfast.store import Store
from holdfast.testing import Clock, Look, empty, failure, new_job
from holdfast.values.ids import next_id
from holdfast.values.pauses import Paused
from holdfast.values.queues import QueueSettings, Rate
from holdfast.values.rows import AFTER_HEADER, Continued, End, Finish, Lease, NewJob, PutBack
from tests.machine.acts import KEYS, KINDS, WORKERS, Claim, Enqueue, Settle
from tests.machine.model import Job, Model, Wishes

SETTINGS = {
    "ordered": QueueSettings(ordered=True),
    "passing": QueueSettings(ordered=True, on_retry="pass"),
    "stopping": QueueSettings(ordered=True, on_dead="stop", concurrency=3),
    "limited": QueueSettings(concurrency=2),
    "fair": QueueSettings(fair=True, key_concurrency=2),
    "rated": QueueSettings(rate=Rate(2, per=10)),
    "metered": QueueSettings(key_rate=Rate(1, per=5)),
}
QUEUES = ("plain", *SETTINGS)
LEASES = dict.fromkeys(KINDS, 30_000)
MARK = f'{{"{AFTER_HEADER}":"1"}}'
# Time goes on with every operation, so that no two enqueues have the same moment.
STEP = timedelta(milliseconds=3)


class Ground(RuleBasedStateMachine):
    """Jobs of a few queues, two workers, and a clock that stands still."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.do = store.run
        self.do(empty(store))
        self.clock = Clock(store)
        self.look = Look(store.run, store)
        self.model = Model({}, self.clock.now)
        self.queues: Sequence[str] = ()
        # By worker, its leases in the order in which it got them; and leases that nobody holds any more.
        self.held: dict[str, list[Lease]] = {worker: [] for worker in WORKERS}
        self.lost: list[Lease] = []
        self.sources: dict[str, JobsSource] = {}
        self.settled: list[End] = []
        self.open_batches: list[str] = []
        self.places = 0

    @initialize(queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True))
    def begin_with(self, queues: list[str]) -> None:
        self.queues = queues
        self.model.settings = {queue: SETTINGS[queue] for queue in queues if queue in SETTINGS}
        self.do(lines.declare(self.model.settings))
        for worker in WORKERS:
            self.sources[worker] = JobsSource(queues, dict.fromkeys(KINDS))
        self._learn()

    def _learn(self) -> None:
        """Have the workers read what is stored of queues and pauses, as they do about once a second."""
        settings = {name: one.settings for name, one in self.do(lines.stored()).items()}
        paused = Paused.of(self.do(jobs.pauses()))
        for source in self.sources.values():
            source.learn_settings(settings)
            source.pause(paused)

    def _pass(self, by: timedelta = STEP) -> None:
        self.model.now = self.clock.advance(by)

    def _queue(self, pick: int) -> str:
        return self.queues[pick % len(self.queues)]

    def _queue_with_work(self, pick: int) -> str:
        """Choose a queue in which something is due, if there is one."""
        found = {job.queue for job in self.model.live() if job.state == "live" and job.due <= self.model.now}
        queues = [queue for queue in self.queues if queue in found] or self.queues
        return queues[pick % len(queues)]

    def _new(self, queue: str, key: str | None, **said: Any) -> tuple[NewJob, Job]:
        """Make a job for both sides."""
        delay = said.get("delay_ms", 0)
        new = new_job(queue, said.pop("kind", "noop"), key=key, **said)
        job = Job(new.id, queue, new.kind, key, self.places, self.model.now + timedelta(milliseconds=delay))
        job.max_attempts, job.priority = new.max_attempts, new.priority
        self.places += 1
        return new, job

    def _add(self, *added: Job) -> None:
        self.model.jobs |= {job.id: job for job in added}

    def _seal(self, batch: str) -> None:
        self._pass()
        if not self.model.jobs[batch].is_over:
            assert self.do(jobs.seal_batch(batch)) is True
            assert self.do(jobs.seal_batch(batch)) is False
            self.model.jobs[batch].sealed = True
            self.model.let_children_go()

    def _enqueue(self, act: Enqueue) -> None:
        self._pass()
        said = {
            "kind": act.kind,
            "delay_ms": act.delay,
            "max_attempts": act.attempts,
            "priority": act.priority,
        }
        made = [self._new(self._queue(act.queue), key, **said) for key in act.keys]
        self.do(jobs.enqueue_many([new for new, _ in made]))
        self._add(*(job for _, job in made))

    def _claim(self, act: Claim) -> int:
        """Claim and hold what may run; return how many jobs were claimed."""
        self._pass()
        name, source = self._queue_with_work(act.queue), self.sources[act.worker]
        wishes = Wishes(act.limit, act.suspects, set(KINDS) - source.paused.kinds)
        turn = name if name in self.model.settings else None
        claiming = source.claim(LEASES, act.limit, act.worker, suspects=act.suspects, turn=turn)
        if claiming is None:
            return 0
        claimed = self.do(claiming)
        found = len(claimed)
        self.model.claimed(name, claimed, wishes)
        if claimed and act.cancelled is not None and act.cancelled % 4 == 0:
            self._cancel(self.model.jobs[claimed[act.cancelled % len(claimed)].job_id])
        ready = source.ready(claimed)
        if ready is not None:
            running = self.do(ready)
            self._met(claimed, running)
            claimed = running
        self._take(act.worker, claimed)
        return found

    def _met(self, claimed: Sequence[Lease], running: Sequence[Lease]) -> None:
        """Check which jobs may run, and let the others wait for what they run after."""
        left = {lease.job_id: lease for lease in running}
        for lease in claimed:
            job = self.model.jobs[lease.job_id]
            if self.model.has_replayed_parents(job):
                if job.id not in left:
                    self.model.park(job)
            elif self.model.is_doomed(job):
                assert left[job.id].cancel_requested, f"{job.id} runs, and is to be cancelled"
            elif self.model.may_run(job) or lease.cancel_requested:
                assert job.id in left, f"{job.id} waits, and all that it runs after is over"
            else:
                assert job.id not in left, f"{job.id} runs, and something that it runs after is not over"
                self.model.park(job)

    def _take(self, worker: str, claimed: Sequence[Lease]) -> None:
        """Hold what was claimed; what is cancelled already ends at once, as a worker has it."""
        stopped = [lease for lease in claimed if lease.cancel_requested]
        self.held[worker] += [lease for lease in claimed if not lease.cancel_requested]
        for lease in stopped:
            self._settle([(lease, Finish(lease.id, lease.fence, "cancelled"))])

    def _heads(self, worker: str) -> list[Lease]:
        """List the leases whose handler may run: of a stint, the first."""
        heads: dict[object, Lease] = {}
        for lease in self.held[worker]:
            line = (lease.queue, lease.key) if isinstance(lease, StintLease) else lease.id
            heads.setdefault(line, lease)
        return list(heads.values())

    def _behind(self, worker: str, head: Lease) -> list[Lease]:
        if not isinstance(head, StintLease):
            return []
        line = (head.queue, head.key)
        return [one for one in self.held[worker] if one is not head and (one.queue, one.key) == line]

    def _begin(self, lease: Lease) -> bool:
        """Record that a handler is called, where that must be; False where the lease is lost."""
        job = self.model.jobs[lease.job_id]
        if not must_record(job.lapses, job.max_attempts):
            return True
        if job.fence != lease.fence:
            with pytest.raises(LeaseLost):
                self.do(jobs.begin(lease))
            return False
        self.do(jobs.begin(lease))
        job.began = True
        return True

    def _end_one(self, act: Settle) -> None:
        """Settle a job whose handler may run; what was behind it in its stint goes back, if it did not end well."""
        # The other one, where this one has nothing to do.
        worker = next((one for one in (act.worker, *WORKERS) if self.held[one]), None)
        if worker is None:
            return
        self._pass()
        heads = self._heads(worker)
        lease = heads[act.pick % len(heads)]
        rest = self._behind(worker, lease)
        if not self._begin(lease):
            self._let_go(worker, [lease, *rest])
            return
        end = self._end(lease, act)
        if isinstance(end, Continued) or (isinstance(end, Finish) and end.outcome == "done"):
            rest = []
        ends: list[tuple[Lease, End]] = [(lease, end), *((one, PutBack(one.id, one.fence, None, 1)) for one in rest)]
        self._let_go(worker, [lease, *rest])
        for batch in [ends] if act.together else [[one] for one in ends]:
            self._settle(batch)

    def _end(self, lease: Lease, act: Settle) -> End:
        how = "dead" if act.how == "retry" and lease.attempt >= lease.max_attempts else act.how
        match how:
            case "done":
                return Finish(lease.id, lease.fence, "done", keep=act.keep)
            case "dead":
                return Finish(lease.id, lease.fence, "dead", None, failure(), "group")
            case "cancelled":
                return Finish(lease.id, lease.fence, "cancelled")
            case "retry":
                return PutBack(lease.id, lease.fence, act.delay, 0, failure(), 0)
            case "snooze":
                return PutBack(lease.id, lease.fence, act.delay, 1)
            case "release":
                return PutBack(lease.id, lease.fence, None, 1)
            case "continue":
                following = new_job(self._queue(act.queue), id=next_id(lease.job_id), key=KEYS[act.queue % 3])
                return Continued(lease.id, lease.fence, following, act.keep)

    def _let_go(self, worker: str, leases: Sequence[Lease]) -> None:
        gone = {lease.id for lease in leases}
        self.held[worker] = [lease for lease in self.held[worker] if lease.id not in gone]
        self.lost += leases

    def _settle(self, ends: Sequence[tuple[Lease, End]]) -> None:
        """Write how leases ended, and check who was told that a lease is lost."""
        # As a worker does: it knows what it has claimed from lines and limits.
        lined = [lease for lease, _ in ends if isinstance(lease, lines.LinedLease)]
        settled = self.do(jobs.settle([end for _, end in ends], lined))
        holds = {lease.job_id for lease, _ in ends if self.model.jobs[lease.job_id].fence == lease.fence}
        assert (settled.done, settled.lost) == (holds, {lease.job_id for lease, _ in ends} - holds)
        self.settled = [end for lease, end in ends if lease.job_id in holds]
        for end in sorted(self.settled, key=lambda one: isinstance(one, PutBack)):
            self._ended(end)

    def _ended(self, end: End) -> None:
        job = self.model.jobs[str(end.id)]
        if isinstance(end, Continued):
            new = end.then
            following = Job(new.id, new.queue, new.kind, new.key, self.places, self.model.now)
            self.places += 1
            self._add(following)
            job.next = new.id
            self.model.end(job, "done", end.keep)
        elif isinstance(end, Finish):
            self.model.end(job, end.outcome, end.keep)
        elif isinstance(end, PutBack):
            delay = None if end.delay_ms is None else timedelta(milliseconds=end.delay_ms)
            self.model.put_back(job, delay, end.attempts_back, end.lapses)

    def _is_as_settled(self, end: End) -> bool:
        job = self.model.jobs[str(end.id)]
        if isinstance(end, PutBack):
            return not job.is_over and job.fence == end.fence + 1
        return job.fence == end.fence

    def _cancel(self, job: Job) -> None:
        was_leased = job.state == "leased"
        assert self.do(admin.cancel(job.id, "ada")) == ("requested" if was_leased else "cancelled")
        if was_leased:
            job.cancel_requested = True
        else:
            self.model.end(job, "cancelled")
