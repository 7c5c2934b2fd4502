"""The relay: a real worker that delivers events to a sink, through failures, outages, stops and limits."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import ConfigError, Retry, events
from holdfast.sinks import Delivered, Failed, Function, Message, Outcome, Refused, SinkDown
from holdfast.worker import Worker, breaker
from tests.worker.stage import Stage


class Inbox:
    """A sink that keeps what arrives. While `down`, it can be reached by nobody; `hold` keeps calls waiting."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.calls: list[int] = []
        self.down = False
        self.closed = 0
        self.hold: asyncio.Event | None = None
        self.answers: dict[Any, list[Outcome]] = {}

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.calls.append(len(messages))
        if self.hold is not None:
            await self.hold.wait()
        if self.down:
            raise SinkDown("connection refused")
        broken: set[str] = set()
        return [self._take(message, broken) for message in messages]

    def _take(self, message: Message, broken: set[str]) -> Outcome:
        if message.key in broken:
            return Failed("behind another")
        answers = self.answers.get(message.event.data)
        outcome = answers.pop(0) if answers else Delivered(f"kept-{len(self.got)}")
        if isinstance(outcome, Delivered):
            self.got.append(message)
        elif message.key is not None:
            broken.add(message.key)
        return outcome

    async def close(self) -> None:
        self.closed += 1

    def data(self) -> list[Any]:
        return [message.event.data for message in self.got]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE_SECONDS", 0.1)


AT_ONCE = Retry(max_attempts=3, first_delay=0, jitter=0, max_delay=0)


def test_a_worker_serves_jobs_and_routes(stage: Stage) -> None:
    hf, inbox, ran = stage.hf, Inbox(), []
    hf.route("order.*", to=inbox, name="orders")

    @hf.job
    async def work(n: int) -> None:
        ran.append(n)

    event = hf.publish("order.created", "x", key="k", headers={"tenant": "a"})
    job = work.enqueue(1)
    stage.work()
    [message] = inbox.got
    assert (message.event.id, message.event.data, message.key, message.attempt) == (event.id, "x", "k", 1)
    assert message.headers == {"tenant": "a"}
    assert ran == [1]
    assert (stage.state(event), stage.show(event).result, stage.state(job)) == ("done", "kept-0", "done")
    assert inbox.closed == 1


def test_without_relay_a_worker_leaves_routes_alone_and_a_relay_leaves_jobs_alone(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("order.*", to=inbox, name="orders")

    @hf.job
    async def work() -> None: ...

    event, job = hf.publish("order.created", 1), work.enqueue()
    stage.work(lambda worker: stage.until(lambda: stage.state(job) == "done"), relay=False)
    assert (stage.state(event), inbox.calls) == ("pending", [])
    job = work.enqueue()

    async def relay() -> None:
        async with hf.relay(["orders"], concurrency=2) as worker:
            assert worker.serves == ["route:orders"]
            await stage.until(lambda: stage.state(event) == "done")
        await hf.aclose()

    asyncio.run(relay())
    assert stage.state(job) == "pending"
    with pytest.raises(ConfigError, match="orders"):
        hf.relay(["strange"])
    with pytest.raises(ConfigError, match="routes"):
        stage.app().relay()


def test_named_queues_serve_those_routes_alone(sqlite_stage: Stage) -> None:
    stage, hf, inbox, other = sqlite_stage, sqlite_stage.hf, Inbox(), Inbox()
    hf.route("#", to=inbox, name="one")
    hf.route("#", to=other, name="two")
    hf.publish("order.created", 1)
    stage.work(lambda worker: stage.until(lambda: inbox.got), queues=["route:one"])
    assert other.calls == []


def test_failures_are_tried_again_and_refusals_are_dead_letters_while_others_go_on(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    inbox.answers = {
        1: [Failed("busy", retry_after=0.0), Failed("cut", retry_after=0.0)],
        2: [Refused("too large", "413")],
        3: [Failed("no", 0.0), Failed("no", 0.0), Failed("no for good", 0.0)],
    }
    hf.route("#", to=inbox, retry=AT_ONCE, name="all")
    ids = [hf.publish("n", n) for n in range(5)]
    stage.work()
    assert [stage.state(one) for one in ids] == ["done", "done", "dead", "dead", "done"]
    assert [message.attempt for message in inbox.got if message.event.data == 1] == [3]
    assert [stage.show(ids[n]).attempts for n in (2, 3)] == [1, 3]
    assert stage.show(ids[2]).last_error["message"] == "413: too large"  # type: ignore[index]
    assert stage.show(ids[3]).last_error["message"] == "no for good"  # type: ignore[index]


def test_an_outage_is_told_once_uses_no_attempt_and_heals(stage: Stage) -> None:
    hf, inbox, other = stage.hf, Inbox(), Inbox()
    inbox.down = True
    hf.route("order.#", to=inbox, name="orders")
    hf.route("order.#", to=inbox, name="orders-again")
    hf.route("#", to=other, name="all")
    hf.publish_many([hf.draft("order.created", n) for n in range(20)])

    async def body(worker: Worker) -> None:
        await stage.until(lambda: len(inbox.calls) > 5 and len(other.got) == 20)
        assert max(inbox.calls[-3:]) <= breaker.PROBE_MESSAGES, "a probe is small"
        inbox.down = False
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert sorted(inbox.data()) == sorted([*range(20)] * 2)
    assert {message.attempt for message in inbox.got} == {1}
    [down], [back] = stage.heard(events.SinkDown), stage.heard(events.SinkBack)
    assert down.reason == "connection refused"
    assert back.down_for > 0


def test_order_per_key_holds_through_failures_and_batches(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    inbox.answers = {n: [Failed("busy", 0.0)] for n in range(0, 60, 7)}
    inbox.answers[10] = [Refused("never")]
    hf.route("#", to=inbox, ordered=True, retry=AT_ONCE, name="all", batch=8)
    hf.publish_many([hf.draft("n", n, key=f"k{n % 3}") for n in range(60)])
    stage.work(poll=0.05)
    for key in range(3):
        assert [n for n in inbox.data() if n % 3 == key] == [n for n in range(60) if n % 3 == key and n != 10]
    assert max(inbox.calls) > 3, "several messages of one key go in one call"


def test_nothing_is_sent_behind_a_message_that_cannot_be_read_where_its_key_stops(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", ordered=True, on_dead="stop", retry=AT_ONCE)
    inbox.answers = {0: [Failed("busy", retry_after=0.0)]}
    first, bad, last = [hf.publish("n", n, key="k") for n in range(3)]
    stage.sql("update holdfast_jobs set payload = ? where id = ?", '{"no": "event"}', bad.id)

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.state(bad) == "dead")
        # Claimed after it, so that the relay has looked at the key, too.
        hf.publish("n", 3, key="other")
        await stage.until(lambda: 3 in inbox.data())

    stage.work(body)
    assert inbox.data() == [0, 3]
    assert (stage.state(first), stage.state(last), stage.show(last).attempts) == ("done", "waiting", 0)


def test_two_relays_keep_the_order_of_a_key(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    hf.route("#", to=inbox, ordered=True, name="all", batch=4)
    hf.publish_many([hf.draft("n", n, key=f"k{n % 5}") for n in range(100)])

    async def scene() -> None:
        async with hf.relay(poll=0.02, buffer=5), hf.relay(poll=0.02, buffer=5):
            await stage.until_empty()
        await hf.aclose()

    asyncio.run(scene())
    for key in range(5):
        assert [n for n in inbox.data() if n % 5 == key] == list(range(key, 100, 5))
    assert len(inbox.got) == 100


def test_no_more_bytes_are_held_than_the_route_says(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    inbox.hold = asyncio.Event()
    size = len(hf.context.routes.by_name) + 1300
    hf.route("#", to=inbox, name="all", batch=3, batch_bytes=2 * size, in_flight_bytes=5 * size)
    hf.publish_many([hf.draft("n", "x" * 1000) for _ in range(40)])
    held: list[int] = []

    async def body(worker: Worker) -> None:
        assert inbox.hold is not None
        await stage.until(lambda: inbox.calls)
        await asyncio.sleep(0.05)
        held.append(len(worker.held))
        inbox.hold.set()
        await stage.until_empty()

    stage.work(body)
    assert 1 <= held[0] <= 6
    assert len(inbox.got) == 40
    assert max(inbox.calls) <= 2


def open_transactions(stage: Stage) -> int:
    """Count the transactions that others have open in this database."""
    if stage.url.startswith("mysql"):
        asked = (
            "select count(*) from information_schema.innodb_trx t"
            " join information_schema.processlist p on p.id = t.trx_mysql_thread_id where p.db = database()"
        )
    else:
        asked = (
            "select count(*) from pg_stat_activity where datname = current_database() and xact_start is not null"
            " and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
    return int(stage.sql(asked)[0][0])


def test_nothing_is_locked_while_a_sink_is_called(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", ordered=True)
    event = hf.publish("n", 1, key="k")

    async def body(worker: Worker) -> None:
        inbox.hold = asyncio.Event()
        await stage.until(lambda: inbox.calls)
        # Rounds have transactions of their own, for a moment; one of the call would stay.
        if not stage.is_sqlite:
            await stage.until(lambda: open_transactions(stage) == 0, "no transaction is open")
        await asyncio.wait_for(
            asyncio.to_thread(stage.sql, "update holdfast_jobs set progress = '1' where id = ?", event.id), 20
        )
        inbox.hold.set()
        await stage.until_empty()

    stage.work(body)
    assert (stage.state(event), stage.show(event).progress) == ("done", 1)


def test_a_stop_lets_a_call_under_way_finish_and_gives_the_rest_back(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", batch=2)
    ids = [hf.publish("n", n) for n in range(10)]

    async def body(worker: Worker) -> None:
        inbox.hold = asyncio.Event()
        await stage.until(lambda: inbox.calls)
        worker.stop()
        asyncio.get_running_loop().call_later(0.05, inbox.hold.set)

    stage.work(body, concurrency=1)
    states = [stage.state(one) for one in ids]
    assert set(states) == {"done", "pending"}
    assert states.count("done") == len(inbox.got)
    assert [stage.show(one).attempts for one, state in zip(ids, states, strict=True) if state == "pending"] == [0] * (
        10 - len(inbox.got)
    )
    assert inbox.closed == 1


def test_a_call_that_is_cut_by_a_stop_is_repeated_with_the_same_id(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("#", to=inbox, name="all")
    event = hf.publish("n", 1)

    async def body(worker: Worker) -> None:
        inbox.hold = asyncio.Event()
        await stage.until(lambda: inbox.calls)

    stage.work(body, drain=0.01)
    assert (stage.state(event), stage.show(event).attempts) == ("pending", 0)
    inbox.hold = None
    again = stage.app()
    again.route("#", to=inbox, name="all")
    stage.work(hf=again)
    assert [message.event.id for message in inbox.got] == [event.id]


def test_a_stop_that_cuts_a_call_sends_no_further_part_of_its_batch(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", batch_bytes=1)
    ids = [hf.publish("n", n) for n in range(5)]

    async def body(worker: Worker) -> None:
        inbox.hold = asyncio.Event()
        await stage.until(lambda: inbox.calls)

    stage.work(body, concurrency=1, drain=0.01)
    assert inbox.calls == [1]
    assert [(stage.state(one), stage.show(one).attempts) for one in ids] == [("pending", 0)] * 5


def test_what_is_lost_or_cancelled_while_another_part_is_sent_is_not_sent(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", batch_bytes=1, ordered=True, lease=1)
    ids = [hf.publish("n", n, key=f"k{n}") for n in range(5)]

    async def body(worker: Worker) -> None:
        hold = inbox.hold = asyncio.Event()
        await stage.until(lambda: inbox.calls)
        stage.steal(ids[2])
        await hf.acancel(ids[3].id)
        await stage.until(lambda: sum(work.interrupt is not None for work in worker.slots.running) == 2)
        hold.set()
        await stage.until(lambda: stage.live() == 1)

    stage.work(body, concurrency=1)
    assert inbox.data() == [0, 1, 4]
    assert [stage.state(one) for one in ids] == ["done", "done", "leased", "cancelled", "done"]


def test_a_sink_that_breaks_the_contract_fails_its_own_messages_alone(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()

    class Odd(Inbox):
        async def send(self, messages: Sequence[Message]) -> Any:
            self.calls.append(len(messages))
            if any(message.event.data == "bomb" for message in messages):
                raise RuntimeError("boom")
            return [Delivered()] * len(messages)

    odd = Odd()
    hf.route("odd.*", to=odd, name="odd", retry=AT_ONCE, batch=10)
    hf.route("fine.*", to=inbox, name="fine")
    bomb = hf.publish("odd.a", "bomb")
    fine = [hf.publish("odd.a", n) for n in range(5)]
    hf.publish("fine.a", 1)
    stage.work()
    assert inbox.data() == [1]
    assert stage.state(bomb) == "dead"
    assert [stage.state(one) for one in fine] == ["done"] * 5


class BareDown(SinkDown):
    """Says nothing of what its base says."""

    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class NoDelay(Retry):
    def delay(self, attempt: int, random: Any = None) -> float:
        raise RuntimeError("no delay")


def test_a_sink_that_says_oddly_that_it_is_down_is_down(sqlite_stage: Stage) -> None:
    stage, hf = sqlite_stage, sqlite_stage.hf
    odd: list[Any] = [SinkDown("busy", "soon"), BareDown(), SinkDown("busy", float("nan")), SinkDown("busy", -1)]  # type: ignore[arg-type]

    class Odd(Inbox):
        async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            if odd:
                raise odd.pop()
            self.calls.append(len(messages))
            if len(self.calls) == 1:
                self.down = True
                return [Failed(None, unknown=True)] * len(messages)  # type: ignore[arg-type]
            return await super().send(messages)

    inbox = Odd()
    hf.route("#", to=inbox, name="all", retry=NoDelay(max_attempts=3, first_delay=0))
    event = hf.publish("n", 1)

    async def body(worker: Worker) -> None:
        await stage.until(lambda: inbox.calls)
        inbox.down = False
        await stage.until_empty()

    stage.work(body, poll=0.02)
    assert stage.state(event) == "done"


def test_a_call_that_takes_too_long_is_a_failure_of_which_nobody_knows(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("#", to=inbox, name="all", timeout=0.02, retry=AT_ONCE)
    event = hf.publish("n", 1)

    async def body(worker: Worker) -> None:
        inbox.hold = asyncio.Event()
        await stage.until_said(events.SinkDown)
        await stage.until(lambda: len(inbox.calls) > 5)
        inbox.hold = None
        await stage.until_empty()

    stage.work(body, poll=0.02)
    assert [(message.event.id, message.attempt) for message in inbox.got] == [(event.id, 2)]
    assert "no answer within 0.02 seconds" in stage.heard(events.SinkDown)[0].reason


LOST = Failed("the connection was lost", unknown=True, lost=True)


def test_a_sink_that_goes_away_in_the_middle_of_a_call_uses_no_attempt(stage: Stage) -> None:
    hf, inbox = stage.hf, Inbox()
    once = Retry(max_attempts=1, first_delay=0, max_delay=0)
    hf.route("#", to=inbox, name="all", ordered=True, retry=once)
    ids = [hf.publish("n", n, key=f"k{n % 2}") for n in range(6)]
    # Twice: some arrive, and for the others the connection is lost.
    inbox.answers = {1: [LOST], 2: [LOST, LOST]}

    async def body(worker: Worker) -> None:
        await stage.until_empty()

    stage.work(body, poll=0.02)
    assert [stage.state(one) for one in ids] == ["done"] * 6
    assert [message.attempt for message in inbox.got] == [1] * 6
    for key in ("k0", "k1"):
        assert [one.event.data for one in inbox.got if one.key == key] == sorted(
            one.event.data for one in inbox.got if one.key == key
        )
    assert stage.heard(events.SinkDown)
    assert stage.heard(events.SinkBack)


def test_a_message_that_makes_its_receiver_hang_up_each_time_becomes_a_dead_letter(sqlite_stage: Stage) -> None:
    stage, hf = sqlite_stage, sqlite_stage.hf

    class Crashing(Inbox):
        async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            if any(message.event.data == "poison" for message in messages):
                self.calls.append(len(messages))
                return [LOST] * len(messages)
            return await super().send(messages)

    inbox = Crashing()
    hf.route("#", to=inbox, name="all", retry=AT_ONCE, batch=4)
    poison = hf.publish("n", "poison")
    fine = [hf.publish("n", n) for n in range(7)]

    async def body(worker: Worker) -> None:
        # Others come along, so that the receiver is found to be there between two of its crashes.
        for n in range(7, 200):
            if stage.state(poison) == "dead":
                break
            await hf.apublish("n", n)
            await asyncio.sleep(0.02)
        await stage.until_empty()

    stage.work(body, poll=0.02)
    assert stage.state(poison) == "dead"
    assert [stage.state(one) for one in fine] == ["done"] * 7


def test_a_function_is_a_sink_in_both_colours(sqlite_stage: Stage) -> None:
    stage, hf = sqlite_stage, sqlite_stage.hf
    threads: list[Any] = []

    def plain(message: Message) -> Outcome:
        threads.append(threading.current_thread())
        return Delivered("a receipt")

    async def coroutine(message: Message) -> None:
        threads.append(threading.current_thread())

    hf.route("#", to=Function(plain), name="plain")
    hf.route("#", to=Function(coroutine), name="coroutine")
    event = hf.publish("n", 1)
    stage.work()
    assert stage.show(event).result == "a receipt"
    assert len({thread is threading.main_thread() for thread in threads}) == 2


def test_a_paused_route_keeps_its_events(sqlite_stage: Stage) -> None:
    stage, hf, inbox = sqlite_stage, sqlite_stage.hf, Inbox()
    hf.route("a.*", to=inbox, name="a")
    hf.route("b.*", to=inbox, name="b")
    hf.pause("route:a")
    hf.publish("a.a", 1)
    hf.publish("b.b", 2)

    async def body(worker: Worker) -> None:
        await stage.until(lambda: inbox.data() == [2])
        await hf.aresume("route:a")
        await stage.until_empty()

    stage.work(body, poll=0.02)
    assert inbox.data() == [2, 1]
