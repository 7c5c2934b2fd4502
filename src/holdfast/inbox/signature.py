"""What a handler of messages takes: the whole event, or its data as the parameter is annotated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge
from holdfast.inbox.reading import Raw, Unreadable, message_of, read
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.payload import Signature

# The name in a payload under which a message stands as it came.
RAW = "holdfast-message"
_MARK = f'{{"{RAW}":'


class _Kept(msgspec.Struct, rename={"raw": RAW}):
    raw: Raw


_read_kept = msgspec.json.Decoder(_Kept).decode


@dataclass(frozen=True, eq=False)
class MessageSignature(Signature):
    """A signature with one parameter, for a message; a payload may hold the message as it came."""

    limit: int = 1024 * 1024

    @classmethod
    def of_message(cls, fn: Callable[..., Any], inject: type, limit: int) -> MessageSignature:
        """Read a handler's parameters. Raises: ConfigError unless there is one for the message."""
        made = cls.of(fn, inject)
        if len(made.traits) != 1 or made.defaults:
            rule = (
                f"a handler of messages takes one parameter beside its {inject.__name__}: the event, as in "
                f"`async def {made.name}(job: {inject.__name__}, event: CloudEvent) -> None`, or its data"
            )
            raise ConfigError(made.name, rule, ", ".join(made.traits))
        return replace(cast("MessageSignature", made), limit=limit)

    @property
    def parameter(self) -> str:
        [name] = self.traits
        return name

    @property
    def takes_event(self) -> bool:
        """Tell whether the handler takes the whole event, and not only its data."""
        return msgspec.structs.fields(self.struct)[0].type is CloudEvent

    def argument(self, event: CloudEvent) -> dict[str, Any]:
        """Return what the handler is called with, by name; not yet checked."""
        return {self.parameter: event if self.takes_event else event.data}

    def decode(self, text: str | bytes, kind: str | None = None) -> dict[str, Any]:
        """Read the arguments for the call, from a message as it came where the payload holds that.

        Raises: InvalidPayload; PayloadTooLarge.
        """
        if not (text if isinstance(text, str) else text.decode()).startswith(_MARK):
            return super().decode(text, kind)
        name = kind or self.name
        try:
            raw = _read_kept(text).raw
            if raw.bytes is not None:
                raise PayloadTooLarge(name, raw.bytes, self.limit)
            message = message_of(raw)
            if len(message.body) > self.limit:
                raise PayloadTooLarge(name, len(message.body), self.limit)
            event = read(message).event
        except (Unreadable, msgspec.MsgspecError, ValueError) as error:
            raise InvalidPayload(name, None, str(error)) from error
        if self.takes_event and isinstance(event.data, bytes):
            return {self.parameter: event}
        # Its attributes count, too; and the data may not be what the parameter is annotated with.
        return super().decode(self.encode(name, (), self.argument(event), self.limit), kind)


def kept(raw: Raw) -> str:
    """Write the payload of a job that holds a message as it came."""
    return msgspec.json.encode(_Kept(raw)).decode()
