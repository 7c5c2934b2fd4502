"""Remote steps over SQS, against moto's server, done by the real workers of npm and PyPI."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from holdfast import Holdfast, events
from holdfast.foreign import SqsTransport
from tests.brokers import Moto
from tests.foreign.remote_app import declare
from tests.foreign.remote_peers import PATIENCE, node_worker, pypi_worker
from tests.gate import Gate

STEPS = ["echo", "nothing", "fails", "fatal", "third_time"]
LOGIN = {"aws_access_key_id": Moto.key, "aws_secret_access_key": Moto.secret}


def options(port: int) -> dict[str, Any]:
    return {"region_name": "eu-west-1", "endpoint_url": f"http://127.0.0.1:{port}", **LOGIN}


@pytest.fixture
def prefix(moto: Moto, request: pytest.FixtureRequest) -> str:
    """Queues of the test's own, made."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**8}"
    client = boto3.session.Session().client("sqs", **options(moto.port))
    for queue in (f"{name}-results", *(f"{name}-tasks-{step}" for step in [*STEPS, "own"])):
        client.create_queue(QueueName=queue)
    return name


@pytest.fixture
def app(sqlite_url: str, prefix: str, moto_gate: Gate) -> Iterator[Holdfast]:
    with Holdfast(sqlite_url) as hf:
        hf.migrate()
        hf.remote_engine(prefix, transport=SqsTransport(wait=1, options=options(moto_gate.port)), poll=0.05)
        declare(hf)
        yield hf


class Queues:
    """The queues as a worker of the test's own uses them."""

    def __init__(self, moto: Moto, prefix: str) -> None:
        self.client = boto3.session.Session().client("sqs", **options(moto.port))
        self.tasks, self.results = (
            self.client.get_queue_url(QueueName=f"{prefix}-{name}")["QueueUrl"] for name in ("tasks-own", "results")
        )

    def task(self) -> dict[str, Any]:
        """Wait for a task, delete its message and return it."""
        while True:
            got = self.client.receive_message(QueueUrl=self.tasks, WaitTimeSeconds=1)
            for message in got.get("Messages", []):
                self.client.delete_message(QueueUrl=self.tasks, ReceiptHandle=message["ReceiptHandle"])
                found: dict[str, Any] = json.loads(message["Body"])
                return found

    def answer(self, task: dict[str, Any], **said: Any) -> None:
        base = {"runId": task["runId"], "seq": task["seq"], "stepId": task["stepId"], "status": "completed"}
        self.client.send_message(QueueUrl=self.results, MessageBody=json.dumps(base | said))

    def wait_until_empty(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.left():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def left(self) -> int:
        got = self.client.get_queue_attributes(QueueUrl=self.results, AttributeNames=["All"])["Attributes"]
        return int(got["ApproximateNumberOfMessages"]) + int(got["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture
def queues(moto: Moto, prefix: str) -> Queues:
    return Queues(moto, prefix)


def started(app: Holdfast, kind: str, **arguments: Any) -> Any:
    workflow: Any = app.handlers[f"{kind}@1"]
    return workflow.start(id="r", **arguments)


def many(app: Holdfast) -> list[Any]:
    given = [["echo", {"text": "Çağrı 🎈"}], ["nothing", None], ["fails", "x"], ["fatal", 1], ["third_time", 1]]
    handle = started(app, "many", steps=given)

    async def work() -> Any:
        async with app.worker(poll=0.1):
            found = await handle.aresult(timeout=PATIENCE)
        await app.aclose()
        return found

    found: list[Any] = asyncio.run(work())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("maker", ["node", "pypi"])
def test_workers_of_others_do_our_steps_over_queues(
    app: Holdfast, moto: Moto, prefix: str, tmp_path: Path, maker: str
) -> None:
    login = {"accessKeyId": Moto.key, "secretAccessKey": Moto.secret}
    sqs = {"endpoint": moto.url, "region": "eu-west-1", "credentials": login} if maker == "node" else options(moto.port)
    start: Any = node_worker if maker == "node" else pypi_worker
    with start(tmp_path / "notes", sqs=sqs, prefix=prefix, steps=STEPS) as peer:
        found = many(app)
        assert found[:2] == [{"echo": {"text": "Çağrı 🎈"}, "by": maker}, None]
        assert (found[2]["text"], len(peer.noted("fails"))) == ("no x", 5)
        assert (found[3]["text"], len(peer.noted("fatal"))) == ("never", 1)
        assert found[4] == 3


async def answered(app: Holdfast, queues: Queues, handle: Any, *answers: dict[str, Any]) -> Any:
    """Work until the run is over; its task is answered so."""
    async with app.worker(poll=0.1):
        task = await asyncio.to_thread(queues.task)
        for said in answers:
            queues.answer(task, **said)
        found = await handle.aresult(timeout=PATIENCE)
        await asyncio.to_thread(queues.wait_until_empty)
    await app.aclose()
    return found


def test_a_result_that_comes_twice_counts_once(app: Holdfast, queues: Queues) -> None:
    handle = started(app, "one", step="own", given=1)
    answers = ({"output": 1}, {"output": 2}, {"output": 3})
    assert asyncio.run(answered(app, queues, handle, *answers)) in (1, 2, 3)
    assert len([row for row in handle.history() if row.kind == "remote"]) == 1


def test_a_message_that_is_not_json_fails_its_step_and_its_text_is_kept(app: Holdfast, queues: Queues) -> None:
    handle = started(app, "hasty", step="own", given=1, timeout=PATIENCE)
    found = asyncio.run(answered(app, queues, handle, {"output": float("nan")}))
    assert (found["code"], "NaN" in found["text"]) == ("invalid_result", True)


def test_a_message_of_nobody_is_told_of_and_deleted(app: Holdfast, queues: Queues) -> None:
    seen: list[events.MessageUnreadable] = []
    app.on(events.MessageUnreadable, seen.append)
    queues.client.send_message(QueueUrl=queues.results, MessageBody="hello?")
    handle = started(app, "one", step="own", given=1)
    assert asyncio.run(answered(app, queues, handle, {"output": "well"})) == "well"
    assert ["hello?" in one.reason for one in seen] == [True]


def test_a_task_that_the_service_will_never_take_fails(app: Holdfast) -> None:
    """Nobody waits for ever for what cannot be sent."""
    handle = started(app, "hasty", step="own", given="x" * 300_000, timeout=PATIENCE)

    async def work() -> Any:
        async with app.worker(poll=0.1):
            found = await handle.aresult(timeout=PATIENCE)
        await app.aclose()
        return found

    assert "more than the limit of 262,144" in asyncio.run(work())["text"]


def test_a_service_that_is_away_is_waited_for(app: Holdfast, queues: Queues, moto_gate: Gate) -> None:
    seen: list[events.Event] = []
    app.on(events.BrokerLost, seen.append)
    app.on(events.BrokerRegained, seen.append)

    async def work() -> Any:
        lost = asyncio.Event()
        app.on(events.BrokerLost, lambda _: lost.set())
        async with app.worker(poll=0.1):
            with moto_gate.shut():
                handle = await asyncio.to_thread(started, app, "one", step="own", given=1)
                await asyncio.wait_for(lost.wait(), PATIENCE)
            task = await asyncio.to_thread(queues.task)
            queues.answer(task, output="back")
            found = await handle.aresult(timeout=PATIENCE)
        await app.aclose()
        return found

    assert asyncio.run(work()) == "back"
    assert {type(one) for one in seen} == {events.BrokerLost, events.BrokerRegained}
