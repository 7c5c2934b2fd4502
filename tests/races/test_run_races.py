"""Runs, stepped by hand on two connections: sends against parks, reapers against checkpoints, ends against ends."""

from typing import Any

import pytest

from holdfast import jobs, runs
from holdfast.errors import Conflict, LeaseLost, RunFinished
from holdfast.runs import CHILD, Entry, Letter, Recorded, Wanted
from holdfast.store import Store
from holdfast.testing import Clock, Look
from holdfast.testing.suite_runs import child_run, claimed_run, ended_run, held_run, new_run, parked_run
from holdfast.values.ids import new_id
from holdfast.values.rows import Lease, Park
from holdfast.workflows import force, start, start_children, stop
from tests.races.stepping import PATIENCE, blocked, stepped

pytestmark = pytest.mark.parametrize("race_url", ["postgres", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def letter() -> Letter:
    return Letter(new_id(), "approved", "1")


def parking(lease: Lease, waits_for: str = "signal:approved") -> Any:
    return jobs.settle([Park(lease.id, lease.fence, waits_for)])


def test_a_signal_that_comes_while_its_run_parks_wakes_it(pg: Store, look: Look) -> None:
    lease = held_run(pg.run)
    with stepped(pg, parking(lease)) as park, stepped(pg, runs.send("order-1", letter())) as send:
        park.rest()
        answer = blocked(send, send.commit)
        park.commit()
        assert answer.result(PATIENCE)
    assert [row.state for row in look.live()] == ["pending"]


def test_a_run_that_parks_while_a_signal_comes_finds_it(pg: Store, look: Look) -> None:
    lease = held_run(pg.run)
    with stepped(pg, runs.send("order-1", letter())) as send, stepped(pg, parking(lease)) as park:
        send.rest()
        answer = blocked(park, park.commit)
        send.commit()
        answer.result(PATIENCE)
    assert [row.state for row in look.live()] == ["pending"]


def test_the_end_of_a_child_and_the_park_of_its_parent_miss_each_other_never(pg: Store, look: Look) -> None:
    for first in ("end", "park"):
        parent = held_run(pg.run, f"order-{first}")
        pg.run(start([child_run(parent, first)]))
        child = claimed_run(pg.run)
        with stepped(pg, ended_run(child)) as end, stepped(pg, parking(parent, "children")) as park:
            one, other = (end, park) if first == "end" else (park, end)
            one.rest()
            answer = blocked(other, other.commit)
            one.commit()
            answer.result(PATIENCE)
        assert [row.state for row in look.live()] == ["pending"]
        parent = claimed_run(pg.run)
        [taken] = pg.run(runs.take(parent.job_id, parent.fence, [Wanted(CHILD, first, "child")], 1, "w"))
        assert taken.kind == "child"
        pg.run(ended_run(parent))


def overdue_run(store: Store) -> Lease:
    """Hold a run until just past the end of its lease."""
    clock = Clock(store)
    lease = held_run(store.run)
    clock.pass_lease(lease)
    return lease


def charged(lease: Lease, seq: int = 1) -> list[Entry]:
    return [Entry(lease.job_id, lease.fence, Recorded(seq, "charge", "step"))]


def test_a_checkpoint_waits_for_a_reaper_and_then_writes_nothing(pg: Store) -> None:
    """A plain look at the fence would find the old one, which is what counts until the reaper commits."""
    lease = overdue_run(pg)
    with stepped(pg, jobs.reap()) as reap, stepped(pg, runs.checkpoint(charged(lease), "w")) as write:
        assert [one.id for one in reap.rest()] == [lease.job_id]
        answer = blocked(write, write.commit)
        reap.commit()
        assert answer.result(PATIENCE) == {}
    assert pg.run(runs.journal(lease.job_id)) == []


def test_a_reaper_passes_by_a_run_that_writes_a_checkpoint_and_the_row_stays(pg: Store) -> None:
    """The next reaper takes the run back, and what comes of its former holder after that is refused."""
    lease = overdue_run(pg)
    with stepped(pg, runs.checkpoint(charged(lease), "w")) as write:
        write.rest()
        assert pg.run(jobs.reap()) == []
        write.commit()
    assert [one.id for one in pg.run(jobs.reap())] == [lease.job_id]
    assert pg.run(runs.checkpoint(charged(lease, 2), "w")) == {}
    assert [row.seq for row in pg.run(runs.journal(lease.job_id))] == [1]


def test_a_checkpoint_waits_for_a_release_and_then_writes_nothing(pg: Store) -> None:
    lease = held_run(pg.run)
    with stepped(pg, jobs.release(lease)) as release, stepped(pg, runs.checkpoint(charged(lease), "w")) as write:
        release.rest()
        answer = blocked(write, write.commit)
        release.commit()
        assert answer.result(PATIENCE) == {}
    assert pg.run(runs.journal(lease.job_id)) == []


def test_a_release_waits_for_a_checkpoint_and_the_row_stays(pg: Store) -> None:
    lease = held_run(pg.run)
    with stepped(pg, runs.checkpoint(charged(lease), "w")) as write, stepped(pg, jobs.release(lease)) as release:
        write.rest()
        answer = blocked(release, release.commit)
        write.commit()
        answer.result(PATIENCE)
    assert [row.key for row in pg.run(runs.journal(lease.job_id))] == ["charge"]


def tried(lease: Lease, ref: str) -> Entry:
    return Entry(lease.job_id, lease.fence, Recorded(1, "book", "tx", value=f'"{ref}"', ref=ref))


def given_up(lease: Lease) -> Entry:
    return Entry(lease.job_id, lease.fence, Recorded(1, "book", "attempt", ok=0))


def test_a_transaction_that_is_given_up_while_it_commits_is_waited_for_and_found(pg: Store) -> None:
    lease = held_run(pg.run)
    with (
        stepped(pg, runs.add_one(tried(lease, "try-1"), "w")) as effect,
        stepped(pg, runs.decide(given_up(lease), "w")) as decide,
    ):
        effect.rest()
        answer = blocked(decide, decide.commit)
        effect.commit()
        assert answer.result(PATIENCE).ref == "try-1"
    assert [row.kind for row in pg.run(runs.journal(lease.job_id))] == ["tx"]


def test_a_transaction_that_comes_while_it_is_given_up_is_undone(pg: Store) -> None:
    lease = held_run(pg.run)
    with (
        stepped(pg, runs.decide(given_up(lease), "w")) as decide,
        stepped(pg, runs.add_one(tried(lease, "try-1"), "w")) as effect,
    ):
        decide.rest()
        answer = blocked(effect, effect.commit)
        decide.commit()
        with pytest.raises(runs.EffectThere):
            answer.result(PATIENCE)
    assert [row.kind for row in pg.run(runs.journal(lease.job_id))] == ["attempt"]


def test_of_two_tries_of_a_transaction_one_commits(pg: Store) -> None:
    lease = held_run(pg.run)
    with (
        stepped(pg, runs.add_one(tried(lease, "try-1"), "w")) as first,
        stepped(pg, runs.add_one(tried(lease, "try-2"), "w")) as second,
    ):
        first.rest()
        answer = blocked(second, second.commit)
        first.commit()
        with pytest.raises(runs.EffectThere) as there:
            answer.result(PATIENCE)
    assert there.value.row.ref == "try-1"


def test_a_cancel_that_races_the_end_is_told_that_the_run_is_over(pg: Store) -> None:
    lease = held_run(pg.run)
    stop = Letter(new_id(), runs.CANCEL)
    with stepped(pg, ended_run(lease)) as end, stepped(pg, runs.send("order-1", stop)) as cancel:
        end.rest()
        answer = blocked(cancel, cancel.commit)
        end.commit()
        with pytest.raises(RunFinished):
            answer.result(PATIENCE)
    assert pg.run(runs.show("order-1")).status == "done"


def test_an_end_that_races_a_cancel_counts_and_takes_the_request_with_it(pg: Store, look: Look) -> None:
    """The body was over before the request could reach it: what it came to stays."""
    lease = held_run(pg.run)
    with stepped(pg, stop("order-1")) as cancel, stepped(pg, ended_run(lease)) as end:
        cancel.rest()
        answer = blocked(end, end.commit)
        cancel.commit()
        assert answer.result(PATIENCE).done == {lease.job_id}
    assert pg.run(runs.show("order-1")).status == "done"
    assert look.live() == []


def test_a_forced_end_and_the_end_by_the_holder_are_one_end(pg: Store, look: Look) -> None:
    lease = held_run(pg.run)
    with stepped(pg, force("order-1")) as forced, stepped(pg, ended_run(lease)) as end:
        forced.rest()
        answer = blocked(end, end.commit)
        forced.commit()
        assert answer.result(PATIENCE).lost == {lease.job_id}
    assert [row.outcome for row in look.over()] == ["cancelled"]


def test_two_holders_take_one_signal_once(pg: Store) -> None:
    stale = held_run(pg.run)
    pg.run(runs.send("order-1", letter()))
    wanted = [Wanted("approved", "signal:approved", "signal")]
    with stepped(pg, jobs.release(stale)) as reap:
        reap.rest()
        with stepped(pg, runs.take(stale.job_id, stale.fence, wanted, 1, "old")) as late:
            answer = blocked(late, late.commit)
            reap.commit()
            with pytest.raises(LeaseLost):
                answer.result(PATIENCE)
    lease = claimed_run(pg.run)
    assert len(pg.run(runs.take(lease.job_id, lease.fence, wanted, 1, "new"))) == 1


def test_a_caller_that_signals_a_run_at_work_keeps_no_worker_waiting(pg: Store, look: Look) -> None:
    """Its lease is renewed, its journal grows and it parks while the caller's transaction is open."""
    lease = held_run(pg.run)
    with stepped(pg, runs.send("order-1", letter(), in_tx=True)) as send:
        send.rest()
        assert pg.run(jobs.renew([(lease, 30_000)])).kept == {lease.job_id}
        pg.run(runs.checkpoint([Entry(lease.job_id, lease.fence, Recorded(1, "a", "step"))], "w"))
        parked_run(pg.run, lease, "signal:approved")
        send.commit()
    assert [row.state for row in look.live()] == ["waiting"]
    assert pg.run(runs.tell()) == 1
    assert [row.state for row in look.live()] == ["pending"]


def test_two_starts_of_one_id_at_the_same_moment_start_one_run(pg: Store, look: Look) -> None:
    with stepped(pg, start([new_run()])) as first, stepped(pg, start([new_run()])) as second:
        [one] = first.rest()
        answer = blocked(second, second.commit)
        first.commit()
        [other] = answer.result(PATIENCE)
    assert (one.created, other.created, other.job_id) == (True, False, one.job_id)
    assert len(look.live()) == 1


def test_of_two_parents_with_one_id_one_gets_the_child_that_was_started_by_itself(pg: Store, look: Look) -> None:
    """Both find the child without a parent; only one of them would ever hear of its end."""
    parents = [held_run(pg.run, workflow=workflow) for workflow in ("fulfil", "refund")]
    pg.run(start([new_run("order-1/ship", "ship")]))
    first, second = (start_children(one.job_id, one.fence, [child_run(one)]) for one in parents)
    with stepped(pg, first) as one, stepped(pg, second) as other:
        one.rest()
        answer = blocked(other, other.commit)
        one.commit()
        with pytest.raises(Conflict, match="a child of the run before this one"):
            answer.result(PATIENCE)
    assert pg.run(runs.show("order-1/ship")).parent == parents[0].job_id
