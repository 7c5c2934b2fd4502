"""Headers of events: short ways that must say what the long ones do."""

import json
from typing import Any

import pytest

from holdfast.outbox.envelope import opened
from holdfast.sinks import Message
from holdfast.sinks.bindings import header_bytes, packed, packed_in_bytes, percent, printable
from holdfast.testing.sinks import full_message, message
from holdfast.values.cloudevents import CloudEvent

WHOLE = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/shop",
    "type": "order.created",
    "time": "2026-01-02T03:04:05.000006Z",
    "datacontenttype": "application/json",
    "data": {"id": 1},
    "subject": "zoë",
    "partitionkey": "k",
}
EVENTS: list[CloudEvent] = [
    message().event,
    message(source="/another", type="order.created").event,
    message(source="/another", type="order.paid", dataschema="urn:x").event,
    message(data=b"\x00\xff", datacontenttype="application/octet-stream").event,
    message(data=b"", datacontenttype=None).event,
    full_message().event,
    opened(json.dumps(WHOLE, separators=(",", ":"))),
]


@pytest.mark.parametrize("prefix", ["ce-", "ce_"])
@pytest.mark.parametrize("event", EVENTS)
def test_headers_in_bytes_are_those_in_texts(event: CloudEvent, prefix: str) -> None:
    # The second time with what was kept from the first one.
    for _ in range(2):
        headers, body = packed_in_bytes(event, prefix)
        texts, same = packed(Message(event), "binary", prefix)
        assert len(headers) == len(texts)
        assert {name: value.decode() for name, value in headers} == texts
        assert body == same


@pytest.mark.parametrize("value", ["plain", "a b", 'a"b', "a%b", "zoë", "a\nb", ""])
@pytest.mark.parametrize("field", ["subject", "source", "id"])
def test_each_value_is_written_as_it_is_by_itself(field: str, value: str) -> None:
    attributes: dict[str, Any] = {field: value or "x"}
    headers, _ = packed(message(**attributes), "binary", value=percent, own=printable)
    texts, _ = packed(message(**attributes), "binary")
    assert headers[f"ce-{field}"] == percent(texts[f"ce-{field}"])


def test_header_lines_are_counted_in_bytes() -> None:
    assert header_bytes({"a": "b", "long": ""}) == len("a: b\r\nlong: \r\n")
    assert header_bytes({"a": "zoë"}) == len("a: zoë\r\n".encode())
