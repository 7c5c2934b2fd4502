"""A job enqueued on the caller's connection is there if and only if the caller's transaction commits."""

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from holdfast import Debounce, Job, LeaseLost, jobs
from holdfast.errors import UnsupportedConnection
from holdfast.jobs import claim
from tests.callers.callers import KINDS, NESTING, AsyncCaller, path_of

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
each_nesting_kind = pytest.mark.parametrize("kind", NESTING, ids=lambda kind: kind.__name__)


@each_kind
def test_a_commit_shows_the_order_and_its_job(shop, caller):
    caller.execute("insert into orders values (1)")
    answer = caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    assert (shop.orders, shop.jobs) == (0, 0)
    caller.commit()
    assert answer.created
    assert (shop.orders, shop.jobs) == (1, 1)
    [job] = shop.hf.store.run(claim("default", limit=10))
    assert (job.job_id, job.payload) == (answer.id, '{"order":1}')


@each_kind
def test_a_rollback_takes_the_job_with_the_order(shop, caller):
    caller.execute("insert into orders values (1)")
    caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 0)


@each_kind
def test_each_job_that_a_handler_enqueues_is_its_own_and_commits_with_the_caller(shop, caller):
    answers = {enqueue_one(shop, caller, order).id: f'{{"order":{order}}}' for order in (1, 2, 3)}
    assert shop.jobs == 0
    caller.commit()
    assert {job.job_id: job.payload for job in shop.hf.store.run(claim("default", limit=10))} == answers


@each_kind
def test_a_job_that_a_handler_enqueues_rolls_back_with_the_caller(shop, caller):
    caller.execute("insert into orders values (1)")
    enqueue_one(shop, caller, 1)
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 0)


def enqueue_one(shop, caller, order):
    handler = shop.receipt.using(tx=caller.tx)
    if isinstance(caller, AsyncCaller):
        return caller.wait(handler.aenqueue(order=order))
    return handler.enqueue(order=order)


@each_kind
@pytest.mark.parametrize(
    "said",
    [{}, {"unique": "order-1"}, {"idempotency_key": "order-1"}, {"debounce": Debounce("order-1", wait=5)}],
    ids=["plain", "unique", "key", "debounce"],
)
def test_an_enqueue_that_comes_first_opens_the_transaction(shop, caller, said):
    caller.enqueue(shop.hf, shop.receipt.using(**said).bind(order=1))
    caller.execute("insert into orders values (1)")
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 0)


@each_kind
def test_a_thousand_jobs_commit_together(shop, caller):
    answers = caller.enqueue_many(shop.hf, [shop.receipt.bind(order=n) for n in range(1000)])
    assert shop.jobs == 0
    caller.commit()
    assert shop.jobs == 1000
    assert len({answer.id for answer in answers}) == 1000


@each_kind
def test_a_thousand_jobs_roll_back_together(shop, caller):
    caller.enqueue_many(shop.hf, [shop.receipt.bind(order=n) for n in range(1000)])
    caller.rollback()
    assert shop.jobs == 0


@each_kind
def test_an_idempotency_key_finds_the_job_and_spares_the_transaction(shop, caller):
    first = shop.receipt.using(idempotency_key="order-1").enqueue(order=1)
    second = caller.enqueue(shop.hf, shop.receipt.using(idempotency_key="order-1").bind(order=1))
    caller.execute("insert into orders values (1)")
    caller.commit()
    assert (second.id, second.created) == (first.id, False)
    assert (shop.orders, shop.jobs) == (1, 1)


@each_kind
def test_an_idempotency_key_is_free_again_after_a_rollback(shop, caller):
    keyed = shop.receipt.using(idempotency_key="order-1")
    lost = caller.enqueue(shop.hf, keyed.bind(order=1))
    again = caller.enqueue(shop.hf, keyed.bind(order=1))
    caller.rollback()
    kept = keyed.enqueue(order=1)
    assert (again.id, again.created) == (lost.id, False)
    assert kept.created
    assert shop.jobs == 1


@each_kind
def test_a_unique_job_is_found_and_spares_the_transaction(shop, caller):
    first = shop.receipt.using(unique="order-1").enqueue(order=1)
    bound = [shop.receipt.using(unique="order-1").bind(order=1), shop.receipt.using(unique="order-2").bind(order=2)]
    found, added = caller.enqueue_many(shop.hf, bound)
    caller.execute("insert into orders values (1)")
    caller.commit()
    assert (found.id, found.created, added.created) == (first.id, False, True)
    assert (shop.orders, shop.jobs) == (1, 2)


@each_kind
def test_every_option_passes_through(shop, caller):
    said = shop.receipt.using(
        run_after=datetime.now(UTC) + timedelta(hours=1),
        priority=7,
        key="order:1",
        headers={"trace": "ä'%s?:x"},
        lease=60,
    )
    caller.enqueue_many(shop.hf, [said.bind(order=1), shop.receipt.bind(order=2)])
    caller.commit()
    assert shop.look("select priority, key, lease_ms from holdfast_jobs order by priority desc") == [
        (7, "order:1", 60000),
        (0, None, None),
    ]
    due = shop.hf.store.run(claim("default", limit=10))
    assert [lease.payload for lease in due] == ['{"order":2}']
    shop.hf.store.now = datetime.now(UTC) + timedelta(hours=2)
    [later] = shop.hf.store.run(claim("default", limit=10))
    assert Job(later, shop.hf.store).headers == {"trace": "ä'%s?:x"}


@each_kind
def test_completion_commits_with_the_effect(shop, caller):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    caller.execute("insert into orders values (1)")
    caller.complete(Job(lease, shop.hf.store))
    assert (shop.orders, shop.jobs) == (0, 1)
    caller.commit()
    assert (shop.orders, shop.jobs) == (1, 0)
    assert shop.look("select outcome from holdfast_finished") == [("done",)]


@each_kind
def test_completion_rolls_back_with_the_effect(shop, caller):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    caller.execute("insert into orders values (1)")
    caller.complete(Job(lease, shop.hf.store))
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 1)
    assert shop.look("select outcome from holdfast_finished") == []


@each_kind
def test_a_lost_lease_cannot_complete_on_the_callers_connection(shop, caller):
    shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(claim("default", limit=1))
    shop.hf.store.run(jobs.release(lease))
    with pytest.raises(LeaseLost):
        caller.complete(Job(lease, shop.hf.store))
    caller.rollback()
    assert shop.jobs == 1


@each_nesting_kind
def test_a_rolled_back_savepoint_takes_its_job_and_no_other(shop, caller):
    caller.execute("insert into orders values (1)")
    caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    with suppress(ZeroDivisionError), caller.nested():
        caller.execute("insert into orders values (2)")
        caller.enqueue(shop.hf, shop.receipt.bind(order=2))
        raise ZeroDivisionError
    caller.commit()
    assert shop.orders == 1
    [job] = shop.hf.store.run(claim("default", limit=10))
    assert job.payload == '{"order":1}'


@each_nesting_kind
def test_a_kept_savepoint_still_rolls_back_with_the_whole(shop, caller):
    caller.execute("insert into orders values (1)")
    with caller.nested():
        caller.enqueue(shop.hf, shop.receipt.bind(order=2))
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 0)


class Proxy:
    """Stands before a connection and says that it is of its class, as the wrappers of tracing libraries do."""

    def __init__(self, wrapped):
        self.__dict__["wrapped"] = wrapped

    @property
    def __class__(self):
        return type(self.wrapped)

    def __getattr__(self, name):
        return getattr(self.wrapped, name)


def test_a_proxy_is_taken_for_what_it_stands_for_whatever_that_is(sqlite_shop, pg_shop):
    for shop, connect in ((sqlite_shop, lambda url: sqlite3.connect(path_of(url))), (pg_shop, psycopg.connect)):
        with closing(connect(shop.url)) as connection:
            shop.receipt.using(tx=Proxy(connection)).enqueue(order=1)
            assert shop.jobs == 0
            connection.commit()
        assert shop.jobs == 1
    with pytest.raises(UnsupportedConnection):
        sqlite_shop.receipt.using(tx=Proxy(object())).enqueue(order=1)


def test_a_class_derived_from_a_drivers_is_taken_for_that_drivers(sqlite_shop):
    class Connection(sqlite3.Connection):
        pass

    shop = sqlite_shop
    with closing(sqlite3.connect(path_of(shop.url), factory=Connection)) as connection:
        shop.receipt.using(tx=connection).enqueue(order=1)
        connection.rollback()
        assert shop.jobs == 0
        shop.receipt.using(tx=connection).enqueue(order=1)
        connection.commit()
    assert shop.jobs == 1
