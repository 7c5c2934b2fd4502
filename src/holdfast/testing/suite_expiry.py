"""Jobs that expire: by the database's time, counted from their enqueue or at a moment, before every attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast import admin, jobs
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_debounce import call
from holdfast.values.expires import EXPIRES_HEADER, header_of
from holdfast.values.rows import Lease


def saying(expires: Any) -> str:
    """Write headers that say when the job expires: seconds after the enqueue, or a moment."""
    return f'{{"trace":"a","{EXPIRES_HEADER}":"{header_of(expires)}"}}'


def taken_now(do: Do, limit: int = 9) -> list[Lease]:
    return do(jobs.claim("mail", limit=limit))


def test_a_job_expires_a_time_after_its_enqueue(do: Do, clock: Clock) -> None:
    job = do(jobs.enqueue(new_job(headers=saying(60.0))))
    clock.advance(59)
    [lease] = taken_now(do)
    assert do(jobs.expired([lease])) == set()
    clock.advance(1)
    assert do(jobs.expired([lease])) == {job.id}


def test_a_job_expires_at_a_moment(do: Do, clock: Clock) -> None:
    moment = clock.now + timedelta(seconds=60)
    ids = [do(jobs.enqueue(new_job(headers=saying(moment)))).id]
    clock.advance(30)
    ids.append(do(jobs.enqueue(new_job(headers=saying(moment)))).id)
    leases = taken_now(do)
    assert do(jobs.expired(leases)) == set()
    clock.advance(30)
    assert do(jobs.expired(leases)) == set(ids)


def test_one_look_tells_which_of_many_have_expired(do: Do, clock: Clock) -> None:
    new = [new_job(headers=saying(float(n)), payload=f'{{"n":{n}}}') for n in range(1, 11)]
    do(jobs.enqueue_many(new))
    leases = taken_now(do, 99)
    clock.advance(5)
    assert do(jobs.expired(leases)) == {job.id for job in new[:5]}


def test_a_retried_job_is_as_old_as_before(do: Do, clock: Clock) -> None:
    job = do(jobs.enqueue(new_job(headers=saying(60.0))))
    [lease] = taken_now(do)
    do(jobs.retry(lease, 60_000, failure()))
    clock.advance(60)
    [again] = taken_now(do)
    assert do(jobs.expired([again])) == {job.id}


def test_a_job_that_somebody_replays_is_wanted_whatever_time_it_is(do: Do, clock: Clock) -> None:
    job = do(jobs.enqueue(new_job(headers=saying(60.0))))
    clock.advance(60)
    [lease] = taken_now(do)
    do(jobs.cancel(lease, failure()))
    assert do(admin.retry(job.id, None)) == "replayed"
    [again] = taken_now(do)
    assert do(jobs.expired([again])) == set()


def test_a_job_that_is_gone_has_not_expired(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job(headers=saying(60.0))))
    [lease] = taken_now(do)
    do(jobs.complete(lease))
    clock.advance(60)
    assert do(jobs.expired([lease])) == set()


def test_people_see_when_a_job_expires(do: Do, clock: Clock) -> None:
    job = do(jobs.enqueue(new_job(headers=saying(60.0))))
    assert do(admin.show(job.id)).expires_at == clock.now + timedelta(seconds=60)
    [view] = do(admin.list_jobs())
    assert view.to_dict()["expires_at"] == (clock.now + timedelta(seconds=60)).isoformat()


def test_a_debounced_job_expires_as_the_last_call_said_counted_from_it(do: Do, clock: Clock, look: Look) -> None:
    job = do(jobs.enqueue(call(1, headers=saying(60.0))))
    assert do(admin.show(job.id)).expires_at == clock.now + timedelta(seconds=60)
    clock.advance(3)
    do(jobs.enqueue(call(2, headers=saying(60.0))))
    assert do(admin.show(job.id)).expires_at == clock.now + timedelta(seconds=60)
    do(jobs.enqueue(call(3)))
    assert do(admin.show(job.id)).expires_at is None
