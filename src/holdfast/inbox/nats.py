"""NATS JetStream: a durable consumer of a stream, asked for batches; messages are acknowledged one by one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from holdfast.inbox.base import BATCH_BYTES, BATCH_MESSAGES, WAIT_SECONDS, Incoming
from holdfast.inbox.texts import headers_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

# How long the server keeps a request for messages, and how long it waits for an acknowledgement before it delivers a
# message again. A database that is away for longer gets messages twice, and knows them.
EXPIRES_SECONDS = 30.0
ACK_SECONDS = 60.0
# In a consumer that is made here, how many messages may be out at all members of the group together.
MOST_UNACKNOWLEDGED = 10_000


class NatsConsumer:
    """One member of a group that shares a durable consumer, which is made if it is not there.

    connect: opens a connection without reconnects of its own.
    """

    def __init__(self, connect: Callable[[], Any], subject: str, group: str, stream: str | None = None) -> None:
        self._connect = connect
        self._subject = subject
        self._group = group
        self._stream = stream
        self._client: Client | None = None
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        # How many messages the last request may still bring, and until when.
        self._asked_for = 0
        self._asked_until = 0.0
        self._inbox = self._next = ""

    async def open(self) -> None:
        client: Client = await self._connect()
        self._client = client
        jetstream = client.jetstream()
        stream = await self._ensure_consumer(jetstream)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self._group}"
        self._inbox = client.new_inbox()
        await client.subscribe(self._inbox, cb=self._arrived.put)

    async def _ensure_consumer(self, jetstream: Any) -> str:
        """Make the durable consumer where it is not there, and name its stream. Raises: LookupError without one."""
        from nats.js.errors import NotFoundError

        try:
            stream: str = self._stream or await jetstream.find_stream_name_by_subject(self._subject)
            await self._add_consumer(jetstream, stream)
        except NotFoundError:
            # The client's own text says neither what was looked for nor what to do.
            named = f"called {self._stream!r}" if self._stream else f"that takes {self._subject!r}"
            raise LookupError(f"there is no JetStream stream {named}: create one") from None
        return stream

    async def _add_consumer(self, jetstream: Any, stream: str) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig
        from nats.js.errors import NotFoundError

        try:
            await jetstream.consumer_info(stream, self._group)
        except NotFoundError:
            wanted = ConsumerConfig(
                durable_name=self._group,
                filter_subject=self._subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_SECONDS,
                max_ack_pending=MOST_UNACKNOWLEDGED,
            )
            await jetstream.add_consumer(stream, wanted)

    async def consume(self) -> Sequence[Incoming]:
        messages: list[Incoming] = []
        taken = 0
        deadline = time.monotonic() + WAIT_SECONDS
        while not messages or (not self._arrived.empty() and len(messages) < BATCH_MESSAGES and taken < BATCH_BYTES):
            await self._ask()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    found = await self._arrived.get()
            except TimeoutError:
                break
            if (message := self._read(found)) is not None:
                messages.append(message)
                taken += len(message.body)
        if self._opened().is_closed:
            raise ConnectionError("the connection to NATS was lost")
        return messages

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        for message in messages:
            await message.receipt.ack()
        await self._opened().flush()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _ask(self) -> None:
        """Ask for more messages where nothing that was asked for is still to come."""
        client = self._opened()
        if client.is_closed:
            raise ConnectionError("the connection to NATS was lost")
        if not self._arrived.empty() or (self._asked_for > 0 and time.monotonic() < self._asked_until):
            return
        wanted = {
            "batch": BATCH_MESSAGES,
            # A message above this would never come.
            "max_bytes": max(BATCH_BYTES, 2 * client.max_payload),
            "expires": round(EXPIRES_SECONDS * 1e9),
        }
        self._asked_for, self._asked_until = BATCH_MESSAGES, time.monotonic() + EXPIRES_SECONDS
        await client.publish(self._next, json.dumps(wanted).encode(), self._inbox)

    def _read(self, found: Msg) -> Incoming | None:
        """Read a message; None for the server's word that a request is over."""
        headers = headers_of(found.headers or {})
        if "Status" in headers and not found.reply.startswith("$JS.ACK"):
            # 100 is a sign of life, everything else ends the request.
            if headers["Status"] != "100":
                self._asked_for = 0
            return None
        self._asked_for -= 1
        about = found.metadata
        position = f"{about.stream}@{about.sequence.stream}"
        return Incoming(
            body=found.data,
            source=f"nats:{about.stream}",
            position=position,
            # With its time: a stream that was deleted and made again counts anew.
            id=headers.get("Nats-Msg-Id") or f"{position}:{about.timestamp.isoformat()}",
            headers=_decoded(headers),
            receipt=found,
        )

    def _opened(self) -> Client:
        if self._client is None:
            raise RuntimeError("open() comes first")
        return self._client


def _decoded(headers: Mapping[str, str]) -> dict[str, str]:
    """Read attributes, whose values are percent-encoded as in HTTP, and leave out what is the server's."""
    return {
        name: unquote(value) if name.lower().startswith("ce-") else value
        for name, value in headers.items()
        if not name.lower().startswith("nats-")
    }
