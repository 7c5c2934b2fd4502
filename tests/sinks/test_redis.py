"""The Redis sink against a real server: the suite, both modes, and what is Redis's own."""

import asyncio
import uuid
from typing import Any

import pytest
from redis import Redis

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Mode, Outcome, RedisStream, SinkDown
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests.brokers import PASSWORD, RedisServer
from tests.gate import Gate


class Stream(Receiver):
    """A stream of its own name for each test."""

    secrets = (PASSWORD,)
    tells_losses = True

    def __init__(self, server: RedisServer, gate: Gate, mode: Mode = "structured") -> None:
        self.server, self.gate, self.mode = server, gate, mode
        self.name = f"s:{uuid.uuid4().hex[:12]}"

    def ask(self, *command: str | bytes) -> Any:
        with Redis.from_url(self.server.url) as client:
            return client.execute_command(*command)

    def sink(self, **settings: Any) -> RedisStream:
        usual = {"stream": self.name, "mode": self.mode, "timeout": 5.0, "message_bytes": 100_000}
        return RedisStream(self.gate.url(self.server.url), **usual | settings)

    def entries(self, name: str | None = None) -> list[dict[str, bytes]]:
        with Redis.from_url(self.server.url) as client:
            found = client.xrange(name or self.name)
        return [{field.decode(): value for field, value in fields.items()} for _, fields in found]

    async def received(self) -> list[CloudEvent]:
        return [self.event(fields) for fields in self.entries()]

    def event(self, fields: dict[str, bytes]) -> CloudEvent:
        body = fields.pop("data")
        if self.mode == "structured":
            assert fields["content-type"] == b"application/cloudevents+json"
            return from_structured(body)
        return from_binary({name: value.decode() for name, value in fields.items()}, body)

    def bad(self) -> Message:
        return message("bad", "x" * 200_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def receiver(redis_server: RedisServer, redis_gate: Gate) -> Stream:
    return Stream(redis_server, redis_gate)


def test_an_event_arrives_in_binary_mode_too(redis_server: RedisServer, redis_gate: Gate) -> None:
    sink_suite.test_an_event_arrives_as_it_was(Stream(redis_server, redis_gate, "binary"))


@pytest.fixture
def stream(redis_server: RedisServer, redis_gate: Gate) -> Stream:
    return Stream(redis_server, redis_gate)


def outcomes_of(sink: RedisStream, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def test_a_stream_that_cannot_be_appended_to_fails_its_own_messages_and_holds_back_their_keys(stream: Stream) -> None:
    stream.ask("SET", f"{stream.name}:wrong", "a text, not a stream")
    sink = stream.sink(stream=stream.name + ":{type}")
    wrong, behind, fine = outcomes_of(
        sink, message("a", type="wrong"), message("a", type="right"), message("b", type="right")
    )
    assert isinstance(wrong, Failed)
    assert "WRONGTYPE" in wrong.reason
    assert isinstance(behind, Failed)
    assert isinstance(fine, Delivered)
    assert len(stream.entries(f"{stream.name}:right")) == 1


def test_a_server_that_takes_no_writes_is_down_and_not_a_failed_attempt(stream: Stream) -> None:
    stream.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(SinkDown, match="OOM"):
            outcomes_of(stream.sink(), message("a"))
    finally:
        stream.ask("CONFIG", "SET", "maxmemory", "0")
    assert isinstance(outcomes_of(stream.sink(), message("a"))[0], Delivered)


def test_a_wrong_password_is_down_and_is_not_shown(stream: Stream) -> None:
    url = stream.gate.url(stream.server.url).replace(PASSWORD, "another-s3cret")
    with pytest.raises(SinkDown) as caught:
        outcomes_of(RedisStream(url, stream="a"), message())
    assert "another-s3cret" not in str(caught.value)


def test_maxlen_keeps_about_that_many(stream: Stream) -> None:
    outcomes_of(stream.sink(maxlen=100), *(message() for _ in range(500)))
    assert 100 <= len(stream.entries()) <= 250


def test_the_receipt_is_the_id_of_the_entry(stream: Stream) -> None:
    [outcome] = outcomes_of(stream.sink(), message())
    [(entry, _)] = stream.ask("XRANGE", stream.name, "-", "+")
    assert outcome == Delivered(f"{stream.name}@{entry.decode()}")


def test_the_publisher_s_headers_are_fields_too(stream: Stream) -> None:
    outcomes_of(stream.sink(), Message(message().event, None, {"tenant": "zoë", "data": "forged"}))
    [fields] = stream.entries()
    assert fields["tenant"] == "zoë".encode()
    assert b"forged" not in fields["data"]


def test_data_that_is_no_text_arrives_as_it_was_between_others(stream: Stream) -> None:
    raw, other = b"\xff\x00\x80" * 100, b"\xfe"
    events = [
        CloudEvent(f"e{n}", "s", "t", data, datacontenttype="application/octet-stream")
        for n, data in enumerate([b"a text", raw, other, b""])
    ]
    outcomes = outcomes_of(stream.sink(mode="binary"), *(Message(event) for event in events))
    assert all(isinstance(one, Delivered) for one in outcomes)
    assert [fields["data"] for fields in stream.entries()] == [b"a text", raw, other, b""]


def test_messages_of_one_call_go_to_streams_of_their_own_with_their_receipts(stream: Stream) -> None:
    sink = stream.sink(stream=stream.name + ":{type}")
    outcomes = outcomes_of(sink, *(message(type=name) for name in ("a", "b", "a")))
    assert [one.receipt.rpartition("@")[0][-1] for one in outcomes] == ["a", "b", "a"]  # type: ignore[union-attr]
    assert [len(stream.entries(f"{stream.name}:{name}")) for name in "ab"] == [2, 1]


@pytest.mark.parametrize(
    "settings", [{"url": "http://x", "stream": "a"}, {"stream": "{x}"}, {"stream": "a", "maxlen": 0}]
)
def test_settings_are_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RedisStream(**settings)
