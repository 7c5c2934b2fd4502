"""Lists of runs that are over read their own index from its end, on each database: a page costs a page.

Nearly all runs are done, and those that are dead or cancelled are the oldest: who walks over runs by their age walks
over all of them.
"""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import runs
from holdfast.flow import Statement
from holdfast.store import Store, migrate
from holdfast.values.ids import new_id
from tests.plans.explain import PlanKind, explain, first_statement
from tests.plans.test_mysql_plans import explained, sorts, way
from tests.plans.test_plans import steps_of
from tests.servers import MariaDB, Postgres

PAGE = 50
INDEX = "holdfast_runs_outcome_idx"

FILL = [
    "alter table holdfast_runs set (autovacuum_enabled = false)",
    "alter table holdfast_finished set (autovacuum_enabled = false)",
    "analyze holdfast_runs",
    "analyze holdfast_finished",
    """insert into holdfast_runs (id, workflow, run_key, outcome, created_at, ended_at)
        select lpad(to_hex(n), 32, '0')::uuid, 'fulfil', 'order-' || n,
               case when n <= 1000 then 'dead' when n <= 1020 then 'cancelled' when n < 99500 then 'done' end,
               now(), now()
          from generate_series(1, 100000) n""",
    """insert into holdfast_finished
            (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, replays, priority,
             outcome, queue, kind, payload)
        select lpad(to_hex(n), 32, '0')::uuid, 1, now(), now(), now(), now(), 1, 5, 0, 0,
               case when n <= 1000 then 'dead' when n <= 1020 then 'cancelled' else 'done' end,
               'runs', 'fulfil@1', '{}'
          from generate_series(1, 99499) n""",
]


@pytest.fixture(scope="module")
def stale(postgres: Postgres) -> Iterator[str]:
    """Runs whose statistics were taken while there were none."""
    url = postgres.start().create_database("run_plans_stale")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    for statement in FILL:
        postgres.execute(statement, "run_plans_stale")
    yield url
    postgres.drop_database("run_plans_stale")


@pytest.fixture(scope="module")
def fresh(postgres: Postgres, stale: str) -> Iterator[str]:
    """A copy with true statistics."""
    postgres.create_database("run_plans_fresh", "run_plans_stale", strategy="file_copy")
    postgres.execute("analyze", "run_plans_fresh")
    yield postgres.url("run_plans_fresh")
    postgres.drop_database("run_plans_fresh")


def listed(status: str, older_than: str | None = None) -> Statement:
    return first_statement(runs.runs(runs.RunFilter(status=status), PAGE, older_than))


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["stale", "fresh"])
@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("page", ["first", "later"])
@pytest.mark.parametrize("status, found", [("done", PAGE), ("dead", PAGE), ("cancelled", 20)])
def test_a_page_of_runs_that_are_over_reads_no_more_than_the_page(
    request: pytest.FixtureRequest, statistics: str, kind: PlanKind, page: str, status: str, found: int
) -> None:
    store = Store(request.getfixturevalue(statistics))
    # There are runs of each status behind this one: the 2,048th.
    older_than = None if page == "first" else "00000000-0000-0000-0000-000000000800"
    with psycopg.connect(store.url, autocommit=True) as connection:
        plan = explain(store, connection, listed(status, older_than), kind)
    store.close()
    assert ("holdfast_runs", INDEX) in plan.scans
    assert plan.affected == found
    # Of each run its row, that of its job and that of its end; a level of the plan for each.
    assert plan.rows_visited <= 10 * PAGE, plan.rows_visited
    assert plan.buffers <= 20 * PAGE, plan.buffers


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["stale", "fresh"])
@pytest.mark.parametrize("status", ["done", "dead", None])
@pytest.mark.parametrize("older_than", [None, "00000000-0000-0000-0000-000000000800"], ids=["first", "later"])
def test_a_look_at_some_runs_reads_an_index_from_where_it_begins_to_where_it_ends(
    request: pytest.FixtureRequest, statistics: str, status: str | None, older_than: str | None
) -> None:
    store = Store(request.getfixturevalue(statistics))
    look = runs.look(runs.RunFilter(kind="nobody", status=status), PAGE, older_than, window=PAGE).start()
    with psycopg.connect(store.url, autocommit=True) as connection, store.link() as link:
        horizon = next(look)
        listed = look.send(link.session.run(horizon))
        plans = [explain(store, connection, each, "force_custom_plan") for each in (horizon, listed)]
    store.close()
    assert "from_id" in listed.params
    # Also what is skipped in an index counts here: 100,000 places are hundreds of pages.
    assert plans[0].buffers <= 2 * PAGE, plans[0].buffers
    assert plans[1].buffers <= 10 * PAGE, plans[1].buffers


@pytest.mark.parametrize("statistics", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("status", ["done", "dead", "cancelled"])
def test_on_sqlite_it_walks_the_index_from_its_end(sqlite_url: str, statistics: bool, status: str) -> None:
    store = Store(sqlite_url)
    store.run(migrate.apply(store.migrations))
    with store.link() as link:
        link.tell(
            """with recursive n (n) as (select 1 union all select n + 1 from n where n < 3000)
               insert into holdfast_runs (id, workflow, run_key, outcome, created_at, ended_at)
               select printf('%036d', n), 'fulfil', 'order-' || n,
                      case when n <= 30 then 'dead' when n <= 40 then 'cancelled' when n < 2900 then 'done' end, 1, 1
                 from n"""
        )
        if statistics:
            link.tell("analyze")
    steps = [line for _, line in steps_of(store, listed(status, "00000000-0000-0000-0000-000000000800"))]
    store.close()
    assert steps[0].startswith(f"SEARCH r USING INDEX {INDEX}"), steps
    assert all(line.startswith(("SEARCH j USING PRIMARY KEY", "SEARCH f USING PRIMARY KEY")) for line in steps[1:]), (
        steps
    )


MYSQL_FILL = [
    """insert into holdfast_finished
           (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, replays, priority,
            outcome, queue, kind, payload)
       select id, 1, created_at, created_at, created_at, created_at, 1, 5, 0, 0, outcome, 'runs', 'fulfil@1', '{}'
         from holdfast_runs where outcome is not null""",
    """insert into holdfast_jobs (id, available_at, created_at, max_attempts, priority, queue, kind, payload)
       select id, created_at, created_at, 5, 0, 'runs', 'fulfil@1', '{}' from holdfast_runs where outcome is null""",
]


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def mysql_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    server: MariaDB = request.getfixturevalue(request.param)
    store = Store(server.start().fresh_database())
    store.run(migrate.apply(store.migrations))
    row = "(lpad(%s, 36, '0'), 'fulfil', %s, %s, utc_timestamp(6), utc_timestamp(6))"
    ends: list[Any] = ["dead"] * 300 + ["cancelled"] * 10 + ["done"] * 2_590 + [None] * 100
    with store.link() as link, link.transaction(), link.raw.cursor() as cursor:
        columns = "id, workflow, run_key, outcome, created_at, ended_at"
        rows = [(n, f"order-{n}", end) for n, end in enumerate(ends, 1)]
        cursor.executemany(f"insert into holdfast_runs ({columns}) values {row}", rows)  # noqa: S608 - our own words
        for statement in MYSQL_FILL:
            cursor.execute(statement)
    with store.link() as link, link.raw.cursor() as cursor:
        for table in ("runs", "finished", "jobs"):
            cursor.execute(f"analyze table holdfast_{table}")
            cursor.fetchall()
    yield store
    name = store.url.rpartition("/")[2]
    store.close()
    server.drop_database(name)


@pytest.mark.parametrize("page", ["first", "later"])
@pytest.mark.parametrize("status, found", [("done", PAGE), ("dead", PAGE), ("cancelled", 10)])
def test_on_mysql_it_reads_no_more_than_the_page(mysql_store: Store, page: str, status: str, found: int) -> None:
    wanted = runs.runs(runs.RunFilter(status=status), PAGE, None if page == "first" else new_id())
    with mysql_store.link() as link:
        with link.raw.cursor() as cursor:
            cursor.execute("flush status")
        [plan] = explained(link, wanted)
        with link.raw.cursor() as cursor:
            cursor.execute("show session status like 'Handler_read%'")
            read = sum(int(count) for _, count in cursor.fetchall())
    assert [key for _, key in way(plan, "r")] == [INDEX], json.dumps(plan)
    assert not sorts(plan), json.dumps(plan)
    # Of each run its row, that of its job and that of its end; some more for the plan.
    assert found <= read <= 4 * PAGE, read
