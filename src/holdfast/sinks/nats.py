"""NATS JetStream: a message is delivered when a stream has stored it and said so."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused
from holdfast.sinks.bindings import TOKEN, packed, percent, printable
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, Down, in_waves
from holdfast.sinks.settings import mode_of, seconds, texts
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

# Blanks, wildcards and control characters, and dots that would make an empty token.
FILTER = Naming(re.compile(r"[\s\x00-\x1f\x7f]"), 1_000)
NAMING = Naming(re.compile(r"[\s*>\x00-\x1f\x7f]|(?<=\.)\.|^\.|\.$"), 1_000)
# Written at most before it is handed to the client, so that a wave of large messages is not in memory twice.
CHUNK_BYTES = 256_000
# JetStream's codes for a message that no later attempt can store: too large for the stream, or for the account.
_NEVER = frozenset({10054, 10097})
_LOST = "the connection to NATS was lost"

# Of one message: its acknowledgement, what became of it otherwise, or nothing yet.
_Heard: TypeAlias = bytes | Answer | None


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
        with connection.wave() as wave:
            answers: list[int | Answer] = []
            for message in messages:
                answers.append(self._written(wave, message))
                if wave.waiting_bytes > CHUNK_BYTES:
                    await wave.flush()
            await wave.flush()
            await wave.wait(self._timeout)
            return [self._heard(wave.said[one]) if isinstance(one, int) else one for one in answers]

    def _written(self, wave: _Wave, message: Message) -> int | Answer:
        """Write one message and return its number in the wave, or what became of it at once."""
        try:
            subject, headers, body = self._packed(wave.client.max_payload, message)
        except Unsendable as error:
            return error.refusal
        return wave.write(subject, headers, body)

    def _heard(self, said: _Heard) -> Answer:
        if isinstance(said, bytes):
            return self._verdict(said)
        if said is None:
            return Failed(f"no acknowledgement within {self._timeout:g} s", unknown=True)
        return said

    def _verdict(self, answer: bytes) -> Answer:
        """Read what JetStream says; an empty answer is the server's: nobody listens to this subject."""
        if not answer:
            return Failed(f"no JetStream stream takes the subject of {self._subject!r}: create one, or change it")
        try:
            said = _read(answer)
        except msgspec.MsgspecError:
            said = _Said()
        if (error := said.error) is not None:
            reason = f"JetStream: {error.description} (code {error.err_code})"
            return Refused(reason, str(error.err_code)) if error.err_code in _NEVER else Failed(reason)
        if not said.stream:
            return Failed(f"who answers to the subject of {self._subject!r} is not JetStream")
        return Delivered(f"{said.stream}@{said.seq}" + (" (a duplicate)" if said.duplicate else ""))

    def _packed(self, limit: int, message: Message) -> tuple[str, bytes, bytes]:
        """Return the subject, the header block and the body. Raises: Unsendable."""
        subject = self._subject.of(message)
        headers, body = packed(message, self._mode, value=percent, own=_line, reserved=_reserved)
        headers["Nats-Msg-Id"] = _line(message.event.id)
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        lines = "".join([f"{name}: {said}\r\n" for name, said in headers.items()])
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        size = len(block) + len(body)
        if size > limit:
            # The server counts both, and would close the connection.
            raise TooLarge(size, limit)
        return subject, block, body


class _Connection:
    """A client and the waves whose acknowledgements are awaited on it.

    With an inbox of its own: the client's own calls for JetStream gave 0.25 to 0.65 of the messages a second, and
    waited for their time-out when the connection was lost.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._waves: dict[str, _Wave] = {}
        self._count = itertools.count(1)
        self._inbox = ""

    async def subscribe(self) -> None:
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    @contextmanager
    def wave(self) -> Iterator[_Wave]:
        """Make a wave that hears its acknowledgements until it is left."""
        reply = f"{self._inbox}.{next(self._count)}"
        wave = self._waves[reply] = _Wave(self.client, reply)
        try:
            yield wave
        finally:
            del self._waves[reply]

    async def _acknowledged(self, message: Msg) -> None:
        reply, _, number = message.subject.rpartition("-")
        if (wave := self._waves.get(reply)) is not None:
            wave.hear(int(number), message.data)

    async def lost(self) -> None:
        for wave in self._waves.values():
            wave.lose()


class _Wave:
    """Messages that go together, and what was heard of each. One future stands for all, not one for each.

    Commands are written here and handed to the client in large pieces: its `publish` checks and writes each header by
    itself, which took three times as long, and half of the time of a relay.
    """

    def __init__(self, client: Client, reply: str) -> None:
        self.client = client
        self.said: list[_Heard] = []
        self.waiting_bytes = 0
        self._reply = reply
        self._commands: list[bytes] = []
        # From which message on they wait here, and their bodies' bytes.
        self._unsent = 0
        self._body_bytes = 0
        # One more than are awaited, until all are written.
        self._left = 1
        self._all = asyncio.get_running_loop().create_future()

    def write(self, subject: str, headers: bytes, body: bytes) -> int:
        """Write a message and return its number, by which its acknowledgement goes."""
        number, size = len(self.said), len(headers) + len(body)
        line = f"HPUB {subject} {self._reply}-{number} {len(headers)} {size}\r\n".encode()
        self._commands += (line, headers, body, b"\r\n")
        self.waiting_bytes += size
        self._body_bytes += len(body)
        self.said.append(None)
        self._left += 1
        return number

    async def flush(self) -> None:
        """Hand what is written to the client. Once the connection is lost, it does not arrive."""
        first, self._unsent = self._unsent, len(self.said)
        command, self._commands = b"".join(self._commands), []
        size, self.waiting_bytes, self._body_bytes = self._body_bytes, 0, 0
        if first == self._unsent:
            return
        client = self.client
        if not client.is_connected:
            for number in range(first, self._unsent):
                self._note(number, Down(_LOST))
            return
        client.stats["out_msgs"] += self._unsent - first
        client.stats["out_bytes"] += size
        try:
            await client._send_command(command)
            if client._flush_queue is not None and client._flush_queue.empty():
                await client._flush_pending()
        except OSError:
            # Some of it may have arrived.
            self.lose()

    def hear(self, number: int, said: bytes) -> None:
        self._note(number, said)
        if not self._left and not self._all.done():
            self._all.set_result(None)

    def lose(self) -> None:
        """Note that nothing more will be heard; what was handed over may have arrived."""
        for number in range(self._unsent):
            if self.said[number] is None:
                self._note(number, Failed(_LOST, unknown=True, lost=True))
        if not self._left and not self._all.done():
            self._all.set_result(None)

    def _note(self, number: int, said: bytes | Answer) -> None:
        self._left -= self.said[number] is None
        self.said[number] = said

    async def wait(self, seconds: float) -> None:
        """Wait until all are heard, or for that long."""
        self._left -= 1
        if self._left:
            await asyncio.wait([self._all], timeout=seconds)


class _Error(msgspec.Struct):
    description: str = "an error"
    err_code: int | None = None


class _Said(msgspec.Struct):
    """What JetStream says of one message."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_read = msgspec.json.Decoder(_Said).decode


def _line(value: str) -> str:
    """Write what is not an attribute, as the client does."""
    return printable(value).strip()


def _reserved(name: str) -> bool:
    return name.startswith("nats-") or TOKEN.fullmatch(name) is None


def _usable(connection: _Connection) -> bool:
    return not connection.client.is_closed


async def _shut(connection: _Connection) -> None:
    await connection.client.close()


async def _quiet(_: Exception) -> None:
    """Say nothing: what goes wrong is the outcome of a message."""
