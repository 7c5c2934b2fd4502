"""How MariaDB and MySQL run the hot statements: by which index, without a sort, locking no row that is not taken."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import admin, jobs, results
from holdfast.flow import Flow, Statement
from holdfast.store import Store, migrate
from holdfast.store.calls import Calls
from holdfast.store.connections import Link
from holdfast.testing import empty, new_job
from holdfast.values.rows import Finish
from tests.plans.explain import first_statement, second_statement
from tests.servers import MariaDB


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server: MariaDB = request.getfixturevalue(request.param)
    url = server.start().fresh_database()
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    yield url
    server.start().drop_database(url.rpartition("/")[2])


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    store.run(empty(store))
    yield store
    store.close()


def explained(link: Link, work: Flow[Any]) -> list[dict[str, Any]]:
    """Run a flow's first query in a transaction, and give the plan of each of its statements."""
    return explained_statement(link, first_statement(work))


def explained_statement(link: Link, statement: Statement) -> list[dict[str, Any]]:
    plans = []
    calls = Calls(link.dialect, statement, link.dialect.style, None)
    with link.transaction(), link.raw.cursor() as cursor:
        for call in calls:
            cursor.execute(f"explain format=json {call.sql}", call.args)
            plans.append(json.loads(cursor.fetchone()[0]))
            cursor.execute(call.sql, call.args)
            if call.returns:
                calls.feed(cursor.fetchall())
    return plans


def tables(plan: Any) -> list[dict[str, Any]]:
    """List what a plan reads, in its order."""
    if isinstance(plan, list):
        return [table for part in plan for table in tables(part)]
    if not isinstance(plan, dict):
        return []
    own = [plan] if "table_name" in plan or "access_type" in plan else []
    inner = plan.get("inputs", plan)
    return own + [table for part in (inner.values() if isinstance(inner, dict) else inner) for table in tables(part)]


def sorts(plan: Any) -> bool:
    text = json.dumps(plan).lower()
    return "filesort" in text.replace('"using_filesort": false', "") or '"access_type": "sort"' in text


def way(plan: Any, name: str) -> list[tuple[str, str]]:
    """Tell by which index a plan reads a table of ours."""
    found = [table for table in tables(plan) if name in (table.get("table_name"), table.get("alias"))]
    return [(str(table.get("access_type")), str(table.get("key") or table.get("index_name"))) for table in found]


@pytest.mark.parametrize("count", [3, 3_000])
def test_a_claim_reads_its_index_in_order(store: Store, count: int) -> None:
    store.run(jobs.enqueue_many([new_job(priority=n % 5, delay_ms=n) for n in range(count)]))
    with store.link() as link:
        plans = explained(link, jobs.claim("mail", limit=10))
    assert len(plans) >= 4
    for plan in plans[:-2]:
        assert not sorts(plan)
        assert [key for _, key in way(plan, "holdfast_jobs")] == ["holdfast_jobs_claim_idx"]
    for plan in plans[-2:]:
        assert [key for _, key in way(plan, "j")] == ["PRIMARY"]


@pytest.mark.parametrize("count", [3, 3_000])
def test_a_settle_reads_and_writes_by_primary_key(store: Store, count: int) -> None:
    store.run(jobs.enqueue_many([new_job() for _ in range(count)]))
    leases = store.run(jobs.claim("mail", limit=3))
    with store.link() as link:
        plans = explained(link, jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
    assert [[key for _, key in way(plan, "j")] for plan in plans] == [["PRIMARY"]] * 3


@pytest.mark.parametrize("count", [3, 3_000])
@pytest.mark.parametrize("asked", [results.look, results.mark, admin.read], ids=["look", "mark", "read"])
def test_what_is_asked_of_jobs_that_are_waited_for_is_found_by_primary_key(
    store: Store, count: int, asked: Callable[[list[str]], Flow[Any]]
) -> None:
    new = [new_job() for _ in range(count)]
    store.run(jobs.enqueue_many(new))
    leases = store.run(jobs.claim("mail", limit=count // 2))
    store.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
    with store.link() as link:
        plans = explained(link, asked([job.id for job in new[::100]]))
    ways = [way(plan, alias) for plan in plans for alias in ("j", "f", "r")]
    assert {key for found in ways for _, key in found} == {"PRIMARY"}


@pytest.mark.parametrize("statement_of", [first_statement, second_statement])
def test_the_reaper_reads_its_index_in_order(store: Store, statement_of: Callable[[Flow[Any]], Statement]) -> None:
    store.run(jobs.enqueue_many([new_job() for _ in range(500)]))
    store.run(jobs.claim("mail", limit=300, lease_ms=1))
    with store.link() as link:
        reaping = jobs.reap(exclude=["00000000-0000-7000-8000-000000000000"])
        [pick] = explained_statement(link, statement_of(reaping))
    assert not sorts(pick)
    assert ("range", "holdfast_jobs_lease_idx") in way(
        pick, "holdfast_jobs"
    ) or "holdfast_jobs_lease_idx" in json.dumps(pick)


def test_the_queues_to_prune_are_hopped_over(store: Store) -> None:
    with store.link() as link:
        # Statistics are what the optimizer decides by.
        store.run(jobs.enqueue_many([new_job(queue) for queue in "ab" for _ in range(500)]))
        leases = store.run(jobs.claim(["a", "b"], limit=1000))
        store.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
        with link.raw.cursor() as cursor:
            cursor.execute("analyze table holdfast_finished")
        [plan] = explained(link, jobs.prune_queues())
    text = json.dumps(plan)
    assert "holdfast_finished_age_idx" in text
    assert any(
        word in text for word in ("using_index_for_group_by", "group_index_skip_scan", "Covering index skip scan")
    )


def test_two_claimers_get_different_jobs_and_neither_waits(store: Store) -> None:
    store.run(jobs.enqueue_many([new_job(priority=n % 3) for n in range(50)]))
    store.run(jobs.enqueue_many([new_job(delay_ms=3_600_000) for _ in range(50)]))
    with store.link() as one, store.link() as two, one.transaction(), two.transaction():
        pick = next(iter(jobs.claim("mail", limit=10)))
        first, second = one.session.run(pick), two.session.run(pick)
        assert (len(first), len(second)) == (10, 10)
        assert not {row[0] for row in first} & {row[0] for row in second}


@pytest.mark.parametrize("later", [5, 2, 1, -5])
def test_a_claim_locks_no_job_that_it_does_not_take(store: Store, later: int) -> None:
    store.run(jobs.enqueue_many([new_job(priority=n % 3) for n in range(50)]))
    store.run(jobs.enqueue_many([new_job(delay_ms=3_600_000, priority=later) for _ in range(50)]))
    with store.link() as one, store.link() as two, one.transaction():
        taken = {row[0] for row in one.session.run(next(iter(jobs.claim("mail", limit=10))))}
        with two.transaction(), two.raw.cursor() as cursor:
            cursor.execute("select id from holdfast_jobs for update skip locked")
            free = {row[0] for row in cursor.fetchall()}
    assert len(taken) == 10
    assert len(free) == 90
    assert not taken & free


def sent(store: Store, work: Flow[Any]) -> tuple[int, int]:
    """Run a flow; tell how many statements it sent, and how many rows the server read for them."""
    with store.link() as link, link.raw.cursor() as cursor:

        def counters() -> tuple[int, int]:
            cursor.execute(
                "show session status where variable_name = 'Questions' or variable_name like 'Handler_read%'"
            )
            found = dict(cursor.fetchall())
            return int(found.pop("Questions")), sum(map(int, found.values()))

        before, asked = counters(), counters()
        link.transact(work)
        after = counters()
    return after[0] - asked[0] - (asked[0] - before[0]), after[1] - asked[1] - (asked[1] - before[1])


@pytest.mark.parametrize("many", [True, False])
def test_a_claim_from_many_queues_sends_few_statements_and_reads_few_rows(store: Store, many: bool) -> None:
    """Whether the jobs of these kinds are few, so that their queues are known, or too many to look at each."""
    queues = [f"q{n}" for n in range(200)]
    store.run(jobs.enqueue_many([new_job(queue, kind="other", priority=n % 3) for queue in queues for n in range(2)]))
    # One long queue, which nobody may walk through.
    store.run(jobs.enqueue_many([new_job("q7", kind="other", delay_ms=3_600_000) for _ in range(5_000)]))
    store.run(jobs.enqueue_many([new_job("q99", kind="wanted", priority=9) for _ in range(1_200 if many else 3)]))
    statements, rows = sent(store, jobs.claim(queues, limit=2, leases={"wanted": 30_000}))
    assert statements < 20
    assert rows < 5_000
    assert len(store.run(jobs.claim(queues, limit=1, leases={"wanted": 30_000}))) == 1
    # Of kinds that are not there, nothing is looked for in any queue.
    statements, rows = sent(store, jobs.claim(queues, limit=2, leases={"absent": 30_000}))
    assert statements < 6
    assert rows < 50
