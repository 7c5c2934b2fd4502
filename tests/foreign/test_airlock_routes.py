"""Airlock's rows sent on by our relay: a producer in Node, a sink of ours, and no copy in between."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from holdfast import ConfigError, Holdfast, Job, events
from holdfast.foreign import AirlockOutbox
from holdfast.sinks import Delivered, Failed, Message, Outcome, Refused, SinkDown
from holdfast.values.cloudevents import CloudEvent
from holdfast.worker import breaker
from tests.foreign.airlock import TYPE, AirlockRelay, look, produce, produced_by_node
from tests.foreign.conftest import Sql

PATIENCE = 20.0


class Inbox:
    """A sink that keeps what arrives; it is down, or loses its connection, as often as it is told."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.down = self.lost = self.closed = 0
        self.calls: list[int] = []
        self.answers: dict[str, Outcome] = {}

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.calls.append(len(messages))
        if self.down:
            self.down -= 1
            raise SinkDown("connection refused")
        if self.lost:
            self.lost -= 1
            return [Failed("cut", unknown=True, lost=True)] * len(messages)
        outcomes = [self.answers.get(one.event.id, Delivered()) for one in messages]
        self.got += [one for one, outcome in zip(messages, outcomes, strict=True) if isinstance(outcome, Delivered)]
        return outcomes

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE_SECONDS", 0.1)


def relay(hf: Holdfast, until: Callable[[], bool], only_routes: bool = True) -> None:
    async def run() -> None:
        async with hf.relay(poll=0.05) if only_routes else hf.worker(poll=0.05):
            deadline = time.monotonic() + PATIENCE
            while not await asyncio.to_thread(until):
                assert time.monotonic() < deadline, "it did not come to that"
                await asyncio.sleep(0.02)
        await hf.aclose()

    hf.migrate()
    asyncio.run(run())


def left(sql: Sql) -> int:
    [count] = sql.one("select count(*) from airlock_messages where status in ('PENDING', 'IN_FLIGHT')")
    return int(count)


def test_what_a_producer_in_node_writes_reaches_a_sink_as_it_was(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    inbox = Inbox()
    outbox.route(to=inbox, batch=10)
    produced_by_node(hf.url, 3, ending="rollback")
    produced = produced_by_node(hf.url, 40)
    relay(hf, lambda: left(sql) == 0)
    assert {one.event.id: one.event.data for one in inbox.got} == produced
    assert len(inbox.got) == 40
    assert max(inbox.calls) > 1
    assert inbox.closed == 1
    assert sql.one("select count(*) from holdfast_jobs") == sql.one("select count(*) from holdfast_finished") == (0,)


def test_the_partition_key_is_the_key(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    inbox = Inbox()
    outbox.route(TYPE, to=inbox)
    row = produce(sql, partition_key="p:1")
    relay(hf, lambda: bool(inbox.got))
    [message] = inbox.got
    assert (message.event.id, message.key, message.attempt) == (row, "p:1", 1)
    assert message.headers["aggregate_type"] == "order"


def test_an_outage_uses_no_delivery_and_heals(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    inbox, heard = Inbox(), []
    inbox.down, inbox.lost = 3, 2
    hf.on(events.SinkDown, heard.append)
    outbox.route(to=inbox)
    rows = [produce(sql) for _ in range(5)]
    relay(hf, lambda: left(sql) == 0)
    assert [look(sql, row)[:2] for row in rows] == [("PROCESSED", 0)] * 5
    assert heard


def test_a_refused_event_is_a_dead_letter_and_others_go_on(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    inbox = Inbox()
    outbox.route(to=inbox)
    bad, good = produce(sql), produce(sql)
    broken = produce(sql, payload={"no": "event"})
    inbox.answers[bad] = Refused("too large", "too-large")
    relay(hf, lambda: left(sql) == 0)
    assert [look(sql, row).status for row in (bad, good, broken)] == ["FAILED", "PROCESSED", "FAILED"]
    assert "too large" in str(look(sql, bad).error_reason)


def test_handlers_and_routes_share_the_table_and_a_relay_runs_no_handler(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql
) -> None:
    inbox, handled = Inbox(), []

    @outbox.handler("order.paid")
    async def paid(event: CloudEvent, job: Job) -> None:
        handled.append(event.id)

    outbox.route(to=inbox)
    mine, other = produce(sql, event_type="order.paid"), produce(sql)
    relay(hf, lambda: bool(inbox.got))
    assert ([one.event.id for one in inbox.got], handled) == ([other], [])
    assert look(sql, mine).status == "PENDING"
    relay(hf, lambda: left(sql) == 0, only_routes=False)
    assert handled == [mine]
    again, later = produce(sql), produce(sql, event_type="order.paid")

    async def without_relay() -> None:
        async with hf.worker(poll=0.05, relay=False):
            while look(sql, later).status != "PROCESSED":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await hf.aclose()

    asyncio.run(asyncio.wait_for(without_relay(), PATIENCE))
    assert look(sql, again).status == "PENDING"
    with pytest.raises(ConfigError, match="already"):
        outbox.route("order.paid", to=inbox)
    with pytest.raises(ConfigError, match="must be a sink"):
        outbox.route("order.sent", to=object())  # type: ignore[arg-type]


def test_airlocks_own_relay_and_ours_share_the_work(hf: Holdfast, outbox: AirlockOutbox, sql: Sql) -> None:
    inbox = Inbox()
    outbox.route(to=inbox)
    rows = {produce(sql) for _ in range(30)}
    theirs = AirlockRelay(hf.store)
    taken = theirs.claim(datetime.now(UTC), 10)
    relay(hf, lambda: left(sql) == len(taken))
    theirs.close()
    assert len(taken) == 10
    assert {one.event.id for one in inbox.got} == rows - set(taken)
