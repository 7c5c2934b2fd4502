"""Publishing: what becomes of events and of the classes that stand for them, and what is refused."""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import ConfigError, Enqueueing, Holdfast, InvalidPayload, PayloadTooLarge, Rate, admin
from holdfast.outbox.envelope import opened
from holdfast.sinks import Function, Message
from holdfast.values.cloudevents import CloudEvent, from_structured
from holdfast.values.views import JobView


async def nowhere(message: Message) -> None: ...


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{tmp_path / 'test.db'}", event_source="/shop") as hf:
        hf.migrate()
        hf.route("order.*", to=Function(nowhere), name="orders")
        yield hf


def rows(hf: Holdfast) -> list[JobView]:
    return hf.store.run(admin.list_jobs(newest=False))


def events(hf: Holdfast) -> list[CloudEvent]:
    return [from_structured(row.payload) for row in rows(hf)]


def the_event(hf: Holdfast) -> CloudEvent:
    [event] = events(hf)
    return event


def test_an_event_says_who_what_and_when(hf: Holdfast) -> None:
    before = datetime.now(UTC)
    said = hf.publish("order.created", {"id": 1}, subject="order:1", key="order:1")
    event = the_event(hf)
    assert (event.id, event.source, event.type, event.data) == (said.id, "/shop", "order.created", {"id": 1})
    assert (event.subject, event.datacontenttype) == ("order:1", "application/json")
    assert event.time is not None
    assert before <= event.time <= datetime.now(UTC)
    assert event.extensions == {"partitionkey": "order:1"}
    assert (said.created, said.routes) == (True, ("orders",))


def test_a_transaction_takes_its_events_along_or_leaves_none(hf: Holdfast, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    for end in ("rollback", "commit"):
        connection.execute("begin")
        first = hf.publish("order.created", 1, idempotency_key="a", tx=connection)
        assert hf.publish("order.created", 2, idempotency_key="a", tx=connection).id == first.id
        hf.publish("order.created", 3, tx=connection)
        connection.execute(end)
    connection.close()
    assert [event.data for event in events(hf)] == [1, 3]


def test_both_colours_publish_one_and_many(hf: Holdfast) -> None:
    @hf.event("order.paid")
    class Paid(msgspec.Struct):
        id: int

    async def publish() -> list[Any]:
        try:
            one = await hf.apublish("order.created", 1)
            return [one, *await hf.apublish_many([Paid(2), hf.draft("user.created", 3, key="k")])]
        finally:
            await hf.aclose()

    said = [*asyncio.run(publish()), hf.publish("order.created", 4), *hf.publish_many([Paid(5), Paid(6)])]
    assert [event.data for event in events(hf)] == [1, {"id": 2}, 3, 4, {"id": 5}, {"id": 6}]
    assert [row.id for row in rows(hf)] == [one.id for one in said]
    assert [one.routes for one in said] == [("orders",), ("orders",), (), *[("orders",)] * 3]


def test_a_typed_event_has_its_type_version_source_and_schema(hf: Holdfast) -> None:
    @hf.event("order.created", version=2, source="/billing", dataschema="https://example.org/order")
    class OrderCreated(msgspec.Struct):
        id: int
        at: datetime

    hf.publish(OrderCreated(1, datetime(2026, 1, 1, tzinfo=UTC)), key="k")
    event = the_event(hf)
    assert (event.type, event.source, event.dataschema) == ("order.created", "/billing", "https://example.org/order")
    assert event.data == {"id": 1, "at": "2026-01-01T00:00:00Z"}
    assert event.extensions == {"partitionkey": "k", "dataversion": "2"}


def test_dataclasses_and_pydantic_models_are_typed_events(hf: Holdfast) -> None:
    @hf.event("order.paid")
    @dataclass
    class Paid:
        cents: int

    @hf.event("order.sent")
    class Sent(BaseModel):
        parcel: str

    hf.publish(Paid(5))
    hf.publish(Sent(parcel="p"))
    assert [event.data for event in events(hf)] == [{"cents": 5}, {"parcel": "p"}]


def test_a_typed_event_whose_fields_hold_something_else_is_refused(hf: Holdfast) -> None:
    @hf.event("order.paid")
    class Paid(msgspec.Struct):
        cents: int
        share: float = 0.0

    for wrong in (Paid("five"), Paid(5, float("nan")), Paid(object())):  # type: ignore[arg-type]
        with pytest.raises(InvalidPayload, match=r"order\.paid"):
            hf.publish(wrong)
    assert rows(hf) == []


class Entity:
    """What an ORM might give."""


def in_a_circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize("data", [Entity(), {"a": Entity()}, b"x", {1: 2}, float("nan"), {"a": {1, 2}}, in_a_circle()])
def test_what_json_cannot_hold_is_refused_where_it_is_published(hf: Holdfast, data: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"order\.created"):
        hf.publish("order.created", data)
    assert rows(hf) == []


def test_the_same_object_twice_is_no_circle(hf: Holdfast) -> None:
    part = {"a": 1}
    hf.publish("order.created", [part, part])
    assert the_event(hf).data == [part, part]


def test_an_event_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with Holdfast(f"sqlite:///{tmp_path / 'small.db'}", payload_limit=1000) as hf:
        hf.migrate()
        with pytest.raises(PayloadTooLarge, match=r"order\.created.*1,?000"):
            hf.publish("order.created", "x" * 1000)
        assert rows(hf) == []


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("order.created",), {}, "data"),
    ((Entity(),), {}, "event"),
    ((3, 3), {}, "event"),
    (("order.*", 1), {}, "type"),
    (("order.created", 1), {"subject": ""}, "subject"),
    (("order.created", 1), {"key": ""}, "key"),
    (("order.created", 1), {"idempotency_key": "x" * 201}, "idempotency_key"),
    (("order.created", 1), {"headers": {"a": 1}}, "headers"),
    (("order.created", 1), {"headers": {"holdfast-after": "1"}}, "headers"),
    (("order.created", 1), {"notify": "yes"}, "notify"),
]


@pytest.mark.parametrize("given, said, field", WRONG)
def test_what_is_said_wrongly_of_an_event_is_refused_by_name(
    hf: Holdfast, given: tuple[Any, ...], said: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        hf.publish(*given, **said)
    assert rows(hf) == []


def test_enqueue_hooks_add_headers_once_and_trace_context_becomes_part_of_the_event(hf: Holdfast) -> None:
    hf.route("#", to=Function(nowhere), name="audit")
    seen: list[Enqueueing] = []

    @hf.enqueue_hook
    def trace(new: Enqueueing) -> Mapping[str, str]:
        seen.append(new)
        return {"traceparent": "00-a-b-01", "tenant": "hook"}

    hf.publish("order.created", 1, headers={"tenant": "mine"})
    assert [(new.kind, dict(new.headers)) for new in seen] == [("route:orders", {"tenant": "mine"})]
    assert [row.headers for row in rows(hf)] == [{"traceparent": "00-a-b-01", "tenant": "mine"}] * 2
    assert [event.extensions for event in events(hf)] == [{"traceparent": "00-a-b-01"}] * 2


def test_a_class_is_one_type_and_a_type_and_version_one_class(hf: Holdfast) -> None:
    class Paid(msgspec.Struct): ...

    class Other(msgspec.Struct): ...

    hf.event("order.paid", version=1)(Paid)
    with pytest.raises(ConfigError, match="each class"):
        hf.event("order.late")(Paid)
    with pytest.raises(ConfigError, match="version"):
        hf.event("order.paid", version=1)(Other)
    hf.event("order.paid", version=2)(Other)
    for wrong in (Entity, 3, dict):
        with pytest.raises(ConfigError, match="Structs"):
            hf.event("order.wrong")(wrong)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="data"):
        hf.publish(Other(), {"id": 1})


def test_route_settings_are_those_of_its_queue(hf: Holdfast) -> None:
    route = hf.route(
        "user.#", to=Function(nowhere), ordered=True, on_dead="stop", rate=Rate(5), retention=timedelta(days=90)
    )
    assert (route.name, route.queue) == ("user.all", "route:user.all")
    options = hf.queue_options("route:user.all")
    assert (options.settings.ordered, options.settings.on_dead, options.settings.rate) == (True, "stop", Rate(5))
    assert options.keep_done == 90 * 86_400


@pytest.mark.parametrize(
    "said, field",
    [
        ({"to": print}, "to"),
        ({"name": "-"}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "orders"}, "another name"),
        ({"timeout": 0}, "timeout"),
        ({"batch": 0}, "batch"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"in_flight_bytes": 0.5}, "in_flight_bytes"),
        ({"on_dead": "stop"}, "on_dead"),
        ({"retention": "long"}, "retention"),
    ],
)
def test_what_is_said_wrongly_of_a_route_is_refused_by_name(hf: Holdfast, said: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        hf.route("x.*", **({"to": Function(nowhere)} | said))
    assert [route.name for route in hf.context.routes] == ["orders"]


def test_names_of_routes_are_not_for_queues_and_kinds(hf: Holdfast) -> None:
    def nothing() -> None: ...

    for wrong in (
        lambda: hf.queue("route:orders"),
        lambda: hf.job(queue="route:orders")(nothing),
        lambda: hf.job(kind="route:orders")(nothing),
        lambda: hf.bulk(queue="route:orders")(lambda items: None),
        lambda: hf.enqueue("x", check=False, queue="route:orders"),
        lambda: hf.enqueue("route:orders", check=False),
    ):
        with pytest.raises(ConfigError, match="route"):
            wrong()


def test_what_a_relay_reads_is_what_anybody_reads(hf: Holdfast) -> None:
    hf.publish("order.created", {"id": 1}, subject="s", key="k", headers={"traceparent": "00-a-b-01"})
    hf.publish("order.created", None)
    for row in rows(hf):
        assert opened(row.payload) == from_structured(row.payload)
    foreign = '{"specversion": "1.0", "id": "1", "source": "/x", "type": "order.created", "tenant": "a", "data": [1]}'
    assert opened(foreign) == from_structured(foreign)
    assert opened(foreign).extensions == {"tenant": "a"}
    for wrong in ("{}", "[]", "x", '{"specversion": "2.0", "id": "1", "source": "/x", "type": "t"}'):
        with pytest.raises((ConfigError, InvalidPayload)):
            opened(wrong)


@pytest.mark.parametrize(
    "event, words",
    [
        ("order.created", r"No live relay serves the route orders: start one \(`holdfast relay APP`\)"),
        ("user.created", "No route takes this event: declare one"),
    ],
)
def test_a_wait_for_an_event_that_nobody_delivers_says_why(hf: Holdfast, event: str, words: str) -> None:
    published = hf.publish(event, {})
    with pytest.raises(TimeoutError, match=words):
        hf.result(published.id, timeout=0)
