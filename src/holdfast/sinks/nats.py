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
        if group is None and re.search(r"[*>]", str(subject)):
            raise ConfigError("subject", "has wildcards only to receive: give group=, as hf.receive needs", subject)
        self._subject = Template("subject", subject, NAMING if group is None else FILTER)
        self._stream = stream
        self._group = group
        self._mode: Mode = mode_of(mode)
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
        acks = _Acks(connection)
        try:
            answers = [await self._publish(acks, message) for message in messages]
            await acks.wait(self._timeout)
            return [self._heard(acks.said[one]) if isinstance(one, str) else one for one in answers]
        finally:
            acks.forget()

    async def _publish(self, acks: _Acks, message: Message) -> str | Answer:
        """Send one message and return what its acknowledgement goes by, or what became of it at once."""
        import nats.errors

        try:
            subject, headers, body = self._packed(acks.client, message)
            return await acks.publish(subject, headers, body)
        except Unsendable as error:
            return error.refusal
        except (nats.errors.Error, OSError) as error:
            # Nothing was written for this one, nor will be: the connection is closed for good.
            return Down(self._secrets.reason(error))

    def _heard(self, said: bytes | ConnectionError | None) -> Answer:
        if said is None:
            return Failed(f"no acknowledgement within {self._timeout:g} s", unknown=True)
        if isinstance(said, ConnectionError):
            return Failed(str(said), unknown=True, lost=True)
        return self._verdict(said)

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
        headers, body = packed(message, self._mode, value=percent, own=printable, reserved=_reserved)
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
        self.awaited: dict[str, _Acks] = {}
        self._count = itertools.count(1)
        self._inbox = ""

    async def subscribe(self) -> None:
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    def reply(self) -> str:
        """Return a subject for one acknowledgement."""
        return f"{self._inbox}.{next(self._count)}"

    async def _acknowledged(self, message: Msg) -> None:
        reply = message.subject
        if (acks := self.awaited.pop(reply, None)) is not None:
            acks.hear(reply, message.data)

    async def lost(self) -> None:
        awaited, self.awaited = self.awaited, {}
        for reply, acks in awaited.items():
            acks.hear(reply, ConnectionError("the connection to NATS was lost"))


class _Acks:
    """The acknowledgements of one wave. One future stands for all, not one for each."""

    def __init__(self, connection: _Connection) -> None:
        self.client = connection.client
        self.said: dict[str, bytes | ConnectionError | None] = {}
        self._connection = connection
        # One more than are awaited, until all are published.
        self._left = 1
        self._all = asyncio.get_running_loop().create_future()

    async def publish(self, subject: str, headers: dict[str, str], body: bytes) -> str:
        """Send a message and return what its acknowledgement goes by. Raises: what the client does."""
        reply = self._connection.reply()
        # Before it is sent: the connection may be lost while the client waits for room.
        self.said[reply], self._connection.awaited[reply] = None, self
        self._left += 1
        try:
            await self.client.publish(subject, body, reply, headers)
        except BaseException:
            if self._connection.awaited.pop(reply, None) is not None:
                self._left -= 1
            raise
        return reply

    def hear(self, reply: str, said: bytes | ConnectionError) -> None:
        self.said[reply] = said
        self._left -= 1
        if not self._left and not self._all.done():
            self._all.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until all are heard, or for that long."""
        self._left -= 1
        if self._left:
            await asyncio.wait([self._all], timeout=seconds)

    def forget(self) -> None:
        """Wait for none of them any more: what was not heard by now, or was cancelled, must not stay."""
        for reply, said in self.said.items():
            if said is None:
                self._connection.awaited.pop(reply, None)


def _reserved(name: str) -> bool:
    return name.startswith("nats-") or TOKEN.fullmatch(name) is None


def _usable(connection: _Connection) -> bool:
    return not connection.client.is_closed


async def _shut(connection: _Connection) -> None:
    await connection.client.close()


async def _quiet(_: Exception) -> None:
    """Say nothing: what goes wrong is the outcome of a message."""
