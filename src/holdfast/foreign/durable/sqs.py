"""Remote steps over AWS SQS: a queue of tasks for each group, one queue of results for all.

Messages cannot be part of a transaction. So a dispatch is noted with the journal and sent after the commit, and a
result is kept in the run's inbox before its message is deleted: each may happen twice, and neither is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.context import Context
from holdfast.errors import ConfigError, PayloadTooLarge
from holdfast.flow import Steps
from holdfast.foreign.durable.engine import RemoteEngine
from holdfast.foreign.queries import name_of
from holdfast.remote import Dispatch, Result, Task, Transport
from holdfast.values.drivers import importing, require
from holdfast.values.retry import Duration, is_number, whole

BATCH = 10
# How long a result is hidden from others while it is being stored.
HIDDEN_SECONDS = 30


class _Wire(msgspec.Struct):
    status: Any = None
    output: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")
    startedAt: Any = None  # noqa: N815 - as it is on the wire


class MessagesTransport:
    """What our transactions have to do with messages: little, because they are sent and received outside of them."""

    def look_ms(self) -> int:
        return 0

    def send(self, tasks: Sequence[Task]) -> Steps[None]:
        """Nothing: what was noted is sent once it is committed."""
        yield from ()

    def take(self, told: Mapping[str, str | None]) -> Steps[dict[str, Result]]:
        yield from ()
        return {step: _result(step, payload) for step, payload in told.items() if payload is not None}

    def withdraw(self, steps: Sequence[str]) -> Steps[None]:
        """Nothing: a message cannot be taken back. What comes of it is dropped."""
        yield from ()

    def present(self, steps: Sequence[str]) -> Steps[set[str]]:
        yield from ()
        return set(steps)

    def arrived(self, limit: int) -> Steps[list[str]]:
        yield from ()
        return []

    def claim(self, steps: Sequence[str]) -> Steps[None]:
        yield from ()

    def forget(self, steps: Sequence[str]) -> Steps[None]:
        yield from ()


def _result(step: str, body: str) -> Result:
    try:
        wire = msgspec.json.decode(body, type=_Wire)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        # It says which step it is of, and is not JSON all the same: that step has failed, and the text is kept.
        return Result(step, "completed", body, None, None, None)
    output, error = bytes(wire.output).decode(), bytes(wire.error).decode()
    started = round(wire.startedAt) if is_number(wire.startedAt) else None
    return Result(step, str(wire.status), output, error, started, None)


class Received(NamedTuple):
    """A message of the results queue: of which step, and what names it to be deleted; no step: it is not ours."""

    step_id: str | None
    body: str
    receipt: str


class SqsTransport:
    """Have remote steps done over SQS: `hf.remote_engine(transport=SqsTransport(options={"region_name": …}))`.

    The queues are `<prefix>-tasks-<group>` and `<prefix>-results`, unless `task_queue_url` (called with the group) and
    `results_queue_url` say where they are. create: make those that are not there. wait: seconds of a long poll.
    message_bytes: what the queues take at most; a larger task fails.
    options: what aiobotocore's client is made with, such as region_name, endpoint_url and credentials.
    """

    def __init__(
        self,
        *,
        task_queue_url: Callable[[str], str] | None = None,
        results_queue_url: str | None = None,
        create: bool = False,
        wait: int = 10,
        message_bytes: int = 262_144,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("aiobotocore", "sqs")
        self.task_queue_url = task_queue_url
        self.results_queue_url = results_queue_url
        self.create = create
        self.wait = whole(wait, "wait", 0, 20)
        self.message_bytes = whole(message_bytes, "message_bytes", 1_000, 1024**3)
        self.options = dict(options or {})

    def engine(
        self, context: Context, prefix: str, partition: str | None, name: str | None, poll: Duration
    ) -> RemoteEngine:
        """Make the engine, for `hf.remote_engine`."""
        called = name_of(prefix if name is None else name, "prefix" if name is None else "name", 60)
        made: Transport = MessagesTransport()
        open_it: Callable[[], SqsMessenger] = lambda: SqsMessenger(self, prefix)  # noqa: E731 - has no name of its own
        return RemoteEngine(called, made, partition=partition, poll=poll, lost_after=60.0, messenger=open_it)


class SqsMessenger:
    """Sends tasks and receives results, for one worker."""

    def __init__(self, said: SqsTransport, prefix: str) -> None:
        self._said = said
        self._prefix = prefix
        self._urls: dict[str, str] = {}
        self._context: Any = None
        self._client: Any = None
        self.name = f"SQS {prefix}"

    async def open(self) -> None:
        """Connect; on a thread, because it reads the description of the service, which takes most of a second."""
        context = await asyncio.to_thread(self._make)
        self._client = await context.__aenter__()
        self._context = context

    def _make(self) -> Any:
        with importing("aiobotocore", "sqs"):
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
        config = AioConfig(connect_timeout=5, read_timeout=self._said.wait + 15, retries={"total_max_attempts": 1})
        return get_session().create_client("sqs", **{"config": config} | self._said.options)

    async def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            await context.__aexit__(None, None, None)

    async def send(self, dispatches: Sequence[Dispatch]) -> list[tuple[Dispatch, str]]:
        """Send tasks; return those that the service will never take, and why. Raises: what its client raises."""
        groups: dict[str, list[Dispatch]] = defaultdict(list)
        for one in dispatches:
            groups[one.grp].append(one)
        refused: list[tuple[Dispatch, str]] = []
        for group, members in groups.items():
            url = await self._tasks_url(group)
            for start in range(0, len(members), BATCH):
                refused += await self._send_some(url, members[start : start + BATCH])
        return refused

    async def _send_some(self, url: str, some: Sequence[Dispatch]) -> list[tuple[Dispatch, str]]:
        refused: list[tuple[Dispatch, str]] = []
        for one in some:
            # One by one: a batch is refused as a whole when its messages are too large together.
            body, limit = wire_task(one), self._said.message_bytes
            if len(body.encode()) > limit:
                refused.append((one, str(PayloadTooLarge(f"the message of {one.name}", len(body.encode()), limit))))
                continue
            try:
                await self._client.send_message(QueueUrl=url, MessageBody=body)
            except self._client.exceptions.ClientError as error:
                said = error.response.get("Error", {})
                if said.get("Code") not in _NEVER:
                    raise
                refused.append((one, f"SQS does not take its message: {said.get('Code')}: {said.get('Message')}"))
        return refused

    async def receive(self) -> list[Received]:
        """Wait for results, up to the time of one long poll."""
        answer = await self._client.receive_message(
            QueueUrl=await self._results_url(),
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=self._said.wait,
            VisibilityTimeout=HIDDEN_SECONDS,
        )
        return [_received(one) for one in answer.get("Messages", [])]

    async def delete(self, received: Sequence[Received]) -> None:
        """Delete messages that are stored; one that cannot be deleted comes again and is known."""
        entries = [{"Id": str(n), "ReceiptHandle": one.receipt} for n, one in enumerate(received)]
        if entries:
            await self._client.delete_message_batch(QueueUrl=await self._results_url(), Entries=entries)

    async def _tasks_url(self, group: str) -> str:
        if self._said.task_queue_url is not None:
            return self._said.task_queue_url(group)
        return await self._named(f"{self._prefix}-tasks-{group}")

    async def _results_url(self) -> str:
        return self._said.results_queue_url or await self._named(f"{self._prefix}-results")

    async def _named(self, name: str) -> str:
        if name not in self._urls:
            try:
                found = await self._client.get_queue_url(QueueName=name)
            except self._client.exceptions.QueueDoesNotExist:
                if not self._said.create:
                    rule = "is no queue: create it, or say SqsTransport(create=True)"
                    raise ConfigError(name, rule, name) from None
                found = await self._client.create_queue(QueueName=name)
            self._urls[name] = found["QueueUrl"]
        return self._urls[name]


_NEVER = frozenset({"InvalidMessageContents", "InvalidParameterValue", "MessageTooLong"})


def wire_task(one: Dispatch) -> str:
    """Write a task as workers in any language read it."""
    head = {
        "runId": one.run_id,
        "seq": one.seq,
        "stepId": one.step_id,
        "name": one.name,
        "group": one.grp,
        "attempt": one.attempt,
    }
    return f'{json.dumps(head)[:-1]}, "input": {one.input}}}'


def _received(message: Mapping[str, Any]) -> Received:
    body = str(message.get("Body", ""))
    step: object = None
    try:
        # More lenient than JSON: some workers write NaN, and then it is still known whose result it is.
        found = json.loads(body)
        step = found.get("stepId") if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        pass
    return Received(step if isinstance(step, str) else None, body, message["ReceiptHandle"])


# Holds it to the protocol, for type checkers.
_TRANSPORT: type[Transport] = MessagesTransport
