"""The NATS sink against a real server: the suite, both modes, and what is JetStream's own."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import nats
import pytest

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Mode, Nats, Refused
from holdfast.sinks import nats as nats_sink
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests.brokers import PASSWORD, NatsServer
from tests.gate import Gate


class Stream(Receiver):
    """A stream of its own name for each test."""

    secrets = (PASSWORD,)
    tells_losses = True

    def __init__(self, server: NatsServer, gate: Gate, mode: Mode = "binary") -> None:
        self.server, self.gate, self.mode = server, gate, mode
        self.name = f"s{uuid.uuid4().hex[:12]}"
        self.subject = f"{self.name}.{{type}}"
        self.asked(lambda js: js.add_stream(name=self.name, subjects=[f"{self.name}.>"], max_msg_size=300_000))

    def asked(self, question: Any) -> Any:
        async def ask() -> Any:
            client = await nats.connect(self.server.url)
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(ask())

    def sink(self, **settings: Any) -> Nats:
        return Nats(
            self.gate.url(self.server.url), **{"subject": self.subject, "mode": self.mode, "timeout": 5.0} | settings
        )

    async def stored(self) -> list[Any]:
        client = await nats.connect(self.server.url)
        js = client.jetstream()
        state = (await js.stream_info(self.name)).state
        found = [await js.get_msg(self.name, seq) for seq in range(state.first_seq, state.last_seq + 1)]
        await client.close()
        return found

    async def received(self) -> list[CloudEvent]:
        return [self.event(one.headers or {}, one.data or b"") for one in await self.stored()]

    def event(self, headers: dict[str, str], body: bytes) -> CloudEvent:
        if self.mode == "structured":
            assert headers["content-type"] == "application/cloudevents+json"
            return from_structured(body)
        return from_binary({name: unquote(value) for name, value in headers.items()}, body)

    def bad(self) -> Message:
        return message("bad", "x" * 400_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def receiver(nats_server: NatsServer, nats_gate: Gate) -> Iterator[Stream]:
    stream = Stream(nats_server, nats_gate)
    yield stream
    stream.asked(lambda js: js.delete_stream(stream.name))


@pytest.fixture
def stream(nats_server: NatsServer, nats_gate: Gate) -> Stream:
    return Stream(nats_server, nats_gate)


def test_an_event_arrives_in_structured_mode_too(nats_server: NatsServer, nats_gate: Gate) -> None:
    sink_suite.test_an_event_arrives_as_it_was(Stream(nats_server, nats_gate, "structured"))


async def outcomes_of(sink: Nats, *messages: Message) -> list[Any]:
    try:
        return list(await sink.send(messages))
    finally:
        await sink.close()


def test_a_repeated_message_is_stored_once(stream: Stream) -> None:
    one = message("a")
    first, again = (asyncio.run(outcomes_of(stream.sink(), one))[0] for _ in range(2))
    assert first == Delivered(f"{stream.name}@1")
    assert again == Delivered(f"{stream.name}@1 (a duplicate)")
    [stored] = asyncio.run(stream.stored())
    assert stored.headers["Nats-Msg-Id"] == one.event.id


def test_a_subject_that_no_stream_takes_is_a_failure_that_says_so(stream: Stream) -> None:
    [outcome] = asyncio.run(outcomes_of(stream.sink(subject="nobody.{type}"), message()))
    assert isinstance(outcome, Failed)
    assert "no JetStream stream takes the subject" in outcome.reason
    assert not outcome.unknown


@pytest.mark.parametrize("words", [b"hello", b"{}", b'{"stream": 7}'])
def test_an_answer_that_is_not_jetstreams_fails_its_message_alone(stream: Stream, words: bytes) -> None:
    subject = f"service.{stream.name}.{{type}}"

    async def answer(asked: Any) -> None:
        await asked.respond(words)

    async def scene() -> list[Any]:
        client = await nats.connect(stream.server.url)
        try:
            await client.subscribe(f"service.{stream.name}.odd", cb=answer)
            await client.flush()
            fine = message()
            await client.jetstream().add_stream(name=f"{stream.name}f", subjects=[subject.format(type=fine.event.type)])
            try:
                return await outcomes_of(stream.sink(subject=subject), message(type="odd"), fine)
            finally:
                await client.jetstream().delete_stream(f"{stream.name}f")
        finally:
            await client.close()

    odd, fine = asyncio.run(scene())
    assert isinstance(odd, Failed)
    assert "is not JetStream" in odd.reason
    assert isinstance(fine, Delivered)


def test_what_goes_in_several_pieces_keeps_its_order_and_outcomes(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_sink, "CHUNK_BYTES", 2_000)
    messages = [message(f"key:{n % 20}", "x" * 500) for n in range(40)]
    outcomes = asyncio.run(outcomes_of(stream.sink(), *messages))
    assert {type(one) for one in outcomes} == {Delivered}
    stored = asyncio.run(stream.received())
    assert [event.id for event in stored] == [one.event.id for one in messages]
    # Each was told by its own acknowledgement.
    assert [one.receipt for one in outcomes] == [f"{stream.name}@{n}" for n in range(1, 41)]


def test_an_outage_between_two_pieces_loses_nothing(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_sink, "CHUNK_BYTES", 0)
    sink_suite.test_an_outage_after_the_first_message_loses_nothing(stream)
    sink_suite.test_an_answer_that_was_lost_is_an_unknown_outcome(stream)


def test_another_stream_than_the_named_one_is_a_failure(stream: Stream) -> None:
    [outcome] = asyncio.run(outcomes_of(stream.sink(stream="another"), message()))
    assert isinstance(outcome, Failed)
    assert "expected stream does not match" in outcome.reason


def test_what_the_server_would_hang_up_on_is_refused_before_it_is_sent(stream: Stream) -> None:
    # The limit of the server, a million bytes, counts headers, which the client does not.
    headers = Message(message().event, None, {"note": "x" * 1_048_000})
    large, fine = asyncio.run(outcomes_of(stream.sink(), headers, message()))
    assert isinstance(large, Refused)
    assert isinstance(fine, Delivered)


def test_characters_that_a_subject_cannot_hold_become_underscores(stream: Stream) -> None:
    sink = stream.sink(subject=f"{stream.name}.{{key}}.{{source}}")
    [outcome] = asyncio.run(outcomes_of(sink, message("or der.*.>", source=".a..b.")))
    assert isinstance(outcome, Delivered)
    [stored] = asyncio.run(stream.stored())
    assert stored.subject == f"{stream.name}.or_der._._._a._b_"


def test_a_publisher_s_headers_come_along_but_not_those_of_the_server(stream: Stream) -> None:
    one = Message(message().event, None, {"tenant": "zoë", "Nats-Rollup": "all", "bad name": "x"})
    asyncio.run(outcomes_of(stream.sink(), one))
    [stored] = asyncio.run(stream.stored())
    assert stored.headers["tenant"] == "zo%C3%AB"
    assert not {"Nats-Rollup", "bad name"} & set(stored.headers)


def test_an_event_without_the_field_that_names_its_subject_is_refused(stream: Stream) -> None:
    [outcome] = asyncio.run(outcomes_of(stream.sink(subject=f"{stream.name}.{{subject}}"), message()))
    assert isinstance(outcome, Refused)
    assert "the event has no subject" in outcome.reason


def test_wildcards_without_a_group_are_refused_with_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="give group="):
        Nats(subject="events.>")


@pytest.mark.parametrize(
    "settings, words",
    [({}, r"no JetStream stream that takes 'nobody\.>'"), ({"stream": "none"}, "no JetStream stream called 'none'")],
)
def test_a_consumer_without_a_stream_says_what_is_missing(stream: Stream, settings: dict[str, Any], words: str) -> None:
    consumer = Nats(stream.server.url, subject="nobody.>", group="shop", **settings).consumer()

    async def scene() -> None:
        try:
            await consumer.open()
        finally:
            await consumer.close()

    with pytest.raises(LookupError, match=words):
        asyncio.run(scene())


@pytest.mark.parametrize("settings", [{"subject": "a.*"}, {"subject": "a..b"}, {"subject": "a."}, {"subject": ""}])
def test_a_subject_that_cannot_be_is_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Nats("nats://localhost:4222", **settings)
