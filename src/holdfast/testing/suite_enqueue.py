"""Adding jobs: one, many, in order, for later."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest

from holdfast import jobs
from holdfast.errors import StoreError
from holdfast.flow import Steps, flow
from holdfast.jobs.enqueueing import CHUNK_ROWS
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.rows import Enqueued, Finish


def test_an_enqueued_job_is_pending_with_everything_that_was_said(do: Do, clock: Clock, look: Look) -> None:
    job = new_job(
        "mail",
        "send",
        payload='{"to":"ada"}',
        priority=7,
        max_attempts=9,
        lease_ms=90_000,
        key="order:1",
        bucket=17,
        headers='{"traceparent":"00-1-2-3"}',
    )
    assert do(jobs.enqueue(job)) == Enqueued(job.id, created=True)
    [row] = look.live()
    assert (row.id, row.queue, row.kind, row.state) == (job.id, "mail", "send", "pending")
    assert (row.payload, row.headers) == (job.payload, job.headers)
    assert (row.priority, row.max_attempts, row.lease_ms) == (7, 9, 90_000)
    assert (row.key, row.bucket, row.unique_key) == ("order:1", 17, None)
    assert (row.fence, row.attempts, row.errors) == (0, 0, [])
    assert row.available_at == row.created_at == clock.now


def test_a_job_added_as_one_of_many_is_the_same_as_one_added_alone(do: Do, clock: Clock, look: Look) -> None:
    said: dict[str, Any] = {
        "payload": '{"to":"ada"}',
        "priority": -3,
        "max_attempts": 2,
        "lease_ms": 1_500,
        "key": "k",
        "bucket": 3,
        "headers": '{"a":"b"}',
        "delay_ms": 2_500,
    }
    do(jobs.enqueue(new_job(**said)))
    do(jobs.enqueue_many([new_job(**said), new_job(**said)]))
    one, *many = (row._replace(id="") for row in look.live())
    assert many == [one, one]


def test_each_job_of_many_keeps_what_was_said_of_it_alone(do: Do, clock: Clock, look: Look) -> None:
    said: dict[str, tuple[Any, Any]] = {
        "queue": ("mail", "bulk"),
        "kind": ("send", "noop"),
        "payload": ('{"to":"ada"}', "{}"),
        "priority": (5, 0),
        "max_attempts": (2, 5),
        "delay_ms": (2_500, 0),
        "lease_ms": (1_500, None),
        "key": ("k", None),
        "bucket": (3, None),
        "headers": ('{"a":"b"}', None),
        "run_at": (clock.now + timedelta(hours=1), None),
        "unique": ("u", None),
    }
    # One column differs in each batch, and one batch differs in all of them.
    for names in [*([name] for name in said), list(said)]:
        pair = [new_job(**{name: said[name][n] for name in names}) for n in (0, 1, 1)]
        do(jobs.enqueue_many(pair))
        together = {row.id: row._replace(id="") for row in look.live()}
        look.rows("delete from holdfast_jobs")
        for job in pair:
            do(jobs.enqueue(job))
        assert {row.id: row._replace(id="") for row in look.live()} == together
        look.rows("delete from holdfast_jobs")


def test_many_jobs_are_answered_in_their_order(do: Do, clock: Clock) -> None:
    new = [new_job(priority=n % 3) for n in range(50)]
    assert do(jobs.enqueue_many(new)) == [Enqueued(job.id) for job in new]


def test_no_jobs_at_all_are_no_error(do: Do, clock: Clock, look: Look) -> None:
    assert do(jobs.enqueue_many([])) == []
    assert look.live() == []


def test_ten_thousand_jobs_go_in_by_one_call(do: Do, clock: Clock, look: Look) -> None:
    answers = do(jobs.enqueue_many([new_job() for _ in range(10_000)]))
    assert len({answer.id for answer in answers if answer.created}) == 10_000
    assert list(look.rows("select count(*), count(distinct id) from holdfast_jobs")[0]) == [10_000, 10_000]


def test_more_jobs_than_one_statement_carries_go_in_all_or_none(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job() for _ in range(CHUNK_ROWS + 1)]
    with pytest.raises(StoreError):
        do(jobs.enqueue_many([*new[:-1], new_job(payload=None)]))
    assert look.live() == []
    do(jobs.enqueue_many(new))
    assert look.rows("select count(*) from holdfast_jobs")[0][0] == len(new)


def test_one_bad_job_of_many_adds_none_of_them(do: Do, clock: Clock, look: Look) -> None:
    with pytest.raises(StoreError):
        do(jobs.enqueue_many([new_job(), new_job(queue=None), new_job()]))
    assert look.live() == []


@pytest.mark.parametrize(
    "field, value",
    [
        ("id", None),
        ("queue", None),
        ("kind", None),
        ("payload", None),
        ("max_attempts", None),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_and_the_store_works_on(do: Do, look: Look, field: str, value: Any) -> None:
    with pytest.raises(StoreError):
        do(jobs.enqueue(new_job(**{field: value})))
    good = new_job()
    do(jobs.enqueue(good))
    assert [row.id for row in look.live()] == [good.id]


def test_a_repeated_enqueue_of_the_same_id_adds_nothing(do: Do, clock: Clock, look: Look) -> None:
    job, other = new_job(), new_job()
    assert do(jobs.enqueue(job)) == do(jobs.enqueue(job)) == Enqueued(job.id)
    assert do(jobs.enqueue_many([job])) == [Enqueued(job.id)]
    assert do(jobs.enqueue_many([job, other])) == [Enqueued(job.id), Enqueued(other.id)]
    assert len(look.live()) == 2


def test_a_repeated_enqueue_of_a_claimed_job_changes_nothing(do: Do, clock: Clock, look: Look) -> None:
    job = new_job()
    do(jobs.enqueue(job))
    do(jobs.claim("mail", limit=1))
    [before] = look.live()
    do(jobs.enqueue(job))
    assert look.live() == [before]


@pytest.mark.parametrize("many", [False, True])
def test_a_repeated_enqueue_of_a_finished_job_does_not_run_it_again(
    do: Do, clock: Clock, look: Look, many: bool
) -> None:
    job = new_job()
    work = jobs.enqueue_many([job]) if many else jobs.enqueue(job)
    do(work)
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    do(work)
    assert look.live() == []
    assert [row.outcome for row in look.over()] == ["done"]


def test_a_job_for_later_waits_until_its_delay_is_over(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job(delay_ms=60_000)))
    clock.advance(59.999)
    assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(0.001)
    assert len(do(jobs.claim("mail", limit=1))) == 1


def test_a_job_for_a_moment_waits_until_that_moment(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job(run_at=clock.now + timedelta(hours=1))))
    clock.advance(timedelta(hours=1) - timedelta(milliseconds=1))
    assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(0.001)
    assert len(do(jobs.claim("mail", limit=1))) == 1


def test_a_moment_in_the_past_is_due_at_once(do: Do, clock: Clock, look: Look) -> None:
    past = clock.now - timedelta(days=400)
    do(jobs.enqueue_many([new_job(run_at=past)]))
    assert look.live()[0].available_at == past
    assert len(do(jobs.claim("mail", limit=1))) == 1


def test_a_moment_counts_in_its_own_time_zone(do: Do, clock: Clock, look: Look) -> None:
    local = clock.now.astimezone(timezone(timedelta(hours=5, minutes=45)))
    do(jobs.enqueue(new_job(run_at=local)))
    do(jobs.enqueue_many([new_job(run_at=local)]))
    assert {row.available_at for row in look.live()} == {clock.now}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"name":"Zoë 🦑 ‮ 中文 \u2028"}', id="unicode"),
        pytest.param(r'{"nul":"\u0000","quote":"\"","slash":"\\"}', id="nul-and-escapes"),
        pytest.param('{"b": 1,  "a":1.0, "a":1e400, "big":123456789012345678901234567890}', id="odd-but-json"),
        pytest.param("[]", id="empty"),
        pytest.param('"%s %(id)s :now ? $1 {}"', id="looks-like-parameters"),
        pytest.param('"' + "x" * 1_048_576 + '"', id="large"),
    ],
)
def test_payload_and_headers_come_back_byte_for_byte(do: Do, clock: Clock, look: Look, text: str) -> None:
    do(jobs.enqueue(new_job(payload=text, headers=text)))
    do(jobs.enqueue_many([new_job(payload=text, headers=text)]))
    leases = do(jobs.claim("mail", limit=2))
    assert [(lease.payload, lease.headers) for lease in leases] == [(text, text)] * 2
    do(jobs.settle([Finish(lease.id, lease.fence, "done", result=text) for lease in leases]))
    assert [(row.payload, row.headers, row.result) for row in look.over()] == [(text, text, text)] * 2


def test_names_and_keys_may_hold_any_text(do: Do, clock: Clock, look: Look) -> None:
    odd = "a'b\"c;--\\%s:now🦑"
    do(jobs.enqueue_many([new_job(odd, odd, key=odd, unique=odd, idempotency_key=odd)]))
    do(jobs.enqueue(new_job(odd, odd, key=odd)))
    leases = do(jobs.claim(odd, limit=5, leases={odd: 30_000}, worker=odd))
    assert {(lease.queue, lease.kind, lease.key) for lease in leases} == {(odd, odd, odd)}
    assert {(row.leased_by, row.unique_key) for row in look.live()} == {(odd, odd), (odd, None)}


def test_work_that_fails_half_way_leaves_nothing_behind(do: Do, clock: Clock, look: Look) -> None:
    @flow
    def two_then_fail() -> Steps[None]:
        yield from jobs.enqueue(new_job())
        yield from jobs.enqueue_many([new_job(idempotency_key="k")])
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        do(two_then_fail())
    assert look.live() == []
    assert look.key_rows() == []


def test_flows_joined_into_one_are_one_transaction_and_keep_their_answers(do: Do, clock: Clock, look: Look) -> None:
    @flow
    def both() -> Steps[list[Enqueued]]:
        first = yield from jobs.enqueue_many([new_job(unique="u")])
        second = yield from jobs.enqueue_many([new_job(unique="u")])
        return first + second

    first, second = do(both())
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert len(look.live()) == 1
