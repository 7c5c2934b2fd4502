"""Events as they were stored: short ways that must say what the long ones do."""

import json

import pytest

from holdfast.outbox.envelope import StoredEvent, opened
from holdfast.values.cloudevents import from_structured
from holdfast.worker.outcomes import _is_plain

ATTRIBUTES = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/shop",
    "type": "order.created",
    "time": "2026-01-02T03:04:05.000006Z",
    "datacontenttype": "application/json",
    "data": {"id": 1},
}
OTHERS = {"subject": "zoë", "dataschema": "urn:x", "dataversion": "2", "partitionkey": "k", "traceparent": "00-1"}


@pytest.mark.parametrize("more", [{}, {"subject": "zoë"}, OTHERS], ids=["least", "subject", "all"])
@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents_"])
def test_a_stored_event_has_the_headers_of_any_other(more: dict[str, str], prefix: str) -> None:
    text = json.dumps(ATTRIBUTES | more, separators=(",", ":"))
    stored = opened(text)
    assert isinstance(stored, StoredEvent)
    assert stored.binary(prefix) == from_structured(text).binary(prefix)


@pytest.mark.parametrize("receipt", ["orders@1-0", "orders-0@17", "", "a (a duplicate)"])
def test_a_plain_receipt_is_json_between_quotes(receipt: str) -> None:
    assert _is_plain(receipt)
    assert json.loads(f'"{receipt}"') == receipt


@pytest.mark.parametrize("receipt", ['a"b', "a\\b", "zoë", "a\nb", "\x7f", 7, None, b"x"])
def test_any_other_receipt_is_written_the_long_way(receipt: object) -> None:
    assert not _is_plain(receipt)
