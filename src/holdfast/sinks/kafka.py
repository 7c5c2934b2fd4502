"""Kafka: an idempotent producer that waits for all replicas in sync, and sends whole batches of its own making.

Kafka appends a batch as a whole or not at all, so messages of one key that are in one batch need no round trip each;
the next batch of a partition leaves when the one before is acknowledged. `docs/decisions/0030-kafka-client.md` has the
measurements.
"""

from __future__ import annotations

import asyncio
import operator
import random
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused, SinkDown
from holdfast.sinks.bindings import header_bytes, packed, packed_in_bytes
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import BEHIND, Answer, Down, concluded
from holdfast.sinks.settings import mode_of, seconds, texts, whole
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

NAMING = Naming(re.compile(r"[^a-zA-Z0-9._-]"), 249)
# How long a topic may stay unknown: one that was just created is, for a moment.
TOPIC_SECONDS = 2.0
# After this long without an acknowledgement it is asked whether brokers are there at all, and again after as long.
AWAY_SECONDS = 2.0

# What a batch of one record has beside key, value and headers, rounded up.
_FRAME = 100

Place: TypeAlias = tuple[str, int]
# What aiokafka builds, and which messages are in it.
_Batch: TypeAlias = tuple[Any, list[int]]


class _Record(NamedTuple):
    """A message as it is written, and where it goes."""

    place: Place
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    size: int


_size = operator.attrgetter("size")


@dataclass(slots=True)
class _Sending:
    """One call of `send`: what is written, what was heard, and which keys have stopped."""

    messages: Sequence[Message]
    records: Sequence[_Record | Outcome]
    answers: list[Answer]
    left: list[int]
    stopped: set[str] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    gap: bool = False
    silent: bool = False
    untried: bool = True

    def give_up(self, reason: str) -> None:
        for index in self.left:
            self.answers[index] = Down(reason)
        self.left = []

    def answer(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        if (key := self.messages[index].key) is not None and not isinstance(answer, Delivered):
            self.stopped.add(key)


class Kafka:
    """Send to a topic: `Kafka("localhost:9092", topic="orders")`; the message's key is the record's key.

    Binary mode has the attributes in headers `ce_…`. timeout: seconds until the outcome of a message counts as unknown.
    message_bytes: what is larger is refused before it is sent, as by most producers; the broker's own limit is
    `message.max.bytes`, and holds for a batch, too. group: for `hf.receive`, the group of consumers. options: passed on
    to `AIOKafkaProducer`, and to the consumer what it takes (security_protocol, sasl_mechanism, ssl_context, …).
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "localhost:9092",
        *,
        topic: str,
        group: str | None = None,
        mode: Mode = "binary",
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        message_bytes: int = 1_000_000,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("aiokafka", "kafka")
        self._servers = texts("servers", servers)
        self._topic = Template("topic", topic, NAMING)
        self._group = group
        self._mode: Mode = mode_of(mode)
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._limit = whole("message_bytes", message_bytes, at_least=1_000)
        self._options = dict(options or {})
        self._secrets = Secrets.of((), self._options)
        self._link: Link[AIOKafkaProducer] = Link(
            "Kafka", self._open, _abandon, _usable, self._connect_timeout, self._secrets
        )
        self._turns: WeakKeyDictionary[AIOKafkaProducer, dict[Place, asyncio.Lock]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Kafka({', '.join(self._servers)!r}, topic={self._topic!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send batches and wait for their acknowledgements. Raises: SinkDown when no broker can be reached."""
        producer = await self._link.get()
        records = await self._records(producer, messages)
        this = _Sending(messages, records, [BEHIND] * len(messages), list(range(len(messages))))
        while this.left:
            batches = self._next_batches(producer, this)
            await asyncio.gather(*(self._send(producer, this, *batch) for batch in batches.items()))
            if this.gap or this.silent:
                # What was not appended leaves a gap in its partition's sequence, and the broker takes nothing behind
                # it. Without an answer the producer would try for ever: what failed here would arrive some day.
                await self._link.drop(producer)
            if this.left and not this.silent:
                this.gap = False
                producer = await self._next_producer(this)
            elif this.silent:
                this.give_up("not sent: a batch before it had no answer")
        return concluded(this.answers, one_place=True)

    async def _next_producer(self, this: _Sending) -> AIOKafkaProducer | None:
        try:
            return await self._link.get()
        except SinkDown as down:
            this.give_up(down.reason)
            return None

    def consumer(self) -> Consumer:
        """Make a consumer, for `hf.receive`. Raises: ConfigError without a group, or with fields in the topic."""
        from holdfast.inbox.kafka import KafkaConsumer

        if self._group is None or self._topic.fields:
            rule = "messages are received by a group, from a topic without fields: Kafka(…, topic=…, group=…)"
            raise ConfigError("broker", rule, self)
        return KafkaConsumer(self._servers, self._topic.text, self._group, self._options)

    async def close(self) -> None:
        """Close the producer; what it had not sent it never will."""
        await self._link.close()

    async def _open(self) -> AIOKafkaProducer:
        with importing("aiokafka", "kafka"):
            from aiokafka import AIOKafkaProducer

        settings = {
            "bootstrap_servers": self._servers,
            "acks": "all",
            "enable_idempotence": True,
            "request_timeout_ms": round(self._timeout * 1000),
            "max_batch_size": self._limit,
        }
        producer = AIOKafkaProducer(**settings | self._options)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    async def _records(self, producer: AIOKafkaProducer, messages: Sequence[Message]) -> list[_Record | Outcome]:
        """Write the messages, each to its partition, or say why one cannot be sent."""
        topics: list[str | Outcome] = [self._topic.text] * len(messages)
        if self._topic.fields:
            topics = [self._topic_of(message) for message in messages]
        wanted = {topic for topic in topics if isinstance(topic, str)}
        found = await asyncio.gather(*(self._partitions(producer, topic) for topic in wanted))
        partitions = dict(zip(wanted, found, strict=True))
        # One partition for all that have no key: fewer batches, and no order to keep.
        anywhere = {topic: random.choice(known) for topic, known in partitions.items() if isinstance(known, tuple)}
        records: list[_Record | Outcome] = []
        for message, topic in zip(messages, topics, strict=True):
            if not isinstance(topic, str):
                records.append(topic)
            elif not isinstance(known := partitions[topic], tuple):
                records.append(known)
            else:
                key = None if message.key is None else message.key.encode()
                partition = anywhere[topic] if key is None else _partition(key, known)
                records.append(self._record(message, (topic, partition), key))
        return records

    def _topic_of(self, message: Message) -> str | Outcome:
        try:
            return self._topic.of(message)
        except Unsendable as error:
            return error.refusal

    async def _partitions(self, producer: AIOKafkaProducer, topic: str) -> tuple[int, ...] | Outcome:
        from aiokafka.errors import KafkaError

        try:
            async with asyncio.timeout(TOPIC_SECONDS):
                return tuple(sorted(await producer.partitions_for(topic)))
        except TimeoutError:
            return Failed(f"the broker knows no topic {topic!r}: create it, or change the route")
        except KafkaError as error:
            return Failed(self._secrets.reason(error))

    def _record(self, message: Message, place: Place, key: bytes | None) -> _Record | Refused:
        if self._mode == "binary" and not message.headers:
            headers, body = packed_in_bytes(message.event, "ce_")
            size = sum([len(name) + len(value) + 4 for name, value in headers])
        else:
            texts, body = packed(message, self._mode, prefix="ce_")
            headers = [(name, value.encode()) for name, value in texts.items()]
            size = header_bytes(texts)
        size += len(body) + len(key or b"") + _FRAME
        if size > self._limit:
            return TooLarge(size, self._limit).refusal
        return _Record(place, key, body, headers, size)

    def _whole_batches(self, producer: AIOKafkaProducer, this: _Sending) -> dict[Place, _Batch]:
        """Fill one batch for each partition with all messages, as nearly always; none where that cannot be."""
        this.untried = False
        records = [record for record in this.records if isinstance(record, _Record)]
        # With a topic for each type, messages of one key may be in several places: they wait for each other.
        if self._topic.fields or len(records) < len(this.records) or sum(map(_size, records)) > self._limit:
            return {}
        batches: dict[Place, _Batch] = {}
        for index, (place, key, value, headers, _) in enumerate(records):
            batch = batches.get(place)
            if batch is None:
                batch = batches[place] = (producer.create_batch(), [])
            if batch[0].append(timestamp=None, key=key, value=value, headers=headers) is None:
                return {}
            batch[1].append(index)
        this.left = []
        return batches

    def _next_batches(self, producer: AIOKafkaProducer, this: _Sending) -> dict[Place, _Batch]:
        """Fill at most one batch for each partition. A key is in one of them only; what does not fit is left."""
        if this.untried and (whole := self._whole_batches(producer, this)):
            return whole
        batches: dict[Place, _Batch] = {}
        places: dict[str, Place] = {}
        full: set[Place] = set()
        waiting: set[str | None] = set()
        left, this.left = this.left, []
        for index in left:
            record, key = this.records[index], this.messages[index].key
            if key is not None and key in this.stopped:
                continue
            if key is not None and key in waiting:
                this.left.append(index)
            elif not isinstance(record, _Record):
                this.answer(index, record)
            elif record.place in full or (key is not None and places.setdefault(key, record.place) != record.place):
                this.left.append(index)
                waiting.add(key)
            elif not self._fits(producer, batches, record, index, index in this.alone):
                this.left.append(index)
                waiting.add(key)
                full.add(record.place)
            elif index in this.alone:
                full.add(record.place)
        return batches

    def _fits(
        self,
        producer: AIOKafkaProducer,
        batches: dict[Place, _Batch],
        record: _Record,
        index: int,
        alone: bool,
    ) -> bool:
        if record.place not in batches:
            batches[record.place] = (producer.create_batch(), [])
        elif alone:
            return False
        builder, indexes = batches[record.place]
        if builder.append(timestamp=None, key=record.key, value=record.value, headers=record.headers) is None:
            return False
        indexes.append(index)
        return True

    async def _heard(self, producer: AIOKafkaProducer, appended: asyncio.Future[Any]) -> None:
        """Wait for an acknowledgement. Raises: TimeoutError; _Away as soon as it is seen that no broker is there.

        The client itself would try to reach one until the time is over, and nobody would know why it was silent.
        """
        deadline = time.monotonic() + self._timeout
        while not appended.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait([appended], timeout=min(left, AWAY_SECONDS))
            if not appended.done() and not await self._reachable(producer):
                raise _Away("no broker can be reached any more, and the batch has no acknowledgement")

    async def _reachable(self, producer: AIOKafkaProducer) -> bool:
        """Tell whether any of the brokers that are known takes a connection."""
        known = {(one.host, one.port) for one in producer.client.cluster.brokers()}
        tries = [asyncio.ensure_future(_connects(host, port)) for host, port in known or _addresses(self._servers)]
        try:
            for one in asyncio.as_completed(tries, timeout=AWAY_SECONDS):
                if await one:
                    return True
        except TimeoutError:
            pass
        finally:
            for one in tries:
                one.cancel()
            await asyncio.wait(tries)
        return False

    def _turn(self, producer: AIOKafkaProducer, place: Place) -> asyncio.Lock:
        """Return what the batches of a partition take turns by, in the order in which they came.

        The client lets all of them wait for the one before and then compete, and counts each wait from the first one
        on: with many at once their time was over long before its end.
        """
        return self._turns.setdefault(producer, defaultdict(asyncio.Lock))[place]

    async def _send(self, producer: AIOKafkaProducer, this: _Sending, place: Place, batch: _Batch) -> None:
        """Send one batch and note the answer for each of its messages."""
        from aiokafka import errors

        builder, indexes = batch
        topic, partition = place
        answer: Answer
        try:
            async with asyncio.timeout(self._timeout), self._turn(producer, place):
                appended = await producer.send_batch(builder, topic, partition=partition)
            # Asked for in any case, so that asyncio does not complain about one that nobody waits for any more.
            appended.add_done_callback(lambda done: done.cancelled() or done.exception())
            await self._heard(producer, appended)
            stored = appended.result()
        except TimeoutError:
            answer, this.silent = Failed(f"no acknowledgement within {self._timeout:g} s", unknown=True), True
        except _Away as away:
            answer, this.silent = Failed(str(away), unknown=True, lost=True), True
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            this.gap = True
            if len(indexes) > 1:
                # Which of them is too large shows when each goes alone.
                this.alone.update(indexes)
                this.left = sorted({*indexes, *this.left})
                return
            answer = Refused(f"it is larger than the broker takes: {self._secrets.reason(error)}", "too-large")
        except (errors.TopicAuthorizationFailedError, errors.InvalidTopicError) as error:
            answer, this.gap = Failed(self._secrets.reason(error)), True
        except errors.KafkaError as error:
            answer, this.silent = Failed(self._secrets.reason(error), unknown=True), True
        else:
            for offset, index in enumerate(indexes, stored.offset):
                this.answers[index] = Delivered(f"{topic}-{partition}@{offset}" if stored.offset >= 0 else None)
            return
        for index in indexes:
            this.answer(index, answer)


@lru_cache(maxsize=10_000)
def _partition(key: bytes, known: tuple[int, ...]) -> int:
    """Choose a key's partition. Kept for keys that come again: the client works it out in Python, byte by byte."""
    from aiokafka.partitioner import DefaultPartitioner

    chosen: int = DefaultPartitioner()(key, known, known)
    return chosen


class _Away(Exception):
    """No broker can be reached any more."""


def _usable(producer: AIOKafkaProducer) -> bool:
    # A fatal error, such as a sequence that the broker does not know, ends the task that sends.
    return not producer._sender.sender_task.done()


def _addresses(servers: Sequence[str]) -> list[tuple[str, int]]:
    parts = [server.rpartition(":") for server in servers]
    return [(host.strip("[]"), int(port)) if port.isdecimal() else (port, 9092) for host, _, port in parts]


async def _connects(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def _abandon(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for what it still holds: `stop` alone would try to send it for ever."""
    from aiokafka.errors import ProducerClosed

    producer._message_accumulator.fail_all(ProducerClosed())
    await producer.client.close()
    await producer.stop()
