"""NATS JetStream: a message is delivered when a stream has stored it and said so."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused
from holdfast.sinks.bindings import TOKEN, header_bytes, packed, percent, printable
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, Down, in_waves
from holdfast.sinks.settings import mode_of, seconds, texts
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.drivers import importing, require
from holdfast.values.payload import decode_value

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

# Blanks, wildcards and control characters, and dots that would make an empty token.
FILTER = Naming(re.compile(r"[\s\x00-\x1f\x7f]"), 1_000)
NAMING = Naming(re.compile(r"[\s*>\x00-\x1f\x7f]|(?<=\.)\.|^\.|\.$"), 1_000)
# What the server counts beside payload and header lines: the first line and the last, both of the header block.
_HEADER_FRAME = 12
# JetStream's codes for a message that no later attempt can store: too large for the stream, or for the account.
_NEVER = frozenset({10054, 10097})


class Nats:
    """Publish to JetStream: `Nats("nats://localhost:4222", subject="events.{type}")`.

    The event's id is the `Nats-Msg-Id`, so that a stream drops a repeated message within its duplicate window. Binary
    mode has the attributes in headers `ce-…`. stream: refuse to be stored in another stream than this. timeout: seconds
    until the outcome of a message counts as unknown. group: for `hf.receive`, the name of the durable consumer of the
    stream that its members share; the subject may then have wildcards. options: passed on to `nats.connect` (tls,
    user_credentials, …).
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://localhost:4222",
        *,
        subject: str,
        stream: str | None = None,
        group: str | None = None,
        mode: Mode = "binary",
        timeout: float = 10.0,
        connect_timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("nats", "nats")
        self._servers = texts("servers", servers)
        self._subject = Template("subject", subject, NAMING if group is None else FILTER)
        self._stream = stream
        self._group = group
        self._mode = mode_of(mode)
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._options = dict(options or {})
        self._secrets = Secrets.of(self._servers, self._options)
        self._link: Link[_Connection] = Link("NATS", self._open, _shut, _usable, self._connect_timeout, self._secrets)

    def __repr__(self) -> str:
        return f"Nats({self._secrets.hide(', '.join(self._servers))!r}, subject={self._subject!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish and wait for the acknowledgements. Raises: SinkDown when no server can be reached."""
        return await in_waves(messages, self._wave)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    def consumer(self) -> Consumer:
        """Make a consumer, for `hf.receive`. Raises: ConfigError without a group, or with fields in the subject."""
        from holdfast.inbox.nats import NatsConsumer

        if self._group is None or self._subject.fields:
            rule = "messages are received by a group, from a subject without fields: Nats(…, subject=…, group=…)"
            raise ConfigError("broker", rule, self)
        return NatsConsumer(self._receiving, self._subject.text, self._group, self._stream)

    async def _receiving(self) -> Client:
        with importing("nats", "nats"):
            from nats.aio.client import Client

        client = Client()
        try:
            await client.connect(self._servers, **self._settings(), error_cb=_quiet)
        except BaseException:
            await client.close()
            raise
        return client

    def _settings(self) -> dict[str, Any]:
        # Without reconnects of its own: it would keep messages in a buffer and send them much later.
        settings = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.05}
        return {**settings, "connect_timeout": self._connect_timeout, **self._options}

    async def _open(self) -> _Connection:
        with importing("nats", "nats"):
            from nats.aio.client import Client

        connection = _Connection(Client())
        callbacks = {"error_cb": _quiet, "closed_cb": connection.lost}
        try:
            await connection.client.connect(self._servers, **{**self._settings(), **callbacks})
            await connection.subscribe()
        except BaseException:
            await connection.client.close()
            raise
        return connection

    async def _wave(self, messages: Sequence[Message]) -> list[Answer]:
        connection = await self._link.get()
        waiting = [await self._publish(connection, message) for message in messages]
        acks = [one for one in waiting if isinstance(one, asyncio.Future)]
        try:
            if acks:
                await asyncio.wait(acks, timeout=self._timeout)
            return [self._heard(one) if isinstance(one, asyncio.Future) else one for one in waiting]
        finally:
            for ack in acks:
                ack.cancel()

    async def _publish(self, connection: _Connection, message: Message) -> asyncio.Future[bytes] | Answer:
        """Send one message and return its acknowledgement to come, or what became of it at once."""
        import nats.errors

        try:
            subject, headers, body = self._packed(connection.client, message)
            return await connection.publish(subject, headers, body)
        except Unsendable as error:
            return error.refusal
        except (nats.errors.Error, OSError) as error:
            # Nothing was written for this one, nor will be: the connection is closed for good.
            return Down(self._secrets.reason(error))

    def _heard(self, ack: asyncio.Future[bytes]) -> Answer:
        if not ack.done():
            return Failed(f"no acknowledgement within {self._timeout:g} s", unknown=True)
        if error := ack.exception():
            return Failed(str(error), unknown=True, lost=True)
        return self._verdict(ack.result())

    def _verdict(self, answer: bytes) -> Answer:
        """Read what JetStream says; an empty answer is the server's: nobody listens to this subject."""
        if not answer:
            return Failed(f"no JetStream stream takes the subject of {self._subject!r}: create one, or change it")
        said = decode_value(answer)
        if error := said.get("error"):
            reason = f"JetStream: {error.get('description', 'an error')} (code {error.get('err_code')})"
            return Refused(reason, str(error["err_code"])) if error.get("err_code") in _NEVER else Failed(reason)
        return Delivered(f"{said['stream']}@{said['seq']}" + (" (a duplicate)" if said.get("duplicate") else ""))

    def _packed(self, client: Client, message: Message) -> tuple[str, dict[str, str], bytes]:
        subject = self._subject.of(message)
        headers, body = packed(message, self._mode, value=percent, reserved=_reserved)
        headers = {name: printable(value) for name, value in headers.items()}
        headers["Nats-Msg-Id"] = printable(message.event.id)
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        size = len(body) + header_bytes(headers) + _HEADER_FRAME
        if size > client.max_payload:
            # The client counts the body only; the server would count all, and close the connection.
            raise TooLarge(size, client.max_payload)
        return subject, headers, body


class _Connection:
    """A client and the acknowledgements that are awaited on it.

    With an inbox of its own: the client's own calls for JetStream gave 0.25 to 0.65 of the messages a second, and
    waited for their time-out when the connection was lost.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._awaited: dict[str, asyncio.Future[bytes]] = {}
        self._count = itertools.count(1)
        self._inbox = ""

    async def subscribe(self) -> None:
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    async def publish(self, subject: str, headers: dict[str, str], body: bytes) -> asyncio.Future[bytes]:
        reply = f"{self._inbox}.{next(self._count)}"
        await self.client.publish(subject, body, reply, headers)
        self._awaited[reply] = ack = asyncio.get_running_loop().create_future()
        # One that nobody waits for any more, because its send was cancelled, must not stay.
        ack.add_done_callback(lambda _: self._awaited.pop(reply, None))
        return ack

    async def _acknowledged(self, message: Msg) -> None:
        if (ack := self._awaited.get(message.subject)) is not None and not ack.done():
            ack.set_result(message.data)

    async def lost(self) -> None:
        for ack in list(self._awaited.values()):
            if not ack.done():
                ack.set_exception(ConnectionError("the connection to NATS was lost"))


def _reserved(name: str) -> bool:
    return name.startswith("nats-") or TOKEN.fullmatch(name) is None


def _usable(connection: _Connection) -> bool:
    return not connection.client.is_closed


async def _shut(connection: _Connection) -> None:
    await connection.client.close()


async def _quiet(_: Exception) -> None:
    """Say nothing: what goes wrong is the outcome of a message."""
