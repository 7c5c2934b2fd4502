"""Reading messages: as CloudEvents in structured or binary mode, and as an event made of whatever else they are."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError, InvalidPayload
from holdfast.inbox.base import Incoming
from holdfast.values.cloudevents import JSON_TYPE, STRUCTURED_TYPE, CloudEvent, from_binary, from_structured
from holdfast.values.payload import decode_value

# The type of an event that was made of a message which is not a CloudEvent.
PLAIN_TYPE = "message"
BYTES_TYPE = "application/octet-stream"
# What brokers put before the names of attributes: HTTP and most others, Kafka, AMQP.
_PREFIXES = ("ce-", "ce_", "cloudevents_", "cloudevents:")
# A longer body is not kept whole: a database takes no statement of any size.
KEPT_BYTES = 8 * 1024 * 1024
CUT_BYTES = 64 * 1024


class Unreadable(Exception):
    """A message says what it is, and is not that; the text says why."""


class Read(NamedTuple):
    """A message that could be read: its event, and by which source and id it is known when it comes again."""

    event: CloudEvent
    identity: tuple[str, str] | None


def read(message: Incoming) -> Read:
    """Read a message as an event. One that is not a CloudEvent becomes one, of type "message", with its body as data.

    Raises: Unreadable.
    """
    headers = {name.lower(): value for name, value in message.headers.items()}
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        event = _cloudevent(message.body, headers, kind)
        if event is not None:
            return Read(event, (event.source, event.id))
        return Read(_plain(message, kind), identity_of(message))
    except InvalidPayload as error:
        raise Unreadable(f"the body is not JSON, as the message says it is: {error.reason}") from error
    except (ConfigError, ValueError) as error:
        raise Unreadable(str(error)) from error


def identity_of(message: Incoming) -> tuple[str, str] | None:
    """Return source and id by which the broker knows a message when it comes again; None if nothing tells."""
    return None if message.id is None else (message.source, message.id)


def _cloudevent(body: bytes, headers: Mapping[str, str], kind: str) -> CloudEvent | None:
    """Read a CloudEvent; None for a message that does not say that it is one."""
    if kind == STRUCTURED_TYPE:
        return from_structured(body)
    for prefix in _PREFIXES:
        if prefix + "specversion" in headers:
            return from_binary(headers, body, prefix)
    if kind.startswith("application/cloudevents"):
        raise Unreadable(f"messages of the content type {kind} cannot be read")
    if kind in ("", JSON_TYPE) and b'"specversion"' in body:
        data = _json(body)
        if isinstance(data, Mapping) and {"specversion", "id", "source", "type"} <= data.keys():
            return from_structured(body)
    return None


def _plain(message: Incoming, kind: str) -> CloudEvent:
    """Make an event of a message that is not one."""
    data: Any = message.body
    if kind == JSON_TYPE or kind.endswith("+json"):
        data = decode_value(message.body)
    elif not kind:
        data = _json(message.body)
        kind = BYTES_TYPE if isinstance(data, bytes) else JSON_TYPE
    name = message.id or message.position
    return CloudEvent(id=name, source=message.source, type=PLAIN_TYPE, data=data, datacontenttype=kind)


def _json(body: bytes) -> Any:
    """Read a body that may be JSON; the body itself where it is not."""
    try:
        return decode_value(body)
    except InvalidPayload:
        return body


class Raw(msgspec.Struct, omit_defaults=True):
    """A message as it came, in the payload of a job: what JSON cannot hold, or what could not be read."""

    source: str
    position: str
    body_base64: str
    id: str | None = None
    key: str | None = None
    headers: dict[str, str] = {}
    # Why it was not read, for people; it is read again when the job runs.
    reason: str | None = None
    # Of a body that was too long to be kept whole.
    bytes: int | None = None
    sha256: str | None = None


def raw_of(message: Incoming, reason: str | None = None, *, most: int = KEPT_BYTES) -> Raw:
    """Write a message down as it came; of a body that is longer than `most`, the beginning."""
    body = message.body
    is_cut = len(body) > most
    return Raw(
        source=message.source,
        position=message.position,
        body_base64=base64.b64encode(body[:CUT_BYTES] if is_cut else body).decode(),
        id=message.id,
        key=message.key,
        headers=dict(message.headers),
        reason=reason,
        bytes=len(body) if is_cut else None,
        sha256=sha256(body).hexdigest() if is_cut else None,
    )


def message_of(raw: Raw) -> Incoming:
    """Return the message that was written down."""
    return Incoming(
        body=base64.b64decode(raw.body_base64),
        source=raw.source,
        position=raw.position,
        id=raw.id,
        key=raw.key,
        headers=raw.headers,
    )
