"""RabbitMQ: a queue whose messages are pushed, a bounded number at a time, and acknowledged together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.inbox.base import BATCH_BYTES, BATCH_MESSAGES, WAIT_SECONDS, Incoming
from holdfast.inbox.texts import headers_of

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

# After this time without messages the server is asked whether the queue is still there: nobody says when it is deleted.
QUIET_SECONDS = 5.0
# How many messages the server pushes before they are acknowledged; it knows no limit by bytes.
PREFETCH = 200


class RabbitMQConsumer:
    """One consumer of a queue that exists. connect: opens a connection without reconnects of its own."""

    def __init__(self, connect: Callable[[], Any], queue: str, prefetch: int = PREFETCH) -> None:
        self._connect = connect
        self._name = queue
        self._prefetch = prefetch
        self._arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None
        self._heard_at = 0.0

    async def open(self) -> None:
        self._connection = await self._connect()
        self._channel = await self._connection.channel(publisher_confirms=False)
        await self._channel.set_qos(prefetch_count=self._prefetch)
        self._queue = await self._channel.declare_queue(self._name, passive=True)
        await self._queue.consume(self._arrived.put, arguments=self._arguments())
        self._heard_at = time.monotonic()

    def _arguments(self) -> dict[str, Any] | None:
        return None

    async def consume(self) -> Sequence[Incoming]:
        messages: list[Incoming] = []
        taken = 0
        deadline = time.monotonic() + WAIT_SECONDS
        while not messages or (not self._arrived.empty() and len(messages) < BATCH_MESSAGES and taken < BATCH_BYTES):
            self._insist_on_connection()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    found = await self._arrived.get()
            except TimeoutError:
                break
            messages.append(self._message(found))
            taken += len(found.body)
        self._insist_on_connection()
        if messages:
            self._heard_at = time.monotonic()
        elif time.monotonic() - self._heard_at > QUIET_SECONDS and self._channel is not None:
            await self._channel.declare_queue(self._name, passive=True)
            self._heard_at = time.monotonic()
        return messages

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        # Everything up to the last one: all that came before is acknowledged already, or in this batch.
        await messages[-1].receipt.ack(multiple=True)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _insist_on_connection(self) -> None:
        if self._connection is None or self._connection.is_closed or self._channel is None or self._channel.is_closed:
            raise ConnectionError("the connection to RabbitMQ was lost")

    def _message(self, found: AbstractIncomingMessage) -> Incoming:
        headers = headers_of(found.headers or {})
        if found.content_type:
            headers.setdefault("content-type", found.content_type)
        return Incoming(
            body=found.body,
            source=f"rabbitmq:{self._name}",
            position=f"{self._name}@{found.message_id or f'delivery {found.delivery_tag}'}",
            # Without one nothing tells a message that is delivered again from another one.
            id=found.message_id or None,
            headers=headers,
            receipt=found,
        )


class RabbitMQStreamConsumer(RabbitMQConsumer):
    """One consumer of a stream, which goes on behind the message that was stored last.

    The broker does not note over AMQP how far a stream was read, so that is noted beside the messages. first: where to
    begin where nothing was noted.
    """

    def __init__(self, connect: Callable[[], Any], queue: str, first: Any, prefetch: int = PREFETCH) -> None:
        super().__init__(connect, queue, prefetch)
        self._from = first

    @property
    def stream(self) -> str:
        return f"rabbitmq:{self._name}"

    def resume(self, position: int | None) -> None:
        if position is not None:
            self._from = position + 1

    def _arguments(self) -> dict[str, Any]:
        return {"x-stream-offset": self._from}

    def _message(self, found: AbstractIncomingMessage) -> Incoming:
        offset = int(str((found.headers or {})["x-stream-offset"]))
        message = super()._message(found)
        headers = {name: value for name, value in message.headers.items() if name != "x-stream-offset"}
        position = f"{self._name}@{offset}"
        return replace(message, position=position, id=message.id or position, headers=headers, offset=offset)
