"""The sinks for SQS and SNS against moto's server: the suite on a FIFO queue, and what is AWS's own."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Message, Outcome, Sns, Sqs
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent, from_structured
from tests.brokers import Moto
from tests.gate import Gate


def options(port: int) -> dict[str, str]:
    login = {"aws_access_key_id": Moto.key, "aws_secret_access_key": Moto.secret}
    return {"region_name": "us-east-1", "endpoint_url": f"http://127.0.0.1:{port}", **login}


@pytest.fixture(scope="session")
def sqs(moto: Moto) -> Iterator[Any]:
    client = boto3.session.Session().client("sqs", **options(moto.port))
    yield client
    client.close()


class Queue(Receiver):
    """A queue of its own name for each test."""

    secrets = (Moto.secret,)
    tells_losses = True

    def __init__(self, client: Any, gate: Gate, fifo: bool) -> None:
        self.client, self.gate = client, gate
        name = f"q{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        self.url = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.seen: list[Any] = []

    def sink(self, **settings: Any) -> Sqs:
        usual = {"timeout": 10.0, "message_bytes": 100_000, "options": options(self.gate.port)}
        return Sqs(self.url, **usual | settings)

    def messages(self) -> list[Any]:
        wanted = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while new := self.client.receive_message(QueueUrl=self.url, **wanted).get("Messages"):
            self.seen += new
            for one in new:
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])
        return self.seen

    async def received(self) -> list[CloudEvent]:
        return [from_structured(one["Body"]) for one in self.messages()]

    def bad(self) -> Message:
        return message("bad", "x" * 150_000)

    def outage(self) -> Any:
        return self.gate.shut()

    def lost_answers(self) -> Any:
        return self.gate.lost_answer()


@pytest.fixture
def receiver(sqs: Any, moto_gate: Gate) -> Queue:
    return Queue(sqs, moto_gate, fifo=True)


@pytest.fixture
def queue(sqs: Any, moto_gate: Gate) -> Queue:
    return Queue(sqs, moto_gate, fifo=False)


def outcomes_of(sink: Sqs | Sns, *messages: Message) -> list[Outcome]:
    async def send() -> list[Outcome]:
        try:
            return list(await sink.send(messages))
        finally:
            await sink.close()

    return asyncio.run(send())


def test_a_fifo_queue_gets_the_key_as_group_and_drops_a_repeated_event(receiver: Queue) -> None:
    one, keyless, strange = message("order:9"), message(), message("Größe 10")
    outcomes_of(receiver.sink(), one, keyless, strange)
    outcomes_of(receiver.sink(), one)
    groups = {from_structured(m["Body"]).id: m["Attributes"]["MessageGroupId"] for m in receiver.messages()}
    assert len(receiver.seen) == 3
    assert groups[one.event.id] == "order:9"
    assert groups[keyless.event.id] == keyless.event.id
    assert len(groups[strange.event.id]) == 64


def test_a_standard_queue_gets_batches_of_ten_at_most_and_by_size(queue: Queue) -> None:
    messages = [message(None, "x" * 20_000) for _ in range(12)]
    outcomes = outcomes_of(queue.sink(), *messages)
    assert {type(one) for one in outcomes} == {Delivered}
    assert {one["MessageId"] for one in queue.messages()} == {one.receipt for one in outcomes}


def test_the_publisher_s_headers_are_attributes_as_far_as_they_fit(queue: Queue) -> None:
    headers = {"tenant": "zoë", "AWS.x": "no", "a b": "no", **{f"h{n}": "1" for n in range(20)}}
    outcomes_of(queue.sink(), Message(message().event, None, headers))
    [one] = queue.messages()
    attributes = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
    assert len(attributes) == 10
    assert attributes["tenant"] == "zoë"
    assert attributes["content-type"] == "application/cloudevents+json"


def test_a_queue_that_does_not_exist_is_a_failure_that_says_so(queue: Queue) -> None:
    [outcome] = outcomes_of(Sqs(queue.url + "x", options=options(queue.gate.port)), message())
    assert isinstance(outcome, Failed)
    assert "does not exist" in outcome.reason


def test_a_topic_hands_events_to_the_queues_that_subscribe(queue: Queue, moto: Moto) -> None:
    client = boto3.session.Session().client("sns", **options(moto.port))
    arn = client.create_topic(Name=f"t{uuid.uuid4().hex[:12]}")["TopicArn"]
    queue_arn = queue.client.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    client.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn, Attributes={"RawMessageDelivery": "true"})
    client.close()
    messages = [message("a"), message("a"), message(None, "x" * 150_000)]
    first, second, large = outcomes_of(Sns(arn, message_bytes=100_000, options=options(queue.gate.port)), *messages)
    assert isinstance(first, Delivered)
    assert isinstance(second, Delivered)
    assert type(large).__name__ == "Refused"
    assert [from_structured(one["Body"]).id for one in queue.messages()] == [one.event.id for one in messages[:2]]


@pytest.mark.parametrize(
    "make", [lambda: Sqs("orders"), lambda: Sns("orders"), lambda: Sqs("https://x", concurrency=0)]
)
def test_settings_are_checked_at_once(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
