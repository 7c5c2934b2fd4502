"""An event that was stored is the event that was published: what a sink sends of it is what it would send of that."""

import copy
from dataclasses import replace

import pytest

from holdfast.outbox.envelope import opened
from holdfast.outbox.publishing import draft_of, rows_of
from holdfast.sinks import Message
from holdfast.sinks.base import Mode
from holdfast.sinks.bindings import packed
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def stored(data: object) -> str:
    draft = draft_of("order.created", data, subject="o ü", key="k", headers={"traceparent": TRACE})
    [row] = rows_of(draft, (), "/shop", 10**6, 1024)
    return row.payload


DATA = [{"id": 1, "é": [1.5, None, True]}, None, [], "text", 0, False, {}]


@pytest.mark.parametrize("data", DATA)
def test_it_equals_what_is_read_the_long_way(data: object) -> None:
    text = stored(data)
    event, plain = opened(text), from_structured(text)
    assert type(event) is not CloudEvent
    assert (event == plain, plain == event) == (True, True)
    assert (event.data, event.attributes) == (data, plain.attributes)
    assert event != replace(plain, type="order.sent")
    assert event != text


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_it_is_sent_as_it_was_written(data: object, mode: Mode) -> None:
    headers, body = packed(Message(opened(stored(data)), "k"), mode)
    read = from_structured(body) if mode == "structured" else from_binary(headers, body)
    assert (read.data, read.subject, read.extensions) == (data, "o ü", {"partitionkey": "k", "traceparent": TRACE})


def test_a_changed_copy_is_sent_as_it_was_changed() -> None:
    event = replace(opened(stored({"id": 1})), type="order.sent", data={"id": 2})
    assert from_structured(event.structured()).type == "order.sent"
    assert (event.body, event.data) == (b'{"id":2}', {"id": 2})
    assert "order.sent" in repr(event)


def test_it_can_be_copied() -> None:
    event = opened(stored({"id": 1}))
    assert copy.deepcopy(event) == copy.copy(event) == event


def test_an_event_without_an_id_is_refused_as_ever() -> None:
    with pytest.raises(Exception, match="needs this attribute"):
        opened(stored(1).replace('"source":"/shop"', '"source":""'))
