"""An idle transaction keeps every done job in the indexes. What claims and reaps read must not grow with them."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast import jobs, lines
from holdfast.flow import Flow, Statement
from holdfast.jobs.lanes import Lanes, Start
from holdfast.lines.leaving import LINE_BITS
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease
from tests.plans.explain import explain, first_statement, second_statement

pytestmark = pytest.mark.slow

DONE = 20_000
ORDERED = QueueSettings(ordered=True)


@pytest.fixture
def store(pg_url: str) -> Iterator[Store]:
    store = Store(pg_url)
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()


@pytest.fixture
def connection(store: Store) -> Iterator[Any]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def last(store: Store) -> Iterator[Lease]:
    """Jobs that came ten milliseconds apart and are done, while somebody holds a snapshot; the last of them."""
    began = datetime.now(UTC) - timedelta(hours=1)
    with psycopg.connect(store.url) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select count(*) from holdfast_jobs")
        new = [new_job(run_at=began + n * timedelta(milliseconds=10)) for n in range(DONE)]
        store.run(jobs.enqueue_many(new))
        leases = store.run(jobs.claim("mail", limit=DONE, lease_ms=1))
        store.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
        yield leases[-1]


def pages(
    store: Store, connection: Any, work: Flow[Any], of: Callable[[Flow[Any]], Statement] = first_statement
) -> int:
    return explain(store, connection, of(work), "force_generic_plan").buffers


def known(last: Lease) -> Lanes:
    lanes = Lanes(["mail"])
    lanes.learn(Start("all"), [last], 10, 0.0, 1.0)
    return lanes


def test_a_claim_from_its_floor_reads_little(store: Store, connection: Any, last: Lease) -> None:
    store.run(jobs.enqueue_many([new_job() for _ in range(10)]))
    near = jobs.claim("mail", limit=10, leases={"noop": 30_000}, lanes=known(last)._columns("near"))
    front = jobs.claim("mail", limit=10, leases={"noop": 30_000})

    assert pages(store, connection, near) * 5 < pages(store, connection, front)


def test_a_reap_that_looks_back_a_little_reads_little(store: Store, connection: Any, last: Lease) -> None:
    everything = jobs.reap(kinds=["noop"])
    since = jobs.reap(kinds=["noop"], look_back=0.001)

    for of in (first_statement, second_statement):
        assert pages(store, connection, since, of) * 5 < pages(store, connection, everything, of)


def test_a_plan_does_not_outlive_the_table_that_it_was_made_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One made while the table was small reads all of it, and PostgreSQL keeps it until the table is analysed."""
    monkeypatch.setattr("holdfast.store.dialects.postgres.connecting.PLANS_LIVE", 0.2)
    prepared = "select prepare_time from pg_prepared_statements where statement like 'update %'"

    async def main() -> tuple[list[Any], list[Any]]:
        async with store.alink() as link:
            await link.transact(jobs.claim("mail", limit=10))
            before = await link.raw.fetch(prepared)
            await asyncio.sleep(0.5)
            await link.transact(jobs.claim("mail", limit=10))
            after = await link.raw.fetch(prepared)
        await store.aclose()
        return before, after

    [[first]], [[second]] = asyncio.run(main())
    assert second > first


def heads(key: str) -> Statement:
    """What a claim and a settle ask to find the next jobs of a key."""
    said = {"queue": "mail", "limit": 10, "bits": LINE_BITS, "hold": True, "passing": None, "fair": None}
    return Statement("line_heads", {**said, "keys": [key]})


def run_through(store: Store, count: int, key: str = "hot") -> None:
    """Enqueue jobs of one key and let them be done, in stints."""
    store.run(jobs.enqueue_many([new_job(key=key) for _ in range(count)]))
    while leases := store.run(lines.claim("mail", ORDERED, limit=500)).leases:
        store.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))


def test_one_hot_key_costs_by_its_own_done_jobs_and_other_keys_cost_nothing(store: Store, connection: Any) -> None:
    """The limit that the guide tells. Measured: 1.3 pages for each done job of the key after 1,000, 1.7 after 2,000."""
    store.run(lines.declare({"mail": ORDERED}))

    def read(key: str) -> int:
        return explain(store, connection, heads(key), "force_generic_plan").buffers

    with psycopg.connect(store.url) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select count(*) from holdfast_jobs")
        for done in (1_000, 2_000):
            run_through(store, 1_000)
            store.run(jobs.enqueue_many([new_job(key="hot"), new_job(key=f"cold {done}")]))
            assert read("hot") < 3 * done
            assert read(f"cold {done}") < 20
            run_through(store, 0)
    store.run(jobs.enqueue(new_job(key="hot")))
    connection.execute("vacuum holdfast_jobs")
    assert read("hot") < 20, "nothing is left of it when the snapshot is gone"
