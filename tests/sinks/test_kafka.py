"""The Kafka sink against a real broker: the suite, both modes, and what is Kafka's own."""

import asyncio
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Kafka, Message, Mode, Outcome, Refused, SinkDown
from holdfast.testing import sink_suite
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_binary, from_structured
from tests import brokers
from tests.gate import Gate

PASSWORD = "s3cret-of-kafka"
# The broker of these tests takes no passwords; a test of our own looks for one.
del test_secrets_are_not_shown  # noqa: F821


class Topic(Receiver):
    """A topic of its own name, with three partitions, for each test."""

    # The idempotent producer asks again by itself, and the broker knows what it has.
    finds_out = True

    def __init__(self, server: brokers.Kafka, gate: Gate, mode: Mode = "binary", **settings: str) -> None:
        self.server, self.gate, self.mode = server, gate, mode
        self.name = f"t{uuid.uuid4().hex[:12]}"
        asyncio.run(self.create(self.name, **settings))

    async def create(self, name: str, **settings: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server.address)
        await admin.start()
        try:
            topic = NewTopic(
                name, 3, 1, topic_configs={key.replace("_", "."): value for key, value in settings.items()}
            )
            await admin.create_topics([topic])
        finally:
            await admin.close()

    def sink(self, **settings: Any) -> Kafka:
        usual = {"topic": self.name, "mode": self.mode, "timeout": 2.0, "connect_timeout": 5.0}
        return Kafka(self.server.address, **usual | settings)

    async def records(self) -> list[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.server.address, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [TopicPartition(self.name, number) for number in range(3)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[Any] = []
            while any([await consumer.position(one) < ends[one] for one in partitions]):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    found += batch
            return found
        finally:
            await consumer.stop()

    async def received(self) -> list[CloudEvent]:
        return [self.event(record) for record in await self.records()]

    def event(self, record: Any) -> CloudEvent:
        headers = {name: value.decode() for name, value in record.headers}
        if self.mode == "structured":
            assert headers["content-type"] == "application/cloudevents+json"
            return from_structured(record.value)
        return from_binary(headers, record.value, "ce_")

    def bad(self) -> Message:
        return message("bad", "x" * 1_100_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def receiver(kafka: brokers.Kafka, kafka_gate: Gate) -> Topic:
    return Topic(kafka, kafka_gate)


def test_an_event_arrives_in_structured_mode_too(kafka: brokers.Kafka, kafka_gate: Gate) -> None:
    sink_suite.test_an_event_arrives_as_it_was(Topic(kafka, kafka_gate, "structured"))


@pytest.fixture
def topic(kafka: brokers.Kafka, kafka_gate: Gate) -> Topic:
    return Topic(kafka, kafka_gate)


def outcomes_of(sink: Kafka, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def test_a_batch_of_one_key_is_appended_in_order_and_its_receipts_name_the_offsets(topic: Topic) -> None:
    messages = [message("a") for _ in range(50)]
    outcomes = outcomes_of(topic.sink(), *messages)
    records = asyncio.run(topic.records())
    assert [record.key for record in records] == [b"a"] * 50
    assert [dict(record.headers)["ce_id"].decode() for record in records] == [one.event.id for one in messages]
    assert outcomes == [Delivered(f"{topic.name}-{one.partition}@{one.offset}") for one in records]


def test_a_batch_whose_answer_was_lost_is_stored_once(topic: Topic) -> None:
    async def work() -> None:
        sink = topic.sink()
        await sink.send([message("a")])
        with topic.gate.lost_answer():
            assert {type(one) for one in await sink.send([message("a"), message("a")])} == {Delivered}
        await sink.close()
        assert len(await topic.records()) == 3

    asyncio.run(work())


def test_what_does_not_fit_into_one_batch_goes_in_several(topic: Topic) -> None:
    messages = [message("a", "x" * 3_000) for _ in range(20)]
    assert {type(one) for one in outcomes_of(topic.sink(message_bytes=10_000), *messages)} == {Delivered}
    assert [event.id for event in asyncio.run(topic.received())] == [one.event.id for one in messages]


def test_many_sends_to_one_partition_at_the_same_time_have_their_time_each(topic: Topic) -> None:
    async def work() -> None:
        sink = topic.sink(timeout=10.0)
        await sink.send([message("a")])
        # The client counts the wait for each batch before it from the beginning: 150 waits of a few milliseconds
        # came to more than the time-out.
        answers = await asyncio.gather(*(sink.send([message("a")]) for _ in range(150)))
        await sink.close()
        assert {type(one) for answer in answers for one in answer} == {Delivered}

    sink_suite.run(work())


def test_a_topic_that_takes_less_than_the_sink_allows_refuses_only_what_is_too_large(
    kafka: Any, kafka_gate: Gate
) -> None:
    topic = Topic(kafka, kafka_gate, max_message_bytes="5000")
    messages = [message("a", "x" * size) for size in (100, 3_000, 3_000, 6_000, 100)]
    small, middle, second, large, behind = outcomes_of(topic.sink(), *messages)
    assert all(isinstance(one, Delivered) for one in (small, middle, second))
    assert isinstance(large, Refused)
    assert isinstance(behind, Failed)
    assert [event.id for event in asyncio.run(topic.received())] == [one.event.id for one in messages[:3]]


def test_an_unknown_topic_fails_its_own_messages_only(topic: Topic) -> None:
    sink = topic.sink(topic="{type}")
    lost, fine = outcomes_of(sink, message("a", type="nobody.made.this"), message("b", type=topic.name))
    assert isinstance(lost, Failed)
    assert "knows no topic 'nobody.made.this'" in lost.reason
    assert isinstance(fine, Delivered)


def test_the_order_of_a_key_holds_over_topics(topic: Topic) -> None:
    sink = topic.sink(topic="{type}")
    fine, lost, behind = outcomes_of(
        sink, message("a", type=topic.name), message("a", type="nobody"), message("a", type=topic.name)
    )
    assert isinstance(fine, Delivered)
    assert isinstance(lost, Failed)
    assert isinstance(behind, Failed)
    assert len(asyncio.run(topic.records())) == 1


def test_characters_that_a_topic_cannot_hold_become_underscores(topic: Topic) -> None:
    asyncio.run(topic.create(f"{topic.name}.order_9-_"))
    [outcome] = outcomes_of(topic.sink(topic=f"{topic.name}.{{key}}"), message("order:9-ü"))
    assert isinstance(outcome, Delivered)


def test_the_publisher_s_headers_and_any_characters_travel_as_utf_8(topic: Topic) -> None:
    outcomes_of(topic.sink(), Message(message(subject="größe").event, None, {"tenant": "zoë", "ce_id": "forged"}))
    [record] = asyncio.run(topic.records())
    headers = dict(record.headers)
    assert (headers["tenant"], headers["ce_subject"]) == ("zoë".encode(), "größe".encode())
    assert headers["ce_id"] != b"forged"
    assert record.key is None


def test_passwords_are_not_shown(topic: Topic) -> None:
    options = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "app", "sasl_plain_password": PASSWORD}
    sink = topic.sink(options={**options, "security_protocol": "SASL_PLAINTEXT"})
    with topic.gate.shut(), pytest.raises(SinkDown) as caught:
        outcomes_of(sink, message())
    assert PASSWORD not in f"{sink!r} {caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    "settings",
    [
        {"topic": "or ders"},
        {"topic": "{typ}"},
        {"topic": "{type!r}"},
        {"topic": "{"},
        {"topic": "x" * 250},
        {"topic": None},
    ]
    + [{"topic": "a", **more} for more in ({"mode": "json"}, {"timeout": 0}, {"servers": []}, {"message_bytes": 1})],
)
def test_settings_are_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Kafka(**settings)


def test_a_broker_that_goes_away_in_the_middle_of_a_call_is_told_from_one_that_is_silent(topic: Topic) -> None:
    async def work() -> None:
        sink = topic.sink(timeout=30.0)
        await sink_suite.sent_at_last(sink, [message("a")])
        topic.gate.blackhole()
        sending = asyncio.ensure_future(sink.send([message("a"), message("b")]))
        await asyncio.sleep(0.05)
        with topic.gate.shut():
            topic.gate.heal()
            # Much sooner than the time-out, since nobody answers at any address.
            outcomes = await asyncio.wait_for(sending, 20)
        assert all(isinstance(one, Failed) and one.unknown and one.lost for one in outcomes), outcomes
        await sink.close()

    sink_suite.run(work())
