"""A look into inboxes reads what is asked for, on each database, however much lies in them.

One run has got ten thousand signals by one name and the ends of ten thousand children; a thousand others have a few.
"""

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.flow import Statement
from holdfast.runs import CANCEL, CHILD
from holdfast.store import Store, migrate
from tests.plans.explain import PlanKind, explain
from tests.plans.test_mysql_plans import explained_statement, sorts, way
from tests.plans.test_plans import steps_of
from tests.servers import MariaDB, Postgres

MANY, OTHERS = 10_000, 1_000
RUN = "00000000-0000-0000-0000-000000000001"
OTHER = "00000000-0000-0000-0000-000000000002"
INDEX = "holdfast_signals_run_idx"
LIMIT = 50

# By their names: a statement, and how many rows it gives.
LOOKS: dict[str, tuple[Statement, int]] = {
    "there": (
        Statement(
            "signals_there",
            {},
            {"run_id": [RUN, RUN, RUN, RUN, OTHER], "name": [CANCEL, CHILD, "event", "missing", "event"]},
        ),
        3,
    ),
    "first": (Statement("signals_first", {"id": RUN, "names": [CANCEL, "event", "missing"]}), 1),
    "next": (Statement("signals_next", {"id": RUN, "name": CHILD, "limit": LIMIT}), LIMIT),
    "none": (Statement("signals_next", {"id": RUN, "name": CANCEL, "limit": LIMIT}), 0),
    "read": (Statement("signals_read", {"ids": [f"00000000-0000-0000-0000-0000000000{n}" for n in range(10, 15)]}), 5),
}
looks = pytest.mark.parametrize("look", LOOKS)

FILL = f"""insert into holdfast_signals (id, run_id, name, payload, told, created_at)
          select lpad(to_hex(n), 32, '0')::uuid,
                 (case when n <= {MANY} * 2 then '{RUN}'
                       else '00000000-0000-0000-0000-' || lpad((2 + n % {OTHERS})::text, 12, '0') end)::uuid,
                 case when n > {MANY} and n <= {MANY} * 2 then '!child' else 'event' end, '1', 1,
                 now() - n * interval '1 second'
            from generate_series(1, {MANY} * 2 + {OTHERS} * 3) n"""  # noqa: S608 - our own words


@pytest.fixture(scope="module")
def stale(postgres: Postgres) -> Iterator[str]:
    """Inboxes whose statistics were taken while they were empty."""
    url = postgres.start().create_database("inbox_plans_stale")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    for statement in (
        "alter table holdfast_signals set (autovacuum_enabled = false)",
        "analyze holdfast_signals",
        FILL,
    ):
        postgres.execute(statement, "inbox_plans_stale")
    yield url
    postgres.drop_database("inbox_plans_stale")


@pytest.fixture(scope="module")
def fresh(postgres: Postgres, stale: str) -> Iterator[str]:
    """A copy with true statistics."""
    postgres.create_database("inbox_plans_fresh", "inbox_plans_stale", strategy="file_copy")
    postgres.execute("analyze", "inbox_plans_fresh")
    yield postgres.url("inbox_plans_fresh")
    postgres.drop_database("inbox_plans_fresh")


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["stale", "fresh"])
@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@looks
def test_a_look_reads_what_is_asked_for(
    request: pytest.FixtureRequest, statistics: str, kind: PlanKind, look: str
) -> None:
    store = Store(request.getfixturevalue(statistics))
    statement, found = LOOKS[look]
    with psycopg.connect(store.url, autocommit=True) as connection:
        plan = explain(store, connection, statement, kind)
    store.close()
    assert plan.affected == found
    # A row for each of at most four levels of the plan, and the names that were asked for.
    assert plan.rows_visited <= 4 * found + 20, (plan.rows_visited, plan.root)
    assert plan.buffers <= 4 * found + 60, plan.buffers


@pytest.mark.parametrize("statistics", [False, True], ids=["unknown", "known"])
@looks
def test_on_sqlite_it_searches_and_never_walks(sqlite_url: str, statistics: bool, look: str) -> None:
    store = Store(sqlite_url)
    store.run(migrate.apply(store.migrations))
    with store.link() as link:
        link.tell(
            """with recursive n (n) as (select 1 union all select n + 1 from n where n < 3000)
               insert into holdfast_signals (id, run_id, name, told, created_at)
               select printf('%036d', n), printf('%036d', 1 + n % 2), case when n % 3 then 'event' else '!child' end,
                      1, n
                 from n"""
        )
        if statistics:
            link.tell("analyze")
    steps = [line for _, line in steps_of(store, LOOKS[look][0])]
    store.close()
    ours = [line for line in steps if line.startswith(("SEARCH", "SCAN")) and "json_each" not in line]
    ours = [line for line in ours if not line.startswith("SCAN u VIRTUAL")]
    assert ours
    assert all(INDEX in line or "PRIMARY KEY (id=?)" in line for line in ours), steps
    assert not any("TEMP B-TREE" in line for line in steps), steps


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def mysql_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    server: MariaDB = request.getfixturevalue(request.param)
    store = Store(server.start().fresh_database())
    store.run(migrate.apply(store.migrations))
    many = [(n, 1, "event" if n <= MANY else CHILD) for n in range(1, 2 * MANY + 1)]
    many += [(2 * MANY + n, 2 + n % OTHERS, "event") for n in range(1, 3 * OTHERS + 1)]
    start = "00000000-0000-0000-0000-"
    rows = [(f"{start}{n:012}", f"{start}{run:012}", name) for n, run, name in many]
    columns = "id, run_id, name, told, created_at"
    with store.link() as link, link.transaction(), link.raw.cursor() as cursor:
        cursor.executemany(
            f"insert into holdfast_signals ({columns}) values (%s, %s, %s, 1, utc_timestamp(6))",  # noqa: S608 - as above
            rows,
        )
    with store.link() as link, link.raw.cursor() as cursor:
        cursor.execute("analyze table holdfast_signals")
        cursor.fetchall()
    yield store
    name = store.url.rpartition("/")[2]
    store.close()
    server.drop_database(name)


@looks
def test_on_mysql_it_reads_what_is_asked_for(mysql_store: Store, look: str) -> None:
    statement, found = LOOKS[look]
    with mysql_store.link() as link:
        with link.raw.cursor() as cursor:
            cursor.execute("flush status")
        [plan] = explained_statement(link, statement)
        with link.raw.cursor() as cursor:
            cursor.execute("show session status like 'Handler_read%'")
            read = sum(int(count) for _, count in cursor.fetchall())
    keys = [key for name in ("s", "o", "holdfast_signals") for _, key in way(plan, name)]
    assert set(keys) <= {INDEX, "PRIMARY"}, plan
    assert look in ("first", "there", "read") or not sorts(plan), plan
    # The names, some for the plan, and each row by an index and by its key.
    assert found <= read <= 3 * found + 30, read
