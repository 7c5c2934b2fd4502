"""Every promise of a sink as a test: import it beside a fixture `receiver`, a `holdfast.testing.sinks.Receiver`."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import pytest

from holdfast.sinks import Delivered, Failed, Message, Outcome, Refused, Sink, SinkDown
from holdfast.testing.sinks import Receiver, full_message, message
from holdfast.values.cloudevents import CloudEvent

T = TypeVar("T")
# How long to wait for what must come: a bound for a test that hangs, no promise.
PATIENCE = 60.0
# How often to try what depends on who notices first.
TRIES = 20


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end; what is left of tasks or open files afterwards fails the test."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE):
            answer = await work
            await _no_tasks_left()
        return answer

    answer = asyncio.run(bounded())
    gc.collect()
    return answer


async def _no_tasks_left() -> None:
    """Let tasks that are ending end; one that stays is a leak."""
    for _ in range(100):
        if asyncio.all_tasks() == {asyncio.current_task()}:
            return
        await asyncio.sleep(0.02)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    raise AssertionError(f"close left tasks behind: {left}")


async def sent(receiver: Receiver, messages: Sequence[Message]) -> Sequence[Outcome]:
    """Send once with a sink of its own."""
    sink = receiver.sink()
    try:
        return await sink.send(messages)
    finally:
        await sink.close()


async def sent_at_last(sink: Sink, messages: Sequence[Message]) -> None:
    """Send again and again what was not delivered, as a relay does, until all was."""
    left = list(messages)
    while left:
        try:
            outcomes = await sink.send(left)
        except SinkDown:
            await asyncio.sleep(0.02)
            continue
        left = [one for one, outcome in zip(left, outcomes, strict=True) if not isinstance(outcome, Delivered)]


async def ids(receiver: Receiver) -> list[str]:
    return [event.id for event in await receiver.received()]


def names(messages: Sequence[Message]) -> list[str]:
    return [one.event.id for one in messages]


@contextmanager
def possible(context: AbstractContextManager[object] | None) -> Iterator[None]:
    if context is None:
        pytest.skip("this receiver cannot do that")
    with context:
        yield


def test_it_is_a_sink(receiver: Receiver) -> None:
    assert isinstance(receiver.sink(), Sink)


def test_an_event_arrives_as_it_was(receiver: Receiver) -> None:
    async def work() -> None:
        whole, plain = full_message(), message("order:2", {"n": 1})
        outcomes = await sent(receiver, [whole, plain])
        assert [type(one) for one in outcomes] == [Delivered, Delivered]
        arrived = {event.id: event for event in await receiver.received()}
        for one in (whole, plain):
            assert _comparable(arrived[one.event.id]) == _comparable(one.event)

    run(work())


def _comparable(event: CloudEvent) -> tuple[Any, ...]:
    return event.attributes, event.data


def test_nothing_to_send_is_nothing_sent(receiver: Receiver) -> None:
    assert list(run(sent(receiver, []))) == []


def test_messages_of_one_key_arrive_in_their_order(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        messages = [message(f"key:{n % 4}") for n in range(40)]
        for start in (0, 15, 25):
            outcomes = await sink.send(messages[start : {0: 15, 15: 25, 25: 40}[start]])
            assert {type(one) for one in outcomes} == {Delivered}
        await sink.close()
        order = await ids(receiver)
        by_key: dict[str | None, list[str]] = defaultdict(list)
        for one in messages:
            by_key[one.key].append(one.event.id)
        for expected in by_key.values():
            assert [one for one in order if one in set(expected)] == expected

    run(work())


def test_sends_may_run_at_the_same_time(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        batches = [[message(f"key:{batch}") for _ in range(5)] for batch in range(4)]
        answers = await asyncio.gather(*(sink.send(batch) for batch in batches))
        await sink.close()
        assert {type(one) for answer in answers for one in answer} == {Delivered}
        assert {one.event.id for batch in batches for one in batch} <= set(await ids(receiver))

    run(work())


def test_a_bad_message_is_refused_and_others_go_on(receiver: Receiver) -> None:
    bad = receiver.bad()
    if bad is None:
        pytest.skip("this receiver takes everything")
    assert bad.key == "bad"

    async def work() -> None:
        before, behind, other, free = message("bad"), message("bad"), message("other"), message()
        outcomes = await sent(receiver, [before, bad, behind, other, free])
        assert [type(one) for one in outcomes] == [Delivered, Refused, Failed, Delivered, Delivered], outcomes
        arrived = set(await ids(receiver))
        assert arrived >= set(names([before, other, free]))
        # What stands behind it waits for it, so that the order of its key can be kept.
        assert not arrived & set(names([bad, behind]))

    run(work())


def test_an_outage_uses_no_attempt_and_the_sink_comes_back_by_itself(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        with possible(receiver.outage()), pytest.raises(SinkDown):
            await sink.send([message("a"), message("b")])
        messages = [message("a"), message("b")]
        await sent_at_last(sink, messages)
        await sink.close()
        assert set(names(messages)) <= set(await ids(receiver))

    run(work())


def test_an_outage_after_the_first_message_loses_nothing(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        first, messages = message("a"), [message("a"), message("b"), message("a")]
        await sent_at_last(sink, [first])
        with possible(receiver.outage()):
            outcomes: Sequence[Outcome] = ()
            with suppress(SinkDown):
                outcomes = await sink.send(messages)
            assert not any(isinstance(one, Delivered | Refused) for one in outcomes), outcomes
        await sent_at_last(sink, messages)
        await sink.close()
        assert set(names([first, *messages])) <= set(await ids(receiver))

    run(work())


def test_an_answer_that_was_lost_is_an_unknown_outcome(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        await sent_at_last(sink, [message("a")])
        one, two = message("a"), message("a")
        outcomes: Sequence[Outcome] = ()
        for _ in range(TRIES):
            # A client may see that its connection is cut before it has sent anything, and says so: another try.
            with possible(receiver.lost_answers()), suppress(SinkDown):
                outcomes = await sink.send([one, two])
            if outcomes:
                break
            await sent_at_last(sink, [message("a")])
        assert outcomes, "the sink was down each time, and no answer could be lost"
        if not receiver.finds_out:
            assert [isinstance(each, Failed) for each in outcomes] == [True, True], outcomes
            assert any(isinstance(each, Failed) and each.unknown for each in outcomes), outcomes
            if receiver.tells_losses:
                assert all(each.lost for each in outcomes if isinstance(each, Failed) and each.unknown), outcomes
        await sent_at_last(sink, [one, two])
        await sink.close()
        order = await ids(receiver)
        assert order.index(one.event.id) < order.index(two.event.id)

    run(work())


def test_a_send_that_was_cancelled_leaves_the_sink_usable(receiver: Receiver) -> None:
    async def work() -> None:
        sink = receiver.sink()
        for pause in (0, 0.001, 0.02):
            sending = asyncio.get_running_loop().create_task(_sending(sink))
            await asyncio.sleep(pause)
            sending.cancel()
            await asyncio.wait([sending])
        last = message("b")
        await sent_at_last(sink, [last])
        await sink.close()
        assert last.event.id in await ids(receiver)

    run(work())


async def _sending(sink: Sink) -> None:
    await sink.send([message("a") for _ in range(5)])


def test_a_sink_may_be_closed_at_any_time_and_sends_again(receiver: Receiver) -> None:
    sink = receiver.sink()

    async def once() -> str:
        await sink.close()
        one = message("a")
        assert [type(each) for each in await sink.send([one])] == [Delivered]
        await sink.close()
        await sink.close()
        return one.event.id

    async def arrived() -> list[str]:
        return await ids(receiver)

    # Two event loops, as in a process that starts a second worker.
    both = [run(once()), run(once())]
    assert set(both) <= set(run(arrived()))


def test_secrets_are_not_shown(receiver: Receiver) -> None:
    async def work() -> str:
        sink = receiver.sink()
        with possible(receiver.outage()), pytest.raises(SinkDown) as caught:
            await sink.send([message()])
        await sink.close()
        return f"{sink!r} {caught.value!r} {caught.value} {caught.value.__cause__!r}"

    if not receiver.secrets:
        pytest.skip("this receiver has no secrets")
    shown = run(work())
    assert not [secret for secret in receiver.secrets if secret in shown], shown
