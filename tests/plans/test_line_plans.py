"""What claims and settles of ordered and limited queues read, with jobs of a hundred thousand keys and one long line.

No times are asserted: what counts is that the work grows with the batch, and not with the backlog. PostgreSQL's
statistics are as bad as they get: taken while the tables were empty; those of what upkeep asks, now and then, are true.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import jobs, lines
from holdfast.flow import Flow, Statement
from holdfast.lines.leaving import LINE_BITS, ORDER
from holdfast.store import Store, migrate
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease
from tests.plans.explain import PlanKind, explain
from tests.plans.test_mysql_plans import sent
from tests.servers import MariaDB, Postgres

pytestmark = pytest.mark.slow

KEYS, LONG, TRIED = 100_000, 20_000, 200
ORDERED = QueueSettings(ordered=True)
BOTH = QueueSettings(ordered=True, concurrency=1_000_000)

# One job each of many keys, with a line for every fifth; and a long line, in which all but some wait.
POSTGRES = [
    *(f"alter table holdfast_{table} set (autovacuum_enabled = false)" for table in ("jobs", "lines")),
    *(f"analyze holdfast_{table}" for table in ("jobs", "lines")),
    f"""insert into holdfast_jobs (id, available_at, created_at, max_attempts, queue, kind, payload, key, place)
        select lpad(to_hex(n), 32, '0')::uuid, at, at, 5, 'mail', 'noop', '{{}}', 'key ' || n, n
          from generate_series(1, {KEYS}) n, lateral (select now() - ({KEYS} - n) * interval '1 second' as at) t""",  # noqa: S608
    f"""insert into holdfast_jobs
            (id, available_at, created_at, max_attempts, queue, kind, payload, key, place, state, waits_for)
        select ('f' || lpad(to_hex(n), 31, '0'))::uuid, at, at, 5, 'mail', 'noop', '{{}}', 'long', {KEYS} + n,
               case when n % 10 = 0 then 'pending' else 'waiting' end, case when n % 10 > 0 then 'line' end
          from generate_series(1, {LONG}) n, lateral (select now() - interval '1 hour' as at) t""",  # noqa: S608
    "insert into holdfast_lines (queue, key) select 'mail', 'key ' || n from generate_series(1, 100000, 5) n",
    "insert into holdfast_lines (queue, key) values ('mail', 'long')",
]


@pytest.fixture(scope="module")
def pg(postgres: Postgres) -> Iterator[Store]:
    url = postgres.start().create_database("plans_lines")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    for statement in POSTGRES:
        postgres.execute(statement, "plans_lines")
    yield store
    store.close()
    postgres.drop_database("plans_lines")


@pytest.fixture(scope="module")
def fresh(postgres: Postgres, pg: Store) -> Iterator[Store]:
    """A copy with true statistics."""
    pg.close()
    postgres.create_database("plans_lines_fresh", "plans_lines", strategy="file_copy")
    postgres.execute("analyze", "plans_lines_fresh")
    store = Store(postgres.url("plans_lines_fresh"))
    yield store
    store.close()
    postgres.drop_database("plans_lines_fresh")


def ids(count: int = TRIED) -> list[str]:
    """Ids of jobs of many keys, spread over all of them and in their order."""
    hexes = [f"{1 + n * (KEYS // count):032x}" for n in range(count)]
    return [f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in hexes]


def keys(count: int = TRIED) -> list[str]:
    return sorted(["long", *(f"key {1 + n * (KEYS // count)}" for n in range(count - 1))])


HEADS = {"queue": "mail", "keys": keys(), "limit": 8, "bits": LINE_BITS}
LEASE = {"lease_ms": 1, "worker": "w", "bits": ORDER, "mask": LINE_BITS, "kinds": None, "leases": None}
COLUMNS = {"key": keys(), "held": [1] * TRIED, "tat": [None] * TRIED, "called": [None] * TRIED}
STATEMENTS = {
    "tickets": Statement("tickets", {"kinds": ["noop"], "limit": TRIED, "queues": ["mail"]}),
    "lines_open": Statement("lines_open", {"queue": "mail", "keys": keys()}),
    "lines_lock": Statement("lines_lock", {"queue": "mail", "keys": keys()}),
    "line_heads": Statement("line_heads", {**HEADS, "hold": True, "passing": None, "fair": None}),
    "line_heads passing": Statement("line_heads", {**HEADS, "hold": None, "passing": True, "fair": None}),
    "line_heads fair": Statement("line_heads", {**HEADS, "hold": None, "passing": True, "fair": True}),
    "line_lease": Statement("line_lease", {"ids": ids(), **LEASE}),
    "line_park": Statement("line_park", {"ids": ids()}),
    "line_call": Statement("line_call", {"bit": ORDER}, {"id": ids(), "delay_us": [0] * TRIED}),
    "lines_write": Statement("lines_write", {"queue": "mail"}, COLUMNS),
    "lines_close": Statement("lines_close", {"queue": "mail", "keys": keys()}),
    "stint_heads": Statement("stint_heads", {"ids": ids()}),
}
UPKEEP = {
    "lines_idle": Statement("lines_idle", {"queue": "mail", "after": "key 5", "limit": TRIED}),
    "lines_next": Statement("lines_next", {"queue": "mail", "after": "key 5", "limit": TRIED}),
}


@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_of_lines_reads_as_much_as_it_tries_on_postgres(pg: Store, name: str, kind: PlanKind) -> None:
    assert_reads_little(pg, STATEMENTS[name], kind)


@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", UPKEEP)
def test_what_upkeep_asks_reads_lines_in_their_order_on_postgres(fresh: Store, name: str, kind: PlanKind) -> None:
    assert_reads_little(fresh, UPKEEP[name], kind)


def assert_reads_little(store: Store, statement: Statement, kind: PlanKind) -> None:
    with psycopg.connect(store.url, autocommit=True) as connection:
        plan = explain(store, connection, statement, kind)
    assert not {way for _, way in plan.scans} & {"Seq Scan", "Parallel Seq Scan"}, plan.scans
    assert plan.rows_visited <= 20 * TRIED + 100, plan.rows_visited
    assert plan.buffers <= 100 * TRIED + 300, plan.buffers


DIGITS = " union all ".join(f"select {digit} as d" for digit in range(10))
NUMBERS = f"""(select 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d as n
                 from ({DIGITS}) a, ({DIGITS}) b, ({DIGITS}) c, ({DIGITS}) e, ({DIGITS}) f) n"""  # noqa: S608
MYSQL = [
    f"""insert into holdfast_jobs (id, available_at, created_at, max_attempts, queue, kind, payload, `key`)
        select insert(lpad(lower(hex(n)), 36, '0'), 1, 18, '00000000-0000-7000'), utc_timestamp(6) - interval 1 hour,
               utc_timestamp(6) - interval 1 hour, 5, 'mail', 'noop', '{{}}', concat('key ', n)
          from {NUMBERS} where n <= {KEYS}""",  # noqa: S608 - constants of the test
    f"""insert into holdfast_jobs
            (id, available_at, created_at, max_attempts, queue, kind, payload, `key`, state, waits_for)
        select insert(lpad(lower(hex(n)), 36, '0'), 1, 18, 'ffffffff-0000-7000'), utc_timestamp(6), utc_timestamp(6), 5,
               'mail', 'noop', '{{}}', 'long', if(n % 10 = 0, 'pending', 'waiting'), if(n % 10 = 0, null, 'line')
          from {NUMBERS} where n <= {LONG}""",  # noqa: S608 - constants of the test
    f"""insert into holdfast_lines (queue, `key`)
        select 'mail', concat('key ', n) from {NUMBERS} where n % 5 = 0""",  # noqa: S608 - constants of the test
    "insert into holdfast_lines (queue, `key`) values ('mail', 'long')",
]


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def mysql_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    server: MariaDB = request.getfixturevalue(request.param)
    url = server.start().fresh_database()
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    with store.link() as link:
        for statement in MYSQL:
            link.tell(statement)
    yield store
    store.close()
    server.start().drop_database(url.rpartition("/")[2])


def test_a_claim_and_a_settle_read_as_much_as_they_take_on_mysql(mysql_store: Store) -> None:
    """All statements together, of each row that is touched: the server reads some of them for each statement."""
    store = mysql_store
    store.run(lines.declare({"mail": ORDERED}))
    statements, rows = sent(store, claim(ORDERED, TRIED))
    assert statements < 30, statements
    assert rows < 40 * TRIED, rows
    leases = store.run(claim(ORDERED, TRIED)).leases
    assert len(leases) == TRIED
    statements, rows = sent(store, settle(leases))
    assert statements < 20, statements
    assert rows < 40 * TRIED, rows


def test_the_heads_of_a_long_line_are_read_without_the_others_on_mysql(mysql_store: Store) -> None:
    _, rows = sent(mysql_store, Flow("heads", lambda: heads(keys(20))))
    assert rows < 1_000, rows


def heads(of: list[str]) -> Any:
    return (yield Statement("line_heads", {**HEADS, "keys": of, "hold": True, "passing": None, "fair": None}))


def claim(settings: QueueSettings, limit: int) -> Flow[lines.Claimed]:
    return lines.claim("mail", settings, limit=limit, leases={"noop": 30_000}, look=limit)


def settle(leases: list[Lease]) -> Flow[jobs.Settled]:
    lined = [lease for lease in leases if isinstance(lease, lines.LinedLease)]
    return jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases], lined)


SQLITE = [
    """insert into holdfast_jobs (id, available_at, created_at, max_attempts, queue, kind, payload, key)
       with recursive n (n) as (select 1 union all select n + 1 from n where n < :keys)
       select printf('00000000-0000-7000-8000-%012x', n), n, n, 5, 'mail', 'noop', '{}', 'key ' || n from n""",
    """insert into holdfast_jobs
           (id, available_at, created_at, max_attempts, queue, kind, payload, key, state, waits_for)
       with recursive n (n) as (select 1 union all select n + 1 from n where n < :long)
       select printf('ffffffff-0000-7000-8000-%012x', n), n, n, 5, 'mail', 'noop', '{}', 'key 1',
              iif(n % 10, 'waiting', 'pending'), iif(n % 10, 'line', null) from n""",
    """insert into holdfast_lines (queue, key)
       with recursive n (n) as (select 1 union all select n + 5 from n where n < :keys)
       select 'mail', 'key ' || n from n""",
]


@pytest.mark.parametrize("settings", [ORDERED, BOTH], ids=["ordered", "limited"])
def test_a_claim_and_a_settle_take_as_many_steps_beside_a_backlog_on_sqlite(
    tmp_path: Any, settings: QueueSettings
) -> None:
    """The steps of its virtual machine, beside those on small tables."""
    few, many = (
        steps_on(Store(f"sqlite:///{tmp_path}/{name}.db"), settings, count, long)
        for name, count, long in (("small", 2 * TRIED, TRIED), ("large", KEYS, LONG))
    )
    assert many < 2 * few, (few, many)


def steps_on(store: Store, settings: QueueSettings, count: int, long: int) -> int:
    """Claim and settle on tables with that many keys and such a long line; tell how many steps it took, in hundreds."""
    store.run(migrate.apply(store.migrations))
    store.run(lines.declare({"mail": settings}))
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    with store.link() as link:
        for statement in SQLITE:
            given = {name: value for name, value in (("keys", count), ("long", long)) if f":{name}" in statement}
            link.raw.execute(statement, given)
        link.raw.set_progress_handler(step, 100)
        leases = link.transact(claim(settings, TRIED)).leases
        assert len(leases) == TRIED
        assert link.transact(settle(leases)).done == {lease.job_id for lease in leases}
        link.raw.set_progress_handler(None, 0)
    store.close()
    return taken
