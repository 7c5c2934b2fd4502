"""An event that is published on the caller's connection leaves if and only if the caller's transaction commits."""

import json

import pytest

from holdfast import jobs
from holdfast.sinks import Function
from tests.callers.callers import KINDS, AsyncCaller

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture
def begin(kind, shop):
    """Open a connection of the kind inside a transaction, one after the other."""
    shop.hf.route("order.*", to=Function(print), name="orders")
    held = []

    def open_one():
        close()
        held.append(kind(shop.url))
        return held[-1]

    def close():
        for one in held:
            one.close()
        held.clear()

    yield open_one
    close()


def publish(shop, caller, order, **said):
    if isinstance(caller, AsyncCaller):
        return caller.wait(shop.hf.apublish("order.created", {"id": order}, tx=caller.tx, **said))
    return shop.hf.publish("order.created", {"id": order}, tx=caller.tx, **said)


def publish_many(shop, caller, *orders):
    drafts = [shop.hf.draft("order.created", {"id": order}) for order in orders]
    if isinstance(caller, AsyncCaller):
        return caller.wait(shop.hf.apublish_many(drafts, tx=caller.tx))
    return shop.hf.publish_many(drafts, tx=caller.tx)


def published(shop):
    """Claim what a relay would send: the ids of the events and what they tell."""
    leases = shop.hf.store.run(jobs.claim("route:orders", limit=10))
    found = [json.loads(lease.payload) for lease in leases]
    return {event["id"]: event["data"]["id"] for event in found}


@each_kind
def test_an_event_commits_and_rolls_back_with_the_order(shop, begin):
    caller = begin()
    caller.execute("insert into orders values (1)")
    publish(shop, caller, 1)
    publish_many(shop, caller, 2, 3)
    caller.rollback()
    assert (shop.orders, shop.jobs) == (0, 0)
    caller = begin()
    answers = [publish(shop, caller, 1), *publish_many(shop, caller, 2, 3)]
    caller.execute("insert into orders values (1)")
    assert (shop.orders, shop.jobs) == (0, 0)
    caller.commit()
    assert shop.orders == 1
    assert published(shop) == {answer.id: order for order, answer in enumerate(answers, 1)}


@each_kind
def test_an_idempotency_key_finds_the_event_and_leaves_the_transaction_whole(shop, begin):
    caller = begin()
    publish(shop, caller, 1, idempotency_key="request-1")
    caller.rollback()
    caller = begin()
    first = publish(shop, caller, 1, idempotency_key="request-1")
    assert publish(shop, caller, 1, idempotency_key="request-1").id == first.id
    caller.commit()
    caller = begin()
    caller.execute("insert into orders values (1)")
    again = publish(shop, caller, 2, idempotency_key="request-1")
    other = publish(shop, caller, 3, idempotency_key="request-2")
    caller.execute("insert into orders values (2)")
    caller.commit()
    assert (first.created, again.created, other.created) == (True, False, True)
    assert shop.orders == 2
    assert published(shop) == {first.id: 1, other.id: 3}
