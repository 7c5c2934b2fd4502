"""How an event travels in a protocol with headers, as the protocol bindings of CloudEvents have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from holdfast.sinks.base import Message, Mode
from holdfast.values.cloudevents import SPEC_VERSION, STRUCTURED_TYPE, CloudEvent, text_of

# Header names that HTTP and NATS take.
TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# What the HTTP binding has percent-encoded in an attribute's value; NATS follows it.
_ENCODED = re.compile(r"[^\x21\x23\x24\x26-\x7e]")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def percent(value: str) -> str:
    """Write an attribute's value as the HTTP binding has it: spaces, quotes, % and all but ASCII as %XX of UTF-8."""
    return value if _is_plain(value) else _ENCODED.sub(_escape, value)


def _is_plain(text: str) -> bool:
    """Tell whether a text, as nearly all values are, is fine in any header: then so is each part of it."""
    return text.isascii() and text.isprintable() and not (" " in text or '"' in text or "%" in text)


def printable(value: str) -> str:
    """Write a publisher's own header: as it is, except for characters that a header line cannot hold."""
    return value if value.isascii() and value.isprintable() else _UNPRINTABLE.sub(_escape, value)


def packed(
    message: Message,
    mode: Mode,
    prefix: str = "ce-",
    value: Callable[[str], str] = str,
    own: Callable[[str], str] = str,
    reserved: Callable[[str], bool] = lambda name: False,
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a message, for a protocol whose headers are texts.

    `value` writes an attribute's value, `own` that of any other header; both leave plain values as they are. The
    publisher's own headers come along, except for those that are `reserved` and those that the event has.
    """
    if mode == "structured":
        headers, body = {"content-type": STRUCTURED_TYPE}, message.event.structured()
    else:
        headers, body = message.event.binary(prefix)
        if (value is not str or own is not str) and not _is_plain("".join(headers.values())):
            headers = {name: (value if name.startswith(prefix) else own)(said) for name, said in headers.items()}
    if message.headers:
        for name, said in message.headers.items():
            low = name.lower()
            if low != "content-type" and not low.startswith(prefix.lower()) and not reserved(low):
                headers[name] = own(said)
    return headers, body


def packed_in_bytes(event: CloudEvent, prefix: str) -> tuple[list[tuple[str, bytes]], bytes]:
    """Return headers and body in binary mode, for a protocol whose headers are pairs of a text and bytes.

    They are those of `packed`. What events of one type have in common is written once.
    """
    headers = [
        *_in_common(prefix, event.source, event.type, event.datacontenttype, event.dataschema),
        (prefix + "id", event.id.encode()),
    ]
    if event.subject is not None:
        headers.append((prefix + "subject", event.subject.encode()))
    if event.time is not None:
        headers.append((prefix + "time", text_of(event.time).encode()))
    for name, value in event.extensions.items():
        headers.append((prefix + name, value.encode()))
    return headers, event.body


@lru_cache(maxsize=1_000)
def _in_common(
    prefix: str, source: str, kind: str, content_type: str | None, schema: str | None
) -> tuple[tuple[str, bytes], ...]:
    said = {prefix + "specversion": SPEC_VERSION, prefix + "source": source, prefix + "type": kind}
    if content_type is not None:
        said["content-type"] = content_type
    if schema is not None:
        said[prefix + "dataschema"] = schema
    return tuple((name, value.encode()) for name, value in said.items())


def header_bytes(headers: Mapping[str, str]) -> int:
    """Count the bytes of headers as lines of `name: value`."""
    lines = "".join(headers) + "".join(headers.values())
    return (len(lines) if lines.isascii() else len(lines.encode())) + 4 * len(headers)


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace"))
