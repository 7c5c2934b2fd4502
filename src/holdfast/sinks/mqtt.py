"""MQTT with quality of service 1: a message is delivered when the broker has acknowledged it, and not refused it there.

By paho's own thread and not by an asyncio client around it: those drop the reason that MQTT 5 gives with an
acknowledgement, and a message that was refused would count as delivered.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigError
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused, SinkDown
from holdfast.sinks.bindings import header_bytes
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, Down, in_waves
from holdfast.sinks.settings import mode_of, seconds, texts, whole
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.cloudevents import STRUCTURED_TYPE
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from paho.mqtt.client import Client

NAMING = Naming(re.compile(r"[+#\x00]|^\$"), 65_535)
Version = Literal["5", "3.1.1"]
# Reasons of MQTT 5 that a repeated message would get, too: topic not valid, packet too large, payload not valid.
_NEVER = frozenset({0x90, 0x95, 0x99})
_NO_SUBSCRIBERS = 0x10


class Mqtt:
    """Publish to a topic: `Mqtt("mqtt://localhost:1883", topic="events/{type}")`, or `mqtts://` with TLS.

    Structured mode by default; binary mode has the attributes as user properties, which only version "5" has.
    message_bytes: what is larger is refused before it is sent, since some brokers acknowledge and drop it. retain: let
    the broker keep the last message of a topic for those who subscribe later. tls: the context for `mqtts://`.
    """

    def __init__(
        self,
        url: str = "mqtt://localhost:1883",
        *,
        topic: str,
        mode: Mode = "structured",
        version: Version = "5",
        retain: bool = False,
        message_bytes: int = 250_000,
        client_id: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: float = 15.0,
        connect_timeout: float = 5.0,
    ) -> None:
        require("paho", "mqtt")
        [self._url] = texts("url", url)
        if urlsplit(self._url).scheme not in ("mqtt", "mqtts") or not urlsplit(self._url).hostname:
            raise ConfigError("url", "must be an address such as mqtt://localhost:1883", urlsplit(self._url).scheme)
        self._topic = Template("topic", topic, NAMING)
        self._mode, self._version = mode_of(mode), version
        if version not in ("5", "3.1.1"):
            raise ConfigError("version", "must be 5 or 3.1.1", version)
        if version != "5" and self._mode == "binary":
            raise ConfigError("mode", "binary needs version 5: MQTT 3.1.1 has no place for attributes", mode)
        self._retain = retain
        self._limit = whole("message_bytes", message_bytes, at_least=1_000)
        self._client_id = client_id
        self._tls = tls
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._secrets = Secrets.of([self._url], {})
        self._link: Link[_Connection] = Link(
            "MQTT", self._open, _Connection.close, _Connection.usable, self._connect_timeout, self._secrets
        )

    def __repr__(self) -> str:
        return f"Mqtt({self._secrets.hide(self._url)!r}, topic={self._topic!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish and wait for the acknowledgements. Raises: SinkDown when the broker cannot be reached."""
        return await in_waves(messages, self._wave)

    async def close(self) -> None:
        """Close the connection, and end the client's thread."""
        await self._link.close()

    async def _open(self) -> _Connection:
        with importing("paho", "mqtt"):
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion

        parts = urlsplit(self._url)
        version = paho.MQTTv5 if self._version == "5" else paho.MQTTv311
        client = paho.Client(CallbackAPIVersion.VERSION2, self._client_id, protocol=version, reconnect_on_failure=False)
        if parts.username is not None:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if parts.scheme == "mqtts":
            client.tls_set_context(self._tls or ssl.create_default_context())
        client.connect_timeout = self._connect_timeout
        connection = _Connection(client)
        await connection.open(str(parts.hostname), parts.port or {"mqtt": 1883, "mqtts": 8883}[parts.scheme])
        return connection

    async def _wave(self, messages: Sequence[Message]) -> list[Answer]:
        connection = await self._link.get()
        waiting = [self._publish(connection, message) for message in messages]
        acks = [one for one in waiting if isinstance(one, asyncio.Future)]
        try:
            if acks:
                await asyncio.wait(acks, timeout=self._timeout)
            answers = [self._heard(one) if isinstance(one, asyncio.Future) else one for one in waiting]
        finally:
            for ack in acks:
                ack.cancel()
        if any(not ack.done() or ack.cancelled() for ack in acks):
            # What has no answer stays in the client's own queue, and would be sent some day.
            await self._link.drop(connection)
        return answers

    def _publish(self, connection: _Connection, message: Message) -> asyncio.Future[int] | Answer:
        try:
            topic, body, properties = self._topic.of(message), *self._written(message)
        except Unsendable as error:
            return error.refusal
        return connection.publish(topic, body, self._retain, properties)

    def _heard(self, ack: asyncio.Future[int]) -> Answer:
        if not ack.done():
            return Failed(f"no acknowledgement within {self._timeout:g} s", unknown=True)
        if error := ack.exception():
            return Failed(str(error), unknown=True, lost=True)
        reason = ack.result()
        if reason < 0x80:
            return Delivered("no subscribers" if reason == _NO_SUBSCRIBERS else None)
        said = f"the broker refused it with the reason code 0x{reason:02X}"
        return Refused(said, f"0x{reason:02X}") if reason in _NEVER else Failed(said)

    def _written(self, message: Message) -> tuple[bytes, Any]:
        """Return the body and, for version 5, the properties of a message."""
        event, headers = message.event, dict(message.headers)
        body, content_type = event.structured(), STRUCTURED_TYPE
        if self._mode == "binary":
            attributes = event.attributes
            body, content_type = event.body, attributes.pop("datacontenttype", "")
            headers |= attributes
        size = len(body) + header_bytes(headers)
        if size > self._limit:
            raise TooLarge(size, self._limit)
        if self._version != "5":
            return body, None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = list(headers.items())
        if content_type:
            properties.ContentType = content_type
        return body, properties


class _Connection:
    """A client with its thread, and the acknowledgements that are awaited on it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[int, asyncio.Future[int]] = {}
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._lost = False
        # Called on the client's thread.
        client.on_connect = lambda _c, _u, _f, reason, _p: self._tell(self._on_connect, reason)
        client.on_publish = lambda _c, _u, mid, reason, _p: self._tell(self._on_publish, mid, reason.value)
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self._tell(self._on_disconnect, str(reason))

    async def open(self, host: str, port: int) -> None:
        try:
            await asyncio.to_thread(self._client.connect, host, port)
            self._client.loop_start()
            await self._connected
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._lost = True
        self._connected.cancel()
        await asyncio.to_thread(self._end)

    def usable(self) -> bool:
        return not self._lost

    def publish(self, topic: str, body: bytes, retain: bool, properties: Any) -> asyncio.Future[int] | Answer:
        sent = self._client.publish(topic, body, 1, retain, properties)
        if sent.rc != 0:
            return Down(f"the client is not connected (code {sent.rc})")
        self._awaited[sent.mid] = ack = self._loop.create_future()
        ack.add_done_callback(lambda _: self._awaited.pop(sent.mid, None))
        return ack

    def _end(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # The pair of sockets by which its thread is woken; otherwise they stay open until it is collected.
        self._client._reset_sockets()

    def _tell(self, callback: Any, *arguments: Any) -> None:
        # The loop may be gone when a worker was killed hard; then nobody is left to tell.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _on_connect(self, reason: Any) -> None:
        if self._connected.done():
            return
        if reason.is_failure:
            self._connected.set_exception(SinkDown(f"the broker refused the connection: {reason}"))
        else:
            self._connected.set_result(None)

    def _on_publish(self, mid: int, reason: int) -> None:
        if (ack := self._awaited.get(mid)) is not None and not ack.done():
            ack.set_result(reason)

    def _on_disconnect(self, reason: str) -> None:
        self._lost = True
        error = ConnectionError(f"the connection to the MQTT broker was lost: {reason}")
        awaited: list[asyncio.Future[Any]] = [*self._awaited.values(), self._connected]
        for one in awaited:
            if not one.done():
                one.set_exception(error)
