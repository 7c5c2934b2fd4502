"""Reaping: what becomes of leases whose holder fell silent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import jobs
from holdfast.errors import LeaseLost
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store
from holdfast.store.connections import AsyncLink, Link
from holdfast.testing.clock import TICK, Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.failure import fingerprint
from holdfast.values.rows import Lease, PutBack, when


def leases_of(do: Do, count: int = 1, **fields: Any) -> list[Lease]:
    do(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    return do(jobs.claim("mail", limit=count, worker="w1"))


def no_delay(kind: str, attempt: int) -> float:
    return 0


def test_a_lease_that_has_not_run_out_is_left_alone(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leases_of(do)
    clock.pass_lease(lease)
    clock.advance(-2 * TICK)
    before = look.live()
    assert do(jobs.reap()) == []
    assert look.live() == before


def test_waiting_jobs_are_never_reaped(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job()))
    clock.advance(timedelta(days=400))
    assert do(jobs.reap()) == []


def test_a_transaction_begins_only_when_there_is_something_to_reap(
    do: Do, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = transactions(monkeypatch)
    [lease] = leases_of(do)
    told.clear()
    assert do(jobs.reap()) == []
    assert told == []
    clock.pass_lease(lease)
    assert len(do(jobs.reap())) == 1
    assert told[-1] == "commit"


def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what our connections say around statements."""
    told: list[str] = []

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def tell(link: Link | AsyncLink, sql: str) -> Any:
            told.append(sql)
            return real(link, sql)

        return tell

    for kind in (Link, AsyncLink):
        monkeypatch.setattr(kind, "tell", noting(kind.tell))
    return told


def test_an_expired_lease_goes_back_to_its_queue_with_a_backoff(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leases_of(do)
    started = clock.now
    clock.pass_lease(lease)
    [reaped] = do(jobs.reap(backoff=lambda kind, attempt: 10 * attempt))
    assert reaped == (lease.job_id, "mail", "noop", 1, "w1", "retry")
    [row] = look.live()
    assert (row.state, row.attempts, row.leased_by, row.lease_expires_at) == ("pending", 0, None, None)
    assert row.available_at == clock.now + timedelta(seconds=10)
    [error] = row.errors
    assert (error["type"], error["attempt"], error["worker"]) == ("LeaseExpired", 1, "w1")
    assert error["started_at"] == started.isoformat()
    assert error["failed_at"] == (started + timedelta(milliseconds=lease.lease_ms)).isoformat()


def test_backoff_knows_kind_and_attempt(do: Do, clock: Clock) -> None:
    asked: list[tuple[str, int]] = []

    def backoff(kind: str, attempt: int) -> float:
        asked.append((kind, attempt))
        return 0

    [lease] = leases_of(do, kind="send", max_attempts=9)
    for _ in range(4):
        do(jobs.begin(lease))
        clock.advance(31)
        do(jobs.reap(backoff=backoff))
        [lease] = do(jobs.claim("mail", limit=1))
    # The first death is not counted.
    assert asked == [("send", 1), ("send", 1), ("send", 2), ("send", 3)]


def test_the_fence_rises_when_a_lease_is_reaped(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leases_of(do)
    clock.pass_lease(lease)
    do(jobs.reap(backoff=no_delay))
    assert look.live()[0].fence > lease.fence
    [again] = do(jobs.claim("mail", limit=1))
    assert again.fence > lease.fence


def test_a_job_that_kills_every_worker_reaches_the_dead_letters(do: Do, clock: Clock, look: Look) -> None:
    job = new_job(payload='{"n":1}', max_attempts=3)
    do(jobs.enqueue(job))
    outcomes: list[str] = []
    for _ in range(4):
        [lease] = do(jobs.claim("mail", limit=1, worker="doomed"))
        do(jobs.begin(lease))
        clock.pass_lease(lease)
        outcomes += [reaped.outcome for reaped in do(jobs.reap(backoff=no_delay))]
    # The first death may have been a neighbour's doing, and is not counted.
    assert outcomes == ["retry", "retry", "retry", "dead"]
    assert look.live() == []
    [row] = look.over()
    assert (row.id, row.outcome, row.attempts, row.payload) == (job.id, "dead", 3, '{"n":1}')
    assert [(error["type"], error["attempt"]) for error in row.errors] == [("LeaseExpired", n) for n in (1, 1, 2, 3)]
    assert ["not counted" in error["message"] for error in row.errors] == [True, False, False, False]
    assert row.fingerprint == fingerprint("LeaseExpired", row.errors[-1]["message"])
    assert row.finished_at == clock.now


def suspect_of(do: Do, clock: Clock, lapses: int = 1, **fields: Any) -> Lease:
    """Claim a job whose process died `lapses` times."""
    [lease] = leases_of(do, **fields)
    for _ in range(lapses):
        do(jobs.begin(lease))
        clock.pass_lease(lease)
        do(jobs.reap(backoff=no_delay))
        [lease] = do(jobs.claim("mail", limit=1, worker="w1"))
    return lease


@pytest.mark.parametrize("began", [False, True])
def test_a_first_death_costs_no_attempt_and_makes_a_suspect(do: Do, clock: Clock, look: Look, began: bool) -> None:
    """Also at the last attempt: whether this job was the cause, nobody knows."""
    [lease] = leases_of(do, max_attempts=2)
    do(jobs.retry(lease, 0, failure()))
    [lease] = do(jobs.claim("mail", limit=1))
    if began:
        do(jobs.begin(lease))
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap(backoff=lambda kind, attempt: 10))] == ["retry"]
    [row] = look.live()
    assert (row.attempts, row.lapses, row.available_at) == (1, 1, clock.now + timedelta(seconds=10))
    assert "not counted" in row.errors[-1]["message"]
    clock.advance(10)
    [again] = do(jobs.claim("mail", limit=1))
    assert (again.attempt, again.lapses) == (2, 1)


def test_a_suspect_that_began_is_blamed(do: Do, clock: Clock, look: Look) -> None:
    lease = suspect_of(do, clock, max_attempts=5)
    do(jobs.begin(lease))
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap(backoff=lambda kind, attempt: 10))] == ["retry"]
    [row] = look.live()
    assert (row.attempts, row.lapses, row.available_at) == (1, 2, clock.now + timedelta(seconds=10))
    assert "not counted" not in row.errors[-1]["message"]


def test_a_suspect_that_never_began_goes_back_to_its_place_as_it_was(do: Do, clock: Clock, look: Look) -> None:
    for lapses in (1, 2):
        lease = suspect_of(do, clock, lapses, max_attempts=9)
        clock.pass_lease(lease)
        assert [reaped.outcome for reaped in do(jobs.reap())] == ["released"]
        [row] = look.live()
        assert (row.state, row.attempts, row.lapses) == ("pending", lapses - 1, lapses)
        assert row.available_at == when(lease.available_at)
        assert len(row.errors) == lapses
        [again] = do(jobs.claim("mail", limit=1))
        do(jobs.complete(again))


def test_a_job_with_one_attempt_that_never_began_goes_back_as_it_was(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leases_of(do, max_attempts=1)
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap())] == ["released"]
    [row] = look.live()
    assert (row.state, row.attempts, row.lapses, row.errors) == ("pending", 0, 0, [])
    assert row.available_at == when(lease.available_at)


@pytest.mark.parametrize("recorded_by", ["begin", "renew"])
def test_a_job_with_one_attempt_that_began_is_dead_after_one_death(
    do: Do, clock: Clock, look: Look, recorded_by: str
) -> None:
    [lease] = leases_of(do, max_attempts=1)
    do(jobs.begin(lease) if recorded_by == "begin" else jobs.renew([(lease, lease.lease_ms)], {lease.id}))
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap())] == ["dead"]
    assert [(row.outcome, row.attempts) for row in look.over()] == [("dead", 1)]


def test_a_renewal_notes_who_has_begun_and_forgets_nobody(do: Do, clock: Clock, look: Look) -> None:
    first, second = leases_of(do, 2)
    do(jobs.renew([(first, 30_000), (second, 30_000)], {first.id}))
    do(jobs.renew([(first, 30_000), (second, 30_000)]))
    assert {row.id: row.began for row in look.live()} == {first.job_id: True, second.job_id: False}


def test_the_next_claim_has_not_begun(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leases_of(do)
    do(jobs.begin(lease))
    assert look.live()[0].began
    do(jobs.release(lease))
    do(jobs.claim("mail", limit=1))
    assert not look.live()[0].began


def test_a_cancelled_suspect_ends_as_cancelled(do: Do, clock: Clock, look: Look, store: Store) -> None:
    lease = suspect_of(do, clock)
    do(request_cancel(store))
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap())] == ["cancelled"]
    assert [row.outcome for row in look.over()] == ["cancelled"]


def test_a_suspect_stays_one_however_its_attempts_end(do: Do, clock: Clock, look: Look) -> None:
    lease = suspect_of(do, clock, 2, max_attempts=9)
    do(jobs.snooze(lease, 0))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.release(lease))
    assert look.live()[0].lapses == 2
    [lease] = do(jobs.claim("mail", limit=1))
    assert lease.lapses == 2
    do(jobs.retry(lease, 0, failure()))
    [row] = look.live()
    assert (row.lapses, row.attempts) == (2, 2), "else each of its attempts might have a first death that is free"


def test_a_claim_can_leave_suspects_out(do: Do, clock: Clock) -> None:
    do(jobs.release(suspect_of(do, clock)))
    ordinary = new_job()
    do(jobs.enqueue(ordinary))
    assert [lease.job_id for lease in do(jobs.claim("mail", limit=9, suspects=False))] == [ordinary.id]
    assert [lease.lapses for lease in do(jobs.claim("mail", limit=9))] == [1]


def test_the_reaper_leaves_the_callers_own_jobs_alone(do: Do, clock: Clock) -> None:
    mine, other = leases_of(do, 2)
    clock.pass_lease(mine)
    assert [reaped.id for reaped in do(jobs.reap(exclude=[mine.id]))] == [other.job_id]


def test_the_reaper_takes_only_the_kinds_it_was_given(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(kind="send"), new_job(kind="bill")]))
    leases = do(jobs.claim("mail", limit=2))
    clock.pass_lease(leases[0])
    assert do(jobs.reap(kinds=[])) == []
    assert [reaped.kind for reaped in do(jobs.reap(kinds=["bill", "unknown"]))] == ["bill"]
    assert [reaped.kind for reaped in do(jobs.reap())] == ["send"]


def test_the_reaper_works_in_chunks_oldest_first(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(lease_ms=ms) for ms in (3_000, 1_000, 2_000)]))
    leases = {lease.lease_ms: lease.job_id for lease in do(jobs.claim("mail", limit=3))}
    clock.advance(10)
    assert [reaped.id for reaped in do(jobs.reap(limit=2))] == [leases[1_000], leases[2_000]]
    assert [reaped.id for reaped in do(jobs.reap(limit=2))] == [leases[3_000]]
    assert do(jobs.reap(limit=2)) == []


def test_a_running_job_that_was_cancelled_ends_as_cancelled_when_its_lease_runs_out(
    do: Do, clock: Clock, look: Look, store: Store
) -> None:
    [lease] = leases_of(do, max_attempts=5)
    do(request_cancel(store))
    assert do(jobs.renew([(lease, 1_000)])) == jobs.Renewed({lease.job_id}, {lease.job_id})
    clock.pass_lease(lease)
    assert [reaped.outcome for reaped in do(jobs.reap())] == ["cancelled"]
    [row] = look.over()
    assert (row.outcome, row.fingerprint, row.errors[0]["type"]) == ("cancelled", None, "LeaseExpired")


@flow
def request_cancel(store: Store) -> Steps[None]:
    """Ask every running job to stop, as the admin's cancel does."""
    # True in every database: MySQL and SQLite keep it as the number 1.
    yield from run_text("request_cancel", store.dialect.place("update holdfast_jobs set cancel_requested = true"))


def test_reaping_touches_nothing_but_expired_leases(do: Do, clock: Clock, look: Look) -> None:
    [expired] = leases_of(do, lease_ms=1_000)
    [running] = leases_of(do, lease_ms=60_000)
    do(jobs.enqueue(new_job()))
    before = {row.id: row for row in look.live()}
    clock.advance(2)
    do(jobs.reap())
    after = {row.id: row for row in look.live()}
    assert {job_id for job_id in after if after[job_id] != before[job_id]} == {expired.job_id}
    do(jobs.complete(running))


def test_no_job_is_lost_whatever_dies_on_the_way(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job(max_attempts=2) for _ in range(40)]
    do(jobs.enqueue_many(new))
    for turn in range(200):
        leases = do(jobs.claim("mail", limit=7))
        for n, lease in enumerate(leases):
            if (n + turn) % 2:
                do(jobs.begin(lease))
            if (n + turn) % 3 == 0:
                do(jobs.complete(lease))
        clock.advance(31)
        do(jobs.reap(backoff=no_delay))
        if not look.live():
            break
    assert sorted(row.id for row in look.over()) == sorted(job.id for job in new)
    assert {row.outcome for row in look.over()} == {"done", "dead"}
    assert all(row.attempts <= 2 for row in look.over())


def test_strays_of_a_lost_reply_are_given_back(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job() for _ in range(4)]))
    known = do(jobs.claim("mail", limit=1, worker="w1"))
    strays = do(jobs.claim("mail", limit=2, worker="w1"))
    others = do(jobs.claim("mail", limit=1, worker="w2"))
    assert do(jobs.release_strays("w1", [lease.id for lease in known])) == 2
    states = {row.id: (row.state, row.attempts) for row in look.live()}
    assert {states[lease.job_id] for lease in known + others} == {("leased", 1)}
    assert {states[lease.job_id] for lease in strays} == {("pending", 0)}
    for stray in strays:
        with pytest.raises(LeaseLost):
            do(jobs.complete(stray))


def test_a_job_that_is_finished_already_keeps_no_other_from_the_dead_letters(do: Do, clock: Clock, look: Look) -> None:
    """A row in both tables, from whatever cause: a first enqueue that the database ran long after its repeat."""
    new = [new_job(max_attempts=1) for _ in range(3)]
    do(jobs.enqueue_many(new))
    twin = do(jobs.claim("mail", limit=1))[0]
    do(jobs.complete(twin, '"once"'))
    do(jobs.enqueue(next(job for job in new if job.id == twin.job_id), fresh=True))
    leases = do(jobs.claim("mail", limit=3))
    for lease in leases:
        do(jobs.begin(lease))
    clock.pass_lease(leases[0])

    reaped = do(jobs.reap())

    others = {job.id for job in new} - {twin.job_id}
    assert {one.id: one.outcome for one in reaped} == dict.fromkeys(others, "dead")
    assert {row.id: row.outcome for row in look.over()} == {twin.job_id: "done", **dict.fromkeys(others, "dead")}
    assert look.live() == []


def test_strays_are_given_back_in_whatever_order_the_table_has_them(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job(priority=place % 7, lease_ms=1_000 * (1 + place * 17 % 40)) for place in range(40)]
    do(jobs.enqueue_many(new))
    do(jobs.settle([PutBack(lease.id, lease.fence, None, 1) for lease in do(jobs.claim("mail", limit=13))]))
    for _ in range(4):
        assert len(do(jobs.claim("mail", limit=10, worker="w1"))) == 10

    assert do(jobs.release_strays("w1", [])) == 40

    assert {(row.state, row.attempts) for row in look.live()} == {("pending", 0)}


def test_a_worker_without_strays_gives_nothing_back(do: Do, clock: Clock, look: Look) -> None:
    leases = leases_of(do, 2)
    before = look.live()
    assert do(jobs.release_strays("w1", [lease.id for lease in leases])) == 0
    assert do(jobs.release_strays("unknown", [])) == 0
    assert look.live() == before
