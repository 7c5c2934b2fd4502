"""Pinned plans: what the hot statements read, with a million finished jobs and 200,000 that wait.

Statistics are either fresh or as bad as they get: taken while the tables were empty. In both cases they say that no
job is leased. No times are asserted: what counts is which index is read and that the work grows with the batch, not
with the tables.
"""

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import chains, jobs, results
from holdfast.flow import Flow, Statement
from holdfast.observe.sampling import LEASED_READ
from holdfast.store import Store, migrate
from holdfast.testing import failure, new_job
from holdfast.values.rows import Finish, Lease, PutBack
from tests.plans.explain import Plan, PlanKind, explain, first_statement, literal, second_statement
from tests.servers import Postgres

pytestmark = pytest.mark.slow

FINISHED, WAITING = 1_000_000, 200_000
KINDS = {f"kind{n}": 30_000 for n in range(20)}

FILL = [
    "alter table holdfast_jobs set (autovacuum_enabled = false)",
    "alter table holdfast_finished set (autovacuum_enabled = false)",
    "analyze holdfast_jobs",
    "analyze holdfast_finished",
    """insert into holdfast_finished
           (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, replays, priority,
            outcome, queue, kind, payload)
       select lpad(to_hex(n), 32, '0')::uuid, 1, at, at, at, at, 1, 5, 0, 0,
              (array['done', 'done', 'dead', 'cancelled'])[1 + n % 4], 'mail', 'kind' || n % 20, '{"n": 1}'
         from generate_series(1, 1000000) n, lateral (select now() - (1000000 - n) * interval '1 second' as at) t""",
    """insert into holdfast_jobs (id, available_at, created_at, max_attempts, priority, queue, kind, payload)
       select ('f' || lpad(to_hex(n), 31, '0'))::uuid, at, at, 5, n % 3, (array['mail', 'bulk'])[1 + n % 2],
              'kind' || n % 20, '{"n": 1}'
         from generate_series(1, 200000) n, lateral (select now() - (300000 - n) * interval '1 second' as at) t""",
]


@pytest.fixture(scope="module")
def stale(postgres: Postgres) -> Iterator[str]:
    """A full database whose statistics were taken while it was empty."""
    url = postgres.start().create_database("plans_stale")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    for statement in FILL:
        postgres.execute(statement, "plans_stale")
    yield url
    postgres.drop_database("plans_stale")


@pytest.fixture(scope="module")
def fresh(postgres: Postgres, stale: str) -> Iterator[str]:
    """A copy with true statistics."""
    postgres.create_database("plans_fresh", "plans_stale", strategy="file_copy")
    postgres.execute("analyze", "plans_fresh")
    yield postgres.url("plans_fresh")
    postgres.drop_database("plans_fresh")


@pytest.fixture(params=["stale", "fresh"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(request.getfixturevalue(request.param))
    yield store
    store.close()


@pytest.fixture
def connection(store: Store) -> Iterator[Any]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield connection


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def kind(request: pytest.FixtureRequest) -> PlanKind:
    chosen: PlanKind = request.param
    return chosen


@pytest.fixture(params=[10, 1_000])
def size(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.fixture
def held(store: Store, size: int) -> Iterator[list[Lease]]:
    """A batch that is leased now, which no statistics know."""
    leases = store.run(jobs.claim("mail", limit=size, leases=KINDS))
    assert len(leases) == size
    yield leases
    store.run(jobs.settle([PutBack(lease.id, lease.fence, None, 1) for lease in leases]))


def assert_bounded(plan: Plan, size: int) -> None:
    """The work grows with the batch: a number of rows and pages for each job of it, and no table is read whole."""
    ways = {way for _, way in plan.scans}
    assert not ways & {"Seq Scan", "Parallel Seq Scan"}, plan.scans
    assert plan.rows_visited <= 20 * size + 100, plan.rows_visited
    assert plan.buffers <= 100 * size + 300, plan.buffers


def test_the_tables_are_as_full_as_the_test_says(connection: Any) -> None:
    [(finished,)] = connection.execute("select count(*) from holdfast_finished").fetchall()
    [(waiting,)] = connection.execute("select count(*) from holdfast_jobs where state = 'pending'").fetchall()
    assert (finished, waiting) == (FINISHED, WAITING)


@pytest.mark.parametrize("queues", [["mail"], ["mail", "bulk", "empty"]], ids=["one-queue", "three-queues"])
@pytest.mark.parametrize("leases", [None, KINDS], ids=["every-kind", "known-kinds"])
def test_claim_reads_its_index_and_no_more_than_its_batch(
    store: Store, connection: Any, kind: PlanKind, size: int, queues: list[str], leases: dict[str, int] | None
) -> None:
    plan = explain(store, connection, first_statement(jobs.claim(queues, limit=size, leases=leases)), kind)
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_claim_idx"), ("holdfast_jobs", "holdfast_jobs_pkey")}
    assert plan.affected == size
    assert_bounded(plan, size * len(queues))


def test_claim_does_not_walk_over_jobs_for_later(store: Store, connection: Any, kind: PlanKind) -> None:
    # Every condition is a bound of the walk, not a filter on it: PostgreSQL before 18 cannot skip within an index.
    store.now = datetime(2020, 1, 1, tzinfo=UTC)
    plan = explain(store, connection, first_statement(jobs.claim("mail", limit=1_000)), kind)
    store.now = None
    assert plan.affected == 0
    assert_bounded(plan, 1)
    bounds = [node["Index Cond"] for node in plan.nodes() if "available_at <=" in node.get("Index Cond", "")]
    assert bounds
    assert all("queue =" in bound and "priority =" in bound for bound in bounds)


SETTLES: dict[str, Callable[[list[Lease]], Flow[Any]]] = {
    "finish": lambda held: jobs.settle([Finish(lease.id, lease.fence, "done", "{}") for lease in held]),
    "drop": lambda held: jobs.settle([Finish(lease.id, lease.fence, "done", keep=False) for lease in held]),
    "put_back": lambda held: jobs.settle([PutBack(lease.id, lease.fence, 1_000, 0, failure()) for lease in held]),
    "renew": lambda held: jobs.renew([(lease, 30_000) for lease in held]),
}


@pytest.mark.parametrize("name", SETTLES)
def test_a_batch_of_leases_is_written_by_primary_key(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease], name: str
) -> None:
    statement = first_statement(SETTLES[name](held))
    assert statement.name == name
    plan = explain(store, connection, statement, kind)
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_pkey")}
    assert plan.affected == size
    assert_bounded(plan, size)
    # Whatever the statistics say, there is no join whose order they could get wrong.
    assert not {node["Node Type"] for node in plan.nodes()} & {"Nested Loop", "Hash Join", "Merge Join"}


@pytest.mark.parametrize("keep", [True, False], ids=["finish_one", "drop_one"])
def test_a_completion_is_written_by_primary_key(
    store: Store, connection: Any, kind: PlanKind, held: list[Lease], keep: bool
) -> None:
    plan = explain(store, connection, first_statement(jobs.complete(held[0], "{}", keep=keep)), kind)
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_pkey")}
    assert plan.affected == 1
    assert_bounded(plan, 1)


def test_reap_reads_expired_leases_by_their_index(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease]
) -> None:
    [(later,)] = connection.execute("select now() + interval '1 hour'").fetchall()
    store.now = later
    plan = explain(store, connection, second_statement(jobs.reap(kinds=list(KINDS), limit=size)), kind)
    store.now = None
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_lease_idx")}
    assert plan.affected == size
    # With wrong statistics it may be a bitmap scan, which also meets what earlier tests left dead in the index.
    if any(node["Node Type"] == "Bitmap Index Scan" for node in plan.nodes()):
        assert plan.rows_visited < WAITING / 2
    else:
        assert_bounded(plan, size)


@pytest.mark.parametrize("statement_of", [first_statement, second_statement])
def test_reap_with_nothing_to_do_reads_nothing(
    store: Store, connection: Any, kind: PlanKind, held: list[Lease], statement_of: Callable[[Flow[Any]], Statement]
) -> None:
    # Where the tests before have taken longer than a lease, the index has dead entries of leases that are over by now.
    [(before,)] = connection.execute("select now() - interval '1 hour'").fetchall()
    store.now = before
    plan = explain(store, connection, statement_of(jobs.reap(kinds=list(KINDS), limit=1_000)), kind)
    store.now = None
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_lease_idx")}
    assert plan.affected == 0
    assert_bounded(plan, 1)


def test_a_look_for_expired_leases_ends_at_the_first(
    store: Store, connection: Any, kind: PlanKind, held: list[Lease]
) -> None:
    [(later,)] = connection.execute("select now() + interval '1 hour'").fetchall()
    store.now = later
    plan = explain(store, connection, first_statement(jobs.reap(kinds=list(KINDS), limit=1_000)), kind)
    store.now = None
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_lease_idx")}
    assert plan.affected == 1
    assert not any(node["Node Type"] == "LockRows" for node in plan.nodes())


@pytest.mark.parametrize(
    "name, table",
    [
        ("settled", "holdfast_finished"),
        ("live", "holdfast_jobs"),
        ("reap_mark", "holdfast_jobs"),
        ("followed", "holdfast_jobs"),
        ("wake", "holdfast_jobs"),
    ],
)
def test_jobs_are_looked_up_by_primary_key(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease], name: str, table: str
) -> None:
    plan = explain(store, connection, Statement(name, {"ids": [lease.id for lease in held]}), kind)
    assert plan.scans == {(table, f"{table}_pkey")}
    assert_bounded(plan, size)


@pytest.mark.parametrize("fields", [{}, {"key": "k"}], ids=["alike", "mixed"])
def test_enqueue_reads_nothing(
    store: Store, connection: Any, kind: PlanKind, size: int, fields: dict[str, Any]
) -> None:
    new = [new_job(), *(new_job(**fields) for _ in range(size - 1))]
    plan = explain(store, connection, first_statement(jobs.enqueue_many(new)), kind)
    assert plan.scans == set()
    assert_bounded(plan, size)


def test_a_repeated_enqueue_looks_for_its_own_ids_only(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease]
) -> None:
    plan = explain(store, connection, Statement("take_back", {"ids": [lease.id for lease in held]}), kind)
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_pkey"), ("holdfast_finished", "holdfast_finished_pkey")}
    assert_bounded(plan, size)


def test_a_repeated_enqueue_looks_at_the_latest_dropped_jobs_only(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease]
) -> None:
    connection.execute(
        """insert into holdfast_dropped (at, ids)
           select now() - n * interval '1 second', array(select gen_random_uuid() from generate_series(1, 20))
             from generate_series(1, 1800) n"""
    )
    ids, since = [lease.id for lease in held], datetime.now(UTC) - timedelta(seconds=15)
    plan = explain(store, connection, Statement("take_back_dropped", {"ids": ids, "since": since}), kind)
    connection.execute("delete from holdfast_dropped")
    assert ("holdfast_dropped", "holdfast_dropped_at_idx") in plan.scans
    assert plan.scans <= {("holdfast_dropped", "holdfast_dropped_at_idx"), ("holdfast_jobs", "holdfast_jobs_pkey")}
    assert_bounded(plan, 20 * 15)


@pytest.mark.parametrize("asked", ["results_look", "jobs_read", "results_mark"])
def test_what_is_asked_of_jobs_that_are_waited_for_is_found_by_id(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease], asked: str
) -> None:
    finished = [f"{n:032x}" for n in range(1, size + 1)]
    params = {"ids": sorted([*(lease.job_id for lease in held), *finished])}
    bit = {} if asked == "jobs_read" else {"bit": results.WAITED_FOR}
    bit |= {"continued": chains.CONTINUED} if asked == "results_look" else {}
    plan = explain(store, connection, Statement(asked, params | bit), kind)
    tables = ("jobs",) if asked == "results_mark" else ("jobs", "finished")
    ways = {(f"holdfast_{table}", f"holdfast_{table}_pkey") for table in tables}
    # Nothing is kept here, and to read an empty table is cheaper than its index.
    assert plan.scans - {("holdfast_results", "Seq Scan"), ("holdfast_results", "holdfast_results_pkey")} == ways
    assert plan.rows_visited <= 20 * size + 100
    assert plan.buffers <= 100 * size + 300


def test_prune_reads_its_chunk_by_age(store: Store, connection: Any, kind: PlanKind, size: int) -> None:
    plan = explain(store, connection, first_statement(jobs.prune("done", "mail", 0, limit=size)), kind)
    assert plan.scans == {
        ("holdfast_finished", "holdfast_finished_age_idx"),
        ("holdfast_finished", "holdfast_finished_pkey"),
    }
    assert plan.affected == size
    assert_bounded(plan, size)


def test_the_queues_to_prune_are_found_without_reading_every_finished_row(
    store: Store, connection: Any, kind: PlanKind
) -> None:
    plan = explain(store, connection, first_statement(jobs.prune_queues()), kind)
    assert plan.scans == {("holdfast_finished", "holdfast_finished_age_idx")}
    assert_bounded(plan, 3)


def test_leased_jobs_are_counted_without_reading_those_that_wait(
    store: Store, connection: Any, kind: PlanKind, size: int, held: list[Lease]
) -> None:
    plan = explain(store, connection, Statement("depth_leased", {"limit": LEASED_READ}), kind)
    assert plan.scans == {("holdfast_jobs", "holdfast_jobs_lease_idx")}
    assert plan.rows_visited < WAITING / 2


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A SQLite store with 20,000 waiting jobs and no statistics at all."""
    path: Path = tmp_path_factory.mktemp("plans") / "test.db"
    store = Store(f"sqlite:///{path}")
    store.run(migrate.apply(store.migrations))
    store.run(jobs.enqueue_many([new_job(kind="kind1") for _ in range(20_000)]))
    yield store
    store.close()


def steps_of(store: Store, statement: Statement) -> list[tuple[int, str]]:
    """Say how SQLite would run a statement: each step with the number of the step it is part of."""
    steps: list[tuple[int, str]] = []
    query = store.dialect.query(statement)
    params = store.dialect.bind(statement, query, None) | {"found": "[]"}
    with store.link() as link:
        for part in query.compiled(statement.params, "named"):
            rows = link.raw.execute(f"explain query plan {part.sql}", params)
            steps += [(parent, detail) for _, parent, _, detail in rows]
    return steps


def table_steps(store: Store, statement: Statement) -> list[str]:
    return [detail for _, detail in steps_of(store, statement) if re.search(r"holdfast_| [dj] ", f"{detail} ")]


def test_claim_on_sqlite_walks_its_index_in_order(lite: Store) -> None:
    claim = first_statement(jobs.claim(["mail", "bulk"], limit=10, leases=KINDS))
    reads = table_steps(lite, claim)
    assert [line for line in reads if line.startswith("SCAN")] == []
    steps = steps_of(lite, claim)
    due = "SEARCH holdfast_jobs USING INDEX holdfast_jobs_claim_idx (queue=? AND priority=? AND available_at<?)"
    [walk] = [part for part, line in steps if line == due]
    [merge] = [part for part, line in steps if line.startswith("SEARCH d USING PRIMARY KEY")]
    # The one sort is of the picked rows across queues, not of the queue.
    assert [part for part, line in steps if "TEMP B-TREE" in line] == [merge]
    assert walk != merge
    # What was read is written by its id.
    assert reads[-1] == "SEARCH holdfast_jobs USING PRIMARY KEY (id=?)"


@pytest.mark.parametrize("name", SETTLES)
def test_a_batch_on_sqlite_is_written_by_primary_key(lite: Store, name: str) -> None:
    leases = lite.run(jobs.claim("mail", limit=5))
    lines = table_steps(lite, first_statement(SETTLES[name](leases)))
    assert lines
    assert all(line.startswith("SEARCH") and "PRIMARY KEY" in line for line in lines), lines


@pytest.mark.parametrize("statement_of", [first_statement, second_statement])
def test_reap_on_sqlite_reads_expired_leases_by_their_index(
    lite: Store, statement_of: Callable[[Flow[Any]], Statement]
) -> None:
    assert table_steps(lite, statement_of(jobs.reap(limit=10))) == [
        "SEARCH holdfast_jobs USING INDEX holdfast_jobs_lease_idx (lease_expires_at<?)"
    ]


def test_leased_jobs_are_counted_on_sqlite_by_their_index(lite: Store) -> None:
    reads = [line for line in table_steps(lite, Statement("depth_leased", {"limit": LEASED_READ})) if "_jobs" in line]
    assert reads == ["SCAN holdfast_jobs USING INDEX holdfast_jobs_lease_idx"]


def test_claims_from_the_front_are_not_planned_anew(store: Store, connection: Any) -> None:
    statement = first_statement(jobs.claim(["mail", "bulk"], limit=20, leases=KINDS))
    query = store.dialect.query(statement)
    [compiled] = query.compiled(statement.params, "dollar")
    values = [literal(value) for value in compiled.positional(store.dialect.bind(statement, query, None))]
    call = sql.SQL("execute kept ({})").format(sql.SQL(", ").join(values))
    connection.execute("set plan_cache_mode = auto")
    connection.execute(f"prepare kept as {compiled.sql}")
    for _ in range(8):
        connection.execute("begin")
        connection.execute(call, prepare=False)
        connection.execute("rollback")
    [(kept,)] = connection.execute("select generic_plans from pg_prepared_statements where name = 'kept'").fetchall()
    connection.execute("deallocate kept")
    # PostgreSQL tries five times what a plan for the values would cost.
    assert kept == 3


def test_a_chunk_of_keys_is_no_larger_than_asked_for_whatever_the_plan(pg_url: str) -> None:
    """A join with a limited choice may make the choice anew for each row, and delete every key at once."""
    off = ("hashjoin", "mergejoin", "hashagg", "material", "memoize", "sort")
    store = Store(f"{pg_url}?options=" + "".join(f"%20-c%20enable_{one}%3Doff" for one in off))
    store.run(migrate.apply(store.migrations))
    store.run(jobs.enqueue_many([new_job(idempotency_key=f"k{n}", window_ms=1) for n in range(5)]))
    time.sleep(0.01)
    assert [store.run(jobs.prune_keys(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    store.close()
