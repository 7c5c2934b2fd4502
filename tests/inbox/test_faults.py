"""What dies on the way: the process between commit and acknowledgement, the database, a member of a Kafka group."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Job, events
from holdfast.values.cloudevents import CloudEvent
from holdfast.worker import Worker
from tests.gate import Gate
from tests.inbox.conftest import made
from tests.inbox.feeds import Feed, KafkaFeed, NatsFeed, event
from tests.inbox.test_receiving import receive, until_received
from tests.servers import Postgres
from tests.worker.processes import ROOT
from tests.worker.stage import Stage


@pytest.fixture
def nats_feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    yield from made(request, NatsFeed)


@pytest.fixture
def kafka_feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    yield from made(request, KafkaFeed)


def test_a_process_that_is_killed_before_it_acknowledges_leaves_one_job_for_each_message(
    pg_stage: Stage, nats_feed: Feed
) -> None:
    nats_feed.publish(*(event(n) for n in range(10)))
    # So that no job is leased to the dead.
    pg_stage.hf.pause(kind="paid")
    where = {
        "HOLDFAST_URL": pg_stage.url,
        "NATS_URL": nats_feed.broker_server.url,
        "SUBJECT": f"{nats_feed.name}.>",
    }
    killed = subprocess.run([sys.executable, "-m", "tests.inbox.child"], cwd=ROOT, env={**os.environ, **where})
    assert killed.returncode == -signal.SIGKILL
    stored = pg_stage.live()
    assert 0 < stored <= 10
    assert nats_feed.left() == 10
    pg_stage.hf.resume(kind="paid")

    seen: list[CloudEvent] = []
    receive(pg_stage, nats_feed.broker(), seen)
    pg_stage.work(lambda _: until_received(pg_stage, nats_feed, 10), poll=0.1)
    assert sorted(one.data["n"] for one in seen) == [*range(10)]
    assert sum(one.new for one in pg_stage.heard(events.MessagesReceived)) == 10 - stored
    assert nats_feed.left() == 0


@pytest.fixture
def pg_gate(postgres: Postgres) -> Iterator[Gate]:
    with Gate(postgres.start().port) as gate:
        yield gate


def test_while_the_database_is_away_nothing_is_acknowledged_and_nothing_lost(
    pg_stage: Stage, pg_gate: Gate, nats_feed: Feed
) -> None:
    seen: list[CloudEvent] = []
    app = pg_stage.app(pg_gate.url(pg_stage.url), connect_timeout=0.5, notify=False)

    @app.receive(nats_feed.broker())
    async def paid(event: CloudEvent) -> None:
        seen.append(event)

    async def scene(_: Worker) -> None:
        await asyncio.to_thread(nats_feed.publish, event(0))
        await until_received(pg_stage, nats_feed, 1)
        with pg_gate.shut():
            await pg_stage.until_said(events.DatabaseLost)
            await asyncio.to_thread(nats_feed.publish, *(event(n) for n in range(1, 6)))
            await asyncio.sleep(0.05)
            assert await asyncio.to_thread(nats_feed.left) == 5
        await pg_stage.until_said(events.DatabaseRegained)
        await until_received(pg_stage, nats_feed, 6)

    pg_stage.work(scene, app, poll=0.1)
    assert sorted(one.data["n"] for one in seen) == [*range(6)]
    assert len(pg_stage.heard(events.DatabaseLost)) == 1
    assert not pg_stage.heard(events.BrokerLost)
    assert nats_feed.left() == 0


def test_kafka_partitions_move_between_workers_without_loss_doubles_or_disorder(
    pg_stage: Stage, kafka_feed: Feed
) -> None:
    keys, seen = [f"order:{n}" for n in range(6)], []
    apps = [pg_stage.app(), pg_stage.app()]
    for app in apps:
        app.queue("payments", ordered=True)

        @app.receive(kafka_feed.broker(), queue="payments")
        async def paid(event: CloudEvent, job: Job) -> None:
            seen.append((job.key, event.data["n"]))

    def publish(first: int) -> None:
        kafka_feed.publish(*(event(n, keys[n % 6]) for n in range(first, first + 60)))

    def received(worker: Worker) -> int:
        return sum(one.count for one in pg_stage.heard(events.MessagesReceived) if one.worker == worker.id)

    async def scene() -> None:
        async with apps[0].worker(poll=0.1) as one:
            await asyncio.to_thread(publish, 0)
            await pg_stage.until(lambda: received(one) >= 30, "the first half")
            async with apps[1].worker(poll=0.1) as two:
                # Both have a partition now, or soon; what was in the first one's hands is committed before it moves.
                rounds = 1
                while not received(two):
                    await asyncio.to_thread(publish, 60 * rounds)
                    rounds += 1
                    await asyncio.sleep(0.05)
                await pg_stage.until(lambda: len(seen) >= 60 * rounds, "all jobs")
            # The second one has left: its partition comes back.
            await asyncio.to_thread(publish, 60 * rounds)
            await pg_stage.until(lambda: len(seen) >= 60 * (rounds + 1), "the last ones")
        for app in apps:
            await app.aclose()

    asyncio.run(scene())
    total = len(seen)
    assert sorted(n for _, n in seen) == [*range(total)]
    for place, key in enumerate(keys):
        assert [n for name, n in seen if name == key] == [*range(place, total, 6)]
    assert kafka_feed.left() == 0
    assert not pg_stage.heard(events.BrokerLost)


def test_a_stop_in_the_middle_of_a_batch_stores_and_acknowledges_it_first(
    sqlite_stage: Stage, nats_feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(sqlite_stage, nats_feed.broker(), [])
    nats_feed.publish(*(event(n) for n in range(5)))
    from holdfast.worker.receiving import Receiving

    store: Any = Receiving._store

    async def store_and_stop(self: Any, messages: Any) -> Any:
        worker.stop()
        return await store(self, messages)

    monkeypatch.setattr(Receiving, "_store", store_and_stop)

    async def scene() -> None:
        nonlocal worker
        worker = sqlite_stage.hf.worker()
        await worker.run()
        await sqlite_stage.hf.aclose()

    worker: Any = None
    asyncio.run(scene())
    stored = sqlite_stage.live() + len(sqlite_stage.sql("select id from holdfast_finished"))
    assert stored > 0
    assert nats_feed.left() == 5 - stored
