"""Where relays that are killed deliver to: a file, or a real broker that a real consumer reads in the end.

Each message says which relay sent it and when, so that a repeat can be told from one that should not be.
"""

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from holdfast.sinks import Function, Kafka, Message, Nats, Outcome, RabbitMQ, RedisStream, Sink
from tests import brokers


class Arrival(NamedTuple):
    """One message as a consumer got it: the event's id, its key and number, the relay's pid, and when that sent it."""

    event: str
    key: str
    number: int
    pid: int
    sent: float = 0.0


class Signed:
    """A sink that notes on each message who sends it, and when."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        note = {"relay": str(os.getpid()), "sent": repr(time.time())}
        return await self._sink.send([Message(one.event, one.key, note, one.attempt) for one in messages])

    async def close(self) -> None:
        await self._sink.close()


class Place:
    """One place of delivery. `told` is what another process needs in order to send there."""

    name: ClassVar[str]

    @property
    def told(self) -> dict[str, str]:
        raise NotImplementedError

    def make(self) -> None:
        """Make the topic, stream or queue."""

    def restart(self) -> None:
        """Kill the broker and start it again."""
        raise NotImplementedError

    def arrived(self) -> list[Arrival]:
        """Read all that has arrived, those of one key in their order."""
        raise NotImplementedError

    def discard(self) -> None:
        """End what was started for this."""


class FilePlace(Place):
    """A function that appends a line for each message to a file."""

    name = "function"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "arrived"
        self.file.touch()

    @property
    def told(self) -> dict[str, str]:
        return {"place": self.name, "file": str(self.file)}

    def arrived(self) -> list[Arrival]:
        return [_read_line(line) for line in self.file.read_text().splitlines()]


def _read_line(line: str) -> Arrival:
    event, key, number, pid = line.split()
    return Arrival(event, key, int(number), int(pid))


def appending(file: str) -> Function:
    async def append(message: Message) -> None:
        line = f"{message.event.id} {message.key} {message.event.data} {os.getpid()}\n"
        # One write of a short line to a file that is opened for appending: lines of several processes do not mix.
        with open(file, "ab", buffering=0) as opened:  # noqa: ASYNC230 - a line, once in a while
            opened.write(line.encode())
        await asyncio.sleep(0.002)

    return Function(append)


class BrokerPlace(Place):
    """A place at a broker: one that was given, or one of its own, which can be killed."""

    server_class: ClassVar[Any]

    def __init__(self, server: Any = None) -> None:
        self._own = server is None
        self.server = self.server_class().start() if server is None else server
        self.where = f"t{uuid.uuid4().hex[:12]}"

    @property
    def address(self) -> str:
        return str(self.server.url)

    @property
    def told(self) -> dict[str, str]:
        return {"place": self.name, "address": self.address, "where": self.where}

    def make(self) -> None:
        asyncio.run(self._make())

    async def _make(self) -> None: ...

    def arrived(self) -> list[Arrival]:
        return asyncio.run(self._arrived())

    async def _arrived(self) -> list[Arrival]:
        raise NotImplementedError

    def restart(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.server.start()

    def discard(self) -> None:
        if self._own:
            self.server.discard()


def _arrival(event_id: str, key: str, data: Any, headers: dict[str, str]) -> Arrival:
    return Arrival(event_id, key, int(data), int(headers["relay"]), float(headers["sent"]))


class NatsPlace(BrokerPlace):
    name, server_class = "nats", brokers.NatsServer

    async def _make(self) -> None:
        import nats

        client = await nats.connect(self.address)
        # The window in which a stream drops repeats is shut, so that repeats are seen.
        await client.jetstream().add_stream(name=self.where, subjects=[self.where], duplicate_window=0.1)
        await client.close()

    async def _arrived(self) -> list[Arrival]:
        import nats

        client = await nats.connect(self.address)
        try:
            js = client.jetstream()
            count = (await js.stream_info(self.where)).state.messages
            puller = await js.pull_subscribe(self.where, durable="reader")
            found: list[Arrival] = []
            while len(found) < count:
                for one in await puller.fetch(min(500, count - len(found)), timeout=10):
                    said = dict(one.headers or {})
                    found.append(_arrival(said["ce-id"], said["ce-partitionkey"], json.loads(one.data), said))
                    await one.ack()
            return found
        finally:
            await client.close()


class RedisPlace(BrokerPlace):
    name, server_class = "redis", brokers.RedisServer

    async def _arrived(self) -> list[Arrival]:
        from redis.asyncio import Redis

        client = Redis.from_url(self.address, decode_responses=True)
        try:
            found: list[Arrival] = []
            after = "-"
            while page := await client.xrange(self.where, after, count=1000):
                for entry, fields in page:
                    event = json.loads(fields["data"])
                    found.append(_arrival(event["id"], event["partitionkey"], event["data"], fields))
                    after = f"({entry}"
            return found
        finally:
            await client.aclose()


class RabbitPlace(BrokerPlace):
    name, server_class = "rabbitmq", brokers.RabbitMQ

    async def _make(self) -> None:
        import aio_pika

        connection = await aio_pika.connect(self.address)
        async with connection:
            channel = await connection.channel()
            await channel.declare_queue(self.where, durable=True, arguments={"x-queue-type": "quorum"})

    async def _arrived(self) -> list[Arrival]:
        import aio_pika

        connection = await aio_pika.connect(self.address)
        found: list[Arrival] = []
        async with connection:
            channel = await connection.channel()
            queue = await channel.get_queue(self.where)
            while (one := await queue.get(fail=False, no_ack=True)) is not None:
                said = {name: str(value) for name, value in one.headers.items()}
                key = said["cloudEvents_partitionkey"]
                found.append(_arrival(str(one.message_id), key, json.loads(one.body), said))
        return found


class KafkaPlace(BrokerPlace):
    name, server_class = "kafka", brokers.Kafka

    @property
    def address(self) -> str:
        return str(self.server.address)

    async def _make(self) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        await admin.create_topics([NewTopic(self.where, 3, 1)])
        await admin.close()

    async def _arrived(self) -> list[Arrival]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=self.address, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [TopicPartition(self.where, number) for number in range(3)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[Arrival] = []
            while any([await consumer.position(one) < ends[one] for one in partitions]):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    for one in batch:
                        said = {name: value.decode() for name, value in one.headers}
                        found.append(_arrival(said["ce_id"], one.key.decode(), json.loads(one.value), said))
            return found
        finally:
            await consumer.stop()


PLACES: dict[str, type[BrokerPlace]] = {one.name: one for one in (KafkaPlace, RabbitPlace, NatsPlace, RedisPlace)}


def sink_to(told: dict[str, str]) -> Sink:
    """Make the sink of a relay from what it was told."""
    quick = {"timeout": 10.0, "connect_timeout": 5.0}
    match told["place"]:
        case "function":
            return appending(told["file"])
        case "nats":
            return Signed(Nats(told["address"], subject=told["where"], **quick))  # type: ignore[arg-type]
        case "redis":
            return Signed(RedisStream(told["address"], stream=told["where"], **quick))  # type: ignore[arg-type]
        case "rabbitmq":
            return Signed(RabbitMQ(told["address"], queue=told["where"], **quick))  # type: ignore[arg-type]
        case "kafka":
            return Signed(Kafka(told["address"], topic=told["where"], **quick))  # type: ignore[arg-type]
        case other:
            raise ValueError(other)
