"""Kafka: a group of consumers shares the partitions of a topic; offsets are committed once messages are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any

from holdfast.inbox.base import BATCH_BYTES, BATCH_MESSAGES, WAIT_SECONDS, Incoming
from holdfast.inbox.texts import headers_of, key_of

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer

# A partition that goes to another consumer waits this long at most for messages in hand to be stored and committed.
# What takes longer comes again, there, and is known.
REVOKE_SECONDS = 20.0
# After this time without messages the broker is asked whether it is there: the client itself never says.
QUIET_SECONDS = 5.0
PROBE_SECONDS = 5.0
CLOSE_SECONDS = 3.0


class KafkaConsumer:
    """One member of a group. options: those that `AIOKafkaConsumer` takes are passed on; others are a producer's."""

    def __init__(
        self, servers: Sequence[str], topic: str, group: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self._servers = list(servers)
        self._topic = topic
        self._group = group
        self._options = dict(options or {})
        self._client: AIOKafkaConsumer | None = None
        # Set while no messages are in hand.
        self._idle = asyncio.Event()
        self._idle.set()
        self._heard_at = 0.0

    async def open(self) -> None:
        from aiokafka import AIOKafkaConsumer

        settings: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "fetch_max_bytes": BATCH_BYTES,
            **{name: value for name, value in self._options.items() if name in signature(AIOKafkaConsumer).parameters},
            "bootstrap_servers": self._servers,
            "group_id": self._group,
            # Only what is stored may be committed.
            "enable_auto_commit": False,
        }
        client = self._client = AIOKafkaConsumer(**settings)
        client.subscribe([self._topic], listener=_listener(self))
        await client.start()
        self._heard_at = time.monotonic()

    async def consume(self) -> Sequence[Incoming]:
        client = self._opened()
        found = await client.getmany(timeout_ms=round(WAIT_SECONDS * 1000), max_records=BATCH_MESSAGES)
        messages = [self._message(record) for records in found.values() for record in records]
        if messages:
            self._heard_at = time.monotonic()
            self._idle.clear()
        elif time.monotonic() - self._heard_at > QUIET_SECONDS:
            await self._probe(client)
        return messages

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        from aiokafka.errors import CommitFailedError, IllegalStateError

        offsets: dict[Any, int] = {}
        for message in messages:
            partition, offset = message.receipt
            offsets[partition] = max(offset + 1, offsets.get(partition, 0))
        try:
            # A partition that is another consumer's by now is read there again, and its messages are known.
            with suppress(CommitFailedError, IllegalStateError):
                await self._opened().commit(offsets)
        finally:
            self._idle.set()

    async def close(self) -> None:
        # First: the client waits for the listener before it leaves the group.
        self._idle.set()
        if (client := self._client) is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.stop()
        finally:
            # It leaves sockets open where it cannot say goodbye.
            await client._client.close()

    async def revoked(self) -> None:
        """Wait until what is in hand is stored and committed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REVOKE_SECONDS):
                await self._idle.wait()

    async def _probe(self, client: AIOKafkaConsumer) -> None:
        """Ask the broker something. Raises: what the client raises when it does not answer."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                partitions = client.assignment()
                await (client.end_offsets(partitions) if partitions else client.topics())
        except TimeoutError:
            raise ConnectionError(f"no answer from {', '.join(self._servers)}") from None
        self._heard_at = time.monotonic()

    def _message(self, record: Any) -> Incoming:
        from aiokafka import TopicPartition

        position = f"{record.topic}-{record.partition}@{record.offset}"
        return Incoming(
            body=record.value or b"",
            source=f"kafka:{record.topic}",
            position=position,
            # With its time: a topic that was deleted and made again counts its offsets anew.
            id=f"{position}:{record.timestamp}",
            key=key_of(record.key),
            headers=headers_of(record.headers),
            receipt=(TopicPartition(record.topic, record.partition), record.offset),
        )

    def _opened(self) -> AIOKafkaConsumer:
        if self._client is None:
            raise RuntimeError("open() comes first")
        return self._client


def _listener(consumer: KafkaConsumer) -> Any:
    """Return what the client tells of partitions that come and go."""
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            await consumer.revoked()

        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            pass

    return Listener()
