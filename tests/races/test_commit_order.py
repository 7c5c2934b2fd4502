"""`ordered="commit"`: producers of one key wait for each other, and their jobs stand in the order of their commits."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import ConfigError, Holdfast, jobs, lines
from holdfast.errors import HoldfastError
from holdfast.sinks import Function
from holdfast.store import Store
from holdfast.testing import new_job
from holdfast.values.queues import QueueSettings
from tests.races.stepping import PATIENCE, on_postgres, on_thread, stepped, wait_until_blocked

BY_COMMIT = QueueSettings(ordered="commit")
_WAITING = (
    "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    " and database = (select oid from pg_database where datname = current_database())"
)


class Shop:
    """An application with a queue and a route in the order of commits, and a queue in that of enqueues."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.hf = Holdfast(url)
        self.hf.queue("orders", ordered="commit")
        self.hf.queue("others", ordered=True)
        self.hf.route("order.*", to=Function(print), name="all", ordered="commit")
        self.ship = self.hf.job(queue="orders", key="{key}")(ship)
        said = {queue: one.settings for queue, one in self.hf.context.queues.items()}
        self.hf.store.run(lines.declare(said))

    def numbers(self, queue: str) -> list[int]:
        """Claim what is there and return the numbers of its jobs, in their order."""
        leases = self.hf.store.run(lines.claim(queue, BY_COMMIT, limit=50)).leases
        payloads = [json.loads(lease.payload) for lease in leases]
        return [one["n"] if queue == "orders" else one["data"] for one in payloads]


def ship(key: str, n: int) -> None: ...


def enqueue(shop: Shop, key: str, n: int, tx: Any) -> None:
    shop.ship.using(tx=tx).enqueue(key, n)


def enqueue_many(shop: Shop, key: str, n: int, tx: Any) -> None:
    shop.hf.enqueue_many([shop.ship.bind(key, n)], tx=tx)


def batch(shop: Shop, key: str, n: int, tx: Any) -> None:
    with shop.hf.batch(then=shop.ship.bind(f"after {key}", 0), tx=tx) as members:
        members.add(shop.ship.bind(key, n))


def publish(shop: Shop, key: str, n: int, tx: Any) -> None:
    shop.hf.publish("order.created", n, key=key, tx=tx)


def publish_many(shop: Shop, key: str, n: int, tx: Any) -> None:
    shop.hf.publish_many([shop.hf.draft("order.created", n, key=key)], tx=tx)


Produce = Callable[[Shop, str, int, Any], None]
WAYS: list[Produce] = [enqueue, enqueue_many, batch, publish, publish_many]
each_way = pytest.mark.parametrize("produce", WAYS, ids=lambda one: one.__name__)


@pytest.fixture
def queue(produce: Produce) -> str:
    return "route:all" if produce in (publish, publish_many) else "orders"


@pytest.fixture
def shop(pg: Store, race_url: str) -> Iterator[Shop]:
    shop = Shop(race_url)
    yield shop
    shop.hf.close()


@contextmanager
def transaction(shop: Shop) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(shop.url)) as connection:
        yield connection


def waiting(shop: Shop, call: Callable[[], Any], others: int = 0) -> "Future[Any]":
    """Start a call on a thread and return when the server says that one more producer waits for a key."""
    answer = on_thread(call)
    with psycopg.connect(shop.url, autocommit=True) as observer:
        wait_until_blocked(lambda: observer.execute(_WAITING).fetchone()[0] > others, answer)  # type: ignore[index]
    return answer


def alone(shop: Shop, produce: Produce, key: str, n: int) -> Callable[[], None]:
    """Return a producer with a transaction of its own."""

    def run() -> None:
        with transaction(shop) as tx:
            produce(shop, key, n, tx)
            tx.commit()

    return run


@each_way
@on_postgres
@pytest.mark.parametrize("given", [True, False], ids=["tx", "own"])
def test_the_second_producer_of_a_key_waits_for_the_commit_of_the_first(
    shop: Shop, produce: Produce, queue: str, given: bool
) -> None:
    with transaction(shop) as first:
        produce(shop, "a", 1, first)
        call = alone(shop, produce, "a", 2) if given else lambda: produce(shop, "a", 2, None)
        second = waiting(shop, call)
        assert shop.numbers(queue) == []
        first.commit()
        second.result(PATIENCE)
    assert [n for n in shop.numbers(queue) if n] == [1, 2]


@each_way
@on_postgres
def test_a_rollback_of_the_first_lets_the_second_go_on(shop: Shop, produce: Produce, queue: str) -> None:
    with transaction(shop) as first:
        produce(shop, "a", 1, first)
        second = waiting(shop, alone(shop, produce, "a", 2))
        first.rollback()
        second.result(PATIENCE)
    assert [n for n in shop.numbers(queue) if n] == [2]


@each_way
@on_postgres
def test_the_order_is_that_of_the_commits_of_transactions_that_overlap(
    shop: Shop, produce: Produce, queue: str
) -> None:
    commits: list[int] = []

    def late(n: int) -> Callable[[], None]:
        def run() -> None:
            with transaction(shop) as tx:
                produce(shop, "a", n, tx)
                # Nobody else of this key is between here and its commit.
                commits.append(n)
                tx.commit()

        return run

    with transaction(shop) as began_first, transaction(shop) as held:
        began_first.execute("select pg_current_xact_id()")
        produce(shop, "a", 1, held)
        answers = [waiting(shop, late(n), others) for others, n in enumerate((2, 3, 4))]
        commits.append(1)
        held.commit()
        for answer in answers:
            answer.result(PATIENCE)
        produce(shop, "a", 5, began_first)
        commits.append(5)
        began_first.commit()
    assert sorted(commits) == [1, 2, 3, 4, 5]
    assert [n for n in shop.numbers(queue) if n] == commits


@each_way
@on_postgres
def test_producers_of_other_keys_and_queues_do_not_wait(shop: Shop, produce: Produce) -> None:
    with transaction(shop) as first:
        produce(shop, "a", 1, first)
        beside: list[Callable[[], Any]] = [
            alone(shop, produce, "b", 2),
            lambda: shop.hf.enqueue("elsewhere", {}, check=False, queue="others", key="a"),
            lambda: shop.hf.enqueue("without_a_key", {}, check=False, queue="orders"),
        ]
        for call in beside:
            on_thread(call).result(PATIENCE)
        first.rollback()


@on_postgres
def test_many_jobs_at_once_take_their_keys_in_one_order_and_wait_in_no_circle(shop: Shop) -> None:
    def many(*keys: str) -> Callable[[], Any]:
        return lambda: shop.hf.enqueue_many([shop.ship.bind(key, n) for n, key in enumerate(keys, 1)])

    with transaction(shop) as first:
        enqueue(shop, "a", 9, first)
        answers = [waiting(shop, many("b", "a")), waiting(shop, many("a", "b"), 1)]
        # None of them has "b" while it waits for "a".
        on_thread(alone(shop, enqueue, "b", 8)).result(PATIENCE)
        first.commit()
        for answer in answers:
            answer.result(PATIENCE)
    assert len(shop.numbers("orders")) == 6


@on_postgres
def test_without_it_two_producers_do_not_wait_and_go_by_their_enqueues(pg: Store) -> None:
    """What `ordered="commit"` adds: here the one that commits last is first."""
    pg.run(lines.declare({"mail": QueueSettings(ordered=True)}))
    with stepped(pg, jobs.enqueue(new_job(key="a"))) as late:
        late.rest()
        second = pg.run(jobs.enqueue(new_job(key="a"))).id
        first = late.commit().id
    leases = pg.run(lines.claim("mail", QueueSettings(ordered=True), limit=9)).leases
    assert [lease.job_id for lease in leases] == [first, second]


@pytest.mark.parametrize("url", ["mysql://localhost/nobody_connects", "mariadb://localhost/nobody_connects"])
def test_mysql_and_mariadb_refuse_it_by_name(url: str) -> None:
    hf = Holdfast(url)
    with pytest.raises(ConfigError, match=r'ordered: "commit" needs PostgreSQL or SQLite; here use ordered=True'):
        hf.queue("orders", ordered="commit")
    with pytest.raises(ConfigError, match=r'ordered: "commit" needs PostgreSQL or SQLite'):
        hf.route("#", to=Function(print), ordered="commit")
    assert "orders" not in hf.context.queues


def test_on_sqlite_one_producer_writes_at_a_time(sqlite_url: str) -> None:
    with Holdfast(sqlite_url) as hf:
        hf.migrate()
    shop = Shop(sqlite_url)

    def connect() -> Any:
        return closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0.01))

    with connect() as first, connect() as second:
        enqueue(shop, "a", 1, first)
        with pytest.raises((HoldfastError, sqlite3.OperationalError), match=r"locked|busy"):
            enqueue(shop, "a", 2, second)
        second.rollback()
        first.commit()
        enqueue(shop, "a", 2, second)
        second.commit()
    assert shop.numbers("orders") == [1, 2]
    shop.hf.close()
