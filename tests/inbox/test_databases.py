"""The promises of receiving on every database: stored, then acknowledged, each once, and from where it was left."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import events, jobs
from holdfast.inbox import Incoming
from holdfast.values.cloudevents import CloudEvent
from tests.inbox.conftest import made
from tests.inbox.feeds import Feed, RedisFeed
from tests.inbox.test_receiving import (  # noqa: F401 - here with other databases, and one broker
    receive,
    test_a_message_that_cannot_be_read_becomes_a_dead_letter_with_its_bytes_and_blocks_nothing,
    test_messages_become_jobs_and_are_acknowledged,
    test_what_was_stored_and_not_acknowledged_comes_again_and_adds_no_second_job,
)
from tests.worker.stage import Stage


@pytest.fixture(params=["pg", "mariadb", "mysql"], ids=["postgres", "mariadb", "mysql"])
def stage(request: pytest.FixtureRequest) -> Stage:
    found: Stage = request.getfixturevalue(f"{request.param}_stage")
    return found


@pytest.fixture
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    yield from made(request, RedisFeed)


class Stream:
    """A stream whose broker does not note how far it was read; an acknowledgement tells what is committed by then."""

    stream = "numbers"

    def __init__(self, stage: Stage, kind: str) -> None:
        self.stage = stage
        self.name = jobs.position_name(kind, self.stream)
        self.length = 0
        self.begun: list[int | None] = []
        self.given: list[int] = []
        self.committed: list[tuple[int, int]] = []
        self._cuts = 1

    def consumer(self) -> Any:
        return self

    def resume(self, position: int | None) -> None:
        self.begun.append(position)
        self._next = 0 if position is None else position + 1

    async def open(self) -> None: ...

    async def consume(self) -> list[Incoming]:
        numbers = range(self._next, min(self._next + 2, self.length))
        if not numbers:
            await asyncio.sleep(0.01)
        self.given += numbers
        self._next += len(numbers)
        return [message(n) for n in numbers]

    async def acknowledge(self, messages: Sequence[Incoming]) -> None:
        last = messages[-1].offset
        stored = await asyncio.to_thread(self.stage.sql, "select count(*) from holdfast_keys")
        self.committed.append((stored[0][0], await asyncio.to_thread(self.stage.run, jobs.position(self.name))))
        assert last is not None
        if self._cuts:
            self._cuts -= 1
            raise ConnectionError("cut before it was sent")

    async def close(self) -> None: ...


def message(n: int) -> Incoming:
    said = {"specversion": "1.0", "id": f"event-{n}", "source": "/tests", "type": "test.paid", "data": {"n": n}}
    headers = {"content-type": "application/cloudevents+json"}
    return Incoming(json.dumps(said).encode(), Stream.stream, f"numbers@{n}", id=str(n), headers=headers, offset=n)


def test_how_far_a_stream_was_received_commits_with_its_messages(stage: Stage) -> None:
    seen: list[CloudEvent] = []
    stream = Stream(stage, "paid")
    assert receive(stage, stream, seen).kind == "paid"

    async def scene(_: Any) -> None:
        await stage.until(lambda: len(seen) >= stream.length)
        await stage.until_empty()

    for length in (5, 8):
        stream.length = length
        stage.work(scene)
    assert sorted(one.data["n"] for one in seen) == [*range(8)]
    # From the beginning, behind what was stored when the connection was cut, and behind what another worker received.
    assert (stream.begun, stream.given) == ([None, 1, 4], [*range(8)])
    # The messages and the position were there each time before the broker was told.
    assert stream.committed == [(2, 1), (4, 3), (5, 4), (7, 6), (8, 7)]
    assert len(stage.heard(events.BrokerLost)) == 1
