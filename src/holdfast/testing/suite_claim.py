"""Claiming and renewing: who gets which job, for how long."""

from __future__ import annotations

from datetime import timedelta

from holdfast import jobs
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Finish, Held, when


def test_a_claimed_job_is_given_with_everything_it_was_enqueued_with(do: Do, clock: Clock) -> None:
    job = new_job(
        "mail", "send", payload='{"to":"ada"}', headers='{"a":"b"}', key="order:1", priority=5, max_attempts=3
    )
    do(jobs.enqueue(job))
    [lease] = do(jobs.claim("mail", limit=1))
    assert (lease.job_id, lease.queue, lease.kind, lease.key) == (job.id, "mail", "send", "order:1")
    assert (lease.payload, lease.headers, lease.priority) == (job.payload, job.headers, 5)
    assert (lease.attempt, lease.max_attempts, lease.fence) == (1, 3, 1)
    assert when(lease.available_at) == when(lease.created_at) == clock.now


def test_a_claim_counts_the_attempt_before_the_job_runs(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    assert lease.attempt == 1
    assert look.live()[0].attempts == 1


def test_a_claim_says_who_holds_the_job_and_until_when(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1, worker="w1", lease_ms=45_000))
    [row] = look.live()
    assert (row.state, row.leased_by, row.leased_at) == ("leased", "w1", clock.now)
    assert row.lease_expires_at == clock.now + timedelta(seconds=45)
    assert lease.lease_ms == 45_000


def test_an_empty_queue_gives_nothing(do: Do, clock: Clock) -> None:
    assert do(jobs.claim("mail", limit=10)) == []


def test_a_claimed_job_is_not_given_twice(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(3)]))
    first = do(jobs.claim("mail", limit=2))
    second = do(jobs.claim("mail", limit=2))
    assert (len(first), len(second)) == (2, 1)
    assert len({lease.id for lease in first + second}) == 3
    assert do(jobs.claim("mail", limit=2)) == []


def test_a_claim_takes_no_more_than_its_limit(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(20)]))
    assert len(do(jobs.claim("mail", limit=7))) == 7
    assert [row.state for row in look.live()].count("leased") == 7


def test_the_limit_is_for_all_queues_together(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job(queue) for queue in ("a", "b", "c") for _ in range(5)]))
    assert len(do(jobs.claim(["a", "b", "c"], limit=7))) == 7
    assert [row.state for row in look.live()].count("leased") == 7


def test_a_thousand_jobs_are_claimed_and_settled_as_one_batch(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job() for _ in range(1_000)]
    do(jobs.enqueue_many(new))
    leases = do(jobs.claim("mail", limit=1_000))
    assert [lease.job_id for lease in leases] == [job.id for job in new]
    settled = do(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
    assert settled == jobs.Settled({job.id for job in new}, set())
    assert look.live() == []
    assert len(look.over()) == 1_000


def test_higher_priority_goes_first(do: Do, clock: Clock) -> None:
    for priority in (0, 100, -100, 5):
        do(jobs.enqueue(new_job(priority=priority)))
    assert [lease.priority for lease in do(jobs.claim("mail", limit=9))] == [100, 5, 0, -100]


def test_within_a_priority_the_longest_due_goes_first(do: Do, clock: Clock) -> None:
    delays = [30_000, 10_000, 20_000]
    by_delay = {delay: new_job(delay_ms=delay) for delay in delays}
    do(jobs.enqueue_many(list(by_delay.values())))
    clock.advance(60)
    order = [lease.job_id for lease in do(jobs.claim("mail", limit=9))]
    assert order == [by_delay[delay].id for delay in sorted(delays)]


def test_jobs_due_at_the_same_time_go_in_the_order_they_were_made(do: Do, clock: Clock) -> None:
    new = [new_job() for _ in range(30)]
    do(jobs.enqueue_many(new))
    order = [lease.job_id for _ in range(6) for lease in do(jobs.claim("mail", limit=5))]
    assert order == [job.id for job in new]


def test_urgent_jobs_pass_a_full_batch_of_others_in_each_claim(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(50)]))
    urgent = new_job(priority=1)
    do(jobs.enqueue(urgent))
    assert [lease.job_id for lease in do(jobs.claim("mail", limit=1))] == [urgent.id]


def test_every_priority_is_served_and_jobs_for_later_block_none(do: Do, clock: Clock) -> None:
    levels = [-100, -1, 0, 1, 99, 100]
    do(jobs.enqueue_many([new_job(priority=level, delay_ms=delay) for level in levels for delay in (0, 60_000)]))
    do(jobs.enqueue_many([new_job(priority=50, delay_ms=60_000) for _ in range(20)]))
    taken = [lease.priority for _ in range(4) for lease in do(jobs.claim("mail", limit=2))]
    assert taken == sorted(levels, reverse=True)
    assert do(jobs.claim("mail", limit=9)) == []


def test_a_claim_takes_the_rest_of_its_batch_from_lower_priorities(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(priority=n % 3) for n in range(9)]))
    assert [lease.priority for lease in do(jobs.claim("mail", limit=7))] == [2, 2, 2, 1, 1, 1, 0]


def test_a_queue_named_twice_gives_each_job_once(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(3)]))
    assert len(do(jobs.claim(["mail", "mail"], limit=9))) == 3


def test_order_spans_the_queues_of_one_claim(do: Do, clock: Clock) -> None:
    low, high = new_job("a", priority=1), new_job("b", priority=2)
    do(jobs.enqueue_many([low, high]))
    assert [lease.job_id for lease in do(jobs.claim(["a", "b"], limit=1))] == [high.id]
    assert [lease.job_id for lease in do(jobs.claim(["a", "b"], limit=1))] == [low.id]


def test_a_claim_leaves_other_queues_alone(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job("mail"), new_job("bulk")]))
    assert [lease.queue for lease in do(jobs.claim("bulk", limit=9))] == ["bulk"]
    assert do(jobs.claim(["nothing", "here"], limit=9)) == []
    assert do(jobs.claim([], limit=9)) == []


def test_a_claim_leaves_kinds_alone_that_the_worker_does_not_know(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(kind="unknown", priority=9), new_job(kind="send")]))
    assert [lease.kind for lease in do(jobs.claim("mail", limit=9, leases={"send": 1_000}))] == ["send"]
    assert do(jobs.claim("mail", limit=9, leases={})) == []
    assert [lease.kind for lease in do(jobs.claim("mail", limit=9))] == ["unknown"]


def test_each_kind_has_its_own_lease(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job(kind="quick"), new_job(kind="slow")]))
    leases = do(jobs.claim("mail", limit=9, leases={"quick": 5_000, "slow": 600_000}, lease_ms=1))
    assert {lease.kind: lease.lease_ms for lease in leases} == {"quick": 5_000, "slow": 600_000}
    ends = {row.kind: row.lease_expires_at for row in look.live()}
    assert ends == {"quick": clock.now + timedelta(seconds=5), "slow": clock.now + timedelta(minutes=10)}


def test_a_lease_of_the_jobs_own_wins(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job(kind="quick", lease_ms=90_000)))
    [lease] = do(jobs.claim("mail", limit=9, leases={"quick": 5_000}))
    assert lease.lease_ms == 90_000
    assert look.live()[0].lease_expires_at == clock.now + timedelta(seconds=90)


def test_each_claim_raises_the_fence_and_counts_the_attempt(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job(max_attempts=9)))
    fences: list[int] = []
    attempts: list[int] = []
    for _ in range(4):
        [lease] = do(jobs.claim("mail", limit=1))
        fences.append(lease.fence)
        attempts.append(lease.attempt)
        do(jobs.retry(lease, 0, failure()))
    assert fences == sorted(set(fences))
    assert attempts == [1, 2, 3, 4]


def test_a_renewed_lease_lasts_from_now(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1, lease_ms=30_000))
    clock.advance(20)
    assert do(jobs.renew([(lease, 30_000)])) == jobs.Renewed({lease.job_id}, set())
    assert look.live()[0].lease_expires_at == clock.now + timedelta(seconds=30)
    clock.advance(20)
    assert do(jobs.reap()) == []
    clock.advance(11)
    assert len(do(jobs.reap())) == 1


def test_renewing_keeps_the_fence_and_the_attempt(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.renew([(lease, 30_000)]))
    [row] = look.live()
    assert (row.fence, row.attempts, row.state) == (lease.fence, 1, "leased")


def test_a_batch_of_leases_is_renewed_each_by_its_own_time(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(3)]))
    leases = do(jobs.claim("mail", limit=3))
    do(jobs.renew([(lease, (n + 1) * 1_000) for n, lease in enumerate(leases)]))
    ends = {row.id: row.lease_expires_at for row in look.live()}
    assert [ends[lease.job_id] for lease in leases] == [clock.now + timedelta(seconds=n) for n in (1, 2, 3)]


def test_renewing_nothing_is_no_error(do: Do, clock: Clock) -> None:
    assert do(jobs.renew([])) == jobs.Renewed(set(), set())


def test_a_lost_lease_is_left_out_of_the_renewed(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(), new_job()]))
    lost, kept = do(jobs.claim("mail", limit=2))
    do(jobs.retry(lost, 0, failure()))
    assert do(jobs.renew([(lost, 1_000), (kept, 1_000)])).kept == {kept.job_id}


def test_renewing_needs_the_right_fence(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    for fence in (lease.fence - 1, lease.fence + 1):
        assert do(jobs.renew([(Held(lease.id, fence), 1_000)])).kept == set()


def test_an_expired_lease_that_nobody_reaped_can_still_be_renewed(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))
    clock.pass_lease(lease)
    assert do(jobs.renew([(lease, 30_000)])).kept == {lease.job_id}
    assert do(jobs.reap()) == []


def test_a_dead_letter_blocks_nothing(do: Do, clock: Clock, look: Look) -> None:
    poison, next_in_line = new_job(key="order:1", bucket=1), new_job(key="order:1", bucket=1)
    do(jobs.enqueue_many([poison, next_in_line]))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.kill(lease, failure(), "group"))
    [after] = do(jobs.claim("mail", limit=1))
    assert after.job_id == next_in_line.id
    do(jobs.complete(after))
    assert [(row.id, row.outcome) for row in look.over()] == [(poison.id, "dead"), (next_in_line.id, "done")]


def test_a_claim_leaves_jobs_of_other_buckets_until_they_are_overdue(do: Do, clock: Clock) -> None:
    ours, theirs, anyones = new_job(key="a", bucket=3), new_job(key="b", bucket=4), new_job()
    do(jobs.enqueue_many([theirs, ours, anyones]))
    first = do(jobs.claim("mail", limit=10, buckets=[3, 5], overdue_ms=10_000))
    assert {lease.job_id for lease in first} == {ours.id, anyones.id}
    clock.advance(9)
    assert do(jobs.claim("mail", limit=10, buckets=[3, 5], overdue_ms=10_000)) == []
    clock.advance(1)
    [overdue] = do(jobs.claim("mail", limit=10, buckets=[3, 5], overdue_ms=10_000))
    assert overdue.job_id == theirs.id


def test_a_claim_for_no_bucket_takes_jobs_without_one_and_overdue_ones(do: Do, clock: Clock) -> None:
    theirs, anyones = new_job(key="b", bucket=4), new_job()
    do(jobs.enqueue_many([theirs, anyones]))
    assert [lease.job_id for lease in do(jobs.claim("mail", limit=10, buckets=[]))] == [anyones.id]
    clock.advance(10)
    assert [lease.job_id for lease in do(jobs.claim("mail", limit=10, buckets=[]))] == [theirs.id]
