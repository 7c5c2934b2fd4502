"""Brokers as tests of receiving see them: a place to publish to, and what is left there."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Any, ClassVar

import aio_pika
import boto3
import nats
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from nats.js.api import ConsumerConfig

from holdfast.sinks import Kafka, Message, Nats, RabbitMQ, RedisStream, Sink, Sqs
from holdfast.values.cloudevents import CloudEvent


def event(number: int, key: str | None = None, **attributes: Any) -> Message:
    """Make an event whose id tells its number."""
    said: dict[str, Any] = {"source": "/tests", "type": "test.paid", "data": {"n": number}} | attributes
    return Message(CloudEvent(id=f"event-{number}", **said), key)


class Feed:
    """One topic, stream or queue. `url` leads through the gate, which a test can shut."""

    server: ClassVar[str]
    gate: ClassVar[str]

    def __init__(self, server: Any, gate: Any) -> None:
        self.broker_server, self.broker_gate = server, gate
        self.name = f"t{uuid.uuid4().hex[:12]}"

    def make(self) -> None:
        """Make the place at the broker, where a message that is not acknowledged comes again after a second."""
        raise NotImplementedError

    def discard(self) -> None:
        """Delete it."""

    def broker(self) -> Any:
        """Return what `hf.receive` takes."""
        raise NotImplementedError

    def sink(self) -> Sink:
        """Return a sink that publishes there."""
        raise NotImplementedError

    def publish(self, *messages: Message) -> None:
        """Publish events with the sink."""

        async def send() -> Sequence[Any]:
            sink = self.sink()
            try:
                return await sink.send(messages)
            finally:
                await sink.close()

        for outcome in asyncio.run(send()):
            assert type(outcome).__name__ == "Delivered", outcome

    def publish_raw(self, body: bytes, **headers: str) -> None:
        """Publish bytes, as another program would."""
        raise NotImplementedError

    def left(self) -> int:
        """Count the messages that are not acknowledged."""
        raise NotImplementedError


class NatsFeed(Feed):
    server, gate = "nats_server", "nats_gate"

    def make(self) -> None:
        async def prepare(js: Any) -> None:
            await js.add_stream(name=self.name, subjects=[f"{self.name}.>"])
            await js.add_consumer(self.name, ConsumerConfig(durable_name="shop", ack_policy="explicit", ack_wait=1))

        self.asked(prepare)

    def discard(self) -> None:
        self.asked(lambda js: js.delete_stream(self.name))

    def broker(self) -> Nats:
        return Nats(self.broker_gate.url(self.broker_server.url), subject=f"{self.name}.>", group="shop")

    def sink(self) -> Nats:
        return Nats(self.broker_server.url, subject=f"{self.name}.events")

    def publish_raw(self, body: bytes, **headers: str) -> None:
        self.asked(lambda js: js.publish(f"{self.name}.raw", body, headers=headers or None))

    def left(self) -> int:
        about = self.asked(lambda js: js.consumer_info(self.name, "shop"))
        return int(about.num_pending + about.num_ack_pending)

    def asked(self, question: Any) -> Any:
        async def ask() -> Any:
            client = await nats.connect(self.broker_server.url)
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(ask())


class RedisFeed(Feed):
    server, gate = "redis_server", "redis_gate"

    def make(self) -> None: ...

    def broker(self, group: str = "shop") -> Any:
        url = self.broker_gate.url(self.broker_server.url)
        return RedisStream(url, stream=self.name, group=group, take_over=1.0)

    def sink(self) -> RedisStream:
        return RedisStream(self.broker_server.url, stream=self.name, mode="binary")

    def publish_raw(self, body: bytes, **headers: str) -> None:
        with closing(redis.from_url(self.broker_server.url)) as client:
            client.xadd(self.name, {"data": body, **headers})

    def left(self) -> int:
        with closing(redis.from_url(self.broker_server.url)) as client:
            [about] = client.xinfo_groups(self.name)
            return int(about["pending"]) + int(about["lag"])


class SqsFeed(Feed):
    server, gate = "moto", "moto_gate"
    url = ""

    def client(self) -> Any:
        return boto3.client("sqs", **self.login(), endpoint_url=self.broker_server.url)

    def login(self) -> dict[str, str]:
        key, secret = self.broker_server.key, self.broker_server.secret
        return {"region_name": "eu-west-1", "aws_access_key_id": key, "aws_secret_access_key": secret}

    def make(self) -> None:
        self.url = self.client().create_queue(QueueName=self.name, Attributes={"VisibilityTimeout": "1"})["QueueUrl"]

    def discard(self) -> None:
        self.client().delete_queue(QueueUrl=self.url)

    def broker(self) -> Any:
        return self.queue(self.broker_gate.url(self.broker_server.url))

    def sink(self) -> Sqs:
        return self.queue(self.broker_server.url)

    def queue(self, endpoint: str) -> Sqs:
        return Sqs(self.url, timeout=5.0, options={**self.login(), "endpoint_url": endpoint})

    def publish_raw(self, body: bytes, **headers: str) -> None:
        said = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
        self.client().send_message(QueueUrl=self.url, MessageBody=body.decode(), MessageAttributes=said)

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        said = self.client().get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(said[name]) for name in names)


class RabbitMQFeed(Feed):
    server, gate = "rabbitmq", "rabbitmq_gate"

    def make(self) -> None:
        self.asked(lambda channel: channel.declare_queue(self.name, durable=True))

    def discard(self) -> None:
        self.asked(lambda channel: channel.queue_delete(self.name))

    def broker(self) -> Any:
        url = self.broker_gate.url(self.broker_server.url)
        return RabbitMQ(url, queue=self.name)

    def sink(self) -> RabbitMQ:
        return RabbitMQ(self.broker_server.url, queue=self.name)

    def publish_raw(self, body: bytes, **headers: str) -> None:
        kind = headers.pop("content-type", None)
        said = aio_pika.Message(body, headers=headers, content_type=kind, message_id=uuid.uuid4().hex)
        self.asked(lambda channel: channel.default_exchange.publish(said, self.name))

    def left(self) -> int:
        # What is out at a consumer comes back when its connection is closed.
        async def count(channel: Any) -> int:
            return int((await channel.declare_queue(self.name, passive=True)).declaration_result.message_count)

        return int(self.asked(count))

    def asked(self, question: Any) -> Any:
        async def ask() -> Any:
            async with await aio_pika.connect(self.broker_server.url) as connection:
                return await question(await connection.channel())

        return asyncio.run(ask())


class KafkaFeed(Feed):
    server, gate = "kafka", "kafka_gate"
    partitions = 2

    def make(self) -> None:
        self.asked(lambda admin: admin.create_topics([NewTopic(self.name, self.partitions, 1)]))

    def broker(self) -> Any:
        options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500, "linger_ms": 0}
        return Kafka(self.broker_server.address, topic=self.name, group="shop" + self.name, options=options)

    def sink(self) -> Kafka:
        return Kafka(self.broker_server.address, topic=self.name)

    def publish_raw(self, body: bytes, **headers: str) -> None:
        async def sending() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.broker_server.address)
            await producer.start()
            try:
                said = [(name, value.encode()) for name, value in headers.items()]
                await producer.send_and_wait(self.name, body, headers=said)
            finally:
                await producer.stop()

        asyncio.run(sending())

    def left(self) -> int:
        async def count() -> int:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.broker_server.address, group_id="shop" + self.name)
            await consumer.start()
            try:
                places = [TopicPartition(self.name, number) for number in range(self.partitions)]
                ends = await consumer.end_offsets(places)
                return sum([ends[place] - (await consumer.committed(place) or 0) for place in places])
            finally:
                await consumer.stop()

        return asyncio.run(count())

    def asked(self, question: Any) -> Any:
        async def ask() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.broker_server.address)
            await admin.start()
            try:
                return await question(admin)
            finally:
                await admin.close()

        return asyncio.run(ask())


FEEDS: list[type[Feed]] = [NatsFeed, RedisFeed, SqsFeed, RabbitMQFeed, KafkaFeed]
