"""Redis Streams: a group of consumers shares the entries of a stream; what one left behind another takes over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.inbox.base import BATCH_BYTES, BATCH_MESSAGES, WAIT_SECONDS, Incoming
from holdfast.inbox.texts import headers_of, key_of, text_of
from holdfast.values.ids import new_id

# Entries that a consumer has not acknowledged for this long are taken over: it died, or waits for its database.
TAKE_OVER_SECONDS = 60.0
# The fields that hold the body, and the message's key.
BODY, KEY = "data", "key"


class RedisConsumer:
    """One member of a group, which is made if it is not there and then begins with the oldest entry.

    connect: opens a client of `redis.asyncio` that leaves what it reads as bytes.
    """

    def __init__(
        self, connect: Callable[[], Any], stream: str, group: str, take_over: float = TAKE_OVER_SECONDS
    ) -> None:
        self._connect = connect
        self._stream = stream
        self._group = group
        self._take_over = take_over
        self._name = f"{socket.gethostname()[:60]}-{os.getpid()}-{new_id()[-12:]}"
        self._client: Any = None
        self._looked_at = -float("inf")
        # How many entries to ask for: fewer where they are large.
        self._count = BATCH_MESSAGES

    async def open(self) -> None:
        from redis.exceptions import ResponseError

        self._client = await self._connect()
        try:
            await self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def consume(self) -> Sequence[Incoming]:
        messages = await self._left_behind()
        if not messages:
            found = await self._client.xreadgroup(
                self._group, self._name, {self._stream: ">"}, count=self._count, block=round(WAIT_SECONDS * 1000)
            )
            streams = found.values() if isinstance(found, dict) else (entries for _, entries in found or ())
            messages = self._read(entry for entries in streams for entry in _flat(entries))
        if messages:
            size = sum(len(message.body) for message in messages) / len(messages)
            self._count = max(1, min(BATCH_MESSAGES, round(BATCH_BYTES / max(1.0, size))))
        return messages

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        await self._client.xack(self._stream, self._group, *(message.receipt for message in messages))

    async def close(self) -> None:
        if self._client is None:
            return
        with suppress(Exception):
            # A name that holds nothing is forgotten; one that does must stay, or its entries would be lost.
            if not await self._client.xpending_range(self._stream, self._group, "-", "+", 1, consumername=self._name):
                await self._client.xgroup_delconsumer(self._stream, self._group, self._name)
        await self._client.aclose()

    async def _left_behind(self) -> list[Incoming]:
        """Take over entries that a consumer has held for too long, looking for them now and then."""
        if time.monotonic() - self._looked_at < self._take_over / 4:
            return []
        answer = await self._client.xautoclaim(
            self._stream, self._group, self._name, round(self._take_over * 1000), "0-0", count=self._count
        )
        taken = self._read(answer[1])
        if not taken:
            # Otherwise there may be more, and the next call looks again.
            self._looked_at = time.monotonic()
        return taken

    def _read(self, entries: Any) -> list[Incoming]:
        # An entry that was deleted meanwhile has no fields.
        return [self._message(entry_id, fields) for entry_id, fields in entries if fields]

    def _message(self, entry_id: Any, fields: Mapping[Any, Any]) -> Incoming:
        own = {text_of(name): value for name, value in fields.items()}
        body = own.pop(BODY, b"")
        position = f"{self._stream}@{text_of(entry_id)}"
        return Incoming(
            body=body if isinstance(body, bytes) else str(body).encode(),
            source=f"redis:{self._stream}",
            position=position,
            id=position,
            key=key_of(own.pop(KEY, None)),
            headers=headers_of(own),
            receipt=entry_id,
        )


def _flat(entries: Any) -> Any:
    """Return entries, which newer protocols give in lists of their own."""
    for entry in entries:
        if entry and isinstance(entry[0], list | tuple):
            yield from entry
        else:
            yield entry
