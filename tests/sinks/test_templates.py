"""Names of places: fields of the event in a text, and what a broker does not take there."""

import re

import pytest

from holdfast.errors import ConfigError, DriverMissing
from holdfast.sinks import Kafka
from holdfast.sinks.bindings import packed, percent, printable
from holdfast.sinks.templates import Naming, Template, Unroutable
from holdfast.testing.sinks import message
from holdfast.values import drivers

LETTERS = Naming(re.compile(r"[^a-z0-9.-]"), 30)


def test_fields_of_the_event_are_filled_in() -> None:
    template = Template("topic", "x.{type}.{key}-{subject}", LETTERS)
    assert template.of(message("k:1", type="order.created", subject="S")) == "x.order.created.k_1-_"


def test_braces_may_be_written_twice() -> None:
    assert Template("stream", "{{{type}}}", Naming()).of(message(type="a")) == "{a}"


@pytest.mark.parametrize(
    "text", ["{topic}", "{0}", "{}", "{type:>10}", "{type!r}", "{type.x}", "{type", "", None, "a b"]
)
def test_what_cannot_be_is_refused_when_the_application_is_imported(text: object) -> None:
    with pytest.raises(ConfigError, match="topic: "):
        Template("topic", text, LETTERS)


@pytest.mark.parametrize("field", ["key", "subject"])
def test_an_event_without_the_field_cannot_be_placed(field: str) -> None:
    with pytest.raises(Unroutable, match=f"the event has no {field}"):
        Template("topic", f"a.{{{field}}}", LETTERS).of(message())


def test_a_name_that_becomes_too_long_cannot_be_placed() -> None:
    with pytest.raises(Unroutable, match="more than 30 bytes"):
        Template("topic", "a.{key}", LETTERS).of(message("k" * 30))


def test_attributes_are_percent_encoded_as_the_http_binding_has_it() -> None:
    assert percent('Euro € 😀 "100%"') == "Euro%20%E2%82%AC%20%F0%9F%98%80%20%22100%25%22"
    assert printable("a b € \r\n") == "a b %E2%82%AC %0D%0A"


def test_a_publisher_cannot_forge_attributes_by_headers() -> None:
    one = message()
    forged = type(one)(one.event, None, {"CE-ID": "x", "Content-Type": "text/html", "fine": "1"})
    headers, _ = packed(forged, "binary")
    assert headers["ce-id"] == one.event.id
    assert {"CE-ID", "Content-Type"} & set(headers) == set()
    assert headers["fine"] == "1"


def test_a_client_that_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "find_spec", lambda name: None)
    with pytest.raises(DriverMissing, match=r'pip install "holdfast-db\[kafka\]"'):
        Kafka("localhost:9092", topic="orders")
