"""Handlers of messages are ordinary jobs: types, keys, order, headers, dead letters, replay. Redis brings messages."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import Enqueueing, Job, admin, events
from holdfast.inbox import consumers
from holdfast.values.cloudevents import CloudEvent
from tests.inbox.conftest import made
from tests.inbox.feeds import Feed, RedisFeed, event
from tests.inbox.test_receiving import receive, until_received
from tests.worker.stage import Stage


class Order(msgspec.Struct):
    n: int


@pytest.fixture
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    yield from made(request, RedisFeed)


@pytest.fixture
def stage(sqlite_stage: Stage) -> Stage:
    return sqlite_stage


def dead(stage: Stage) -> list[Any]:
    return [stage.show(row[0]) for row in stage.sql("select id from holdfast_finished where outcome = 'dead'")]


def test_a_handler_may_take_the_data_as_a_type_of_its_own(stage: Stage, feed: Feed) -> None:
    seen: list[Any] = []

    @stage.hf.receive(feed.broker(), queue="payments")
    def paid(job: Job, order: Order) -> None:
        seen.append((order, job.queue, job.headers["ce-id"], job.headers["ce-type"]))

    feed.publish(event(1), event(2, data={"n": "two"}), event(3))
    stage.work(lambda _: until_received(stage, feed, 3))
    assert [order for order, *_ in seen] == [Order(1), Order(3)]
    assert seen[0][1:] == ("payments", "event-1", "test.paid")
    [refused] = dead(stage)
    assert "n" in refused.last_error["message"]
    assert len(stage.heard(events.MessageUnreadable)) == 1


def test_a_dead_message_is_read_anew_when_it_is_replayed(stage: Stage, feed: Feed) -> None:
    async def paid(order: Order) -> None: ...

    stage.hf.receive(feed.broker())(paid)
    feed.publish(event(1, data={"n": "one"}))
    stage.work(lambda _: until_received(stage, feed, 1))
    [letter] = dead(stage)

    # The handler of the next release takes anything.
    seen: list[Any] = []
    app = stage.app()

    @app.receive(feed.broker(), kind="paid")
    async def paid_again(order: dict[str, Any]) -> None:
        seen.append(order)

    stage.run(admin.replay(admin.Filter(ids=(letter.id,)), 1, "test"))
    stage.work(hf=app)
    assert (seen, stage.state(letter)) == ([{"n": "one"}], "done")


def test_a_message_that_is_too_large_becomes_a_dead_letter_with_its_bytes(stage: Stage, feed: Feed) -> None:
    app, seen = stage.app(payload_limit=1_000), []

    @app.receive(feed.broker())
    async def paid(event: CloudEvent) -> None:
        seen.append(event.id)

    large = event(1, data={"n": "x" * 2_000})
    feed.publish(large, event(2))
    stage.work(lambda _: until_received(stage, feed, 2), hf=app)
    [letter] = dead(stage)
    assert (seen, letter.last_error["type"]) == (["event-2"], "holdfast.errors.PayloadTooLarge")
    assert base64.b64decode(json.loads(letter.payload)["holdfast-message"]["body_base64"]) == large.event.body


def test_messages_of_one_key_run_in_the_order_of_the_broker(stage: Stage, feed: Feed) -> None:
    seen: dict[str, list[int]] = {}
    stage.hf.queue("payments", ordered=True)

    @stage.hf.receive(feed.broker(), queue="payments", key="{subject}")
    async def paid(event: CloudEvent, job: Job) -> None:
        assert job.key == event.subject
        seen.setdefault(str(event.subject), []).append(event.data["n"])

    feed.publish(*(event(n, subject=f"order:{n % 3}") for n in range(60)))
    stage.work(lambda _: until_received(stage, feed, 60))
    assert seen == {f"order:{key}": [*range(key, 60, 3)] for key in range(3)}


def test_headers_come_along_but_nobody_outside_speaks_for_holdfast(stage: Stage, feed: Feed) -> None:
    seen: list[Any] = []
    hooked: list[str] = []

    @stage.hf.enqueue_hook
    def note(new: Enqueueing) -> dict[str, str]:
        hooked.append(new.kind)
        return {"noted": "yes"}

    @stage.hf.receive(feed.broker())
    async def paid(event: CloudEvent, job: Job) -> None:
        seen.append(dict(job.headers))

    feed.publish_raw(b"{}", **{"trace": "abc", "holdfast-expires": "1", "ce-note": "x", "key": "order:1"})
    stage.work(lambda _: until_received(stage, feed, 1))
    [headers] = seen
    assert headers.pop("holdfast-message").startswith(f"{feed.name}@")
    assert headers == {"trace": "abc", "noted": "yes"}
    assert hooked == ["paid"]
    assert stage.sql("select key from holdfast_finished") == [("order:1",)]


def test_a_hook_that_fails_is_told_of_once_and_its_messages_come_again(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    failures = [ValueError("not yet"), ValueError("not yet")]

    @stage.hf.enqueue_hook
    def note(new: Enqueueing) -> None:
        if failures:
            raise failures.pop()

    receive(stage, feed.broker(), seen)
    feed.publish(event(1))
    stage.work(lambda _: until_received(stage, feed, 1))
    assert [one.id for one in seen] == ["event-1"]
    [told] = stage.heard(events.UpkeepFailed)
    assert "not yet" in told.error
    assert not stage.heard(events.BrokerLost)


def test_two_handlers_of_one_message_each_have_a_job(stage: Stage, feed: Feed) -> None:
    seen: list[str] = []
    for kind, group in (("mail", "one"), ("count", "two")):

        async def note(event: CloudEvent, job: Job) -> None:
            seen.append(f"{job.kind} {event.id}")

        stage.hf.receive(feed.broker(group), kind=kind)(note)
    feed.publish(event(1))
    stage.work(lambda _: until_received(stage, feed, 2))
    assert sorted(seen) == ["count event-1", "mail event-1"]


def test_a_handler_of_messages_can_be_enqueued_by_hand(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    paid = receive(stage, feed.broker(), seen)
    mine = event(7).event
    paid.enqueue(event=mine)
    stage.work(receive=False)
    assert seen == [mine]


def test_what_makes_no_consumers_is_not_a_broker() -> None:
    class Half:
        def consumer(self) -> object:
            return object()

    with pytest.raises(ValueError, match="open, consume, acknowledge and close"):
        consumers.consumer_of(Half())
