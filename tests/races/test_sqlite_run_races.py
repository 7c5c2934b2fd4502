"""Runs on SQLite, which has one writer: the second finds the database busy, tries again, and sees the outcome."""

from typing import Any

import pytest

from holdfast import jobs, remote, runs
from holdfast.errors import LeaseLost, RunFinished
from holdfast.foreign.durable import flows as workers
from holdfast.foreign.durable.engine import TablesTransport, tables_of
from holdfast.remote import Awaited
from holdfast.runs import CHILD, Entry, Letter, Recorded, Wanted
from holdfast.store import Store
from holdfast.testing import Clock, Look
from holdfast.testing.suite_remote import LOST_MS, decided, dispatched, pending, results, step_of, tasks, worked
from holdfast.testing.suite_runs import child_run, claimed_run, ended_run, held_run
from holdfast.values.ids import new_id
from holdfast.values.rows import Lease, Park
from holdfast.workflows import start, stop
from tests.races.stepping import again_and_again


@pytest.fixture
def look(lite: Store) -> Look:
    return Look(lite.run, lite)


@pytest.fixture
def transport(lite: Store) -> TablesTransport:
    made = tables_of(lite, "durable", "durable", LOST_MS)
    for name in ("create_tasks", "create_results", "create_index"):
        lite.run(workers.create_table(made.tables, name))
    return made


def parking(lease: Lease, waits_for: str) -> Any:
    return jobs.settle([Park(lease.id, lease.fence, waits_for)])


def overdue_run(store: Store) -> Lease:
    clock = Clock(store)
    lease = held_run(store.run)
    clock.pass_lease(lease)
    return lease


def charged(lease: Lease) -> Any:
    return runs.checkpoint([Entry(lease.job_id, lease.fence, Recorded(1, "charge", "step"))], "w")


@pytest.mark.parametrize("first", ["send", "park"])
def test_a_signal_and_the_park_of_its_run_miss_each_other_never(lite: Store, look: Look, first: str) -> None:
    lease = held_run(lite.run)
    both = [runs.send("order-1", Letter(new_id(), "approved", "1")), parking(lease, "signal:approved")]
    _, _, starts = again_and_again(lite, *(both if first == "send" else reversed(both)), "commit")
    assert starts >= 2
    assert [row.state for row in look.live()] == ["pending"]


@pytest.mark.parametrize("first", ["end", "park"])
def test_the_end_of_a_child_and_the_park_of_its_parent_miss_each_other_never(
    lite: Store, look: Look, first: str
) -> None:
    parent = held_run(lite.run)
    lite.run(start([child_run(parent, "ship")]))
    both = [ended_run(claimed_run(lite.run)), parking(parent, "children")]
    again_and_again(lite, *(both if first == "end" else reversed(both)), "commit")
    assert [row.state for row in look.live()] == ["pending"]
    parent = claimed_run(lite.run)
    [taken] = lite.run(runs.take(parent.job_id, parent.fence, [Wanted(CHILD, "ship", "child")], 1, "w"))
    assert taken.kind == "child"


def test_a_checkpoint_behind_a_reaper_writes_nothing(lite: Store) -> None:
    lease = overdue_run(lite)
    reaped, written, _ = again_and_again(lite, jobs.reap(), charged(lease), "commit")
    assert ([one.id for one in reaped], written) == ([lease.job_id], {})
    assert lite.run(runs.journal(lease.job_id)) == []


def test_a_reaper_behind_a_checkpoint_takes_the_run_back_and_the_row_stays(lite: Store) -> None:
    lease = overdue_run(lite)
    _, reaped, _ = again_and_again(lite, charged(lease), jobs.reap(), "commit")
    assert [one.id for one in reaped] == [lease.job_id]
    assert [row.key for row in lite.run(runs.journal(lease.job_id))] == ["charge"]


def test_a_cancel_behind_the_end_is_told_that_the_run_is_over(lite: Store) -> None:
    lease = held_run(lite.run)
    with pytest.raises(RunFinished):
        again_and_again(lite, ended_run(lease), stop("order-1"), "commit")
    assert lite.run(runs.show("order-1")).status == "done"


def test_an_end_behind_a_cancel_counts(lite: Store, look: Look) -> None:
    lease = held_run(lite.run)
    _, settled, _ = again_and_again(lite, stop("order-1"), ended_run(lease), "commit")
    assert settled.done == {lease.job_id}
    assert lite.run(runs.show("order-1")).status == "done"
    assert look.live() == []


@pytest.mark.parametrize("first", ["ring", "park"])
def test_a_result_and_the_park_of_its_run_miss_each_other_never(
    lite: Store, look: Look, transport: TablesTransport, first: str
) -> None:
    lease = held_run(lite.run)
    dispatched(lite.run, transport, lease)
    worked(lite.run, transport)
    both = [remote.ring(transport), parking(lease, "remote")]
    again_and_again(lite, *(both if first == "ring" else reversed(both)), "commit")
    assert [row.state for row in look.live()] == ["pending"]


def test_a_former_holder_behind_a_reaper_takes_no_result(lite: Store, look: Look, transport: TablesTransport) -> None:
    lease = overdue_run(lite)
    dispatched(lite.run, transport, lease)
    worked(lite.run, transport)
    lite.run(remote.ring(transport))
    taking = remote.collect(
        lease.job_id, lease.fence, [Awaited(step_of(lease), "remote:echo#1", False)], 50, "w", transport, decided
    )
    with pytest.raises(LeaseLost):
        again_and_again(lite, jobs.reap(), taking, "commit")
    assert (len(tasks(look)), len(results(look)), len(pending(look))) == (0, 1, 1)
