"""Messages of real brokers become jobs, each once: stored, then acknowledged."""

import asyncio
import base64
import json
from typing import Any

import pytest

from holdfast import Job, events
from holdfast.inbox import Consumer, kafka
from holdfast.values.cloudevents import CloudEvent
from tests.inbox.feeds import Feed, event
from tests.worker.stage import Stage


class Failing:
    """A broker whose first acknowledgement never arrives, as when the process dies before it."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.failures = 1
        self.acknowledged = 0

    def consumer(self) -> Consumer:
        consumer = self.broker.consumer()
        acknowledge = consumer.acknowledge

        async def fail(messages: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("cut before it was sent")
            await acknowledge(messages)
            self.acknowledged += len(messages)

        consumer.acknowledge = fail
        return consumer


def receive(stage: Stage, broker: Any, seen: list[Any], **options: Any) -> Any:
    @stage.hf.receive(broker, **options)
    async def paid(event: CloudEvent, job: Job) -> None:
        seen.append(event)

    return paid


async def until_received(stage: Stage, feed: Feed, count: int) -> None:
    """Wait until that many messages are acknowledged and their jobs have run."""
    await stage.until(
        lambda: sum(one.count for one in stage.heard(events.MessagesReceived)) >= count, f"{count} messages"
    )
    await stage.until_empty()


def test_messages_become_jobs_and_are_acknowledged(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    receive(stage, feed.broker(), seen)
    feed.publish(*(event(n) for n in range(20)))
    stage.work(lambda _: until_received(stage, feed, 20))
    assert sorted(one.id for one in seen) == sorted(f"event-{n}" for n in range(20))
    assert {(one.source, one.type) for one in seen} == {("/tests", "test.paid")}
    assert sorted(one.data["n"] for one in seen) == [*range(20)]
    assert feed.left() == 0


def test_what_was_stored_and_not_acknowledged_comes_again_and_adds_no_second_job(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    broker = Failing(feed.broker())
    receive(stage, broker, seen)
    feed.publish(*(event(n) for n in range(5)))

    async def scene(_: Any) -> None:
        await stage.until(lambda: broker.acknowledged >= 5, "the second delivery")
        await stage.until_empty()

    stage.work(scene)
    assert sorted(one.id for one in seen) == [f"event-{n}" for n in range(5)]
    assert sum(one.new for one in stage.heard(events.MessagesReceived)) < 5
    assert feed.left() == 0


def test_a_message_that_cannot_be_read_becomes_a_dead_letter_with_its_bytes_and_blocks_nothing(
    stage: Stage, feed: Feed
) -> None:
    seen: list[CloudEvent] = []
    paid = receive(stage, feed.broker(), seen)
    broken = b'{"specversion":"1.0","id":"1"'
    feed.publish_raw(broken, **{"content-type": "application/cloudevents+json"})
    feed.publish(event(1))
    stage.work(lambda _: until_received(stage, feed, 2))
    assert [one.id for one in seen] == ["event-1"]
    [told] = stage.heard(events.MessageUnreadable)
    [row] = stage.sql("select id from holdfast_finished where outcome = 'dead'")
    shown = stage.show(str(row[0]))
    assert base64.b64decode(json.loads(shown.payload)["holdfast-message"]["body_base64"]) == broken
    assert (shown.kind, shown.attempts, shown.last_error["type"]) == (paid.kind, 1, "holdfast.errors.InvalidPayload")
    assert told.position
    assert feed.left() == 0


def test_a_message_that_is_not_an_event_is_handed_over_as_one(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    receive(stage, feed.broker(), seen)
    feed.publish_raw(b'{"n":1}', trace="abc")
    feed.publish_raw(b"not JSON", **{"content-type": "text/plain"})
    stage.work(lambda _: until_received(stage, feed, 2))
    found = {type(one.data): one for one in seen}
    assert found[dict].data == {"n": 1}
    assert found[bytes].data == b"not JSON"
    assert {one.type for one in seen} == {"message"}
    assert len({one.id for one in seen}) == 2


def test_a_broker_that_is_away_is_told_of_once_and_waited_for(
    stage: Stage, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(kafka, "PROBE_SECONDS", 1.0)
    seen: list[CloudEvent] = []
    receive(stage, feed.broker(), seen)
    feed.publish(event(1))

    async def scene(_: Any) -> None:
        await until_received(stage, feed, 1)
        with feed.broker_gate.shut():
            await stage.until_said(events.BrokerLost)
        await stage.until_said(events.BrokerRegained)
        await asyncio.to_thread(feed.publish, event(2))
        await until_received(stage, feed, 2)

    stage.work(scene)
    assert [one.id for one in seen] == ["event-1", "event-2"]
    assert len(stage.heard(events.BrokerLost)) == 1
    assert not stage.heard(events.WorkerBroke)


def test_another_worker_goes_on_where_one_has_stopped(stage: Stage, feed: Feed) -> None:
    seen: list[CloudEvent] = []
    receive(stage, feed.broker(), seen)
    for first in (0, 10):
        feed.publish(*(event(n) for n in range(first, first + 10)))
        stage.work(lambda _, first=first: until_received(stage, feed, first + 10))
    assert sorted(one.data["n"] for one in seen) == [*range(20)]
    assert feed.left() == 0


@pytest.mark.parametrize("said", [{"receive": False}, {"queues": ["others"]}], ids=["receive=False", "queues"])
def test_a_worker_that_does_not_serve_the_queue_or_is_told_not_to_leaves_messages_alone(
    stage: Stage, said: dict[str, Any]
) -> None:
    worker = stage.hf.worker
    receive(stage, Idle(), [])
    assert len(worker().receptions) == 1
    assert worker(**said).receptions == []


class Idle:
    """A broker without messages."""

    def consumer(self) -> Consumer:
        return self  # type: ignore[return-value]

    async def open(self) -> None: ...
    async def consume(self) -> list[Any]:
        await asyncio.sleep(0.01)
        return []

    async def acknowledge(self, messages: Any) -> None: ...
    async def close(self) -> None: ...
