"""What a consumer hands to the worker, and what it hears back: the whole contract between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

# The most messages of one batch, and about how many bytes: a batch is one transaction, and is held in memory.
BATCH_MESSAGES = 500
BATCH_BYTES = 4 * 1024 * 1024
# How long a consumer waits for messages before it looks whether anything else is to be done.
WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as a broker has delivered it.

    source: what names the messages of this topic, stream or queue; it stands for the source of messages that are not
    CloudEvents. position: what people call this message, such as "payments-0@17". id: what the broker knows it by,
    and is the same when it is delivered again; None where the broker has nothing of the kind. key: messages of one key
    keep their order. receipt: what the consumer needs to acknowledge it. offset: its number in a stream whose broker
    does not note how far it was read; it is noted in the transaction that stores the message.
    """

    body: bytes
    source: str
    position: str
    id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    receipt: Any = field(default=None, compare=False, repr=False)
    offset: int | None = None


@runtime_checkable
class Consumer(Protocol):
    """One connection to a broker that messages come from. It is opened once; after an error it is closed, and the
    worker makes another.

    Whatever the broker's client raises means that the broker is away: the worker tells of it once, and tries again.
    """

    async def open(self) -> None:
        """Connect, and join the group of consumers if there is one."""

    async def consume(self) -> Sequence[Incoming]:
        """Wait for messages and return them, in the order of the broker; none after about a second without any.

        At most `BATCH_MESSAGES` and about `BATCH_BYTES`. It is not called again before these are acknowledged. Where it
        is cancelled, messages that were on their way must come again.
        """
        ...

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        """Tell the broker that these messages are stored. It may forget them; what it did not hear of comes again."""

    async def close(self) -> None:
        """Leave the group and close the connection; what was not acknowledged comes again, here or elsewhere."""


@runtime_checkable
class Resuming(Protocol):
    """A consumer of a stream that is told where to go on, before it is opened."""

    @property
    def stream(self) -> str:
        """What names the stream."""
        ...

    def resume(self, position: int | None) -> None:
        """Begin behind this offset; None: nothing was received before."""


class Broker(Protocol):
    """What `hf.receive` takes beside the classes of `holdfast.sinks`: anything that makes consumers."""

    def consumer(self) -> Consumer:
        """Make a consumer that is not connected yet."""
        ...
