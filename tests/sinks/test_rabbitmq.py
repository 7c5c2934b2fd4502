"""The RabbitMQ sink against a real broker: the suite on a quorum queue, a stream, and what is RabbitMQ's own."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Mode, Outcome, RabbitMQ, Refused, SinkDown
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import TIME, Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests import brokers
from tests.gate import Gate

END = "the-end"


class Queue(Receiver):
    """A queue of its own name for each test."""

    secrets = ("guest",)
    tells_losses = True

    def __init__(self, server: brokers.RabbitMQ, gate: Gate, kind: str = "quorum", mode: Mode = "binary") -> None:
        self.server, self.gate, self.kind, self.mode = server, gate, kind, mode
        self.name = f"q{uuid.uuid4().hex[:12]}"
        self.seen: list[CloudEvent] = []
        self.declare(self.name, {"x-queue-type": kind})

    def declare(self, name: str, arguments: dict[str, Any]) -> None:
        async def work(channel: Any) -> None:
            await channel.declare_queue(name, durable=True, arguments=arguments)

        asyncio.run(self.on_channel(work))

    async def on_channel(self, work: Any) -> Any:
        connection = await aio_pika.connect(self.server.url)
        try:
            return await work(await connection.channel())
        finally:
            await connection.close()

    def sink(self, **settings: Any) -> RabbitMQ:
        usual = {"routing_key": self.name, "mode": self.mode, "timeout": 5.0, "message_bytes": 400_000}
        return RabbitMQ(self.gate.url(self.server.url), **usual | settings)

    async def messages(self) -> list[Any]:
        """Read up to a message that is put at the end: a stream does not say how many it has."""
        found: list[Any] = []
        end = uuid.uuid4().hex

        async def work(channel: Any) -> None:
            await channel.default_exchange.publish(aio_pika.Message(b"", message_id=end), self.name)
            await channel.set_qos(1000)
            queue = await channel.get_queue(self.name)
            arguments = {"x-stream-offset": "first"} if self.kind == "stream" else None
            async with queue.iterator(arguments=arguments) as arriving:
                async for one in arriving:
                    await one.ack()
                    if one.message_id == end:
                        return
                    found.append(one)

        await self.on_channel(work)
        # A stream still has the ends of earlier readings.
        return [one for one in found if one.body]

    async def received(self) -> list[CloudEvent]:
        new = [self.event(one) for one in await self.messages()]
        self.seen = new if self.kind == "stream" else self.seen + new
        return self.seen

    def event(self, one: Any) -> CloudEvent:
        if self.mode == "structured":
            assert one.content_type == "application/cloudevents+json"
            return from_structured(one.body)
        return from_binary({**one.headers, "content-type": one.content_type}, one.body, "cloudevents_")

    def bad(self) -> Message:
        return message("bad", "x" * 450_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def receiver(rabbitmq: brokers.RabbitMQ, rabbitmq_gate: Gate) -> Queue:
    return Queue(rabbitmq, rabbitmq_gate)


@pytest.mark.parametrize(
    "promise",
    [
        sink_suite.test_an_event_arrives_as_it_was,
        sink_suite.test_messages_of_one_key_arrive_in_their_order,
        sink_suite.test_an_answer_that_was_lost_is_an_unknown_outcome,
    ],
)
def test_a_stream_keeps_the_promises_of_a_queue(
    promise: Callable[[Receiver], None], rabbitmq: brokers.RabbitMQ, rabbitmq_gate: Gate
) -> None:
    promise(Queue(rabbitmq, rabbitmq_gate, "stream", "structured"))


@pytest.fixture
def queue(rabbitmq: brokers.RabbitMQ, rabbitmq_gate: Gate) -> Queue:
    return Queue(rabbitmq, rabbitmq_gate, "classic")


def outcomes_of(sink: RabbitMQ, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def test_a_message_is_persistent_and_carries_its_event_s_id_type_and_time(queue: Queue) -> None:
    outcomes_of(queue.sink(), Message(message(time=TIME).event, None, {"tenant": "zoë", "cloudEvents_id": "forged"}))
    [stored] = asyncio.run(queue.messages())
    event = queue.event(stored)
    assert stored.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert (stored.message_id, stored.type, stored.content_type) == (event.id, "test.happened", "application/json")
    assert stored.headers["tenant"] == "zoë"
    assert stored.headers["cloudEvents_id"] == event.id != "forged"


def test_a_message_that_no_queue_takes_has_failed(queue: Queue) -> None:
    lost, fine = outcomes_of(queue.sink(routing_key="{type}"), message(type="nowhere"), message(type=queue.name))
    assert lost == Failed("no queue is bound to take the routing key 'nowhere'")
    assert isinstance(fine, Delivered)


def test_an_exchange_that_does_not_exist_is_down_until_it_does(queue: Queue) -> None:
    name = f"x{queue.name}"
    sink = queue.sink(exchange=name, routing_key="{type}")

    async def bind(channel: Any) -> None:
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC)
        await (await channel.get_queue(queue.name)).bind(exchange, "test.#")

    with pytest.raises(SinkDown, match="NOT_FOUND"):
        outcomes_of(sink, message())
    asyncio.run(queue.on_channel(bind))
    assert [type(one) for one in outcomes_of(sink, message())] == [Delivered]


def test_a_queue_that_is_full_fails_the_message_and_keeps_it_in_order(queue: Queue) -> None:
    full = f"{queue.name}-full"
    queue.declare(full, {"x-max-length": 1, "x-overflow": "reject-publish"})
    first, second, third = outcomes_of(queue.sink(routing_key=full), message("a"), message("a"), message("a"))
    assert isinstance(first, Delivered)
    assert isinstance(second, Failed)
    assert "nack" in second.reason
    assert not second.unknown
    assert isinstance(third, Failed)


def test_what_the_broker_closes_the_channel_for_is_refused_alone(queue: Queue) -> None:
    sink = queue.sink(message_bytes=10_000_000)
    messages = [message("a"), message("b", "x" * 600_000), message("c"), message("b")]
    first, large, other, behind = outcomes_of(sink, *messages)
    assert isinstance(large, Refused)
    assert "PRECONDITION_FAILED" in large.reason
    assert isinstance(first, Delivered)
    assert isinstance(other, Delivered)
    assert isinstance(behind, Failed)


@pytest.mark.parametrize(
    "settings", [{"url": "http://x", "routing_key": "a"}, {"routing_key": "{x}"}, {"routing_key": ""}]
)
def test_settings_are_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RabbitMQ(**settings)
