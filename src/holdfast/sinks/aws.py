"""SQS and SNS by aiobotocore, in batches of ten.

boto3 on threads took the same CPU time for a call. A thread that waits for an answer cannot be stopped, and what the
inbox asks for waits long; against it stands that aiobotocore allows few releases of botocore.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Outcome, Refused
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, Down, in_waves
from holdfast.sinks.settings import seconds, texts, whole
from holdfast.sinks.templates import TooLarge
from holdfast.values.cloudevents import STRUCTURED_TYPE
from holdfast.values.drivers import importing, require

BATCH = 10
ATTRIBUTES = 10
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# What a group and a deduplication id may hold.
_ID = re.compile(r"[\x21-\x7e]{1,128}")
# Errors that say nothing of the messages: who we are, or how much we ask for.
_DOWN = re.compile(
    r"AccessDenied|Credentials|Token|Signature|Throttl|Unavailable|InternalError|InternalFailure|Disabled"
)


class _Connection(NamedTuple):
    client: Any
    context: Any


class _Aws:
    """What both services have in common; each says how a batch is called there."""

    service = ""

    def __init__(
        self,
        target: str,
        *,
        message_bytes: int,
        concurrency: int,
        timeout: float,
        connect_timeout: float,
        options: Mapping[str, Any] | None,
    ) -> None:
        require("aiobotocore", "sqs")
        self._target = target
        self._fifo = target.endswith(".fifo")
        self._limit = whole("message_bytes", message_bytes, at_least=1_000)
        self._concurrency = whole("concurrency", concurrency, at_least=1)
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._options = dict(options or {})
        self._secrets = Secrets.of((), self._options)
        # Importing botocore and reading its descriptions of the service takes most of a second.
        self._link: Link[_Connection] = Link(
            self.service.upper(), self._open, _shut, lambda _: True, 30 + self._connect_timeout, self._secrets
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send batches of ten. Raises: SinkDown when the service cannot be reached, or lets us do nothing now."""
        return await in_waves(messages, self._wave)

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()

    async def _call(self, client: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError

    def _body(self, text: str) -> dict[str, str]:
        raise NotImplementedError

    async def _open(self) -> _Connection:
        context = await asyncio.to_thread(self._context)
        return _Connection(await context.__aenter__(), context)

    def _context(self) -> Any:
        """Make what gives a client, and closes it; nothing connects yet."""
        with importing("aiobotocore", "sqs"):
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session

        config = AioConfig(
            connect_timeout=self._connect_timeout,
            read_timeout=self._timeout,
            max_pool_connections=self._concurrency,
            # A message whose answer was lost would be sent twice, and nobody would hear of it.
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        return get_session().create_client(self.service, **{"config": config} | self._options)

    async def _wave(self, messages: Sequence[Message]) -> list[Answer]:
        connection = await self._link.get()
        answers: list[Answer] = [Failed("not sent")] * len(messages)
        batches = self._batches(messages, answers)
        heard = await asyncio.gather(*(self._send(connection.client, [entry for _, entry in one]) for one in batches))
        for batch, outcomes in zip(batches, heard, strict=True):
            for (index, _), outcome in zip(batch, outcomes, strict=True):
                answers[index] = outcome
        return answers

    def _batches(self, messages: Sequence[Message], answers: list[Answer]) -> list[list[tuple[int, dict[str, Any]]]]:
        batches: list[list[tuple[int, dict[str, Any]]]] = []
        room = 0
        for index, message in enumerate(messages):
            entry, size = self._entry(message)
            if size > self._limit:
                answers[index] = TooLarge(size, self._limit).refusal
                continue
            if not batches or len(batches[-1]) == BATCH or size > room:
                batches.append([])
                room = self._limit
            entry["Id"] = str(len(batches[-1]))
            batches[-1].append((index, entry))
            room -= size
        return batches

    def _entry(self, message: Message) -> tuple[dict[str, Any], int]:
        text = message.event.structured().decode()
        attributes = {"content-type": STRUCTURED_TYPE} | {
            name: value for name, value in message.headers.items() if _NAME.fullmatch(name) and value
        }
        kept = list(attributes.items())[:ATTRIBUTES]
        entry: dict[str, Any] = {
            **self._body(text),
            "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in kept},
        }
        if self._fifo:
            # Without a key each is a group by itself, so that none waits for another.
            entry["MessageGroupId"] = _id(message.event.id if message.key is None else message.key)
            entry["MessageDeduplicationId"] = _id(message.event.id)
        size = len(text.encode()) + sum(len(name.encode()) + len(value.encode()) + 6 for name, value in kept)
        return entry, size

    async def _send(self, client: Any, entries: list[dict[str, Any]]) -> list[Answer]:
        from botocore import exceptions

        try:
            answer = await self._call(client, entries)
        except exceptions.ClientError as error:
            reason = self._secrets.reason(error)
            down = _DOWN.search(error.response.get("Error", {}).get("Code", ""))
            return [Down(reason) if down else Failed(reason)] * len(entries)
        except (exceptions.ReadTimeoutError, exceptions.ConnectionClosedError) as error:
            lost = isinstance(error, exceptions.ConnectionClosedError)
            return [Failed(self._secrets.reason(error), unknown=True, lost=lost)] * len(entries)
        except (exceptions.BotoCoreError, OSError) as error:
            # No address, no credentials, no region: nothing was sent.
            return [Down(self._secrets.reason(error))] * len(entries)
        heard: dict[str, Answer] = {one["Id"]: Delivered(one["MessageId"]) for one in answer.get("Successful", ())}
        heard |= {one["Id"]: _failure(one) for one in answer.get("Failed", ())}
        return [heard.get(entry["Id"], Failed("the service said nothing of it", unknown=True)) for entry in entries]


class Sqs(_Aws):
    """Send to a queue of SQS: `Sqs("https://sqs.eu-west-1.amazonaws.com/1234/orders")`, FIFO where the name says so.

    In a FIFO queue the key is the group, and the event's id the deduplication id. Always structured; headers of the
    publisher are message attributes, ten at most. message_bytes: the queue's `MaximumMessageSize`, for a batch, too.
    options: passed on to botocore's client (region_name, endpoint_url, aws_access_key_id, …).
    """

    service = "sqs"

    def __init__(
        self,
        queue_url: str,
        *,
        message_bytes: int = 262_144,
        concurrency: int = 4,
        timeout: float = 15.0,
        connect_timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        [target] = texts("queue_url", queue_url)
        if not target.startswith(("https://", "http://")):
            raise ConfigError("queue_url", "must be the URL of a queue", target)
        super().__init__(
            target,
            message_bytes=message_bytes,
            concurrency=concurrency,
            timeout=timeout,
            connect_timeout=connect_timeout,
            options=options,
        )

    async def _call(self, client: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = await client.send_message_batch(QueueUrl=self._target, Entries=entries)
        return answer

    def _body(self, text: str) -> dict[str, str]:
        return {"MessageBody": text}

    def consumer(self) -> Consumer:
        """Make a consumer, for `hf.receive`."""
        from holdfast.inbox.sqs import SqsConsumer

        return SqsConsumer(self._context, self._target)


class Sns(_Aws):
    """Publish to a topic of SNS: `Sns("arn:aws:sns:eu-west-1:1234:orders")`; all else as in `Sqs`."""

    service = "sns"

    def __init__(
        self,
        topic_arn: str,
        *,
        message_bytes: int = 262_144,
        concurrency: int = 4,
        timeout: float = 15.0,
        connect_timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        [target] = texts("topic_arn", topic_arn)
        if not target.startswith("arn:"):
            raise ConfigError("topic_arn", "must be the ARN of a topic", target)
        super().__init__(
            target,
            message_bytes=message_bytes,
            concurrency=concurrency,
            timeout=timeout,
            connect_timeout=connect_timeout,
            options=options,
        )

    async def _call(self, client: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = await client.publish_batch(TopicArn=self._target, PublishBatchRequestEntries=entries)
        return answer

    def _body(self, text: str) -> dict[str, str]:
        return {"Message": text}


def _id(text: str) -> str:
    """Return a text as it may stand in an id; any other becomes its hash, which is the same each time."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _failure(one: Mapping[str, Any]) -> Answer:
    reason = f"{one.get('Code', 'Error')}: {one.get('Message', '')}".strip()
    if one.get("SenderFault") and not _DOWN.search(str(one.get("Code"))):
        return Refused(reason, str(one.get("Code")))
    return Failed(reason)


async def _shut(connection: _Connection) -> None:
    await connection.context.__aexit__(None, None, None)
