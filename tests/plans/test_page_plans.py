"""What pages, metrics and commands read beside finished rows: as much with ten times as many of them.

Counted are rows of plans (PostgreSQL), rows that the server read (MariaDB, MySQL) and steps of the virtual machine
(SQLite). The limits of counts and looks are small here, so that tables of some thousand rows are beyond them.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast import admin, jobs, observe, runs
from holdfast.admin import Filter, JobsDesk
from holdfast.flow import Flow, Statement
from holdfast.life.listing import Kept, Wanted
from holdfast.store import Store, migrate
from holdfast.testing import failure, new_job
from holdfast.values.rows import Finish, Outcome
from tests.plans.explain import explain
from tests.plans.test_mysql_plans import sent
from tests.servers import MariaDB, Postgres

SEEDS, TIMES = 1_000, 10
COUNTED, WINDOW = 40, 60
# How finished seeds ended.
ENDS: list[Outcome] = ["done", "done", "done", "dead", "cancelled"]
QUEUES = ["mail", "bulk"]
# A copy of a row gets an id of its own; whatever else the table has stays.
NEW_ID = {
    "postgres": "gen_random_uuid()",
    "mysql": "uuid()",
    "sqlite": "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8'"
    " || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))",
}
ANALYZE = {"postgres": "vacuum analyze", "mysql": "analyze table holdfast_finished", "sqlite": "analyze"}

READS: dict[str, Callable[[], Flow[Any]]] = {
    "sample": observe.sample,
    "latest": observe.latest,
    "history": observe.history,
    "counts": admin.counts,
    "counts of the desk": lambda: JobsDesk().counts(),
    "dead groups": admin.dead_groups,
    "newest": lambda: admin.newest(limit=20, window=WINDOW),
    "newest, nothing fits": lambda: admin.newest(Filter(kind="nobody"), window=WINDOW),
    "newest, a later page": lambda: admin.newest(
        Filter(kind="nobody"), after="80000000-0000-4000-8000-000000000000", window=WINDOW
    ),
    "oldest, nothing fits": lambda: admin.look(Filter(kind="nobody"), window=WINDOW, newest=False),
    "newest, an error that nobody had": lambda: admin.newest(Filter(error="nobody"), window=WINDOW),
    "newest of the outbox": lambda: admin.newest(Filter(outbox=True), window=WINDOW),
    "live, nothing fits": lambda: admin.newest(Filter(states=("pending",), kind="nobody"), window=WINDOW),
    "rows of the desk": lambda: JobsDesk().rows(Wanted(kind="nobody")),
    "rows of the desk, the oldest first": lambda: JobsDesk().rows(Wanted(kind="nobody"), newest=False),
    "what prune would delete": lambda: JobsDesk().count_older(Kept("done", "mail"), timedelta(seconds=-60)),
    "some of what is finished": lambda: admin.count_jobs(Filter(states=("done",)), COUNTED),
    "runs": lambda: runs.runs(runs.RunFilter()),
    "audit": admin.audit_page,
    "doctor": lambda: JobsDesk().examine(),
}


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb", "mysql"])
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two databases: one with some finished rows, one with ten times as many."""
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("pages")
        named = (f"sqlite:///{folder}/few.db", f"sqlite:///{folder}/many.db")
    else:
        server: Postgres | MariaDB = request.getfixturevalue(request.param)
        named = (server.start().fresh_database(), server.fresh_database())
    for url, times in zip(named, (1, TIMES), strict=True):
        fill(Store(url), times)
    yield named
    if request.param != "sqlite":
        for url in named:
            server.drop_database(url.rpartition("/")[2].partition("?")[0])


def fill(store: Store, times: int) -> None:
    """Have some jobs finished and some live, and copy the finished ones."""
    store.run(migrate.apply(store.migrations))
    new = [new_job(QUEUES[n % 2], kind=f"kind{n % 3}", priority=n % 2) for n in range(SEEDS)]
    store.run(jobs.enqueue_many(new))
    leases = store.run(jobs.claim(QUEUES, limit=SEEDS))
    assert len(leases) == SEEDS
    store.run(jobs.settle([end_of(lease, ENDS[n % len(ENDS)], n % 7) for n, lease in enumerate(leases)]))
    store.run(jobs.enqueue_many([new_job(QUEUES[n % 2], kind=f"kind{n % 3}") for n in range(30)]))
    with store.link() as link:
        columns = [name for name in columns_of(link.raw) if name != "id"]
        quoted = ", ".join(f"`{name}`" if store.dialect.name == "mysql" else f'"{name}"' for name in columns)
        numbers = " union all ".join(f"select {n}" for n in range(1, times))
        if numbers:
            copied = f"select {NEW_ID[store.dialect.name]}, {quoted} from holdfast_finished, ({numbers}) n"  # noqa: S608
            link.tell(f"insert into holdfast_finished (id, {quoted}) {copied}")
        link.tell(ANALYZE[store.dialect.name])
    store.close()


def end_of(lease: Any, outcome: Outcome, group: int) -> Finish:
    if outcome != "dead":
        return Finish(lease.id, lease.fence, outcome)
    return Finish(lease.id, lease.fence, outcome, None, failure(), f"group{group}")


def columns_of(raw: Any) -> list[str]:
    cursor = raw.cursor()
    cursor.execute("select * from holdfast_finished limit 1")
    names = [column[0] for column in cursor.description]
    cursor.fetchall()
    return names


@pytest.fixture
def stores(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Store]]:
    monkeypatch.setattr("holdfast.observe.sampling.COUNTED", COUNTED)
    monkeypatch.setattr("holdfast.admin.jobs.COUNTED", COUNTED)
    monkeypatch.setattr("holdfast.admin.jobs.LONGEST_LIST", 2 * WINDOW)
    monkeypatch.setattr("holdfast.admin.examine.GROUPS_READ", WINDOW)
    monkeypatch.setattr("holdfast.admin.examine.TYPES_READ", WINDOW)
    monkeypatch.setattr("holdfast.admin.desk.COUNTED", COUNTED)
    monkeypatch.setattr("holdfast.admin.desk.WINDOW", WINDOW)
    few, many = Store(urls[0]), Store(urls[1])
    yield few, many
    few.close()
    many.close()


def test_there_are_ten_times_as_many(stores: tuple[Store, Store]) -> None:
    assert [store.run(admin.count_jobs(Filter(states=("done", "dead", "cancelled")))) for store in stores] == [
        SEEDS,
        SEEDS * TIMES,
    ]


@pytest.mark.parametrize("name", READS)
def test_a_page_reads_as_much_beside_ten_times_as_many_finished_rows(stores: tuple[Store, Store], name: str) -> None:
    few, many = (read_by(store, READS[name]()) for store in stores)
    # A deeper index adds a little, and a planner that reads a small table whole takes nothing away.
    assert many <= 1.5 * few + 200, (few, many)
    if stores[0].dialect.name != "sqlite":
        assert many < SEEDS * TIMES / 4, (few, many)


def read_by(store: Store, work: Flow[Any]) -> float:
    """Run a flow and tell how much its statements read."""
    if store.dialect.name == "mysql":
        return sent(store, work)[1]
    return steps_of(store, work) if store.embedded else visited(store, work)


def visited(store: Store, work: Flow[Any]) -> float:
    """Add up the rows of all plans."""
    total = 0.0

    def measure(statement: Statement) -> list[Any]:
        nonlocal total
        # The limits and the horizon are values that a planner should see: a plan for any of them reads the table whole.
        plan = explain(store, connection, statement, "force_custom_plan")
        # The groups of dead letters may begin with a bitmap: places in the index of the dead, hundreds on a page.
        bitmaps = [node["Actual Rows"] for node in plan.nodes() if node["Node Type"] == "Bitmap Index Scan"]
        total += plan.rows_visited - sum(bitmaps)
        rows: list[Any] = link.session.run(statement)
        return rows

    with store.link() as link, psycopg.connect(store.url, autocommit=True) as connection:
        steps = work.start()
        try:
            statement = next(steps)
            while True:
                statement = steps.send(measure(statement))
        except StopIteration:
            return total


def steps_of(store: Store, work: Flow[Any]) -> float:
    """Count the steps of SQLite's virtual machine, in tens."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    with store.link() as link:
        link.raw.set_progress_handler(step, 10)
        link.transact(work)
        link.raw.set_progress_handler(None, 0)
    return taken


def test_a_look_goes_by_id_in_both_directions(stores: tuple[Store, Store]) -> None:
    newest, oldest = (stores[1].run(admin.look(limit=5, newest=newest)).rows for newest in (True, False))
    assert [job.id for job in newest] == sorted((job.id for job in newest), reverse=True)
    assert [job.id for job in oldest] == sorted(job.id for job in oldest)
    assert datetime.now(UTC) > oldest[0].created_at
