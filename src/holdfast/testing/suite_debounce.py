"""Debounced calls: the last of them counts, the job begins once, and nothing that was said is lost. And throttles."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Live, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_order import ORDERED, say
from holdfast.values.debounce import throttle_scope
from holdfast.values.ids import bucket
from holdfast.values.rows import Enqueued, NewJob


def call(payload: int, about: str = "doc:7", wait: float = 5, max_wait: float = 60, **fields: Any) -> NewJob:
    """Make what a call with a debounce adds, or says to the job that is there."""
    spans = {"delay_ms": round(wait * 1000), "wait_ms": round(wait * 1000), "max_wait_ms": round(max_wait * 1000)}
    return new_job(payload=f'{{"n":{payload}}}', debounce=about, **(spans | fields))


def keyed(payload: int) -> NewJob:
    """As `call`, about an ordering key."""
    return call(payload)._replace(key="a", bucket=bucket("a", 1024))


def said(row: Live) -> str:
    return row.payload.replace(" ", "")


def due_in(row: Live, clock: Clock) -> float:
    return (row.available_at - clock.now).total_seconds()


def test_the_last_call_wins_and_adds_no_job(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1)))
    clock.advance(2)
    assert do(jobs.enqueue(call(2, headers='{"trace":"b"}'))) == Enqueued(first.id, created=False)
    [row] = look.live()
    assert (row.id, said(row), row.headers) == (first.id, '{"n":2}', '{"trace":"b"}')
    assert first.created


def test_a_debounced_job_is_due_when_the_calls_have_been_quiet(do: Do, clock: Clock, look: Look) -> None:
    for _ in range(3):
        do(jobs.enqueue(call(1)))
        clock.advance(4)
        assert do(jobs.claim("mail", limit=1)) == []
    clock.advance(1)
    [lease] = do(jobs.claim("mail", limit=1))
    assert lease.payload == '{"n":1}'


def test_debounce_has_an_end(do: Do, clock: Clock, look: Look) -> None:
    """A stream of calls that never pauses does not keep the job from running."""
    first = do(jobs.enqueue(call(0, wait=5, max_wait=20)))
    for n in range(1, 10):
        clock.advance(2)
        assert do(jobs.enqueue(call(n, wait=5, max_wait=20))).id == first.id
    [row] = look.live()
    assert due_in(row, clock) == 2
    clock.advance(2)
    [lease] = do(jobs.claim("mail", limit=1))
    assert lease.payload == '{"n":9}'


def test_a_call_that_comes_when_the_job_is_due_keeps_its_place_in_the_queue(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1)))
    clock.advance(6)
    due = look.live()[0].available_at
    assert do(jobs.enqueue(call(2))) == Enqueued(first.id, created=False)
    [row] = look.live()
    assert (row.available_at, said(row)) == (due, '{"n":2}')


def test_the_last_call_says_how_long_to_wait(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(call(1, wait=5, max_wait=60)))
    clock.advance(1)
    do(jobs.enqueue(call(2, wait=30, max_wait=60)))
    assert due_in(look.live()[0], clock) == 30
    do(jobs.enqueue(call(3, wait=2, max_wait=60)))
    assert due_in(look.live()[0], clock) == 2
    clock.advance(1)
    # A shorter end than has passed: due now, not in the past, where a claim may have looked already.
    do(jobs.enqueue(call(4, wait=1, max_wait=1)))
    assert due_in(look.live()[0], clock) == 0


def test_without_a_wait_calls_are_taken_in_until_a_worker_comes(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1, wait=0, max_wait=0)))
    clock.advance(3)
    assert do(jobs.enqueue(call(2, wait=0, max_wait=0))).id == first.id
    [lease] = do(jobs.claim("mail", limit=9))
    assert (lease.job_id, lease.payload) == (first.id, '{"n":2}')


def test_update_during_run_is_not_lost(do: Do, clock: Clock, look: Look) -> None:
    """A job that was claimed may have read its input: what is said from then on is in another job."""
    first = do(jobs.enqueue(call(1)))
    clock.advance(5)
    [lease] = do(jobs.claim("mail", limit=1))
    second = do(jobs.enqueue(call(2)))
    assert second.created
    assert second.id != first.id
    assert do(jobs.enqueue(call(3))) == Enqueued(second.id, created=False)
    do(jobs.complete(lease))
    [row] = look.live()
    assert (row.id, said(row), [said_over.payload for said_over in look.over()]) == (second.id, '{"n":3}', ['{"n":1}'])


@pytest.mark.parametrize("end", ["done", "dropped", "retry", "release", "dead", "reaped", "cancelled"])
def test_a_job_that_was_ever_claimed_takes_no_call(do: Do, clock: Clock, look: Look, end: str) -> None:
    first = do(jobs.enqueue(call(1)))
    clock.advance(5)
    [lease] = do(jobs.claim("mail", limit=1))
    match end:
        case "done" | "dropped":
            do(jobs.complete(lease, keep=end == "done"))
        case "retry":
            do(jobs.retry(lease, 60_000, failure()))
        case "release":
            do(jobs.release(lease))
        case "dead":
            do(jobs.kill(lease, failure(), "group"))
        case "cancelled":
            do(jobs.cancel(lease, failure()))
        case _:
            clock.pass_lease(lease)
            do(jobs.reap())
    second = do(jobs.enqueue(call(2)))
    assert second.created
    assert second.id != first.id
    assert {row.id: said(row) for row in look.live()}.get(first.id, '{"n":1}') == '{"n":1}'


def test_a_job_that_was_cancelled_while_it_waited_is_followed_by_a_new_one(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1)))
    assert do(admin.cancel(first.id, None)) == "cancelled"
    second = do(jobs.enqueue(call(2)))
    assert second.created
    assert [row.id for row in look.live()] == [second.id]
    # Replayed by hand, it is a job of its own.
    do(admin.retry(first.id, None))
    assert do(jobs.enqueue(call(3))).id == second.id
    assert {row.id: said(row) for row in look.live()} == {first.id: '{"n":1}', second.id: '{"n":3}'}


def test_a_debounce_key_belongs_to_its_kind(do: Do, clock: Clock, look: Look) -> None:
    answers = [do(jobs.enqueue(call(n, kind=kind))) for n, kind in enumerate(("index", "bill"))]
    assert [answer.created for answer in answers] == [True, True]
    assert {row.kind: said(row) for row in look.live()} == {"index": '{"n":0}', "bill": '{"n":1}'}


def test_a_debounce_key_mixes_with_no_other_key_of_the_same_text(do: Do, clock: Clock, look: Look) -> None:
    answers = do(
        jobs.enqueue_many(
            [
                call(1),
                new_job(idempotency_key="doc:7"),
                new_job(unique="doc:7"),
                new_job(idempotency_key="doc:7", scope=throttle_scope("noop")),
            ]
        )
    )
    assert [answer.created for answer in answers] == [True] * 4
    assert len(look.live()) == 4


def test_where_the_job_runs_is_as_the_first_call_said(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(call(1, queue="mail", priority=3, max_attempts=2, key="a", bucket=bucket("a", 1024))))
    do(jobs.enqueue(call(2, queue="other", priority=9, max_attempts=7, key="b", bucket=bucket("b", 1024))))
    [row] = look.live()
    assert (row.queue, row.priority, row.max_attempts, row.key, said(row)) == ("mail", 3, 2, "a", '{"n":2}')


def test_of_several_calls_in_one_batch_the_last_counts(do: Do, clock: Clock, look: Look) -> None:
    new = [call(1), new_job(payload='{"n":0}'), call(2), call(3, "doc:8"), call(4)]
    answers = do(jobs.enqueue_many(new, fresh=True))
    assert [answer.created for answer in answers] == [True, True, False, True, False]
    assert [answer.id for answer in answers] == [new[0].id, new[1].id, new[0].id, new[3].id, new[0].id]
    payloads = {row.id: said(row) for row in look.live()}
    assert payloads == {new[0].id: '{"n":4}', new[1].id: '{"n":0}', new[3].id: '{"n":3}'}
    again = do(jobs.enqueue_many([call(5), call(6)], fresh=True))
    assert again == [Enqueued(new[0].id, created=False)] * 2
    assert {row.id: said(row) for row in look.live()} == payloads | {new[0].id: '{"n":6}'}


def test_many_keys_are_debounced_in_one_call(do: Do, clock: Clock, look: Look) -> None:
    new = [call(n, about=f"k{n % 250}") for n in range(500)]
    assert sum(answer.created for answer in do(jobs.enqueue_many(new, fresh=True))) == 250
    clock.advance(10)
    claimed = do(jobs.claim("mail", limit=100))
    assert len(claimed) == 100
    answers = do(jobs.enqueue_many([call(1_000 + n, f"k{n}") for n in range(250)], fresh=True))
    assert sum(answer.created for answer in answers) == 100
    numbers = sorted(int(said(row)[5:-1]) for row in look.live() if row.state == "pending")
    assert numbers == list(range(1_000, 1_250))


# Repeats


@pytest.mark.parametrize("finished", [False, True])
def test_a_repeated_call_that_added_the_job_adds_no_other(do: Do, clock: Clock, look: Look, finished: bool) -> None:
    new = call(1)
    do(jobs.enqueue(new, fresh=True))
    if finished:
        clock.advance(5)
        [lease] = do(jobs.claim("mail", limit=1))
        do(jobs.complete(lease))
    assert do(jobs.enqueue(new)) == Enqueued(new.id, created=True)
    assert [row.id for row in look.live()] == ([] if finished else [new.id])


@pytest.mark.parametrize("state", ["waits", "runs", "is over"])
def test_a_repeated_call_that_another_job_took_adds_none(do: Do, clock: Clock, look: Look, state: str) -> None:
    first, repeated = do(jobs.enqueue(call(1))), call(2)
    do(jobs.enqueue(repeated, fresh=True))
    if state != "waits":
        clock.advance(5)
        [lease] = do(jobs.claim("mail", limit=1))
        if state == "is over":
            do(jobs.complete(lease, keep=False))
    assert do(jobs.enqueue(repeated)) == Enqueued(first.id, created=False)
    assert len(look.live()) == (0 if state == "is over" else 1)


def test_a_repeated_call_that_was_never_committed_counts(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1)))
    assert do(jobs.enqueue(call(2), fresh=False)) == Enqueued(first.id, created=False)
    assert said(look.live()[0]) == '{"n":2}'


def test_a_repeated_call_that_added_the_job_leaves_what_others_said_since(do: Do, clock: Clock, look: Look) -> None:
    new = call(1)
    do(jobs.enqueue(new, fresh=True))
    do(jobs.enqueue(call(2), fresh=True))
    assert do(jobs.enqueue(new)) == Enqueued(new.id, created=True)
    assert [(row.id, said(row)) for row in look.live()] == [(new.id, '{"n":2}')]


# Ordered queues


def test_a_debounced_job_joins_its_line_when_it_is_due(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    first = do(jobs.enqueue(keyed(1)))
    second = do(jobs.enqueue(new_job(key="a", bucket=bucket("a", 1024))))
    claimed = do(lines.claim("mail", ORDERED, limit=9)).leases
    assert [lease.job_id for lease in claimed] == [second.id]
    do(jobs.complete(claimed[0]))
    assert do(jobs.enqueue(keyed(2))).id == first.id
    clock.advance(5)
    [lease] = do(lines.claim("mail", ORDERED, limit=9)).leases
    assert (lease.job_id, lease.payload) == (first.id, '{"n":2}')


@pytest.mark.parametrize("parked", [False, True])
def test_a_job_that_stands_in_its_line_takes_no_call(do: Do, clock: Clock, look: Look, parked: bool) -> None:
    """Its line may lease it or call it at any moment, and must not wait for the caller's transaction."""
    say(do)
    do(jobs.enqueue(new_job(key="a", bucket=bucket("a", 1024))))
    [ahead] = do(lines.claim("mail", ORDERED, limit=9)).leases
    first = do(jobs.enqueue(keyed(1)))
    clock.advance(5)
    if parked:
        assert do(lines.claim("mail", ORDERED, limit=9)).leases == []
        assert {row.id: row.waits_for for row in look.live()}[first.id] == "line"
    second = do(jobs.enqueue(keyed(2)))
    assert second.created
    assert do(jobs.enqueue(keyed(3))).id == second.id
    do(jobs.complete(ahead))
    clock.advance(5)
    ran: list[str] = []
    while leases := do(lines.claim("mail", ORDERED, limit=1)).leases:
        ran += [lease.payload for lease in leases]
        for lease in leases:
            do(jobs.complete(lease))
    assert ran == ['{"n":1}', '{"n":3}']
    assert not look.rows("select key from holdfast_lines")


# Keys that nobody needs any more


def test_debounce_keys_are_pruned_once_their_job_takes_no_calls(do: Do, clock: Clock, look: Look) -> None:
    for n in range(5):
        do(jobs.enqueue(call(n, f"k{n}", wait=n, max_wait=9_999)))
    clock.advance(3)
    for lease in do(jobs.claim("mail", limit=9)):
        do(jobs.complete(lease))
    assert do(jobs.prune_debounces()) == 0
    clock.advance(1_801)
    assert [do(jobs.prune_debounces(limit=3)) for _ in range(3)] == [3, 1, 0]
    assert [row[0] for row in look.rows("select key from holdfast_debounces")] == ["k4"]
    # The one that waits still takes calls, however old its key is.
    assert not do(jobs.enqueue(call(9, "k4"))).created


def test_the_age_of_a_key_counts_from_its_last_call(do: Do, clock: Clock, look: Look) -> None:
    for _ in range(2):
        do(jobs.enqueue(call(1, wait=0, max_wait=0)))
        clock.advance(1_000)
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    assert do(jobs.prune_debounces()) == 0
    clock.advance(timedelta(seconds=900).total_seconds())
    assert do(jobs.prune_debounces()) == 1


# Throttles: an idempotency key with a scope of its own


def throttled(payload: int, window: float = 60, **fields: Any) -> NewJob:
    scope = throttle_scope(fields.get("kind", "noop"))
    said = {"idempotency_key": "doc:7", "scope": scope, "window_ms": round(window * 1000)}
    return new_job(payload=f'{{"n":{payload}}}', **(said | fields))


def test_the_first_call_of_a_throttle_wins_until_its_window_is_over(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(throttled(1)))
    clock.advance(59)
    assert do(jobs.enqueue(throttled(2))) == Enqueued(first.id, created=False)
    [lease] = do(jobs.claim("mail", limit=9))
    assert lease.payload == '{"n":1}'
    do(jobs.complete(lease, keep=False))
    assert do(jobs.enqueue(throttled(3))) == Enqueued(first.id, created=False)
    assert look.live() == []
    clock.advance(1)
    assert do(jobs.enqueue(throttled(4))).created


def test_a_throttle_of_the_longest_kind_has_a_scope_of_its_own(do: Do, clock: Clock, look: Look) -> None:
    kind = "k" * 100
    first = do(jobs.enqueue(throttled(1, kind=kind)))
    assert do(jobs.enqueue(throttled(2, kind=kind))) == Enqueued(first.id, created=False)
    assert do(jobs.enqueue(new_job(kind=kind, idempotency_key="doc:7"))).created
    assert do(jobs.enqueue(throttled(3, kind="k" * 99 + "x"))).created
    assert len(look.key_rows()) == 3
    clock.advance(90_000)
    assert do(jobs.prune_keys()) == 3


def test_a_throttle_that_finds_a_unique_job_names_it(do: Do, clock: Clock, look: Look) -> None:
    live = do(jobs.enqueue(new_job(unique="u")))
    assert do(jobs.enqueue(throttled(1, unique="u"))) == Enqueued(live.id, created=False)
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    assert do(jobs.enqueue(throttled(2, unique="u"))) == Enqueued(live.id, created=False)
