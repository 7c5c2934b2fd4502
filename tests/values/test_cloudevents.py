"""CloudEvents: what is written reads back, in both modes, and what is not an event is refused."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured

FULL = CloudEvent(
    id="1",
    source="shop",
    type="order.created",
    data={"id": 9182, "name": "Ärger"},
    subject="order:9182",
    time=datetime(2026, 5, 4, 3, 2, 1, 500, tzinfo=UTC),
    dataschema="shop/order/2",
    extensions={"partitionkey": "order:9182", "traceparent": "00-1-2-01"},
)
EVENTS = [
    FULL,
    CloudEvent("1", "shop", "t"),
    CloudEvent("1", "shop", "t", data=0),
    CloudEvent("1", "shop", "t", data=b"\x00\xff", datacontenttype="application/octet-stream"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_reads_back_from_one_json_text(event: CloudEvent) -> None:
    assert from_structured(event.structured()) == event


@pytest.mark.parametrize("prefix", ["ce-", "ce_"])
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_reads_back_from_headers_and_body(event: CloudEvent, prefix: str) -> None:
    headers, body = event.binary(prefix)
    assert from_binary({name.upper(): value for name, value in headers.items()}, body, prefix) == event


def test_binary_mode_has_the_data_alone_in_its_body() -> None:
    headers, body = FULL.binary()
    assert body == '{"id":9182,"name":"Ärger"}'.encode()
    assert headers["ce-time"] == "2026-05-04T03:02:01.000500Z"
    assert headers["content-type"] == "application/json"
    assert "ce-datacontenttype" not in headers


@pytest.mark.parametrize(
    "said",
    [
        {"id": ""},
        {"source": ""},
        {"type": ""},
        {"extensions": {"trace-parent": "1"}},
        {"extensions": {"id": "1"}},
        {"extensions": {"data": "1"}},
    ],
)
def test_what_is_not_an_event_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CloudEvent(**{"id": "1", "source": "shop", "type": "t", **said})


@pytest.mark.parametrize("text", ["[]", '{"specversion":"2.0","id":"1","source":"s","type":"t"}', '{"id":"1"}'])
def test_a_text_that_is_not_an_event_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        from_structured(text)


def test_a_time_that_is_not_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="RFC 3339"):
        from_structured('{"id":"1","source":"s","type":"t","time":"yesterday"}')
