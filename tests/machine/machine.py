"""Draw operations on jobs at random, and hold every answer and every row against the model."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from holdfast import admin, jobs, lines
from holdfast.errors import LeaseLost
from holdfast.values.rows import Finish
from tests.machine.acts import KEYS, KINDS, WORKERS, Act, Claim, Enqueue, acts, any_one, keys, mostly, workers
from tests.machine.ground import LEASES, MARK, Ground
from tests.machine.model import BACKOFF

# Rounds in which everything must have ended, once nobody stands in the way, and more for each job, for rates.
DRAIN_ROUNDS, ROUNDS_PER_JOB = 300, 4

LINE_RULES = (
    {"ordered": True, "on_retry": "hold", "fair": False},
    {"ordered": True, "on_retry": "pass", "fair": False},
    {"ordered": False, "on_retry": "hold", "fair": True},
)


class Machine(Ground):
    """Everything that can happen to jobs of a few queues."""

    # What happens most. There are three of it, because each run leaves out some rules.

    @rule(acts=acts)
    def work(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Enqueue):
                self._enqueue(act)
            elif isinstance(act, Claim):
                self._claim(act)
            else:
                self._end_one(act)
            self.rows_are_as_the_model_has_them()
            self.lines_and_limits_count_what_is_leased()

    @rule(acts=acts)
    def go_on_working(self, acts: list[Act]) -> None:
        self.work(acts)

    @rule(acts=acts)
    def work_after_a_while(self, acts: list[Act]) -> None:
        self._pass(timedelta(seconds=3))
        self.work(acts)

    # Adding

    @precondition(lambda self: self.model.jobs)
    @rule(
        queue=any_one,
        key=keys,
        parents=st.lists(any_one, min_size=1, max_size=3),
        on_dead=st.sampled_from(["run", "cancel"]),
    )
    def enqueue_after(self, queue: int, key: str | None, parents: list[int], on_dead: Any) -> None:
        self._pass()
        known = list(self.model.jobs)
        after = list(dict.fromkeys(known[pick % len(known)] for pick in parents))
        new, job = self._new(self._queue(queue), key, headers=MARK, after=tuple(after), after_dead=on_dead)
        self.do(jobs.enqueue(new))
        job.parents, job.on_dead = after, on_dead
        self._add(job)

    @rule(
        queue=any_one,
        keys=st.lists(keys, max_size=4),
        back=any_one,
        sealed=st.booleans(),
        on_dead=st.sampled_from(["run", "cancel"]),
    )
    def add_batch(self, queue: int, keys: list[str | None], back: int, sealed: bool, on_dead: Any) -> None:
        self._pass()
        made = [self._new(self._queue(queue), key) for key in keys]
        then, callback = self._new(self._queue(back), KEYS[back % 3], headers=MARK)
        self.do(jobs.add_batch(then, [new for new, _ in made], sealed=sealed, on_dead=on_dead, fresh=True))
        members = [job for _, job in made]
        callback.parents, callback.on_dead, callback.sealed = [job.id for job in members], on_dead, sealed
        self._add(*members, callback)
        if not sealed:
            self.open_batches.append(callback.id)

    @precondition(lambda self: self.open_batches)
    @rule(pick=any_one, queue=any_one, keys=st.lists(keys, min_size=1, max_size=2))
    def grow_batch(self, pick: int, queue: int, keys: list[str | None]) -> None:
        batch = self.model.jobs[self.open_batches[pick % len(self.open_batches)]]
        if batch.is_over:
            return
        self._pass()
        made = [self._new(self._queue(queue), key) for key in keys]
        self.do(jobs.grow_batch(batch.id, [new for new, _ in made], fresh=True))
        self._add(*(job for _, job in made))
        batch.parents += [job.id for _, job in made]

    @precondition(lambda self: self.open_batches)
    @rule(pick=any_one)
    def seal_batch(self, pick: int) -> None:
        self._seal(self.open_batches.pop(pick % len(self.open_batches)))

    # Ends

    @rule(worker=workers, pick=any_one)
    def begin(self, worker: str, pick: int) -> None:
        """Call a handler. The end of the job before it in its stint may be known to the worker, and not written yet."""
        if held := self.held[worker]:
            self._pass()
            self._begin(held[pick % len(held)])

    @precondition(lambda self: self.settled)
    @rule()
    def repeat_the_last_settle(self) -> None:
        """The reply to its COMMIT was lost: it is sent again, and nothing is written a second time."""
        ends, self.settled = self.settled, []
        if all(self._is_as_settled(end) for end in ends):
            self._pass()
            assert self.do(jobs.settle(ends)).done == {str(end.id) for end in ends}

    @precondition(lambda self: self.lost)
    @rule(pick=any_one)
    def write_with_a_lost_lease(self, pick: int) -> None:
        lease = self.lost[pick % len(self.lost)]
        job = self.model.jobs[lease.job_id]
        if job.fence > lease.fence + 1:
            self._pass()
            assert self.do(jobs.settle([Finish(lease.id, lease.fence, "done")])).lost == {job.id}
            with pytest.raises(LeaseLost):
                self.do(jobs.complete(lease))
            with pytest.raises(LeaseLost):
                self.do(jobs.release(lease))

    # Deaths and time

    @rule(worker=workers)
    def crash(self, worker: str) -> None:
        """A worker dies: nobody writes how its jobs ended."""
        self.lost += self.held[worker]
        self.held[worker] = []

    @rule(seconds=st.sampled_from([1, 6, 11, 31]))
    def let_time_pass(self, seconds: int) -> None:
        self._pass(timedelta(seconds=seconds))

    @rule()
    def reap(self) -> None:
        self._pass()
        reaped = self.do(jobs.reap(backoff=lambda _, __: BACKOFF.total_seconds()))
        assert {one.id: one.outcome for one in reaped} == self.model.reap()

    @rule(worker=workers)
    def renew(self, worker: str) -> None:
        self._pass()
        held = self.held[worker]
        kept = {lease.job_id for lease in held if self.model.jobs[lease.job_id].fence == lease.fence}
        assert self.do(jobs.renew([(lease, lease.lease_ms) for lease in held])).kept == kept
        for job_id in kept:
            self.model.jobs[job_id].expires = self.model.now + timedelta(milliseconds=LEASES["noop"])

    # By hand

    @rule(scope=st.sampled_from(["queue", "kind"]), pick=any_one, resume=mostly)
    def pause_or_resume(self, scope: Any, pick: int, resume: bool) -> None:
        self._pass()
        name = self._queue(pick) if scope == "queue" else KINDS[pick % 2]
        self.do(admin.resume(scope, name, None) if resume else admin.pause(scope, name, None))
        self._learn()

    @precondition(lambda self: self.model.live())
    @rule(pick=any_one)
    def cancel(self, pick: int) -> None:
        self._pass()
        live = self.model.live()
        self._cancel(live[pick % len(live)])

    @rule(pick=any_one, number=st.sampled_from([1, 2, 4]))
    def change_a_limit(self, pick: int, number: int) -> None:
        queue = self._queue(pick)
        settings = self.model.settings_of(queue)
        name = next((name for name in ("concurrency", "key_concurrency") if getattr(settings, name)), None)
        if name is not None:
            self._pass()
            _, now = self.do(lines.change(queue, {name: number}))
            self.model.settings[queue] = now
            self._learn()

    @rule(pick=any_one)
    def replay(self, pick: int) -> None:
        """A dead or cancelled job comes back; those that wait for others are left out, and have tests of their own."""
        over = [job for job in self.model.jobs.values() if job.state in ("dead", "cancelled")]
        ended = [job for job in over if not job.parents and job.sealed]
        if ended:
            self._pass()
            job = ended[pick % len(ended)]
            chosen = admin.Filter(ids=(job.id,), states=("dead", "cancelled"))
            assert self.do(admin.replay(chosen, 1, None)).ids == [job.id]
            self.model.replay(job)

    @rule(pick=any_one, rules=st.sampled_from(LINE_RULES))
    def change_the_rules_of_lines(self, pick: int, rules: dict[str, Any]) -> None:
        """An ordered queue becomes one in which keys take turns, or failed jobs are passed, and back."""
        queue = self._queue(pick)
        if queue in ("ordered", "passing"):
            self._pass()
            _, self.model.settings[queue] = self.do(lines.change(queue, rules))
            self._learn()

    @rule(queue=any_one, key=st.sampled_from(["a", "b"]), start=mostly)
    def stop_or_start_a_line(self, queue: int, key: str, start: bool) -> None:
        name = self._queue(queue)
        if self.model.settings_of(name).is_lined:
            self._pass()
            was_stopped = (name, key) in self.model.stopped
            changed = self.do(lines.start(name, [key]) if start else lines.stop(name, [key]))
            assert changed == ([key] if was_stopped == start else [])
            if start:
                self.model.stopped.pop((name, key), None)
            else:
                self.model.stopped.setdefault((name, key))

    @rule()
    def look_after_lines(self) -> None:
        """Nothing ever counts wrong, and a look at all lines disturbs none."""
        self._pass()
        for queue in self.model.settings:
            assert self.do(lines.recount(queue)) == []
            self.do(lines.tidy(queue))

    # What holds after each step

    @invariant()
    def rows_are_as_the_model_has_them(self) -> None:
        live = {row.id: row for row in self.look.live()}
        assert live.keys() == {job.id for job in self.model.live()}
        for job in self.model.live():
            row = live[job.id]
            assert (row.state == "leased") == (job.state == "leased"), job
            assert (row.fence, row.attempts, row.lapses) == (job.fence, job.attempts, job.lapses), job
            assert (row.waits_for == "parents" and row.state == "waiting") == (job.state == "parked"), job
        over = {row.id: row.outcome for row in self.look.over()}
        assert over == {job.id: job.state for job in self.model.jobs.values() if job.is_over and job.kept}

    @invariant()
    def lines_and_limits_count_what_is_leased(self) -> None:
        held = {(str(queue), str(key)): int(count) for queue, key, count in self.look.rows(_LINES)}
        named = {str(queue): int(count) for queue, count in self.look.rows(_LIMITS)}
        counted = {(queue, key): count for (queue, key), count in held.items() if count}
        expected = {(queue, key): count for queue, key, count in self.model.counts() if key is not None}
        assert counted == expected
        for queue, key, count in self.model.counts():
            if key is None:
                assert named[queue] == count, queue
        waiting = {(row.queue, row.key) for row in self.look.live() if row.waits_for == "line"}
        assert waiting <= held.keys()

    def teardown(self) -> None:
        """Let everybody go on: every job ends, and nothing is left that counts."""
        if not self.sources:
            return
        for queue in self.queues:
            self.do(admin.resume("queue", queue, None))
        for kind in KINDS:
            self.do(admin.resume("kind", kind, None))
        self._learn()
        for batch in self.open_batches:
            self._seal(batch)
        for worker in WORKERS:
            self.crash(worker)
        self._start_lines()
        self._drain()
        assert not self.model.live()
        self.rows_are_as_the_model_has_them()
        assert all(int(count) == 0 for _, count in self.look.rows(_LIMITS))
        for queue in self.model.settings:
            self.do(lines.tidy(queue))
        # What a key has used of its rate is remembered.
        assert not self.look.rows(_LINES) or "metered" in self.queues

    def _drain(self) -> None:
        for _ in range(DRAIN_ROUNDS + ROUNDS_PER_JOB * len(self.model.jobs)):
            if not self.model.live():
                return
            self._start_lines()
            taken = sum(self._claim(Claim("ada", place, 5)) for place in range(len(self.queues)))
            for lease in list(self.held["ada"]):
                self._begin(lease)
                self._let_go("ada", [lease])
                self._settle([(lease, Finish(lease.id, lease.fence, "done"))])
            if not taken:
                self._pass(timedelta(seconds=11))
                self.reap()

    def _start_lines(self) -> None:
        for queue, key in sorted(self.model.stopped):
            self.stop_or_start_a_line(self.queues.index(queue), key, True)


_LINES = "select queue, key, held from holdfast_lines"
_LIMITS = "select name, held from holdfast_queues"
