"""RabbitMQ: persistent messages with publisher confirms; one that no queue takes comes back, and has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused
from holdfast.sinks.bindings import header_bytes, packed
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, in_waves
from holdfast.sinks.settings import mode_of, seconds, texts, whole
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

# Where a stream begins.
Offset: TypeAlias = Literal["first", "next", "last"] | int | datetime | timedelta

NAMING = Naming(None, 255)
# The prefix of attributes in AMQP. The binding allows a colon as well, which JMS clients cannot read.
PREFIX = "cloudEvents_"


class _Connection(NamedTuple):
    connection: AbstractConnection
    channel: AbstractChannel
    exchange: AbstractExchange


class RabbitMQ:
    """Publish to an exchange: `RabbitMQ("amqp://localhost/", exchange="events", routing_key="{type}")`.

    Without an exchange the routing key is the name of a queue; quorum queues and streams are queues, too. queue: for
    `hf.receive`, where messages come from; it is the routing key where no other is given. offset: for `hf.receive`,
    says that the queue is a stream, and where to begin when nothing of it was received before: "first", "next", "last",
    a number, a time, or a span before now. Binary mode
    has the attributes in headers `cloudEvents_…`; the event's id is the `message_id`. message_bytes: what is larger is
    refused before it is sent, since the broker would close the channel; it is `max_message_size` there. timeout:
    seconds until the outcome of a message counts as unknown. options: passed on to `aio_pika.connect` (ssl_context, …).
    """

    def __init__(
        self,
        url: str = "amqp://localhost/",
        *,
        routing_key: str | None = None,
        exchange: str = "",
        queue: str | None = None,
        offset: Offset | None = None,
        mode: Mode = "binary",
        message_bytes: int = 16_777_216,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("aio_pika", "rabbitmq")
        [self._url] = texts("url", url)
        if not self._url.startswith(("amqp://", "amqps://")):
            raise ConfigError("url", "must begin with amqp:// or amqps://", self._url.partition("://")[0])
        self._routing_key = Template("routing_key", routing_key or queue, NAMING)
        self._queue = queue
        self._offset = _offset(offset)
        self._exchange = exchange
        self._mode: Mode = mode_of(mode)
        self._limit = whole("message_bytes", message_bytes, at_least=1_000)
        self._timeout = seconds("timeout", timeout)
        self._options = dict(options or {})
        self._secrets = Secrets.of([self._url], self._options)
        self._link: Link[_Connection] = Link(
            "RabbitMQ", self._open, _shut, _usable, seconds("connect_timeout", connect_timeout), self._secrets
        )

    def __repr__(self) -> str:
        where = f"exchange={self._exchange!r}, " if self._exchange else ""
        return f"RabbitMQ({self._secrets.hide(self._url)!r}, {where}routing_key={self._routing_key!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish and wait for the confirms. Raises: SinkDown without a connection, or without the exchange."""
        return await in_waves(messages, self._wave)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    def consumer(self) -> Consumer:
        """Make a consumer, for `hf.receive`. Raises: ConfigError without a queue."""
        from holdfast.inbox.rabbitmq import RabbitMQConsumer, RabbitMQStreamConsumer

        if self._queue is None:
            raise ConfigError("broker", "messages are received from a queue: RabbitMQ(…, queue=…)", self)
        if self._offset is not None:
            return RabbitMQStreamConsumer(self._connected, self._queue, self._offset)
        return RabbitMQConsumer(self._connected, self._queue)

    async def _connected(self) -> AbstractConnection:
        with importing("aio_pika", "rabbitmq"):
            import aio_pika

        connection: AbstractConnection = await aio_pika.connect(self._url, **self._options)
        return connection

    async def _open(self) -> _Connection:
        connection = await self._connected()
        try:
            # Otherwise a message that came back counts as published.
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = channel.default_exchange
            if self._exchange:
                exchange = await channel.get_exchange(self._exchange, ensure=True)
        except BaseException:
            await connection.close()
            raise
        return _Connection(connection, channel, exchange)

    async def _wave(self, messages: Sequence[Message]) -> list[Answer]:
        link = await self._link.get()
        answers = list(await asyncio.gather(*(self._publish(link, message) for message in messages)))
        if not _usable(link):
            await self._link.drop(link)
        if len(messages) > 1:
            # One that the broker refuses closes the channel, and takes with it those that were not confirmed by then.
            for index, answer in enumerate(answers):
                if isinstance(answer, Refused) and answer.code == _CLOSED:
                    [answers[index]] = await self._wave([messages[index]])
        return answers

    async def _publish(self, link: _Connection, message: Message) -> Answer:
        from aio_pika import exceptions

        try:
            routing_key, written = self._routing_key.of(message), self._written(message)
        except Unsendable as error:
            return error.refusal
        try:
            await link.exchange.publish(written, routing_key, mandatory=True, timeout=self._timeout)
        except exceptions.PublishError:
            return Failed(f"no queue is bound to take the routing key {routing_key!r}")
        except exceptions.DeliveryError:
            return Failed("the broker did not take it (nack): a queue is full, or lost its leader")
        except TimeoutError:
            return Failed(f"no confirm within {self._timeout:g} s", unknown=True)
        except exceptions.ChannelPreconditionFailed as error:
            return Refused(self._secrets.reason(error), _CLOSED)
        except (exceptions.AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise
            # A connection that is lost cancels what waits on it.
            reason = f"the connection was lost: {self._secrets.reason(error)}"
            # A channel alone is closed because of a message. The connection is not always marked as closed by now.
            gone = isinstance(error, exceptions.AMQPConnectionError | OSError | asyncio.CancelledError)
            return Failed(reason, unknown=True, lost=gone or link.connection.is_closed)
        return Delivered()

    def _written(self, message: Message) -> Any:
        import aio_pika

        headers, body = packed(message, self._mode, PREFIX)
        size = len(body) + header_bytes(headers)
        if size > self._limit:
            raise TooLarge(size, self._limit)
        return aio_pika.Message(
            body,
            content_type=headers.pop("content-type", None),
            headers=dict(headers),
            message_id=message.event.id,
            type=message.event.type,
            timestamp=message.event.time,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )


_CLOSED = "precondition-failed"


def _offset(offset: object) -> Any:
    """Write where a stream begins as the broker reads it. Raises: ConfigError."""
    if offset is None or offset in ("first", "next", "last"):
        return offset
    if isinstance(offset, datetime) and offset.tzinfo is not None:
        return offset
    if isinstance(offset, timedelta) and offset > timedelta(0):
        return f"{max(1, round(offset.total_seconds()))}s"
    if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
        return offset
    rule = 'must be "first", "next", "last", a number, a time with a time zone, or a timedelta before now'
    raise ConfigError("offset", rule, offset)


def _usable(link: _Connection) -> bool:
    return not (link.connection.is_closed or link.channel.is_closed)


async def _shut(link: _Connection) -> None:
    await link.connection.close()
