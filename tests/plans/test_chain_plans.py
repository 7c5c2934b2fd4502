"""Pinned plans of a fan-in: what the end of some members reads, in a batch of a hundred thousand.

As bad as statistics get: taken while the tables were empty. What is read grows with the jobs that end, and not with the
batch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import jobs
from holdfast.flow import Flow, Statement
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from holdfast.values.rows import Enqueued, Finish, Lease
from tests.plans.explain import PlanKind, explain
from tests.plans.test_mysql_plans import sent
from tests.servers import Postgres

pytestmark = pytest.mark.slow

MEMBERS, ENDED = 100_000, 200
CALLBACK = "ffffffff-ffff-7fff-8fff-ffffffffffff"
FILL = [
    "alter table holdfast_waits set (autovacuum_enabled = false)",
    "alter table holdfast_joins set (autovacuum_enabled = false)",
    "analyze holdfast_waits",
    "analyze holdfast_joins",
    f"""insert into holdfast_waits (parent, child, asked, followed)
        select id, '{CALLBACK}', id, true
          from (select lpad(to_hex(n), 32, '0')::uuid as id from generate_series(1, {MEMBERS}) n) m""",  # noqa: S608
    f"""insert into holdfast_joins (child, open, total, results, created_at)
        values ('{CALLBACK}', {MEMBERS}, {MEMBERS}, false, now())""",  # noqa: S608 - constants of the test
    # Others that wait, too.
    """insert into holdfast_joins (child, open, total, created_at)
       select ('e' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1, now() from generate_series(1, 20000) n""",
]


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[Store]:
    url = postgres.start().create_database("plans_chains")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    for statement in FILL:
        postgres.execute(statement, "plans_chains")
    yield store
    store.close()
    postgres.drop_database("plans_chains")


@pytest.fixture
def connection(store: Store) -> Iterator[Any]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield connection


def members(count: int = ENDED) -> list[str]:
    """Ids of members, spread over the batch and in their order."""
    ids = [f"{1 + n * (MEMBERS // count):032x}" for n in range(count)]
    return [f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in ids]


def ends() -> dict[str, list[Any]]:
    return {"parent": members(), "outcome": ["dead"] * ENDED, "result": [None] * ENDED}


COUNTS = {
    "child": [CALLBACK],
    "open": [1],
    "total": [1],
    "done": [0],
    "dead": [0],
    "cancelled": [0],
    "sealed": [1],
    "doomed_by": [None],
}
STATEMENTS = {
    "waits_open": Statement("waits_open", {"ids": members()}),
    "waits_drop": Statement("waits_drop", {"parents": members(), "ids": [CALLBACK]}),
    "waits_end": Statement("waits_end", {}, ends()),
    "waits_moved": Statement("waits_moved", {"followed": 1}, {"parent": members(), "next": members()}),
    "joins_lock": Statement("joins_lock", {"ids": [CALLBACK]}),
    "joins_write": Statement("joins_write", {}, COUNTS),
}


@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_the_end_of_some_members_reads_as_much_as_they_are(
    store: Store, connection: Any, name: str, kind: PlanKind
) -> None:
    plan = explain(store, connection, STATEMENTS[name], kind)
    assert not {way for _, way in plan.scans} & {"Seq Scan", "Parallel Seq Scan"}, plan.scans
    assert plan.rows_visited <= 20 * ENDED + 100, plan.rows_visited
    assert plan.buffers <= 100 * ENDED + 300, plan.buffers


def batch_of(count: int) -> Flow[list[Enqueued]]:
    return jobs.add_batch(new_job(), [new_job("members") for _ in range(count)], sealed=True, on_dead="run", fresh=True)


def ends_of(leases: list[Lease]) -> Flow[jobs.Settled]:
    return jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases])


@pytest.mark.parametrize("brand", ["mariadb", "mysql"])
def test_the_end_of_some_members_reads_as_much_as_they_are_on_mysql(request: pytest.FixtureRequest, brand: str) -> None:
    """Of 20,000 members: all statements together, of each row that is touched."""
    store = Store(request.getfixturevalue(f"{brand}_url"))
    store.run(migrate.apply(store.migrations))
    store.run(batch_of(20_000))
    leases = store.run(jobs.claim("members", limit=ENDED))
    statements, rows = sent(store, ends_of(leases))
    assert statements < 20, statements
    assert rows < 40 * ENDED, rows
    assert store.run(ends_of(leases)).done == {lease.job_id for lease in leases}
    store.close()


def test_the_end_of_some_members_takes_as_many_steps_in_a_large_batch_on_sqlite(tmp_path: Path) -> None:
    """The steps of its virtual machine, beside those in a small one."""
    few, many = (steps_on(Store(f"sqlite:///{tmp_path}/{count}.db"), count) for count in (2 * ENDED, 20_000))
    assert many < 2 * few, (few, many)


def steps_on(store: Store, count: int) -> int:
    store.run(migrate.apply(store.migrations))
    store.run(batch_of(count))
    leases = store.run(jobs.claim("members", limit=ENDED))
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    with store.link() as link:
        link.raw.set_progress_handler(step, 100)
        assert link.transact(ends_of(leases)).done == {lease.job_id for lease in leases}
        link.raw.set_progress_handler(None, 0)
    store.close()
    return taken
