"""What a relay hands to a sink, and what it hears of each message: the whole contract between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from holdfast.values.cloudevents import CloudEvent

# Binary: the data is the body and the attributes are headers. Structured: one JSON text holds both.
Mode = Literal["binary", "structured"]
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of an event: what a sink sends.

    key: messages of one key keep their order; the partition key of brokers that have one. headers: what the publisher
    added beside the event's attributes. attempt: from 1 on; a repeated message has the same event id.
    """

    event: CloudEvent
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker has confirmed that it keeps the message. receipt: what it calls it, for people: "orders-0@17"."""

    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The message was not taken, or nobody knows whether it was: it is sent again, with the same event id.

    retry_after: seconds that the receiver asked for. unknown: whether it may have arrived all the same. lost: whether
    the connection was lost meanwhile, so that the receiver itself is away: the route rests, and no attempt is used.
    """

    reason: str
    retry_after: float | None = None
    unknown: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The message will never be taken (too large, not allowed, unroutable for good): a dead letter at once."""

    reason: str
    code: str | None = None


Outcome: TypeAlias = Delivered | Failed | Refused


class SinkDown(Exception):
    """Raised by `send`: the other side cannot be reached or takes nothing now, and no message of this call arrived.

    It uses no attempt of any message: the route rests and tries again. Where some of the messages may have arrived,
    return outcomes instead, with `Failed(…, unknown=True)` for those.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


@runtime_checkable
class Sink(Protocol):
    """Where a route delivers to. Made when the application is imported: it connects at the first `send`, not before.

    All calls come from one event loop; `send` may be called for several batches at the same time, but never for two
    batches of an ordered route with a common key.
    """

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Deliver messages, those of one key in this order, and return the outcome of each, in their order.

        A message behind one of its own key that was not delivered is not sent: it is `Failed`, too. Cancelled when
        the relay stops or the time of an attempt is over.
        Raises: SinkDown. Anything else that is raised is a failed attempt of every message.
        """
        ...

    async def close(self) -> None:
        """Close connections; what was not confirmed by then counts as not sent. A later `send` connects again."""
        ...
