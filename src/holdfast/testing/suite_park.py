"""Parking: a job that gives its lease back and waits, and what wakes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.errors import ConfigError, LeaseLost
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Finish, Lease, Park, PutBack


def held(do: Do, **fields: Any) -> Lease:
    """Enqueue a job and claim it."""
    do(jobs.enqueue(new_job(**fields)))
    [lease] = do(jobs.claim("mail", limit=1))
    return lease


def parked(do: Do, delay_ms: int | None = None, **fields: Any) -> Lease:
    """Enqueue a job, claim it and let it wait for a signal."""
    lease = held(do, **fields)
    do(jobs.park(lease, "signal:approved", delay_ms))
    return lease


def test_a_parked_job_waits_without_a_lease_and_keeps_its_attempt(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do)
    [row] = look.live()
    assert (row.state, row.waits_for, row.attempts, row.fence) == ("waiting", "signal:approved", 0, lease.fence + 1)
    assert (row.leased_by, row.leased_at, row.lease_expires_at) == (None, None, None)


def test_a_waiting_job_is_neither_claimed_nor_reaped_however_long_it_waits(do: Do, clock: Clock, look: Look) -> None:
    parked(do)
    clock.advance(86_400 * 365)
    assert do(jobs.claim("mail", limit=9)) == []
    assert do(jobs.reap()) == []
    assert do(jobs.stuck()) == []
    assert do(jobs.release_strays("worker", [])) == 0
    assert [row.state for row in look.live()] == ["waiting"]


def test_a_woken_job_is_due_at_once_and_behind_what_was_due_before(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do)
    clock.advance(10)
    do(jobs.enqueue(new_job()))
    clock.advance(10)
    assert do(jobs.wake([lease.job_id])) == {lease.job_id}
    [row] = [row for row in look.live() if row.id == lease.job_id]
    assert (row.state, row.waits_for, row.available_at) == ("pending", None, clock.now)
    _, second = do(jobs.claim("mail", limit=9))
    assert (second.job_id, second.attempt, second.fence) == (lease.job_id, 1, lease.fence + 2)


def test_a_parked_job_with_a_delay_is_due_by_then_with_no_wake(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do, 60_000)
    [row] = look.live()
    assert (row.waits_for, row.available_at) == ("signal:approved", clock.now + timedelta(seconds=60))
    clock.advance(59)
    assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(1)
    assert [claimed.job_id for claimed in do(jobs.claim("mail", limit=1))] == [lease.job_id]


def test_a_parked_job_with_a_delay_is_woken_before_it(do: Do, clock: Clock) -> None:
    lease = parked(do, 60_000)
    clock.advance(1)
    assert do(jobs.wake([lease.job_id])) == {lease.job_id}
    assert len(do(jobs.claim("mail", limit=1))) == 1


def test_a_wake_after_the_deadline_puts_nothing_off(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do, 1_000)
    due = look.live()[0].available_at
    clock.advance(5)
    assert do(jobs.wake([lease.job_id])) == {lease.job_id}
    assert look.live()[0].available_at == due


def test_a_wake_is_for_jobs_that_wait_for_just_this(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do)
    assert do(jobs.wake([lease.job_id], "children")) == set()
    assert [row.state for row in look.live()] == ["waiting"]
    assert do(jobs.wake([lease.job_id], "signal:approved")) == {lease.job_id}


def test_a_wake_that_is_repeated_changes_nothing(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do)
    do(jobs.wake([lease.job_id]))
    before = look.live()
    clock.advance(5)
    assert do(jobs.wake([lease.job_id])) == set()
    assert do(jobs.wake([])) == set()
    assert look.live() == before


def test_a_park_does_not_swallow_a_cancel_that_was_asked_for(do: Do, clock: Clock, look: Look) -> None:
    lease = held(do)
    assert do(admin.cancel(lease.job_id, "ada")) == "requested"
    do(jobs.park(lease, "signal:approved"))
    assert [row.state for row in look.live()] == ["pending"]
    [again] = do(jobs.claim("mail", limit=1))
    assert again.cancel_requested


@pytest.mark.parametrize("delay", [None, 60_000], ids=["waiting", "with-a-deadline"])
def test_a_wake_leaves_a_job_alone_that_a_worker_holds_again(
    do: Do, clock: Clock, look: Look, delay: int | None
) -> None:
    lease = parked(do, delay)
    if delay is None:
        do(jobs.wake([lease.job_id]))
    clock.advance(60)
    [again] = do(jobs.claim("mail", limit=1))
    before = look.live()
    assert do(jobs.wake([lease.job_id])) == set()
    assert look.live() == before
    do(jobs.complete(again))
    assert do(jobs.wake([lease.job_id])) == set()


@pytest.mark.parametrize("how", ["retry", "snooze", "release", "reap"])
def test_a_job_that_returns_no_longer_waits_for_what_it_waited_for(do: Do, clock: Clock, look: Look, how: str) -> None:
    lease = parked(do, 1_000)
    clock.advance(2)
    [again] = do(jobs.claim("mail", limit=1))
    if how == "reap":
        clock.pass_lease(again)
        assert len(do(jobs.reap(backoff=lambda kind, attempt: 60))) == 1
    else:
        do(
            {"retry": jobs.retry(again, 60_000, failure()), "snooze": jobs.snooze(again, 60_000)}.get(how)
            or jobs.release(again)
        )
    [row] = look.live()
    assert (row.state, row.waits_for) == ("pending", None)
    assert do(jobs.wake([lease.job_id])) == set()
    assert look.live() == [row]


def test_only_the_holder_parks(do: Do, clock: Clock, look: Look) -> None:
    lease = held(do)
    do(jobs.release(lease))
    do(jobs.claim("mail", limit=1))
    before = look.live()
    with pytest.raises(LeaseLost):
        do(jobs.park(lease, "signal:approved"))
    assert do(jobs.settle([Park(lease.id, lease.fence, "signal:approved")])) == jobs.Settled(set(), {lease.job_id})
    assert look.live() == before


def test_a_job_that_parked_cannot_write_by_its_old_lease(do: Do, clock: Clock, look: Look) -> None:
    lease = parked(do)
    before = look.live()
    with pytest.raises(LeaseLost):
        do(jobs.complete(lease))
    assert do(jobs.renew([(lease, 30_000)])).kept == set()
    assert look.live() == before


@pytest.mark.parametrize("woken", [False, True])
def test_a_park_that_is_repeated_gives_the_same_answer_and_changes_nothing(
    do: Do, clock: Clock, look: Look, woken: bool
) -> None:
    lease = held(do)
    park = jobs.settle([Park(lease.id, lease.fence, "children", 60_000)])
    first = do(park)
    if woken:
        do(jobs.wake([lease.job_id]))
    before = look.live()
    clock.advance(1)
    assert do(park) == first == jobs.Settled({lease.job_id}, set())
    assert look.live() == before


def test_a_batch_finishes_returns_and_parks(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(5)]))
    done, retried, waits, timed, lost = do(jobs.claim("mail", limit=5))
    do(jobs.release(lost))
    do(jobs.claim("mail", limit=1))
    answer = do(
        jobs.settle(
            [
                Park(waits.id, waits.fence, "children", attempts_back=0, error=failure("not yet")),
                Finish(done.id, done.fence, "done"),
                Park(timed.id, timed.fence, "signal:x", 5_000),
                PutBack(retried.id, retried.fence, 1_000, 0, failure()),
                Park(lost.id, lost.fence, "children"),
            ]
        )
    )
    assert answer == jobs.Settled({one.job_id for one in (done, retried, waits, timed)}, {lost.job_id})
    rows = {row.id: (row.state, row.waits_for, row.attempts, len(row.errors)) for row in look.live()}
    assert rows == {
        waits.job_id: ("waiting", "children", 1, 1),
        timed.job_id: ("pending", "signal:x", 0, 0),
        retried.job_id: ("pending", None, 1, 1),
        lost.job_id: ("leased", None, 1, 0),
    }


@pytest.mark.parametrize("waits_for", ["", "x" * 201, "nul\0", 7, None])
def test_a_park_says_what_it_waits_for_before_anything_is_written(
    do: Do, clock: Clock, look: Look, waits_for: Any
) -> None:
    do(jobs.enqueue_many([new_job(), new_job()]))
    done, lease = do(jobs.claim("mail", limit=2))
    before = look.live()
    with pytest.raises(ConfigError, match="waits_for"):
        do(jobs.settle([Finish(done.id, done.fence, "done"), Park(lease.id, lease.fence, waits_for)]))
    assert (look.live(), look.over()) == (before, [])


def test_what_a_job_waits_for_is_kept_as_it_is(do: Do, clock: Clock, look: Look) -> None:
    text = ("Zoë 🦑 'quoted' \"twice\" \\ %s :now {,} null " * 5)[:200]
    lease = held(do)
    do(jobs.park(lease, text))
    assert look.live()[0].waits_for == text
    assert do(jobs.wake([lease.job_id], text)) == {lease.job_id}


def test_a_waiting_job_keeps_its_unique_key_and_its_idempotency_key(do: Do, clock: Clock) -> None:
    lease = parked(do, unique="u", idempotency_key="k")
    for said in ({"unique": "u"}, {"idempotency_key": "k"}):
        answer = do(jobs.enqueue(new_job(**said)))
        assert (answer.id, answer.created) == (lease.job_id, False)


def test_a_waiting_job_is_shown_counted_and_found(do: Do, clock: Clock) -> None:
    lease = parked(do)
    timed = parked(do, 60_000)
    view = do(admin.show(lease.job_id))
    assert (view.state, view.waits_for) == ("waiting", "signal:approved")
    assert (do(admin.show(timed.job_id)).state, do(admin.show(timed.job_id)).waits_for) == (
        "pending",
        "signal:approved",
    )
    assert [job.id for job in do(admin.list_jobs(admin.Filter(states=("waiting",))))] == [lease.job_id]
    assert do(admin.count_jobs(admin.Filter(states=("waiting",)))) == 1
    [count] = do(admin.counts())
    assert (count.waiting, count.pending, count.due, count.scheduled) == (1, 1, 0, 1)
    clock.advance(3_600)
    assert [(lag.queue, lag.due) for lag in do(admin.oldest_pending())] == [("mail", 1)]
    do(jobs.claim("mail", limit=1))
    assert do(admin.show(timed.job_id)).waits_for is None


@pytest.mark.parametrize("delay", [None, 60_000], ids=["waiting", "with-a-deadline"])
def test_a_parked_job_is_cancelled_by_hand(do: Do, clock: Clock, look: Look, delay: int | None) -> None:
    lease = parked(do, delay)
    assert do(admin.cancel(lease.job_id, "ada")) == "cancelled"
    assert look.live() == []
    assert [(row.id, row.outcome) for row in look.over()] == [(lease.job_id, "cancelled")]


@pytest.mark.parametrize("delay", [None, 60_000], ids=["waiting", "with-a-deadline"])
def test_a_parked_job_is_made_due_by_hand(do: Do, clock: Clock, look: Look, delay: int | None) -> None:
    lease = parked(do, delay)
    clock.advance(1)
    assert do(admin.retry(lease.job_id, "ada")) == "due"
    [row] = look.live()
    assert (row.state, row.waits_for, row.available_at) == ("pending", None, clock.now)
