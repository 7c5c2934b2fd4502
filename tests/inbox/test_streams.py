"""RabbitMQ streams as a source: how far they were received is noted beside the messages, through restarts."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.inbox import Consumer
from holdfast.sinks import RabbitMQ
from holdfast.values.cloudevents import CloudEvent
from tests.inbox.conftest import made
from tests.inbox.feeds import RabbitMQFeed, event
from tests.inbox.test_receiving import Failing, receive, until_received
from tests.worker.stage import Stage


class StreamFeed(RabbitMQFeed):
    def make(self) -> None:
        self.asked(lambda channel: channel.declare_queue(self.name, durable=True, arguments={"x-queue-type": "stream"}))

    def broker(self, offset: Any = "first") -> Any:
        return RabbitMQ(self.broker_gate.url(self.broker_server.url), queue=self.name, offset=offset)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Iterator[StreamFeed]:
    yield from made(request, StreamFeed)  # type: ignore[misc]


class Watched:
    """A broker that notes the offsets which its consumers give."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.offsets: list[int] = []

    def consumer(self) -> Consumer:
        consumer = self.broker.consumer()
        consume = consumer.consume

        async def noting() -> Any:
            messages = await consume()
            self.offsets += [message.offset for message in messages]
            return messages

        consumer.consume = noting
        return consumer  # type: ignore[no-any-return]


def test_a_stream_is_received_from_where_it_was_left(sqlite_stage: Stage, stream: StreamFeed) -> None:
    seen: list[CloudEvent] = []
    broker = Watched(stream.broker())
    receive(sqlite_stage, broker, seen)
    stream.publish(*(event(n) for n in range(20)))
    sqlite_stage.work(lambda _: until_received(sqlite_stage, stream, 20))
    # While nobody was there.
    stream.publish(*(event(n) for n in range(20, 25)))
    sqlite_stage.work(lambda _: until_received(sqlite_stage, stream, 25))
    assert sorted(one.data["n"] for one in seen) == [*range(25)]
    assert broker.offsets == [*range(25)]


def test_what_was_stored_and_not_acknowledged_is_known(pg_stage: Stage, stream: StreamFeed) -> None:
    seen: list[CloudEvent] = []
    receive(pg_stage, Failing(stream.broker()), seen)
    stream.publish(*(event(n) for n in range(5)))

    async def scene(_: Any) -> None:
        await pg_stage.until(lambda: len(seen) == 5)
        await asyncio.to_thread(stream.publish, event(5))
        await pg_stage.until(lambda: len(seen) == 6)
        await pg_stage.until_empty()

    pg_stage.work(scene)
    assert sorted(one.data["n"] for one in seen) == [*range(6)]


def test_a_connection_that_is_lost_leaves_nothing_out(sqlite_stage: Stage, stream: StreamFeed) -> None:
    seen: list[CloudEvent] = []
    receive(sqlite_stage, stream.broker(), seen)
    stream.publish(*(event(n) for n in range(3)))

    async def scene(_: Any) -> None:
        await sqlite_stage.until(lambda: len(seen) == 3)
        with stream.broker_gate.shut():
            await asyncio.to_thread(stream.publish, *(event(n) for n in range(3, 6)))
        await sqlite_stage.until(lambda: len(seen) == 6)
        await sqlite_stage.until_empty()

    sqlite_stage.work(scene)
    assert sorted(one.data["n"] for one in seen) == [*range(6)]


@pytest.mark.parametrize("offset", ["first", "last", "next", 7, timedelta(hours=1), datetime.now(UTC)])
def test_a_stream_begins_where_it_is_told(offset: Any) -> None:
    RabbitMQ(queue="events", offset=offset).consumer()


@pytest.mark.parametrize("offset", ["begin", -1, True, timedelta(0), datetime(2026, 1, 1)])
def test_an_odd_beginning_is_refused(offset: Any) -> None:
    with pytest.raises(ConfigError, match="offset"):
        RabbitMQ(queue="events", offset=offset)
