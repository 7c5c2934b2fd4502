"""The MQTT sink against a real broker: the suite, both modes and versions, and what is MQTT's own."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Mqtt, Outcome, SinkDown
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests.brokers import HOST, PASSWORD, USER, Mosquitto
from tests.gate import Gate


class Subscriber(Receiver):
    """One that listens to a topic of its own name for as long as a test runs."""

    secrets = (PASSWORD,)
    tells_losses = True

    def __init__(self, server: Mosquitto, gate: Gate, mode: str = "structured", version: str = "5") -> None:
        self.server, self.gate, self.mode, self.version = server, gate, mode, version
        self.name = uuid.uuid4().hex[:12]
        self.arrived: list[Any] = []
        self.ends: dict[str, threading.Event] = {}
        ready = threading.Event()
        self.client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        self.client.username_pw_set(USER, PASSWORD)
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: ready.set()
        self.client.connect(HOST, server.port)
        self.client.loop_start()
        self.client.subscribe(f"{self.name}/#", 1)
        assert ready.wait(30)

    def _on_message(self, _client: Any, _data: Any, one: Any) -> None:
        if one.topic.startswith(f"{self.name}/end/"):
            self.ends[one.topic].set()
        else:
            self.arrived.append(one)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()

    def sink(self, **settings: Any) -> Mqtt:
        usual = {"topic": f"{self.name}/{{type}}", "mode": self.mode, "version": self.version}
        bounds = {"timeout": 5.0, "message_bytes": 100_000}
        return Mqtt(f"mqtt://{USER}:{PASSWORD}@{HOST}:{self.gate.port}", **usual | bounds | settings)

    async def messages(self) -> list[Any]:
        """Wait for a message that is sent behind all others."""
        topic = f"{self.name}/end/{uuid.uuid4().hex}"
        end = self.ends[topic] = threading.Event()
        self.client.publish(topic, b"", 1)
        assert await asyncio.to_thread(end.wait, 30)
        return self.arrived

    async def received(self) -> list[CloudEvent]:
        return [self.event(one) for one in await self.messages()]

    def event(self, one: Any) -> CloudEvent:
        if self.mode == "structured":
            if self.version == "5":
                assert one.properties.ContentType == "application/cloudevents+json"
            return from_structured(one.payload)
        headers = {f"ce-{name}": value for name, value in one.properties.UserProperty}
        return from_binary({**headers, "content-type": one.properties.ContentType}, one.payload)

    def bad(self) -> Message:
        return message("bad", "x" * 150_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def subscriber(mosquitto: Mosquitto, mosquitto_gate: Gate) -> Iterator[Subscriber]:
    subscriber = Subscriber(mosquitto, mosquitto_gate)
    yield subscriber
    subscriber.close()


@pytest.fixture
def receiver(subscriber: Subscriber) -> Subscriber:
    return subscriber


@pytest.mark.parametrize("mode, version", [("binary", "5"), ("structured", "3.1.1")])
def test_an_event_arrives_in_other_modes_and_versions_too(subscriber: Subscriber, mode: str, version: str) -> None:
    subscriber.mode, subscriber.version = mode, version
    sink_suite.test_an_event_arrives_as_it_was(subscriber)


def test_an_answer_that_was_lost_is_unknown_in_version_3_1_1_too(subscriber: Subscriber) -> None:
    subscriber.version = "3.1.1"
    sink_suite.test_an_answer_that_was_lost_is_an_unknown_outcome(subscriber)


def outcomes_of(sink: Mqtt, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def test_a_message_that_the_broker_acknowledges_with_a_refusal_has_failed(subscriber: Subscriber) -> None:
    """Clients that look only at the acknowledgement, and not at the reason in it, lose this one."""
    forbidden, fine = outcomes_of(subscriber.sink(topic="{type}"), message(type="forbidden/a"), message(type="allowed"))
    assert forbidden == Failed("the broker refused it with the reason code 0x87")
    assert isinstance(fine, Delivered)


def test_a_message_that_nobody_listens_to_is_delivered_to_nobody(subscriber: Subscriber) -> None:
    assert outcomes_of(subscriber.sink(topic=f"nobody/{subscriber.name}"), message()) == [Delivered("no subscribers")]


def test_characters_that_a_topic_cannot_hold_become_underscores(subscriber: Subscriber) -> None:
    outcomes_of(subscriber.sink(topic=f"{subscriber.name}/{{key}}"), message("a+b#c"))
    [one] = asyncio.run(subscriber.messages())
    assert one.topic == f"{subscriber.name}/a_b_c"


def test_the_publisher_s_headers_are_user_properties(subscriber: Subscriber) -> None:
    outcomes_of(subscriber.sink(), Message(message().event, None, {"tenant": "zoë"}))
    [one] = asyncio.run(subscriber.messages())
    assert one.properties.UserProperty == [("tenant", "zoë")]


def test_a_retained_message_waits_for_those_who_come_later(mosquitto: Mosquitto, subscriber: Subscriber) -> None:
    name = f"kept/{subscriber.name}"
    outcomes_of(subscriber.sink(topic=name, retain=True), message())
    subscriber.client.subscribe(name, 1)
    [one] = asyncio.run(subscriber.messages())
    assert one.retain


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_wrong_password_is_down_and_is_not_shown(subscriber: Subscriber, version: str) -> None:
    sink = Mqtt(f"mqtt://{USER}:another-s3cret@{HOST}:{subscriber.gate.port}", topic="a", version=version)  # type: ignore[arg-type]
    with pytest.raises(SinkDown, match="refused the connection") as caught:
        outcomes_of(sink, message())
    assert "another-s3cret" not in f"{sink!r} {caught.value}"


@pytest.mark.parametrize(
    "settings",
    [{"topic": "a/#"}, {"topic": "$SYS/a"}, {"topic": "{x}"}, {"topic": "a", "url": "http://x"}]
    + [{"topic": "a", **more} for more in ({"version": "4"}, {"version": "3.1.1", "mode": "binary"})],
)
def test_settings_are_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Mqtt(**settings)
