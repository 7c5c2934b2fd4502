"""How many tickets a worker picks from a queue with order: as many as fill its claim, by what tickets have brought."""

from collections.abc import Iterator

import pytest

from holdfast import jobs, lines
from holdfast.jobs.special import Special
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish

ORDERED = QueueSettings(ordered=True)


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    store = Store(sqlite_url)
    store.run(migrate.apply(store.migrations))
    store.run(lines.declare({"mail": ORDERED}))
    yield store
    store.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tickets were asked for, by each statement."""
    numbers: list[int] = []
    picking = lines.claiming._tickets

    def noted(asked: lines.claiming.Asked, limit: int) -> object:
        numbers.append(limit)
        return picking(asked, limit)

    monkeypatch.setattr(lines.claiming, "_tickets", noted)
    return numbers


def add(store: Store, keys: int, each: int) -> None:
    """Enqueue jobs of several keys, those of a key far apart."""
    store.run(jobs.enqueue_many([new_job(key=f"key {n % keys}") for n in range(keys * each)]))


def claim(store: Store, special: Special, limit: int) -> int:
    """Claim once, as a worker does; settle what came, and tell how much that was."""
    claiming = special.claim("mail", {"noop": 30_000}, limit, "w", True)
    leases = store.run(claiming)
    claiming.learn(leases)
    lined = [lease for lease in leases if isinstance(lease, lines.LinedLease)]
    store.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases], lined))
    return len(leases)


def test_a_claim_asks_once_for_as_many_tickets_as_it_needs(store: Store, asked: list[int]) -> None:
    special = Special(["mail"], floors=False)
    special.learn({"mail": ORDERED})
    add(store, 1_000, 10)
    # The first claims take a job or some of each key, until they know that there are more.
    for _ in range(6):
        claim(store, special, 400)
    asked.clear()
    assert claim(store, special, 400) == 400
    assert asked == [40]


def test_a_claim_of_keys_with_one_job_each_asks_for_all_of_them(store: Store, asked: list[int]) -> None:
    special = Special(["mail"], floors=False)
    special.learn({"mail": ORDERED})
    add(store, 900, 1)
    assert [claim(store, special, 300) for _ in range(2)] == [300, 300]
    assert asked == [300, 300]


def test_a_claim_learns_nothing_from_a_queue_that_is_nearly_empty(store: Store, asked: list[int]) -> None:
    special = Special(["mail"], floors=False)
    special.learn({"mail": ORDERED})
    add(store, 300, 10)
    while claim(store, special, 400) == 400:
        pass
    add(store, 3, 1)
    assert claim(store, special, 400) == 3
    add(store, 300, 10)
    asked.clear()
    assert claim(store, special, 400) == 400
    assert len(asked) == 1


def test_keys_that_a_claim_tries_all_get_something(store: Store, asked: list[int]) -> None:
    special = Special(["mail"], floors=False)
    special.learn({"mail": ORDERED})
    add(store, 70, 5)
    claimed = store.run(lines.claim("mail", ORDERED, limit=100, look=70))
    of = [sum(lease.key == f"key {n}" for lease in claimed.leases) for n in range(70)]
    assert (len(claimed.leases), min(of), max(of)) == (100, 1, 2)
