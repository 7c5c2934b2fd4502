"""How messages are read: as CloudEvents in both modes, and as an event made of anything else."""

from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, InvalidPayload, Job, PayloadTooLarge
from holdfast.inbox import Consumer, Incoming
from holdfast.inbox.reading import KEPT_BYTES, Unreadable, message_of, raw_of, read
from holdfast.inbox.signature import MessageSignature, kept
from holdfast.inbox.texts import key_of
from holdfast.values.cloudevents import CloudEvent

EVENT = CloudEvent(id="e1", source="/shop", type="paid", data={"n": 1}, extensions={"partitionkey": "order:1"})


def incoming(body: bytes = b"{}", **said: Any) -> Incoming:
    return Incoming(**{"body": body, "source": "kafka:payments", "position": "payments-0@17", "id": "p@17"} | said)


def test_an_event_in_structured_mode_is_known_by_its_own_source_and_id() -> None:
    message = incoming(EVENT.structured(), headers={"Content-Type": "application/cloudevents+json; charset=utf-8"})
    assert read(message) == (EVENT, ("/shop", "e1"))


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents_", "cloudEvents:"])
def test_an_event_in_binary_mode_is_read_with_each_prefix(prefix: str) -> None:
    headers, body = EVENT.binary(prefix)
    assert read(incoming(body, headers=headers)) == (EVENT, ("/shop", "e1"))


def test_an_event_without_a_content_type_is_known_by_its_members() -> None:
    assert read(incoming(EVENT.structured())).event == EVENT


@pytest.mark.parametrize(
    "body, headers, data, kind",
    [
        (b'{"n":1}', {}, {"n": 1}, "application/json"),
        (b"[1]", {"content-type": "application/vnd.shop+json"}, [1], "application/vnd.shop+json"),
        (b"\xff\x00", {}, b"\xff\x00", "application/octet-stream"),
        (b"{}", {"content-type": "text/plain"}, b"{}", "text/plain"),
        (b'{"specversion":"1.0","type":"t"}', {}, {"specversion": "1.0", "type": "t"}, "application/json"),
    ],
)
def test_anything_else_becomes_an_event_that_the_broker_names(
    body: bytes, headers: dict[str, str], data: Any, kind: str
) -> None:
    event, identity = read(incoming(body, headers=headers))
    assert (event.id, event.source, event.type) == ("p@17", "kafka:payments", "message")
    assert (event.data, event.datacontenttype, identity) == (data, kind, ("kafka:payments", "p@17"))


def test_a_message_that_nothing_names_is_known_by_nothing() -> None:
    assert read(incoming(id=None)).identity is None


@pytest.mark.parametrize(
    "body, headers",
    [
        (b"{", {"content-type": "application/json"}),
        (b"{", {"content-type": "application/cloudevents+json"}),
        (b"[]", {"content-type": "application/cloudevents+json"}),
        (b'{"specversion":"0.3","id":"1","source":"s","type":"t"}', {}),
        (b"[]", {"content-type": "application/cloudevents-batch+json"}),
        (b"{}", {"ce_specversion": "1.0", "ce_id": "1"}),
        (b'{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"?"}', {}),
    ],
)
def test_what_says_that_it_is_something_and_is_not_is_unreadable(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(Unreadable):
        read(incoming(body, headers=headers))


def test_a_body_that_is_not_the_json_that_it_should_be_is_told_as_that() -> None:
    with pytest.raises(Unreadable, match="the body is not JSON, as the message says it is: JSON is malformed"):
        read(incoming(b"{not", headers={"content-type": "application/json"}))


def test_a_message_is_written_down_as_it_came() -> None:
    message = incoming(b"\xff", key="k", headers={"a": "b"})
    assert message_of(raw_of(message)) == message


def test_of_a_message_that_no_statement_could_carry_the_beginning_is_kept() -> None:
    raw = raw_of(incoming(b"x" * (KEPT_BYTES + 1)))
    assert (raw.bytes, len(raw.sha256 or ""), len(message_of(raw).body)) == (KEPT_BYTES + 1, 64, 64 * 1024)


async def whole(event: CloudEvent, job: Job) -> None: ...


async def data(order: dict[str, int]) -> None: ...


def test_a_message_as_it_came_is_read_again_when_its_job_runs() -> None:
    payload = kept(raw_of(incoming(b'{"n":1}')))
    as_event = MessageSignature.of_message(whole, Job, 1_000).decode(payload)
    as_data = MessageSignature.of_message(data, Job, 100).decode(payload)
    assert as_event["event"].data == as_data["order"] == {"n": 1}


def test_a_message_as_it_came_that_is_too_large_stays_so() -> None:
    signature = MessageSignature.of_message(whole, Job, 10)
    with pytest.raises(PayloadTooLarge):
        signature.decode(kept(raw_of(incoming(b"x" * 11))))
    with pytest.raises(PayloadTooLarge):
        MessageSignature.of_message(whole, Job, 2**30).decode(kept(raw_of(incoming(b"x" * 11), most=10)))
    with pytest.raises(InvalidPayload):
        MessageSignature.of_message(data, Job, 100).decode(kept(raw_of(incoming(b'{"n":"one"}'))))


def test_keys_that_are_not_text_are_digits() -> None:
    assert (key_of(b"order:1"), key_of(b"\xff"), key_of(b""), key_of(None)) == ("order:1", "ff", None, None)


class Broker:
    def consumer(self) -> Consumer:
        from tests.inbox.test_receiving import Idle

        return Idle()


@pytest.mark.parametrize(
    "declare",
    [
        lambda hf: hf.receive(object())(whole),
        lambda hf: hf.receive(Broker(), key="{nothing}")(whole),
        lambda hf: hf.receive(Broker(), key="")(whole),
        lambda hf: hf.receive(Broker(), window=0)(whole),
        lambda hf: hf.receive(Broker())(lambda: None),
        lambda hf: hf.receive(Broker(), kind="two")(lambda event, other: None),
        lambda hf: hf.receive(Broker(), kind="optional")(lambda event=None: None),
        lambda hf: [hf.receive(Broker())(whole), hf.receive(Broker())(whole)],
    ],
    ids=["broker", "field", "empty", "window", "none", "two", "default", "twice"],
)
def test_what_cannot_be_received_is_refused_when_it_is_declared(declare: Any) -> None:
    with Holdfast("sqlite:///:memory:") as hf, pytest.raises(ConfigError):
        declare(hf)
