"""The same rows on two nodes at once. Row locks are local: both seem to win, and COMMIT decides (error 1213)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pymysql
import pytest

from holdfast import Holdfast, admin, jobs
from holdfast.errors import DatabaseBusy, LeaseLost
from holdfast.flow import Flow, Steps, flow
from holdfast.job import Job
from holdfast.store import Store, migrate
from holdfast.testing import Live, Look, new_job
from holdfast.values.rows import Enqueued, Lease
from tests.galera.cluster import Cluster
from tests.galera.conftest import Run
from tests.races.stepping import stepped

pytestmark = [pytest.mark.slow, pytest.mark.galera]

SAID = [{"idempotency_key": "k"}, {"unique": "u"}, {"idempotency_key": "k", "unique": "u"}]
saying = pytest.mark.parametrize("said", SAID, ids="+".join)


class Overtaken:
    """A flow that is overtaken, once, between its last statement and its COMMIT."""

    def __init__(self, work: Flow[Any], meanwhile: Callable[[], Any]) -> None:
        self.starts = 0
        self.met: Any = None
        self._work = work
        self._meanwhile = meanwhile
        self.flow = self._steps()

    @flow
    def _steps(self) -> Steps[Any]:
        self.starts += 1
        value = yield from self._work
        if self.starts == 1:
            self.met = self._meanwhile()
        return value


def name_in(url: str) -> str:
    return url.rpartition("/")[2]


def live(cluster: Cluster, stores: list[Store]) -> list[Live]:
    """The live rows, which are the same on every node."""
    cluster.caught_up()
    first, *others = (Look(store.run, store).live() for store in stores)
    assert all(rows == first for rows in others)
    return first


def enqueued(cluster: Cluster, store: Store, count: int, **fields: Any) -> None:
    store.run(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    cluster.caught_up()


def claimed(cluster: Cluster, store: Store, **fields: Any) -> Lease:
    enqueued(cluster, store, 1, **fields)
    [lease] = store.run(jobs.claim("mail", limit=1, worker="first"))
    cluster.caught_up()
    return lease


def ids(leases: list[Lease]) -> set[str]:
    return {lease.job_id for lease in leases}


def test_of_two_claims_of_the_same_jobs_the_later_loses_at_commit_with_1213(
    cluster: Cluster, stores: list[Store]
) -> None:
    enqueued(cluster, stores[0], 2)
    with (
        stepped(stores[0], jobs.claim("mail", limit=2, worker="first")) as first,
        stepped(stores[1], jobs.claim("mail", limit=2, worker="second")) as second,
    ):
        assert ids(first.rest()) == ids(second.rest()) != set()
        first.commit()
        with pytest.raises(DatabaseBusy) as lost:
            second.commit()
    assert lost.value.__cause__ is not None
    assert lost.value.__cause__.args[0] == 1213
    assert [(row.leased_by, row.fence, row.attempts) for row in live(cluster, stores)] == [("first", 1, 1)] * 2


@pytest.mark.parametrize("there", [2, 5])
def test_a_claim_that_lost_at_commit_runs_again_and_reports_only_what_it_then_took(
    cluster: Cluster, stores: list[Store], run: Run, there: int
) -> None:
    enqueued(cluster, stores[0], there)
    late = Overtaken(
        jobs.claim("mail", limit=2, worker="second"),
        lambda: stores[0].run(jobs.claim("mail", limit=2, worker="first")),
    )
    took = run(stores[1], late.flow)
    assert late.starts > 1
    assert len(late.met) == 2
    assert len(took) == min(2, there - 2)
    assert not ids(took) & ids(late.met)
    holders = {row.id: row.leased_by for row in live(cluster, stores) if row.leased_by}
    assert holders == dict.fromkeys(ids(late.met), "first") | dict.fromkeys(ids(took), "second")
    assert all(row.attempts == row.fence == (row.id in holders) for row in live(cluster, stores))


@saying
def test_the_same_request_on_two_nodes_at_once_adds_one_job(
    cluster: Cluster, stores: list[Store], run: Run, said: dict[str, str]
) -> None:
    late = Overtaken(jobs.enqueue(new_job(**said)), lambda: stores[0].run(jobs.enqueue(new_job(**said))))
    answer = run(stores[1], late.flow)
    assert late.starts > 1
    assert late.met.created
    assert answer == Enqueued(late.met.id, created=False)
    assert [row.id for row in live(cluster, stores)] == [late.met.id]


@saying
def test_in_a_callers_transaction_the_callers_commit_fails_and_its_repetition_finds_the_job(
    cluster: Cluster, stores: list[Store], said: dict[str, str]
) -> None:
    with closing(stores[1].open()) as link:
        raw = link.raw
        raw.query("set session transaction isolation level repeatable read")
        raw.begin()
        stores[1].run_in(raw, jobs.enqueue(new_job(**said)))
        first = stores[0].run(jobs.enqueue(new_job(**said)))
        with pytest.raises(pymysql.err.OperationalError) as lost:
            raw.commit()
        assert lost.value.args[0] == 1213
        cluster.caught_up()
        raw.begin()
        assert stores[1].run_in(raw, jobs.enqueue(new_job(**said))) == Enqueued(first.id, created=False)
        raw.commit()
    assert [row.id for row in live(cluster, stores)] == [first.id]


def test_a_lease_that_is_reaped_on_another_node_while_it_is_completed_is_lost(
    cluster: Cluster, stores: list[Store], run: Run
) -> None:
    lease = claimed(cluster, stores[0], lease_ms=1)
    late = Overtaken(jobs.complete(lease), lambda: stores[1].run(jobs.reap()))
    with pytest.raises(LeaseLost):
        run(stores[0], late.flow)
    assert [one.id for one in late.met] == [lease.job_id]
    assert [(row.state, row.attempts, row.lapses) for row in live(cluster, stores)] == [("pending", 0, 1)]


def test_a_reaper_whose_lease_is_completed_on_another_node_reaps_nothing(
    cluster: Cluster, stores: list[Store], run: Run
) -> None:
    lease = claimed(cluster, stores[0], lease_ms=1)
    late = Overtaken(jobs.reap(), lambda: stores[0].run(jobs.complete(lease)))
    assert run(stores[1], late.flow) == []
    assert late.starts > 1
    assert live(cluster, stores) == []
    assert [row.outcome for row in Look(stores[2].run, stores[2]).over()] == ["done"]


def test_an_effect_is_undone_when_its_lease_was_reaped_on_another_node(cluster: Cluster, stores: list[Store]) -> None:
    cluster.nodes[0].execute("create or replace table effect (id integer primary key)", name_in(stores[0].url))
    lease = claimed(cluster, stores[0], lease_ms=1)

    def attempt() -> None:
        with stores[0].transaction() as link:
            link.raw.execute("insert into effect values (1)")
            Job(lease, stores[0]).complete(tx=link.raw)
            assert stores[1].run(jobs.reap())

    with pytest.raises(DatabaseBusy):
        attempt()
    assert not any(Look(store.run, store).rows("select id from effect") for store in stores)
    assert [row.state for row in live(cluster, stores)] == ["pending"]


def test_rows_that_the_servers_number_get_numbers_of_their_own_on_each_node(
    cluster: Cluster, stores: list[Store], run: Run
) -> None:
    enqueued(cluster, stores[0], 2)
    one, other = (row.id for row in live(cluster, stores))
    late = Overtaken(admin.cancel(one, "a"), lambda: stores[1].run(admin.cancel(other, "b")))
    assert (run(stores[0], late.flow), late.met) == ("cancelled", "cancelled")
    cluster.caught_up()
    audited = Look(stores[2].run, stores[2]).rows("select job_id, actor from holdfast_audit")
    assert sorted(audited) == sorted([(one, "a"), (other, "b")])


def test_messages_published_to_php_tables_on_two_nodes_keep_their_ids(cluster: Cluster, urls: list[str]) -> None:
    with Holdfast(urls[0]) as here, Holdfast(urls[1]) as there:
        here.foreign.pdo().create_schema()
        cluster.caught_up()
        queues = [here.foreign.pdo(), there.foreign.pdo()]
        published = {queues[n % 2].publish("urn:babel:x", {"n": n}): n for n in range(6)}
        cluster.caught_up()
        rows = cluster.nodes[2].execute("select id, json_value(payload, '$.data.n') from jobs", name_in(urls[2]))
    assert {number: int(n) for number, n in rows} == published  # type: ignore[call-overload]


def test_migrations_on_all_nodes_at_once_make_the_tables_once(cluster: Cluster) -> None:
    stores = [Store(url) for url in cluster.fresh_database()]
    cluster.caught_up()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda store: store.run(migrate.apply(store.migrations)), stores))
    cluster.caught_up()
    for store in stores:
        store.check()
        store.close()
