"""What happens once: the job of a message, and an effect that is recorded with its key. How far a stream was read."""

from __future__ import annotations

import pytest

from holdfast import jobs
from holdfast.flow import Flow, Steps, flow
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.ids import new_id
from holdfast.values.once import (
    ONCE_SCOPE,
    message_key,
    message_scope,
    received_key,
    received_scope,
)
from holdfast.values.rows import Enqueued, NewJob

HOUR_MS = 3_600_000


def of_message(source: str, message_id: str, kind: str = "noop", window_ms: int = HOUR_MS) -> NewJob:
    """Make the job of a message, as `hf.receive_one` does."""
    return new_job(kind=kind, scope=message_scope(source), idempotency_key=message_key(message_id), window_ms=window_ms)


def take_once(key: str, mark: str | None = None) -> Flow[bool]:
    """Record an effect in a block of its own, or in the one that has this mark."""
    return jobs.take_once(key, HOUR_MS, mark or new_id())


def test_a_message_adds_its_job_once(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(of_message("stripe", "evt_1")))
    assert do(jobs.enqueue(of_message("stripe", "evt_1"))) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_a_message_is_known_whatever_its_second_job_would_be(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(of_message("stripe", "evt_1", kind="paid")))
    assert not do(jobs.enqueue(of_message("stripe", "evt_1", kind="refunded"))).created
    assert [row.kind for row in look.live()] == ["paid"]


def test_messages_of_other_sources_and_keys_of_jobs_are_others(do: Do, clock: Clock) -> None:
    new = [of_message("stripe", "1"), of_message("paypal", "1"), new_job(kind="stripe", idempotency_key="1")]
    assert [do(jobs.enqueue(job)).created for job in new] == [True, True, True]


@pytest.mark.parametrize("length", [200, 201, 5_000])
def test_the_id_of_a_message_may_be_long(do: Do, clock: Clock, look: Look, length: int) -> None:
    source, message_id = "https://pay.example/" + "s" * length, "i" * (length - 1)
    assert do(jobs.enqueue(of_message(source, message_id + "1"))).created
    assert do(jobs.enqueue(of_message(source, message_id + "2"))).created
    assert not do(jobs.enqueue(of_message(source, message_id + "1"))).created
    assert len(look.live()) == 2


def test_the_text_of_a_digest_is_not_taken_for_what_it_is_a_digest_of(do: Do, clock: Clock) -> None:
    long = "i" * 300
    assert do(jobs.enqueue(of_message("s", message_key(long)))).created
    assert do(jobs.enqueue(of_message("s", long))).created


def test_a_message_is_forgotten_after_its_window(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(of_message("stripe", "evt_1")))
    clock.advance(3_600 - 0.001)
    assert not do(jobs.enqueue(of_message("stripe", "evt_1"))).created
    clock.advance(0.001)
    assert do(jobs.prune_keys()) == 1
    assert do(jobs.enqueue(of_message("stripe", "evt_1"))).created


def test_each_handler_of_a_message_counts_for_itself(do: Do, clock: Clock, look: Look) -> None:
    def received(kind: str) -> NewJob:
        return new_job(kind=kind, scope=received_scope(kind), idempotency_key=received_key("/shop", "1"))

    answers = do(jobs.enqueue_many([received("mail"), received("count"), received("mail")]))
    assert [answer.created for answer in answers] == [True, True, False]
    assert [row.kind for row in look.live()] == ["mail", "count"]


def test_source_and_id_of_a_message_do_not_run_together() -> None:
    assert received_key("a b", "c") != received_key("a", "b c")


@flow
def _noted(name: str, offset: int, job: NewJob, *, fails: bool = False) -> Steps[None]:
    """Store a message and how far its stream was received, as a worker does."""
    yield from jobs.note_position(name, offset)
    yield from jobs.enqueue(job)
    if fails:
        raise ValueError("the batch failed")


def test_the_position_of_a_stream_commits_with_its_messages_or_not_at_all(do: Do, clock: Clock, look: Look) -> None:
    name = jobs.position_name("paid", new_id())
    with pytest.raises(ValueError, match="the batch failed"):
        do(_noted(name, 7, new_job(), fails=True))
    assert (do(jobs.position(name)), look.live()) == (None, [])
    do(_noted(name, 7, new_job()))
    assert (do(jobs.position(name)), len(look.live())) == (7, 1)


def test_the_position_of_a_stream_never_goes_back(do: Do, clock: Clock) -> None:
    name = jobs.position_name("paid", new_id())
    for offset, known in ((9, 9), (10, 10), (2, 10), (10**18, 10**18), (11, 10**18)):
        do(_noted(name, offset, new_job()))
        assert do(jobs.position(name)) == known


def test_each_handler_has_a_position_of_its_own_in_each_stream(do: Do, clock: Clock) -> None:
    streams = new_id(), new_id()
    names = [jobs.position_name(kind, stream) for kind in ("paid", "count") for stream in streams]
    for offset, name in enumerate(names):
        do(_noted(name, offset, new_job()))
    assert [do(jobs.position(name)) for name in names] == [0, 1, 2, 3]


def test_an_effect_is_first_once(do: Do, clock: Clock) -> None:
    assert [do(take_once("charge:1")), do(take_once("charge:1")), do(take_once("charge:2"))] == [True, False, True]


def test_an_effect_is_first_once_in_one_transaction_too(do: Do, clock: Clock) -> None:
    @flow
    def twice() -> Steps[list[bool]]:
        first = yield from take_once("charge:1")
        return [first, (yield from take_once("charge:1"))]

    assert do(twice()) == [True, False]


def test_an_effect_that_rolled_back_is_first_again(do: Do, clock: Clock, look: Look) -> None:
    @flow
    def failing() -> Steps[None]:
        assert (yield from take_once("charge:1"))
        raise ValueError("the effect failed")

    with pytest.raises(ValueError, match="the effect failed"):
        do(failing())
    assert look.key_rows() == []
    assert do(take_once("charge:1"))


def test_an_effect_that_failed_is_taken_back_by_its_own_block_alone(do: Do, clock: Clock, look: Look) -> None:
    mark = new_id()
    assert do(take_once("charge:1", mark))
    do(jobs.forget_once("charge:1", new_id()))
    assert look.key_rows() == [(ONCE_SCOPE, "charge:1", mark)]
    do(jobs.forget_once("charge:1", mark))
    assert do(take_once("charge:1"))


def test_an_effect_is_forgotten_after_its_window(do: Do, clock: Clock, look: Look) -> None:
    do(take_once("charge:1"))
    clock.advance(3_600 - 0.001)
    assert do(jobs.prune_keys()) == 0
    assert not do(take_once("charge:1"))
    clock.advance(0.001)
    assert do(take_once("charge:1"))
