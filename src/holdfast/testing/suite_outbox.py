"""The outbox: an event leaves with its transaction, once for each route, and what becomes of a delivery is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.context import Context
from holdfast.flow import Flow, Steps, flow
from holdfast.jobs import lanes
from holdfast.life.source import LearningFlow
from holdfast.outbox import Pattern, Route, Routes, draft_of, publish, redirect, republish, rows_of, siblings
from holdfast.sinks import Delivered, Failed, Message, Outcome, Refused, SinkDown
from holdfast.store import Store, Stores
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.values.cloudevents import from_structured
from holdfast.values.queues import QueueSettings
from holdfast.values.retry import Retry
from holdfast.values.rows import Enqueued, Lease
from holdfast.worker.breaker import Breaker
from holdfast.worker.handler_threads import Threads
from holdfast.worker.relay_executor import RelayExecutor
from holdfast.worker.route_source import Delivery, RouteSource
from holdfast.worker.work import Work


class Broker:
    """A sink that keeps what it is sent; `answers` says what it answers to each message."""

    def __init__(self, answers: Callable[[Message], Outcome] = lambda message: Delivered("kept")) -> None:
        self.sent: list[Message] = []
        self.answers: Callable[[Message], Outcome] = answers

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        broken: set[str | None] = set()
        return [self._answer(message, broken) for message in messages]

    def _answer(self, message: Message, broken: set[str | None]) -> Outcome:
        if message.key is not None and message.key in broken:
            return Failed("behind another of its key")
        self.sent.append(message)
        answer = self.answers(message)
        if not isinstance(answer, Delivered):
            broken.add(message.key)
        return answer

    async def close(self) -> None: ...


class Relay:
    """One route in the hands of one worker: claims, sends and settles, each when a test says so."""

    def __init__(self, do: Do, store: Store, route: Route, settings: QueueSettings | None = None) -> None:
        self.do = do
        self.route = route
        self.delivery = Delivery(route)
        context = Context(Stores(store))
        self.breaker = Breaker("w", route.sink, context.events.emit, lambda: None)
        self.source = RouteSource(self.delivery, self.breaker, floors=store.dialect.keeps_dead_rows)
        if settings is not None:
            do(jobs_settings(route.queue, settings))
            self.source.learn_settings({route.queue: settings})
        self.executor = RelayExecutor(context, "w", Threads(1, "relay"), None, store)

    def claim(self, limit: int = 9) -> list[Lease]:
        claims = [self.source.claim({self.route.queue: 30_000}, limit, "w", turn=turn) for turn in self.source.turns()]
        claimed = [lease for claiming in claims if claiming is not None for lease in self._learned(claiming)]
        looking = self.source.ready(claimed) if claimed else None
        return claimed if looking is None else self._learned(looking)

    def _learned(self, work: Flow[list[Lease]]) -> list[Lease]:
        leases: list[Lease] = self.do(work)
        if isinstance(work, LearningFlow):
            work.learn(leases)
        return leases

    def send(self, leases: Sequence[Lease]) -> list[Any]:
        """Send what was claimed, and return what is to be written."""
        works = [Work(lease, self.delivery, True, 0.0, self.source, self.executor) for lease in leases]
        return [ended.write for ended in asyncio.run(self.executor.attempt_batch(works))]

    def deliver(self, limit: int = 9) -> int:
        """Claim, send and settle; return how many there were."""
        leases = self.claim(limit)
        if leases:
            self.do(self.source.settle(self.send(leases), "w"))
        return len(leases)


@flow
def jobs_settings(queue: str, settings: QueueSettings) -> Steps[None]:
    yield from admin.change_queue(queue, settings.to_dict(), "test").start()


def a_route(name: str = "orders", pattern: str = "order.*", sink: Any = None, **said: Any) -> Route:
    return Route(name, Pattern(pattern), sink or Broker(), **said)


def sent_to(route: Route) -> list[Message]:
    assert isinstance(route.sink, Broker)
    return route.sink.sent


def rows_for(routes: Sequence[Route], type: str = "order.created", data: Any = None, **said: Any) -> list[Any]:
    known = Routes()
    for route in routes:
        known.add(route)
    return rows_of(draft_of(type, data, **said), known.taking(type), "/shop", 2**20, 1024)


def published(do: Do, routes: Sequence[Route], type: str = "order.created", data: Any = None, **said: Any) -> str:
    """Publish an event, and return its id."""
    rows: list[Enqueued] = do(publish([rows_for(routes, type, data, **said)], fresh=True))
    return rows[0].id


def test_an_event_of_a_transaction_that_rolls_back_is_not_there(do: Do, look: Look) -> None:
    class Undone(Exception): ...

    @flow
    def publish_and_fail() -> Steps[None]:
        yield from jobs.enqueue_many(rows_for([a_route()])).start()
        raise Undone

    with pytest.raises(Undone):
        do(publish_and_fail())
    assert look.live() == []


def test_each_route_that_takes_an_event_has_a_delivery_of_its_own(do: Do, look: Look) -> None:
    routes = [a_route(), a_route("audit", "#"), a_route("users", "user.#")]
    event_id = published(do, routes, data={"id": 1}, subject="order:1", key="k", headers={"traceparent": "00-1-2-01"})
    first, second = look.live()
    assert [first.queue, second.queue] == ["route:orders", "route:audit"]
    assert first.id == event_id != second.id
    events = [from_structured(row.payload) for row in (first, second)]
    assert events[0] == events[1], "the same event goes everywhere"
    assert (events[0].id, events[0].source, events[0].type) == (event_id, "/shop", "order.created")
    assert (events[0].data, events[0].subject) == ({"id": 1}, "order:1")
    assert events[0].extensions == {"partitionkey": "k", "traceparent": "00-1-2-01"}
    assert {row.key for row in (first, second)} == {"k"}


def test_an_event_that_no_route_takes_is_kept(do: Do, look: Look, store: Store) -> None:
    route = a_route()
    published(do, [route], "user.created", {"id": 1})
    [row] = look.live()
    assert (row.queue, row.state, from_structured(row.payload).data) == ("route:-", "pending", {"id": 1})
    assert Relay(do, store, route).deliver() == 0


def test_an_idempotency_key_finds_the_event_and_its_transaction_goes_on(do: Do, look: Look) -> None:
    routes = [a_route(), a_route("audit", "#")]

    @flow
    def twice_and_more() -> Steps[list[list[Enqueued]]]:
        said = [("order.created", "once"), ("order.created", "once"), ("order.paid", "once"), ("order.paid", None)]
        answers: list[list[Enqueued]] = []
        for type, key in said:
            rows = rows_for(routes, type, idempotency_key=key)
            answers.append((yield from publish([rows]).start()))
        return answers

    first, again, other, last = do(twice_and_more())
    assert [one.id for one in again] == [first[0].id] * 2
    assert [one.created for one in (*first, *again, *other, *last)] == [True] * 2 + [False] * 2 + [True] * 4
    assert len(look.live()) == 6, "another type with the same key is another event"


def test_an_idempotency_key_finds_the_event_whatever_routes_take_it_by_then(do: Do, look: Look) -> None:
    def again(*routes: Route) -> Enqueued:
        answers: list[Enqueued] = do(publish([rows_for(routes, idempotency_key="once")], fresh=True))
        return answers[0]

    first = again()
    assert first.created, "no route takes it"
    for routes in ([a_route()], [a_route("audit", "#"), a_route()], [a_route()], []):
        assert again(*routes) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_a_delivered_message_is_done_and_keeps_its_receipt(do: Do, store: Store, look: Look) -> None:
    route = a_route()
    event_id = published(do, [route], data={"id": 1}, headers={"tenant": "a"}, key="k")
    assert Relay(do, store, route).deliver() == 1
    [message] = sent_to(route)
    assert (message.event.id, message.event.data, message.key) == (event_id, {"id": 1}, "k")
    assert (message.headers, message.attempt) == ({"tenant": "a"}, 1)
    [row] = look.over()
    assert (row.id, row.outcome, row.result) == (event_id, "done", '"kept"')


def test_a_refused_message_is_a_dead_letter_at_once_and_others_go_on(do: Do, store: Store, look: Look) -> None:
    sink = Broker(lambda message: Refused("too large", "413") if message.event.data == 1 else Delivered())
    route = a_route(sink=sink)
    for n in range(3):
        published(do, [route], data=n)
    assert Relay(do, store, route).deliver() == 3
    assert look.live() == []
    over = {from_structured(row.payload).data: row for row in look.over()}
    assert {n: row.outcome for n, row in over.items()} == {0: "done", 1: "dead", 2: "done"}
    [error] = over[1].errors
    assert (error["type"], error["message"], over[1].attempts) == ("DeliveryRefused", "413: too large", 1)


def test_a_row_that_holds_no_event_is_a_dead_letter_at_once_and_others_go_on(do: Do, store: Store, look: Look) -> None:
    route = a_route()
    [broken] = [row._replace(payload='{"type": "order.created"}') for row in rows_for([route])]
    do(jobs.enqueue(broken))
    event_id = published(do, [route])
    assert Relay(do, store, route).deliver() == 2
    assert {row.id: row.outcome for row in look.over()} == {broken.id: "dead", event_id: "done"}


def test_an_outage_uses_no_attempt_and_pauses_the_claims_of_the_route(do: Do, store: Store, look: Look) -> None:
    def down(message: Message) -> Outcome:
        raise SinkDown("connection refused")

    sink = Broker(down)
    route = a_route(sink=sink)
    published(do, [route])
    relay = Relay(do, store, route)
    assert relay.deliver() == 1
    [row] = look.live()
    assert (row.state, row.attempts, row.errors) == ("pending", 0, [])
    assert relay.source.turns() == []
    assert relay.deliver() == 0
    relay.breaker.try_now()
    sink.answers = lambda message: Delivered()
    assert relay.deliver() == 1
    assert not relay.breaker.is_open
    assert [row.outcome for row in look.over()] == ["done"]


def test_a_failed_message_is_tried_again_when_the_receiver_asks_for_it(
    do: Do, store: Store, look: Look, clock: Clock
) -> None:
    sink = Broker(lambda message: Failed("busy", retry_after=40.0) if message.attempt == 1 else Delivered())
    route = a_route(sink=sink)
    event_id = published(do, [route])
    relay = Relay(do, store, route)
    relay.deliver()
    [row] = look.live()
    assert (row.available_at - clock.now).total_seconds() == pytest.approx(40.0)
    clock.advance(39)
    assert relay.deliver() == 0
    clock.advance(2)
    assert relay.deliver() == 1
    assert [(message.event.id, message.attempt) for message in sink.sent] == [(event_id, 1), (event_id, 2)]


def test_an_unknown_outcome_is_repeated_with_the_same_id(do: Do, store: Store, look: Look, clock: Clock) -> None:
    answers: Iterator[Outcome] = iter([Failed("cut", unknown=True), Delivered()])
    sink = Broker(lambda message: next(answers))
    route = a_route(sink=sink, retry=Retry(first_delay=1, jitter=0))
    event_id = published(do, [route])
    relay = Relay(do, store, route)
    relay.deliver()
    assert relay.breaker.is_open, "nothing was heard of the sink"
    relay.breaker.try_now()
    clock.advance(2)
    relay.deliver()
    assert [message.event.id for message in sink.sent] == [event_id, event_id]
    assert [row.outcome for row in look.over()] == ["done"]


def test_a_probe_of_which_nothing_is_heard_uses_no_attempt(do: Do, store: Store, look: Look, clock: Clock) -> None:
    route = a_route(sink=Broker(lambda message: Failed("cut", unknown=True)), retry=Retry(2, first_delay=1, jitter=0))
    published(do, [route])
    relay = Relay(do, store, route)
    for _ in range(4):
        relay.breaker.try_now()
        assert relay.deliver() == 1
        clock.advance(2)
    [row] = look.live()
    assert row.attempts == 1, "the one that found out"


def test_a_crash_between_send_and_settle_repeats_the_same_event(do: Do, store: Store, look: Look, clock: Clock) -> None:
    route = a_route()
    event_id = published(do, [route])
    dying = Relay(do, store, route)
    [lease] = dying.claim()
    dying.send([lease])
    clock.pass_lease(lease)
    reaping = dying.source.reap([], 10, lambda kind, attempt: 0.0)
    assert reaping is not None
    assert [one.outcome for one in do(reaping)] == ["retry"]
    assert Relay(do, store, route).deliver() == 1
    assert [message.event.id for message in sent_to(route)] == [event_id, event_id]
    assert [row.outcome for row in look.over()] == ["done"]


def test_messages_of_a_key_leave_in_order_and_none_passes_one_that_failed(
    do: Do, store: Store, look: Look, clock: Clock
) -> None:
    def answer(message: Message) -> Outcome:
        return Failed("busy") if message.event.data == 1 and message.attempt == 1 else Delivered()

    route = a_route(sink=Broker(answer), retry=Retry(first_delay=5, jitter=0))
    relay = Relay(do, store, route, QueueSettings(ordered=True))
    for n in range(4):
        published(do, [route], data=n, key="k")
    published(do, [route], data="other", key="other")
    while relay.deliver():
        clock.advance(0.1)
    waiting = {from_structured(row.payload).data: row.attempts for row in look.live()}
    assert waiting == {1: 1, 2: 0, 3: 0}, "those behind it wait, with their attempts"
    clock.advance(10)
    while relay.deliver():
        clock.advance(0.1)
    left = [(message.event.data, message.attempt) for message in sent_to(route) if message.key == "k"]
    assert left == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]
    assert [row.outcome for row in look.over()] == ["done"] * 5


def test_what_a_byte_limit_cuts_is_released_at_once(do: Do, store: Store, look: Look) -> None:
    [row] = rows_for([a_route()], data="x" * 1000)
    size = len(row.payload)
    route = a_route(in_flight_bytes=3 * size, batch_bytes=2 * size)
    for _ in range(5):
        published(do, [route], data="x" * 1000)
    relay = Relay(do, store, route)
    leases = relay.claim()
    assert len(leases) == 3
    assert sorted((row.state, row.attempts) for row in look.live()) == [("leased", 1)] * 3 + [("pending", 0)] * 2
    relay.source.held = lambda: leases
    assert relay.claim() == [], "there is no room"
    assert relay.delivery.waits_for_room


def test_what_a_byte_limit_cuts_is_found_by_the_next_claim(do: Do, store: Store, clock: Clock) -> None:
    [row] = rows_for([a_route()])
    route = a_route(in_flight_bytes=len(row.payload))
    ids: list[str] = []
    for _ in range(3):
        ids.append(published(do, [route]))
        clock.advance(60)
    relay = Relay(do, store, route)
    with pytest.MonkeyPatch.context() as patch:
        # As if every claim from the front were too expensive to be made again soon.
        patch.setattr(lanes, "EXPENSIVE_CLAIM_SECONDS", -1.0)
        patch.setattr(lanes, "EXPENSIVE_SECONDS_PER_JOB", 0.0)
        found = [lease.job_id for _ in ids for lease in relay.claim()]
    assert found == ids


def test_a_message_larger_than_every_limit_is_sent_alone(do: Do, store: Store, look: Look) -> None:
    route = a_route(in_flight_bytes=1, batch_bytes=1)
    for n in range(3):
        published(do, [route], data=n)
    relay = Relay(do, store, route)
    while relay.deliver():
        pass
    assert [message.event.data for message in sent_to(route)] == [0, 1, 2]
    assert [row.outcome for row in look.over()] == ["done"] * 3


def ways_of(*routes: Route) -> Callable[[str], Sequence[Route]]:
    return lambda type: [route for route in routes if route.pattern.matches(type)]


def done_by_hand(do: Do) -> list[str]:
    return sorted(line.action for line in do(admin.audit()))


def test_events_are_published_again_with_their_ids_each_once_by_the_routes_of_today(
    do: Do, store: Store, look: Look
) -> None:
    old = [a_route(), a_route("audit", "#")]
    first = published(do, old, data=1, key="k", headers={"tenant": "a"})
    published(do, old, "user.created", 2)
    for route in old:
        Relay(do, store, route).deliver()
    new = a_route("new", "order.#")
    wanted = admin.Filter(outbox=True, event="order.created")
    foreseen = do(republish(wanted, ways_of(new), 100, "ann", buckets=1024, dry_run=True))
    assert (len(foreseen.events), look.live()) == (1, [])
    answer = do(republish(wanted, ways_of(new), 100, "ann", buckets=1024))
    assert [(one["event"], one["to"]) for one in answer.events] == [(first, ["new"])]
    [row] = look.live()
    assert (row.queue, row.key, row.headers) == ("route:new", "k", '{"tenant":"a"}')
    assert row.bucket is not None
    Relay(do, store, new).deliver()
    assert [(message.event.id, message.event.data) for message in sent_to(new)] == [(first, 1)]
    assert done_by_hand(do) == ["republish"]


def test_an_event_that_waited_for_a_route_is_sent_on_once(do: Do, look: Look) -> None:
    first = published(do, [], "order.created", 1)
    published(do, [], "user.created", 2)
    waiting = admin.Filter(outbox=True, queue="route:-", states=("pending",))
    ways = ways_of(a_route())
    assert [one["event"] for one in do(republish(waiting, ways, 9, "ann", buckets=1024)).events] == [first]
    assert do(republish(waiting, ways, 9, "ann", buckets=1024)).events == []
    assert sorted((row.queue, from_structured(row.payload).data) for row in look.live()) == [
        ("route:-", 2),
        ("route:orders", 1),
    ]


def test_republishing_goes_on_where_the_chunk_before_ended(do: Do, look: Look) -> None:
    ids = [published(do, [a_route()], data=n) for n in range(5)]
    seen: list[str] = []
    after = None
    for _ in range(3):
        wanted = admin.Filter(outbox=True, queue="route:orders", states=("pending",))
        chunk = do(republish(wanted, ways_of(a_route("new")), 2, "ann", buckets=1024, after=after))
        seen += [str(one["event"]) for one in chunk.events]
        after = chunk.last
    assert seen == ids
    assert after is None


def test_dead_deliveries_go_by_another_route(do: Do, store: Store, look: Look) -> None:
    broken = a_route(sink=Broker(lambda message: Refused("no")))
    ids = [published(do, [broken], data=n) for n in range(3)]
    Relay(do, store, broken).deliver()
    letters, other = admin.Filter(("dead",), outbox=True, event="order.created"), a_route("backup")
    assert do(redirect(letters, other, 2, "ann", buckets=1024, dry_run=True)) == ids[:2]
    assert do(redirect(letters, other, 2, "ann", buckets=1024)) == ids[:2]
    assert [row.id for row in look.over()] == ids[2:]
    Relay(do, store, other).deliver()
    assert [message.event.id for message in sent_to(other)] == ids[:2]
    assert done_by_hand(do) == ["discard", "discard", "redirect", "redirect"]


def test_an_event_is_shown_with_all_its_deliveries(do: Do, look: Look) -> None:
    event_id = published(do, [a_route(), a_route("audit", "#")])
    published(do, [a_route()])
    assert [one.route for one in do(siblings(event_id))] == ["orders", "audit"]
    other = do(siblings(event_id))[1].job.id
    assert [one.route for one in do(siblings(other))] == ["audit", "orders"]


def test_the_doctor_names_events_that_no_route_takes(do: Do) -> None:
    desk = admin.JobsDesk()
    assert [one.severity for one in do(desk.examine(only="outbox"))] == ["ok"]
    published(do, [], "user.created")
    published(do, [], "user.deleted")
    [found] = do(desk.examine(only="outbox"))
    assert (found.severity, found.seen) == ("warning", "2 events that no route takes: user.created, user.deleted")
    lags = do(desk.examine(0.0, served=[], only="lag"))
    assert [one.severity for one in lags] == ["ok"], "it is not told twice"


def test_the_doctor_says_where_to_look_for_a_route_that_is_behind_though_a_relay_serves_it(do: Do) -> None:
    published(do, [a_route()])
    [unserved] = do(admin.JobsDesk().examine(served=[], only="lag"))
    assert unserved.do == "start one whose application has the route orders: `holdfast relay APP`"
    [found] = do(admin.JobsDesk().examine(-1.0, served=["route:orders"], only="lag"))
    assert (found.severity, found.seen[:26]) == ("warning", "queue route:orders: 1 due,")
    assert found.do is not None
    assert "whether its sink is down" in found.do
    assert "`holdfast outbox list --state pending --route orders`" in found.do
