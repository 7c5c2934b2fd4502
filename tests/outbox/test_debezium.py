"""Events that Debezium takes: rows of the caller's transaction, the real connector, and the way back to routes."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from holdfast import Holdfast, admin
from holdfast.errors import ConfigError, Conflict, ForeignTablesMissing
from holdfast.outbox import delivery_of
from holdfast.sinks import Function, Message
from holdfast.values.cloudevents import from_binary
from tests import brokers
from tests.outbox.debezium import Connect
from tests.servers import MySQL, Postgres

DATABASES = ["pg_url", "mariadb_url", "mysql_url"]
QUICK = {"poll.interval.ms": "50", "heartbeat.interval.ms": "100"}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def drop(message: Message) -> None: ...


@pytest.fixture(params=DATABASES)
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    with application(request.getfixturevalue(request.param)) as hf:
        yield hf


def application(url: str) -> Holdfast:
    hf = Holdfast(url, event_source="/shop")
    hf.migrate()
    hf.debezium("order.#").create_schema()
    hf.route("order.*", to=Function(drop), name="orders", ordered=True)
    return hf


def captured(hf: Holdfast) -> list[tuple[Any, ...]]:
    with closing(hf.store.dialect.connect(hf.url)) as connection:
        cursor = connection.cursor()
        cursor.execute("select id, aggregatetype, aggregateid, type, payload, headers from debezium_outbox order by id")
        return [(str(row[0]), *row[1:]) for row in cursor.fetchall()]


def deliveries(hf: Holdfast) -> list[Any]:
    found = hf.store.run(admin.list_jobs(admin.Filter(outbox=True), 1000, newest=False))
    return [delivery_of(job) for job in found]


def payload_of(row: tuple[Any, ...]) -> Any:
    return msgspec.json.decode(row[4]) if isinstance(row[4], str | bytes) else row[4]


def test_a_captured_event_is_one_row_if_and_only_if_its_transaction_commits(hf: Holdfast) -> None:
    with closing(hf.store.dialect.connect(hf.url)) as connection:
        for end in ("rollback", "commit"):
            connection.cursor().execute("begin")
            said = hf.publish("order.item.added", {"n": end}, key="o:1", headers={"tenant": "é"}, tx=connection)
            connection.cursor().execute(end)
    [row] = captured(hf)
    assert row[:4] == (said.id, "order.item", "o:1", "order.item.added")
    assert payload_of(row) == {"n": "commit"}
    assert (said.created, said.routes) == (True, ())
    assert deliveries(hf) == []


def test_the_layout_of_one_publish_counts_more_than_the_patterns(hf: Holdfast) -> None:
    hf.publish("order.created", 1, layout="routes")
    hf.publish("invoice.sent", 2, subject="invoice:7", layout="debezium")
    [row] = captured(hf)
    assert row[1:4] == ("invoice", "invoice:7", "invoice.sent")
    assert [one.event.data for one in deliveries(hf)] == [1]


def test_an_idempotency_key_finds_a_captured_event(hf: Holdfast) -> None:
    first = hf.publish("order.created", 1, idempotency_key="r1")
    with closing(hf.store.dialect.connect(hf.url)) as connection:
        connection.cursor().execute("begin")
        second = hf.publish("order.created", 1, idempotency_key="r1", tx=connection)
        hf.publish("order.created", 2, tx=connection)
        connection.cursor().execute("commit")
    assert (second.id, second.created) == (first.id, False)
    assert [payload_of(row) for row in captured(hf)] == [1, 2]


def test_many_events_are_captured_at_once_and_async(hf: Holdfast) -> None:
    async def publish() -> None:
        await hf.apublish_many([hf.draft("order.created", n, key=str(n)) for n in range(6_000)])
        await hf.aclose()

    asyncio.run(publish())
    assert [payload_of(row) for row in captured(hf)] == list(range(6_000))


def test_events_of_two_layouts_are_not_published_at_once(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="published apart"):
        hf.publish_many([hf.draft("order.created", 1), hf.draft("user.created", 2)])
    assert captured(hf) == deliveries(hf) == []


def test_handed_over_events_keep_their_ids_and_stand_before_what_came_later(hf: Holdfast) -> None:
    hf.route("order.#", to=Function(drop), name="audit")
    early = [hf.publish("order.created", n, key="o:1", headers={"tenant": "a"}).id for n in range(3)]
    late = hf.publish("order.created", 3, key="o:1", layout="routes").id
    done = hf.capture.hand_over(since=LONG_AGO, actor="ada")  # type: ignore[union-attr]
    assert [one["event"] for one in done] == early
    assert captured(hf) == []
    for route in ("orders", "audit"):
        ids = [one.event.id for one in sorted(deliveries(hf), key=lambda one: one.job.id) if one.route == route]
        assert ids == [*early, late]
    one = next(one for one in deliveries(hf) if one.event.id == early[0])
    assert (one.event.source, one.event.data, one.job.key, one.job.headers) == ("/shop", 0, "o:1", {"tenant": "a"})
    assert hf.capture.hand_over(since=LONG_AGO) == []  # type: ignore[union-attr]


def test_a_dry_run_changes_nothing_and_an_event_that_no_route_takes_stays(hf: Holdfast) -> None:
    capture = hf.capture
    assert capture is not None
    hf.publish("order.created", 1)
    hf.publish("order.item.added", 2)
    assert [one["to"] for one in capture.hand_over(since=LONG_AGO, dry_run=True)] == [["orders"]]
    assert len(captured(hf)) == 2
    assert len(capture.hand_over(since=LONG_AGO)) == 1
    assert [payload_of(row) for row in captured(hf)] == [2]


def test_two_who_hand_over_at_once_give_each_event_to_one(hf: Holdfast) -> None:
    hf.publish_many([hf.draft("order.created", n) for n in range(2_500)])
    found: list[list[Any]] = []
    both = [
        threading.Thread(target=lambda: found.append(hf.capture.hand_over(since=LONG_AGO)))  # type: ignore[union-attr]
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    found.append(hf.capture.hand_over(since=LONG_AGO))  # type: ignore[union-attr]
    assert sum(map(len, found)) == len({one["event"] for each in found for one in each}) == 2_500
    assert sorted(one.event.data for one in deliveries(hf)) == sorted(range(1_000)) or len(deliveries(hf)) == 1_000
    assert hf.store.run(admin.count_jobs(admin.Filter(outbox=True))) == 2_500


def test_events_are_handed_over_by_time_and_up_to_a_limit(hf: Holdfast) -> None:
    capture = hf.capture
    assert capture is not None
    hf.publish_many([hf.draft("order.created", n) for n in range(3)])
    assert capture.hand_over(since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert capture.hand_over(until=LONG_AGO) == []
    assert len(capture.hand_over(since=datetime.now(UTC) - timedelta(hours=1), limit=2)) == 2
    assert [payload_of(row) for row in captured(hf)] == [2]


def test_old_rows_are_pruned(hf: Holdfast) -> None:
    capture = hf.capture
    assert capture is not None
    hf.publish_many([hf.draft("order.created", n) for n in range(1_500)])
    assert capture.prune(timedelta(hours=1)) == 0
    assert capture.prune(0) == 1_500
    assert captured(hf) == []


# Settings


def test_sqlite_is_refused_because_debezium_reads_no_such_database(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="from PostgreSQL, MySQL and MariaDB"):
        Holdfast(sqlite_url).debezium("#")


def test_settings_that_cannot_be_meant_are_refused(pg_url: str) -> None:
    hf = Holdfast(pg_url)
    with pytest.raises(ConfigError, match=r"declare the table first: hf.debezium\(\)"):
        hf.publish("order.created", 1, layout="debezium")
    with pytest.raises(ConfigError, match="layout"):
        hf.publish("order.created", 1, layout="avro")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="table"):
        hf.debezium(table="out box")
    with pytest.raises(ConfigError, match="aggregate"):
        hf.debezium(aggregate="{aggregate}")
    capture = hf.debezium(aggregate="{subject}")
    with pytest.raises(ConfigError, match="one table"):
        hf.debezium("#")
    with pytest.raises(ConfigError, match="no subject"):
        hf.publish("order.created", 1, layout="debezium")
    with pytest.raises(ConfigError, match="say which events"):
        capture.hand_over()
    hf.close()


def test_a_table_that_is_missing_is_named_with_what_makes_it(pg_url: str) -> None:
    with Holdfast(pg_url) as hf:
        hf.migrate()
        capture = hf.debezium("#")
        for action in (lambda: hf.publish("order.created", 1), lambda: capture.hand_over(since=LONG_AGO)):
            with pytest.raises(ForeignTablesMissing, match=r"no table debezium_outbox.*holdfast debezium create"):
                action()


# The real connector


async def make_topic(kafka: brokers.Kafka, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 3, 1)])
    await admin.close()


async def records(kafka: brokers.Kafka, topic: str, count: int) -> list[Any]:
    """Read that many records, those of one partition in their order."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.address, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found: list[Any] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    found += batch
        return found
    finally:
        await consumer.stop()


def event_of(record: Any) -> Any:
    headers = {name: value.decode() for name, value in record.headers if value is not None}
    return from_binary(headers, record.value, "ce_")


def connector(hf: Holdfast, name: str, **more: str) -> dict[str, str]:
    assert hf.capture is not None
    return {**hf.capture.connector(name), "database.password": "x", **QUICK, **more}


@pytest.fixture(scope="module")
def logical() -> Iterator[Postgres]:
    with Postgres(settings={"wal_level": "logical"}) as server:
        yield server


def test_the_real_connector_sends_what_our_own_sink_would_and_the_rest_comes_back(
    logical: Postgres, kafka: brokers.Kafka
) -> None:
    name = f"c{uuid.uuid4().hex[:8]}"
    asyncio.run(make_topic(kafka, name))
    with application(logical.fresh_database()) as hf, Connecting(hf, kafka, name) as connect:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        with closing(hf.store.dialect.connect(hf.url)) as connection:
            connection.execute("begin")
            hf.publish("order.created", "rolled back", key="o:1", tx=connection)
            connection.execute("rollback")
        topic = name  # The aggregate of these types.
        said = [
            hf.publish(f"{topic}.created", {"n": n, "é": 1.0}, key=f"o:{n % 2}", layout="debezium") for n in range(4)
        ]
        full = hf.publish(
            f"{topic}.sent", [None], subject="s", key="o:1", headers={"traceparent": trace, "x": "y"}, layout="debezium"
        )
        found = asyncio.run(records(kafka, topic, 5))
        events = [event_of(record) for record in found]
        assert {event.id for event in events} == {one.id for one in (*said, full)}
        for key in ("o:0", "o:1"):
            ids = [event.id for event in events if event.extensions["partitionkey"] == key]
            assert ids == sorted(ids)
        assert all(record.key.decode() == event_of(record).extensions["partitionkey"] for record in found)
        last = next(event for event in events if event.id == full.id)
        assert (last.type, last.source, last.subject, last.data) == (f"{topic}.sent", "/shop", "s", [None])
        assert last.extensions["traceparent"] == trace
        assert last.time is not None
        first = next(event for event in events if event.id == said[0].id)
        assert (first.data, first.datacontenttype) == ({"n": 0, "é": 1.0}, "application/json")

        # The way back: what was published while the connector was down, and what it may not have confirmed.
        assert hf.capture is not None
        with pytest.raises(Conflict, match="stop the connector first"):
            hf.capture.hand_over(slot=name)
        connect.stop()
        left = [hf.publish("order.created", n, key="o:1").id for n in range(3)]
        hf.route(f"{topic}.*", to=Function(drop), name="sent")
        handed = [one["event"] for one in hf.capture.hand_over(slot=name, publication=name)]
        # Of what it has sent, the last transaction alone may be unconfirmed.
        assert handed[-3:] == left
        assert handed[:-3] in ([], [full.id])
        assert [one.event.id for one in deliveries(hf)] == handed
        with pytest.raises(Conflict, match="no replication slot"):
            hf.capture.hand_over(slot="other")


class Connecting:
    """A connector for an application, and at the end no slot that would keep the log for ever."""

    def __init__(self, hf: Holdfast, kafka: brokers.Kafka, name: str, **more: str) -> None:
        settings = {key: value for key, value in connector(hf, name, **more).items() if value}
        self._connect = Connect(kafka.address, settings)

    def __enter__(self) -> Connect:
        return self._connect.start()

    def __exit__(self, *_: object) -> None:
        self._connect.discard()


def test_a_connector_on_mysql_reads_the_same_rows(mysql: MySQL, kafka: brokers.Kafka) -> None:
    name = f"c{uuid.uuid4().hex[:8]}"
    asyncio.run(make_topic(kafka, name))
    more = {
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": "history",
        "schema.history.internal.kafka.topic": "",
        "schema.history.internal.kafka.bootstrap.servers": "",
        "database.password": "",
    }
    said: list[str] = []
    stopped = threading.Event()

    def publish() -> None:
        # It says that it runs a moment before it has looked where the log ends.
        while not stopped.wait(0.1):
            said.append(hf.publish(f"{name}.created", {"n": len(said)}, key="o:1", layout="debezium").id)

    with application(mysql.start().fresh_database()) as hf, Connecting(hf, kafka, name, **more):
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            events = [event_of(record) for record in asyncio.run(records(kafka, name, 3))]
        finally:
            stopped.set()
            publisher.join()
    first = said.index(events[0].id)
    assert [event.id for event in events] == said[first : first + len(events)]
    assert [event.data["n"] for event in events] == [first + n for n in range(len(events))]


def test_of_several_hosts_the_one_of_the_connector_is_to_be_filled_in() -> None:
    for url, host, port in [
        ("postgresql://ann:pw@a:5433,b:5433/shop", "FILL-IN", "5433"),
        ("postgresql://ann@a/shop", "a", "5432"),
        ("postgresql://ann@[::1]:5433/shop", "::1", "5433"),
        ("postgresql://ann@/shop?host=/run/postgresql", "localhost", "5432"),
        ("mysql://ann@a/shop", "a", "3306"),
    ]:
        settings = Holdfast(url).debezium("#").connector("shop")
        assert (settings["database.hostname"], settings["database.port"]) == (host, port)
        assert settings["database.user"] == "ann"
