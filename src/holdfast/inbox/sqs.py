"""SQS: messages are fetched ten at a time, hidden from others meanwhile, and deleted once they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.inbox.base import BATCH_BYTES, Incoming

# The most that one call gives, and how many calls make a batch.
MOST_AT_ONCE = 10
CALLS_PER_BATCH = 10
# A long poll: shorter ones cost calls, and a stop cuts it short.
POLL_SECONDS = 5


class SqsConsumer:
    """Fetches the messages of a queue. connect: makes an async context manager that gives a client of aiobotocore."""

    def __init__(self, connect: Callable[[], Any], queue_url: str) -> None:
        self._connect = connect
        self._url = queue_url
        self._name = queue_url.rstrip("/").rpartition("/")[2]
        self._context: Any = None
        self._client: Any = None

    async def open(self) -> None:
        # On a thread: it reads the description of the service, which takes most of a second.
        context = await asyncio.to_thread(self._connect)
        self._client = await context.__aenter__()
        self._context = context
        await self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])

    async def consume(self) -> Sequence[Incoming]:
        messages: list[Incoming] = []
        while len(messages) < MOST_AT_ONCE * CALLS_PER_BATCH and sum(len(one.body) for one in messages) < BATCH_BYTES:
            answer = await self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=MOST_AT_ONCE,
                WaitTimeSeconds=0 if messages else POLL_SECONDS,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            )
            found = answer.get("Messages", [])
            messages += [self._message(one) for one in found]
            if len(found) < MOST_AT_ONCE:
                break
        return messages

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        for start in range(0, len(messages), MOST_AT_ONCE):
            entries = [
                {"Id": str(place), "ReceiptHandle": message.receipt}
                for place, message in enumerate(messages[start : start + MOST_AT_ONCE])
            ]
            # One that cannot be deleted, because its time was over, comes again and is known.
            await self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    async def close(self) -> None:
        if self._context is not None:
            await self._context.__aexit__(None, None, None)

    def _message(self, found: dict[str, Any]) -> Incoming:
        given = found.get("MessageAttributes", {})
        headers = {name: str(said["StringValue"]) for name, said in given.items() if "StringValue" in said}
        return Incoming(
            body=str(found.get("Body", "")).encode(),
            source=f"sqs:{self._name}",
            position=f"{self._name}@{found['MessageId']}",
            id=found["MessageId"],
            key=found.get("Attributes", {}).get("MessageGroupId"),
            headers=headers,
            receipt=found["ReceiptHandle"],
        )
