"""Events as CloudEvents 1.0: one value, written in structured mode (all in one JSON text) or binary mode (headers)."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigError, InvalidPayload
from holdfast.values.payload import decode_value, encode_value

SPEC_VERSION = "1.0"
JSON_TYPE = "application/json"
STRUCTURED_TYPE = "application/cloudevents+json"

# Attributes of the specification; every other one is an extension.
ATTRIBUTES = ("id", "source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema")
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """One event: who says what, about what, and since when.

    data: any JSON value, or bytes where `datacontenttype` is not JSON. extensions: further attributes by name (lower
    case letters and digits), such as `traceparent` and `partitionkey`.
    """

    id: str
    source: str
    type: str
    data: Any = None
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = JSON_TYPE
    dataschema: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for name in ("id", "source", "type"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(name, "an event needs this attribute, as a text that is not empty", value)
        for name in self.extensions:
            if not _EXTENSION.fullmatch(name) or name in ATTRIBUTES or name in ("data", "data_base64"):
                rule = "an extension's name has 1 to 20 lower case letters and digits, and is not an attribute's"
                raise ConfigError("extensions", rule, name)

    @property
    def attributes(self) -> dict[str, str]:
        """All attributes that are there, extensions too, as texts."""
        said = {"specversion": SPEC_VERSION, "id": self.id, "source": self.source, "type": self.type}
        if self.subject is not None:
            said["subject"] = self.subject
        if self.time is not None:
            said["time"] = text_of(self.time)
        if self.datacontenttype is not None:
            said["datacontenttype"] = self.datacontenttype
        if self.dataschema is not None:
            said["dataschema"] = self.dataschema
        said.update(self.extensions)
        return said

    @property
    def body(self) -> bytes:
        """The data alone, as binary mode sends it."""
        if isinstance(self.data, bytes):
            return self.data
        return b"" if self.data is None and self.datacontenttype is None else encode_value(self.data, "data").encode()

    def structured(self) -> bytes:
        """Write the whole event as one JSON text, for the content type `application/cloudevents+json`."""
        whole: dict[str, Any] = dict(self.attributes)
        if isinstance(self.data, bytes):
            whole["data_base64"] = base64.b64encode(self.data).decode()
        else:
            whole["data"] = self.data
        return encode_value(whole, "event").encode()

    def binary(self, prefix: str = "ce-") -> tuple[dict[str, str], bytes]:
        """Return headers and body in binary mode; Kafka's prefix is `ce_`, that of HTTP and most others `ce-`."""
        attributes = self.attributes
        kind = attributes.pop("datacontenttype", None)
        headers = {prefix + name: value for name, value in attributes.items()}
        if kind is not None:
            headers["content-type"] = kind
        return headers, self.body


def from_structured(text: bytes | str) -> CloudEvent:
    """Read an event that was written in structured mode. Raises: ConfigError, InvalidPayload."""
    whole = decode_value(text)
    if not isinstance(whole, dict):
        raise ConfigError("event", "must be a JSON object with the attributes of a CloudEvent", whole)
    said = cast("dict[str, Any]", whole)
    data = said.pop("data", None)
    if "data_base64" in said:
        data = base64.b64decode(said.pop("data_base64"), validate=True)
    return _made({name: str(value) for name, value in said.items() if value is not None}, data)


def type_of(text: bytes | str) -> str | None:
    """Read the type of an event that was written in structured mode; None where there is none to read."""
    try:
        whole = decode_value(text)
    except InvalidPayload:
        return None
    said = cast("dict[str, Any]", whole) if isinstance(whole, dict) else {}
    return str(said["type"]) if "type" in said else None


def from_binary(headers: Mapping[str, str], body: bytes, prefix: str = "ce-") -> CloudEvent:
    """Read an event that came in binary mode; header names count in any case. Raises: ConfigError, InvalidPayload."""
    lower = {name.lower(): value for name, value in headers.items()}
    said = {name[len(prefix) :]: value for name, value in lower.items() if name.startswith(prefix)}
    if "content-type" in lower:
        said["datacontenttype"] = lower["content-type"]
    kind = said.get("datacontenttype", JSON_TYPE).split(";")[0].strip().lower()
    is_json = kind == JSON_TYPE or kind.endswith("+json")
    return _made(said, decode_value(body) if is_json and body else body or None)


def _made(said: Mapping[str, str], data: Any) -> CloudEvent:
    if said.get("specversion", SPEC_VERSION) != SPEC_VERSION:
        raise ConfigError("specversion", f"this version reads CloudEvents {SPEC_VERSION}", said["specversion"])
    return CloudEvent(
        id=said.get("id", ""),
        source=said.get("source", ""),
        type=said.get("type", ""),
        data=data,
        subject=said.get("subject"),
        time=_time_of(said.get("time")),
        datacontenttype=said.get("datacontenttype"),
        dataschema=said.get("dataschema"),
        extensions={name: value for name, value in said.items() if name not in ATTRIBUTES},
    )


def text_of(time: datetime) -> str:
    """Write a time as RFC 3339 has it."""
    return msgspec.json.encode(time).decode()[1:-1]


def _time_of(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(text), type=datetime)
    except msgspec.ValidationError:
        raise ConfigError("time", "must be a time as RFC 3339 writes it", text) from None
