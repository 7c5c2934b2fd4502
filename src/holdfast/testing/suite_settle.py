"""Settling: how a lease ends, and that only its holder can end it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from holdfast import jobs
from holdfast.errors import LeaseLost
from holdfast.flow import Flow
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Finish, Held, Lease, PutBack

Write = Callable[[Lease], Flow[Any]]

WRITES: dict[str, Write] = {
    "complete": lambda lease: jobs.complete(lease, '"late"'),
    "complete-and-drop": lambda lease: jobs.complete(lease, keep=False),
    "kill": lambda lease: jobs.kill(lease, failure(), "group"),
    "cancel": jobs.cancel,
    "retry": lambda lease: jobs.retry(lease, 0, failure()),
    "snooze": lambda lease: jobs.snooze(lease, 0),
    "release": jobs.release,
    "progress": lambda lease: jobs.progress(lease, "50"),
    "begin": jobs.begin,
}

SETTLES: dict[str, Write] = {
    "done": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done", '"late"')]),
    "dropped": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done", keep=False)]),
    "dead": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "dead", None, failure(), "group")]),
    "cancelled": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "cancelled")]),
    "retry": lambda lease: jobs.settle([PutBack(lease.id, lease.fence, 0, 0, failure())]),
    "release": lambda lease: jobs.settle([PutBack(lease.id, lease.fence, None, 1)]),
}

every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
every_settle = pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)


def claimed(do: Do, **fields: Any) -> Lease:
    """Enqueue a job and claim it."""
    do(jobs.enqueue(new_job(**fields)))
    [lease] = do(jobs.claim("mail", limit=1))
    return lease


def reaped(do: Do, clock: Clock, **fields: Any) -> Lease:
    """Return a lease that ran out and was taken back."""
    lease = claimed(do, **fields)
    do(jobs.begin(lease))
    clock.pass_lease(lease)
    assert len(do(jobs.reap(backoff=lambda kind, attempt: 0))) == 1
    return lease


@every_write
def test_a_reaped_lease_cannot_write(do: Do, clock: Clock, look: Look, write: Write) -> None:
    stale = reaped(do, clock)
    before = (look.live(), look.over())
    with pytest.raises(LeaseLost) as lost:
        do(write(stale))
    assert (lost.value.job_id, lost.value.fence) == (stale.job_id, stale.fence)
    assert (look.live(), look.over()) == before


@every_write
def test_a_reaped_lease_cannot_write_over_the_next_claim(do: Do, clock: Clock, look: Look, write: Write) -> None:
    stale = reaped(do, clock)
    [fresh] = do(jobs.claim("mail", limit=1))
    before = look.live()
    with pytest.raises(LeaseLost):
        do(write(stale))
    assert look.live() == before
    do(jobs.complete(fresh))


@every_write
def test_a_lease_that_was_given_back_cannot_write(do: Do, clock: Clock, look: Look, write: Write) -> None:
    stale = claimed(do)
    do(jobs.release(stale))
    before = look.live()
    with pytest.raises(LeaseLost):
        do(write(stale))
    assert look.live() == before


@every_write
def test_a_lease_of_a_finished_job_cannot_write(do: Do, clock: Clock, look: Look, write: Write) -> None:
    stale = claimed(do)
    do(jobs.complete(stale, '"first"'))
    before = look.over()
    with pytest.raises(LeaseLost):
        do(write(stale))
    assert (look.live(), look.over()) == ([], before)


@every_write
def test_a_lease_of_a_reaped_dead_letter_cannot_write(do: Do, clock: Clock, look: Look, write: Write) -> None:
    stale = reaped(do, clock, max_attempts=1)
    before = look.over()
    assert [row.outcome for row in before] == ["dead"]
    with pytest.raises(LeaseLost):
        do(write(stale))
    assert (look.live(), look.over()) == ([], before)


@every_write
def test_a_fence_from_the_future_cannot_write(do: Do, clock: Clock, look: Look, write: Write) -> None:
    lease = claimed(do)
    before = look.live()
    with pytest.raises(LeaseLost):
        do(write(lease._replace(fence=lease.fence + 1)))
    assert look.live() == before


@every_write
def test_a_job_that_never_was_cannot_be_written(do: Do, clock: Clock, write: Write) -> None:
    lease = claimed(do)
    with pytest.raises(LeaseLost):
        do(write(lease._replace(id=new_job().id)))


@every_settle
@pytest.mark.parametrize("attempts", [1, 5], ids=["dead", "pending"])
def test_a_batch_settles_nothing_of_a_reaped_lease(
    do: Do, clock: Clock, look: Look, settle: Write, attempts: int
) -> None:
    stale = reaped(do, clock, max_attempts=attempts)
    before = (look.live(), look.over())
    assert do(settle(stale)) == jobs.Settled(set(), {stale.job_id})
    assert (look.live(), look.over()) == before


@every_settle
def test_a_batch_settles_nothing_over_the_next_claim(do: Do, clock: Clock, look: Look, settle: Write) -> None:
    stale = reaped(do, clock)
    do(jobs.claim("mail", limit=1))
    before = look.live()
    assert do(settle(stale)) == jobs.Settled(set(), {stale.job_id})
    assert look.live() == before


@every_settle
def test_a_settle_that_is_repeated_gives_the_same_answer_and_changes_nothing(
    do: Do, clock: Clock, look: Look, settle: Write
) -> None:
    lease = claimed(do)
    first = do(settle(lease))
    before = (look.live(), look.over())
    assert do(settle(lease)) == first == jobs.Settled({lease.job_id}, set())
    assert (look.live(), look.over()) == before


def test_a_completed_job_moves_with_everything_it_had(do: Do, clock: Clock, look: Look) -> None:
    job = new_job(
        payload='{"to":"ada"}',
        headers='{"a":"b"}',
        key="order:1",
        bucket=9,
        unique="u",
        priority=4,
        max_attempts=7,
        lease_ms=8_000,
    )
    do(jobs.enqueue(job))
    made = clock.now
    [first] = do(jobs.claim("mail", limit=1, worker="w1"))
    do(jobs.retry(first, 1_000, failure("first", 1)))
    due = clock.advance(2) - timedelta(seconds=1)
    [second] = do(jobs.claim("mail", limit=1, worker="w2"))
    claimed_at = clock.now
    do(jobs.progress(second, '{"at":50}'))
    done_at = clock.advance(3)
    do(jobs.complete(second, '{"sent":true}'))
    assert look.live() == []
    [row] = look.over()
    assert (row.id, row.queue, row.kind, row.outcome) == (job.id, "mail", "noop", "done")
    assert (row.payload, row.headers, row.progress, row.result) == (
        job.payload,
        job.headers,
        '{"at":50}',
        '{"sent":true}',
    )
    assert (row.key, row.bucket, row.unique_key, row.lease_ms) == ("order:1", 9, "u", 8_000)
    assert (row.priority, row.attempts, row.max_attempts, row.fence) == (4, 2, 7, second.fence)
    assert (row.created_at, row.available_at, row.leased_at, row.finished_at) == (made, due, claimed_at, done_at)
    assert row.leased_by == "w2"
    assert [(error["attempt"], error["message"]) for error in row.errors] == [(1, "first")]


def test_a_dead_letter_keeps_its_payload_and_the_error_of_every_attempt(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job(payload='{"n":1}', max_attempts=3)))
    for attempt in (1, 2):
        [lease] = do(jobs.claim("mail", limit=1))
        do(jobs.retry(lease, 0, failure(f"try {attempt}", attempt)))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.kill(lease, failure("try 3", 3), "0123456789abcdef"))
    [row] = look.over()
    assert (row.outcome, row.payload, row.fingerprint, row.attempts) == ("dead", '{"n":1}', "0123456789abcdef", 3)
    assert [error["message"] for error in row.errors] == ["try 1", "try 2", "try 3"]
    assert set(row.errors[0]) == {"attempt", "type", "message", "traceback", "worker", "started_at", "failed_at"}


def test_a_cancelled_job_ends_as_cancelled(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.cancel(claimed(do)))
    assert [(row.outcome, row.errors) for row in look.over()] == [("cancelled", [])]


def test_a_result_may_be_absent_or_null(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job(), new_job()]))
    absent, null = do(jobs.claim("mail", limit=2))
    do(jobs.settle([Finish(absent.id, absent.fence, "done"), Finish(null.id, null.fence, "done", "null")]))
    assert [row.result for row in look.over()] == [None, "null"]


def test_a_job_that_leaves_no_trace_is_gone(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.complete(claimed(do), '"kept nowhere"', keep=False))
    assert (look.live(), look.over()) == ([], [])


def test_a_retried_job_comes_back_after_its_delay_with_its_error(do: Do, clock: Clock, look: Look) -> None:
    lease = claimed(do)
    do(jobs.retry(lease, 5_000, failure("try 1")))
    [row] = look.live()
    assert (row.state, row.attempts, row.fence) == ("pending", 1, lease.fence + 1)
    assert (row.leased_by, row.leased_at, row.lease_expires_at) == (None, None, None)
    assert [error["message"] for error in row.errors] == ["try 1"]
    clock.advance(4.999)
    assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(0.001)
    [again] = do(jobs.claim("mail", limit=1))
    assert (again.job_id, again.attempt) == (lease.job_id, 2)
    assert again.fence > lease.fence


def test_a_snoozed_job_comes_back_later_without_using_an_attempt(do: Do, clock: Clock, look: Look) -> None:
    lease = claimed(do)
    do(jobs.snooze(lease, 5_000))
    [row] = look.live()
    assert (row.attempts, row.errors, row.available_at) == (0, [], clock.now + timedelta(seconds=5))
    assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(5)
    assert [again.attempt for again in do(jobs.claim("mail", limit=1))] == [1]


def test_a_released_job_keeps_its_place_and_its_attempt(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job() for _ in range(3)]
    do(jobs.enqueue_many(new))
    [lease] = do(jobs.claim("mail", limit=1))
    clock.advance(10)
    do(jobs.release(lease))
    assert look.live()[0].attempts == 0
    leases = do(jobs.claim("mail", limit=3))
    assert [one.job_id for one in leases] == [job.id for job in new]
    assert [one.attempt for one in leases] == [1, 1, 1]


def test_a_batch_settles_each_job_its_own_way(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(7)]))
    done, dropped, dead, cancelled, retried, released, lost = do(jobs.claim("mail", limit=7))
    do(jobs.release(lost))
    [lost_again] = do(jobs.claim("mail", limit=1))
    answer = do(
        jobs.settle(
            [
                Finish(done.id, done.fence, "done", '"ok"'),
                Finish(dropped.id, dropped.fence, "done", keep=False),
                Finish(dead.id, dead.fence, "dead", None, failure("no"), "group"),
                Finish(cancelled.id, cancelled.fence, "cancelled"),
                Finish(lost.id, lost.fence, "done"),
                PutBack(retried.id, retried.fence, 1_000, 0, failure("later")),
                PutBack(released.id, released.fence, None, 1),
            ]
        )
    )
    written = {lease.job_id for lease in (done, dropped, dead, cancelled, retried, released)}
    assert answer == jobs.Settled(written, {lost.job_id})
    assert {row.id: row.outcome for row in look.over()} == {
        done.job_id: "done",
        dead.job_id: "dead",
        cancelled.job_id: "cancelled",
    }
    states = {row.id: (row.state, row.attempts) for row in look.live()}
    assert states == {
        retried.job_id: ("pending", 1),
        released.job_id: ("pending", 0),
        lost_again.job_id: ("leased", 1),
    }


@pytest.mark.parametrize("lost", [0, 1, 9], ids=["all-held", "one-lost", "nine-lost"])
def test_a_large_batch_in_any_order_gives_each_job_its_own_outcome(do: Do, clock: Clock, look: Look, lost: int) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(40)]))
    # Some have been given back before, so that their fences are higher than those of the others.
    do(jobs.settle([PutBack(lease.id, lease.fence, None, 1) for lease in do(jobs.claim("mail", limit=13))]))
    held = do(jobs.claim("mail", limit=40))
    assert len({lease.fence for lease in held}) == 2
    stale = {lease.job_id for lease in held[-lost or 40 :]}
    do(jobs.settle([PutBack(lease.id, lease.fence, 3_600_000) for lease in held if lease.job_id in stale]))
    Random(lost).shuffle(held)
    ends = [
        Finish(lease.id, lease.fence, "done", f'"{lease.job_id}"')
        if place % 3
        else Finish(lease.id, lease.fence, "dead", None, failure(lease.job_id), lease.job_id)
        for place, lease in enumerate(held)
    ]

    answer = do(jobs.settle(ends))

    assert answer == jobs.Settled({lease.job_id for lease in held} - stale, stale)
    assert {row.id: (row.fence, row.outcome, row.result, row.fingerprint) for row in look.over()} == {
        str(end.id): (end.fence, end.outcome, end.result, end.fingerprint) for end in ends if str(end.id) not in stale
    }
    assert all(row.errors[-1]["message"] == row.id for row in look.over() if row.outcome == "dead")


def test_a_large_batch_of_returns_in_any_order_gives_each_job_its_own_delay(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(40)]))
    do(jobs.settle([PutBack(lease.id, lease.fence, None, 1) for lease in do(jobs.claim("mail", limit=13))]))
    held = do(jobs.claim("mail", limit=40))
    Random(0).shuffle(held)
    delays = {lease.job_id: (place, place % 2) for place, lease in enumerate(held, 1)}
    returns = [
        PutBack(lease.id, lease.fence, *delays[lease.job_id], failure(lease.job_id) if place % 2 else None)
        for place, lease in enumerate(held, 1)
    ]

    assert do(jobs.settle(returns)) == jobs.Settled(set(delays), set())

    for row in look.live():
        delay, back = delays[row.id]
        assert (row.available_at, row.attempts) == (clock.now + timedelta(milliseconds=delay), 1 - back)
        assert [error["message"] for error in row.errors] == [row.id] * back


def test_a_repeated_mixed_batch_gives_the_same_answer(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(4)]))
    done, dropped, retried, lost = do(jobs.claim("mail", limit=4))
    do(jobs.complete(lost._replace(), '"by another way"', keep=True))
    batch = jobs.settle(
        [
            Finish(done.id, done.fence, "done"),
            PutBack(retried.id, retried.fence, 0, 0, failure()),
            Finish(dropped.id, dropped.fence, "done", keep=False),
            PutBack(lost.id, lost.fence, 0, 0, failure()),
        ]
    )
    first = do(batch)
    before = (look.live(), look.over())
    assert do(batch) == first == jobs.Settled({done.job_id, dropped.job_id, retried.job_id}, {lost.job_id})
    assert (look.live(), look.over()) == before


def test_a_dropped_job_that_is_finished_already_is_not_lost_with_another(do: Do, clock: Clock, look: Look) -> None:
    """A row in both tables, as in `suite_reap`; the batch has a lost lease, so not all of it is written."""
    new = new_job()
    do(jobs.enqueue(new))
    do(jobs.complete(do(jobs.claim("mail", limit=1))[0], '"once"'))
    do(jobs.enqueue(new, fresh=True))
    [twin] = do(jobs.claim("mail", limit=1))
    lost = claimed(do)
    do(jobs.release(lost))
    batch = jobs.settle([Finish(one.id, one.fence, "done", keep=False) for one in (twin, lost)])
    for _ in range(2):
        assert do(batch) == jobs.Settled({twin.job_id}, {lost.job_id})
    assert [row.id for row in look.live()] == [lost.job_id]
    assert [row.result for row in look.over()] == ['"once"']


def test_a_dropped_job_that_a_later_holder_finished_is_lost(do: Do, clock: Clock, look: Look) -> None:
    stale = reaped(do, clock)
    do(jobs.complete(do(jobs.claim("mail", limit=1))[0]))
    assert do(jobs.settle([Finish(stale.id, stale.fence, "done", keep=False)])) == jobs.Settled(set(), {stale.job_id})


def test_settling_nothing_is_no_error(do: Do, clock: Clock) -> None:
    assert do(jobs.settle()) == jobs.Settled(set(), set())


def test_progress_is_kept_while_the_job_runs_and_after(do: Do, clock: Clock, look: Look) -> None:
    lease = claimed(do)
    do(jobs.progress(lease, '{"page":1}'))
    do(jobs.progress(lease, '{"page":2}'))
    assert look.live()[0].progress == '{"page":2}'
    do(jobs.complete(Held(lease.id, lease.fence)))
    assert look.over()[0].progress == '{"page":2}'


def test_errors_keep_any_text(do: Do, clock: Clock, look: Look) -> None:
    lease = claimed(do)
    do(jobs.retry(lease, 0, failure("Zoë 🦑 'quoted' \"twice\" \\ %s :now \n end")))
    assert look.live()[0].errors[0]["message"] == "Zoë 🦑 'quoted' \"twice\" \\ %s :now \n end"
