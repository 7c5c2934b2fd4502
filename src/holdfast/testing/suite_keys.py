"""Idempotency keys and unique jobs: two different promises."""

from __future__ import annotations

import pytest

from holdfast import jobs
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Enqueued, Finish

HOUR_MS = 3_600_000


def test_a_second_enqueue_with_the_same_idempotency_key_finds_the_first_job(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(new_job(idempotency_key="k")))
    second = do(jobs.enqueue(new_job(idempotency_key="k", payload='{"other":1}')))
    assert second == Enqueued(first.id, created=False)
    assert [(row.id, row.payload) for row in look.live()] == [(first.id, "{}")]


def test_a_repeated_enqueue_of_the_same_job_still_counts_as_created(do: Do, clock: Clock, look: Look) -> None:
    job = new_job(idempotency_key="k")
    assert do(jobs.enqueue(job)) == do(jobs.enqueue(job)) == Enqueued(job.id, created=True)
    assert len(look.live()) == 1


def test_an_idempotency_key_belongs_to_its_kind(do: Do, clock: Clock, look: Look) -> None:
    answers = [do(jobs.enqueue(new_job(kind=kind, idempotency_key="k"))) for kind in ("send", "bill")]
    assert [answer.created for answer in answers] == [True, True]
    assert len(look.live()) == 2


def test_an_idempotency_key_spans_queues(do: Do, clock: Clock) -> None:
    first = do(jobs.enqueue(new_job("mail", idempotency_key="k")))
    assert do(jobs.enqueue(new_job("bulk", idempotency_key="k"))) == Enqueued(first.id, created=False)


@pytest.mark.parametrize("keep", [True, False])
def test_an_idempotency_key_names_its_job_after_the_job_finished(do: Do, clock: Clock, look: Look, keep: bool) -> None:
    first = do(jobs.enqueue(new_job(idempotency_key="k")))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease, keep=keep))
    assert do(jobs.enqueue(new_job(idempotency_key="k"))) == Enqueued(first.id, created=False)
    assert look.live() == []


def test_an_idempotency_key_is_free_again_after_its_window(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(new_job(idempotency_key="k", window_ms=HOUR_MS)))
    clock.advance(3_600 - 0.001)
    assert do(jobs.enqueue(new_job(idempotency_key="k", window_ms=HOUR_MS))).id == first.id
    clock.advance(0.001)
    again = do(jobs.enqueue(new_job(idempotency_key="k", window_ms=HOUR_MS)))
    assert again.created
    assert again.id != first.id
    assert look.key_rows() == [("noop", "k", again.id)]


def test_a_job_found_by_its_key_does_not_stretch_the_window(do: Do, clock: Clock) -> None:
    do(jobs.enqueue(new_job(idempotency_key="k", window_ms=HOUR_MS)))
    clock.advance(3_599)
    do(jobs.enqueue(new_job(idempotency_key="k", window_ms=HOUR_MS)))
    clock.advance(1)
    assert do(jobs.enqueue(new_job(idempotency_key="k"))).created


def test_each_key_of_a_batch_has_a_window_of_its_own(do: Do, clock: Clock) -> None:
    def batch() -> list[Enqueued]:
        windows = {"a": 1_000, "b": HOUR_MS, "c": 1_000, "d": 1_000}
        return do(jobs.enqueue_many([new_job(idempotency_key=key, window_ms=ms) for key, ms in windows.items()]))

    first = batch()
    clock.advance(1)
    second = batch()
    assert [answer.created for answer in second] == [True, False, True, True]
    assert second[1].id == first[1].id


def test_one_batch_with_one_idempotency_key_twice_adds_one_job(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job(idempotency_key="a"), new_job(), new_job(idempotency_key="b"), new_job(idempotency_key="a")]
    answers = do(jobs.enqueue_many(new))
    assert [answer.created for answer in answers] == [True, True, True, False]
    assert answers[3].id == answers[0].id == new[0].id
    assert len(look.live()) == 3


def test_a_batch_finds_some_keys_and_takes_the_others(do: Do, clock: Clock, look: Look) -> None:
    held = do(jobs.enqueue(new_job(idempotency_key="k7")))
    answers = do(jobs.enqueue_many([new_job(idempotency_key=f"k{n}") for n in range(20)]))
    assert [n for n, answer in enumerate(answers) if not answer.created] == [7]
    assert answers[7].id == held.id
    assert len(look.live()) == len(look.key_rows()) == 20


def test_many_keys_are_taken_in_one_call(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job(idempotency_key=f"k{n}") for n in range(1_000)]
    assert all(answer.created for answer in do(jobs.enqueue_many(new)))
    again = [new_job(idempotency_key=f"k{n}") for n in range(1_000)]
    assert [answer.id for answer in do(jobs.enqueue_many(again))] == [job.id for job in new]
    assert len(look.live()) == 1_000


def test_one_unique_job_is_live_at_a_time(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(new_job(unique="u")))
    assert do(jobs.enqueue(new_job(unique="u"))) == Enqueued(first.id, created=False)
    do(jobs.claim("mail", limit=1))
    assert do(jobs.enqueue(new_job(unique="u"))) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_a_unique_key_belongs_to_its_kind(do: Do, clock: Clock, look: Look) -> None:
    assert do(jobs.enqueue(new_job(kind="send", unique="u"))).created
    assert do(jobs.enqueue(new_job(kind="bill", unique="u"))).created
    assert len(look.live()) == 2


@pytest.mark.parametrize("end", [("done", True), ("done", False), ("dead", True), ("cancelled", True)])
def test_a_unique_key_is_free_again_when_its_job_is_over(do: Do, clock: Clock, end: tuple[str, bool]) -> None:
    outcome, keep = end
    first = do(jobs.enqueue(new_job(unique="u")))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.settle([Finish(lease.id, lease.fence, outcome, keep=keep)]))  # type: ignore[arg-type]
    second = do(jobs.enqueue(new_job(unique="u")))
    assert second.created
    assert second.id != first.id


def test_a_retried_job_keeps_its_unique_key(do: Do, clock: Clock) -> None:
    first = do(jobs.enqueue(new_job(unique="u")))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.retry(lease, 60_000, failure()))
    assert do(jobs.enqueue(new_job(unique="u"))) == Enqueued(first.id, created=False)


def test_a_reaped_job_keeps_its_unique_key(do: Do, clock: Clock) -> None:
    first = do(jobs.enqueue(new_job(unique="u")))
    [lease] = do(jobs.claim("mail", limit=1))
    clock.pass_lease(lease)
    do(jobs.reap())
    assert do(jobs.enqueue(new_job(unique="u"))) == Enqueued(first.id, created=False)


def test_one_batch_with_one_unique_key_twice_adds_one_job(do: Do, clock: Clock, look: Look) -> None:
    answers = do(jobs.enqueue_many([new_job(unique="a"), new_job(unique="a"), new_job(unique="b"), new_job()]))
    assert [answer.created for answer in answers] == [True, False, True, True]
    assert answers[1].id == answers[0].id
    assert len(look.live()) == 3


def test_a_job_with_both_keys_is_found_by_either(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(new_job(unique="u", idempotency_key="k")))
    assert do(jobs.enqueue(new_job(unique="other", idempotency_key="k"))) == Enqueued(first.id, created=False)
    assert do(jobs.enqueue(new_job(unique="u", idempotency_key="other"))) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_an_idempotency_key_never_names_a_job_that_was_not_added(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(new_job(unique="u")))
    do(jobs.enqueue(new_job(unique="u", idempotency_key="k")))
    assert look.key_rows() == [("noop", "k", first.id)]
    assert do(jobs.enqueue(new_job(idempotency_key="k"))) == Enqueued(first.id, created=False)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("live", [True, False])
def test_every_answer_of_a_batch_with_both_keys_twice_names_a_job(
    do: Do, clock: Clock, look: Look, live: bool, order: tuple[int, ...]
) -> None:
    if live:
        do(jobs.enqueue(new_job(unique="u")))
    both, keyed = new_job(unique="u", idempotency_key="k"), new_job(idempotency_key="k")
    new = [both, new_job(unique="u", idempotency_key="k"), new_job(unique="u")]
    answers = do(jobs.enqueue_many([*(new[place] for place in order), keyed]))
    [job] = look.live()
    assert {answer.id for answer in answers} == {job.id}
    assert [answer.created for answer in answers] == [not live, False, False, False]
    assert look.key_rows() == [("noop", "k", job.id)]


def test_expired_keys_are_pruned_in_chunks_and_live_ones_stay(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue_many([new_job(idempotency_key=f"old{n}", window_ms=1_000) for n in range(5)]))
    do(jobs.enqueue(new_job(idempotency_key="young", window_ms=HOUR_MS)))
    assert do(jobs.prune_keys()) == 0
    clock.advance(1)
    assert [do(jobs.prune_keys(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    assert [key for _, key, _ in look.key_rows()] == ["young"]
