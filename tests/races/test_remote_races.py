"""Remote steps, stepped by hand on two connections: results against parks, takes, time-outs, sweeps, late deletes."""

from typing import Any

import pytest

from holdfast import jobs, remote, runs
from holdfast.errors import LeaseLost
from holdfast.flow import Flow, Statement, Steps, flow
from holdfast.foreign.durable import flows as workers
from holdfast.foreign.durable.engine import TablesTransport, tables_of
from holdfast.foreign.durable.flows import Takes
from holdfast.remote import Arrived, Awaited
from holdfast.store import Store
from holdfast.testing import Look
from holdfast.testing.suite_remote import (
    LOST_MS,
    decided,
    dispatched,
    pending,
    results,
    sending,
    step_of,
    tasks,
    worked,
)
from holdfast.testing.suite_runs import claimed_run, held_run
from holdfast.values.rows import Finish, Lease, Park
from tests.races.stepping import PATIENCE, blocked, stepped

pytestmark = pytest.mark.parametrize("race_url", ["postgres", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


@pytest.fixture
def transport(pg: Store, look: Look) -> TablesTransport:
    made = tables_of(pg, "durable", "durable", LOST_MS)
    for name in ("create_tasks", "create_results", "create_index"):
        pg.run(workers.create_table(made.tables, name))
    look.change("delete from durable_transport_tasks")
    look.change("delete from durable_transport_results")
    return made


def taking(transport: TablesTransport, lease: Lease, late: bool = False, first: int = 50) -> Flow[remote.Collected]:
    awaited = [Awaited(step_of(lease), "remote:echo#1", late)]
    return remote.collect(lease.job_id, lease.fence, awaited, first, "w", transport, decided)


def parking(lease: Lease) -> Any:
    return jobs.settle([Park(lease.id, lease.fence, "remote")])


def claimed(pg: Store, transport: TablesTransport) -> Lease:
    [lease] = pg.run(workers.claim(transport.tables, {"echo": Takes("value")}, 1, "remote"))
    return lease


def settling(transport: TablesTransport, lease: Lease) -> Flow[Any]:
    return workers.settle(transport.tables, [Finish(lease.id, lease.fence, "done", '"out"')], "remote")


@flow
def plain(sql: str) -> Steps[None]:
    """A statement of another program."""
    yield Statement("plain", {}, text=sql)


def inserting(store: Store, step: str, output: str) -> Flow[None]:
    """A result as workers of other makers write it."""
    head, tail = ("insert ignore", "") if store.dialect.name == "mysql" else ("insert", " on conflict do nothing")
    values = f"('{step}', '{step.rpartition(':')[0]}', 1, 'completed', '{output}', 1)"
    columns = "(step_id, run_id, seq, status, output, created_at)"
    return plain(f"{head} into durable_transport_results {columns} values {values}{tail}")


@pytest.mark.parametrize("first", ["ring", "park"])
def test_a_result_and_the_park_of_its_run_miss_each_other_never(
    pg: Store, look: Look, transport: TablesTransport, first: str
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    worked(pg.run, transport)
    with stepped(pg, remote.ring(transport)) as ring, stepped(pg, parking(lease)) as park:
        one, other = (ring, park) if first == "ring" else (park, ring)
        one.rest()
        answer = blocked(other, other.commit)
        one.commit()
        answer.result(PATIENCE)
    assert [row.state for row in look.live()] == ["pending"]


def test_a_result_that_is_being_written_when_the_time_is_over_is_waited_for_and_counts(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    held = claimed(pg, transport)
    with stepped(pg, settling(transport, held)) as settle, stepped(pg, taking(transport, lease, late=True)) as take:
        settle.rest()
        answer = blocked(take, take.commit)
        settle.commit()
        assert [row.value for row in answer.result(PATIENCE).rows] == ['"out"']
    assert (tasks(look), results(look), pending(look)) == ([], [], [])


def test_a_worker_whose_step_is_given_up_at_this_moment_writes_nothing(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    held = claimed(pg, transport)
    with stepped(pg, taking(transport, lease, late=True)) as take, stepped(pg, settling(transport, held)) as settle:
        assert [row.value for row in take.rest().rows] == ['"late"']
        answer = blocked(settle, settle.commit)
        take.commit()
        answer.result(PATIENCE)
    assert (tasks(look), results(look), pending(look)) == ([], [], [])


def test_a_former_holder_that_takes_a_result_while_it_is_reaped_takes_nothing(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    worked(pg.run, transport)
    pg.run(remote.ring(transport))
    with stepped(pg, jobs.release(lease)) as reap, stepped(pg, taking(transport, lease)) as take:
        reap.rest()
        answer = blocked(take, take.commit)
        reap.commit()
        with pytest.raises(LeaseLost):
            answer.result(PATIENCE)
    again = claimed_run(pg.run)
    assert [row.value for row in pg.run(taking(transport, again)).rows] == ['"out"']
    assert len(pg.run(runs.journal(again.job_id))) == 2


def test_a_look_for_results_that_another_has_taken_meanwhile_tells_nobody(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    worked(pg.run, transport)
    pg.run(remote.ring(transport))
    look.change("update durable_transport_results set claimed_at = null")
    with stepped(pg, remote.ring(transport)) as ring:
        ring.step_through("results_free")
        pg.run(taking(transport, lease))
        assert ring.commit() == Arrived(0, 1)
    assert pg.run(runs.news({lease.job_id: [runs.REMOTE]})) == {}


def test_two_who_look_tell_a_run_once(pg: Store, look: Look, transport: TablesTransport) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    worked(pg.run, transport)
    with stepped(pg, remote.ring(transport)) as one, stepped(pg, remote.ring(transport)) as other:
        one.rest()
        answer = blocked(other, other.commit)
        one.commit()
        answer.result(PATIENCE)
    assert len(look.rows("select id from holdfast_signals")) == 1


def test_a_sweep_sends_nothing_that_was_taken_since_it_looked(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    worked(pg.run, transport)
    pg.run(remote.ring(transport))
    look.change("update holdfast_dispatches set look_at = sent_at")
    with (
        stepped(pg, remote.sweep("durable", transport, LOST_MS)) as sweep,
        stepped(pg, taking(transport, lease)) as take,
    ):
        sweep.step_through("dispatches_due")
        take.rest()
        answer = blocked(sweep, sweep.commit)
        take.commit()
        assert answer.result(PATIENCE).lost == []
    assert tasks(look) == []


def test_two_sweeps_send_a_lost_step_once(pg: Store, look: Look, transport: TablesTransport) -> None:
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    look.change("delete from durable_transport_tasks")
    look.change("update holdfast_dispatches set look_at = sent_at")
    sweeping = [remote.sweep("durable", transport, LOST_MS) for _ in range(2)]
    with stepped(pg, sweeping[0]) as one, stepped(pg, sweeping[1]) as other:
        one.step_through("dispatches_due")
        other.step_through("dispatches_due")
        one.rest()
        answer = blocked(other, other.commit)
        one.commit()
        assert answer.result(PATIENCE).lost == []
    assert (tasks(look), pending(look)) == ([(step_of(lease), 1, False)], [(1, 1, 1)])


def test_a_task_deleted_late_takes_the_next_attempt_with_it_and_the_sweep_brings_it_back(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    """The first hang: a worker of another maker writes its result, stalls, and deletes whatever is there by then."""
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    pg.run(inserting(pg, step_of(lease), '"first"'))
    pg.run(remote.ring(transport))
    pg.run(taking(transport, lease))
    dispatched(pg.run, transport, lease, sending(lease, 1, 2, place=60))
    pg.run(plain(f"delete from durable_transport_tasks where step_id = '{step_of(lease)}'"))  # noqa: S608 - an id of ours
    assert (tasks(look), results(look)) == ([], [])
    look.change("update holdfast_dispatches set look_at = sent_at")
    assert [one.attempt for one in pg.run(remote.sweep("durable", transport, LOST_MS)).lost] == [2]
    assert tasks(look) == [(step_of(lease), 2, False)]


def test_a_result_that_comes_while_the_one_before_is_taken_is_kept(
    pg: Store, look: Look, transport: TablesTransport
) -> None:
    """The second hang: an engine that deletes late takes the next result with it. Ours deletes where it takes."""
    lease = held_run(pg.run)
    dispatched(pg.run, transport, lease)
    pg.run(inserting(pg, step_of(lease), '"first"'))
    pg.run(remote.ring(transport))
    with stepped(pg, taking(transport, lease)) as take, stepped(pg, inserting(pg, step_of(lease), '"second"')) as late:
        assert [row.value for row in take.rest().rows] == ['"first"']
        answer = blocked(late, late.commit)
        take.commit()
        answer.result(PATIENCE)
    assert results(look) == [step_of(lease)]
    dispatched(pg.run, transport, lease, sending(lease, 1, 2, place=60))
    pg.run(remote.ring(transport))
    assert [row.value for row in pg.run(taking(transport, lease, first=61)).rows] == ['"second"']
    assert (tasks(look), results(look), pending(look)) == ([], [], [])
