"""Cancels and changes by filter against workers, stepped by hand on two connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.admin import Cancelled, Change, Changed, Filter
from holdfast.flow import Flow, run_series
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease
from holdfast.worker import draining, registry
from tests.races.stepping import PATIENCE, Stepped, blocked, on_postgres, on_thread, stepped

ALL = Filter()
ORDERED = QueueSettings(ordered=True)
MOVE = Change(to_queue="bulk", priority=5)


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def add(store: Store, *keys: str | None, **fields: Any) -> list[str]:
    return [store.run(jobs.enqueue(new_job(key=key, **fields))).id for key in keys]


def take(store: Store, limit: int = 9) -> list[Lease]:
    return store.run(lines.claim("mail", ORDERED, limit=limit)).leases


def settle(*leases: Lease, outcome: Any = "done") -> Any:
    return jobs.settle([Finish(lease.id, lease.fence, outcome) for lease in leases])


def cancel(ids: Sequence[str], wait: bool = False) -> Flow[Cancelled]:
    return admin.cancel_chunk(ALL, "ann", ids, wait)


def change(ids: Sequence[str], wait: bool = False, to: Change = MOVE) -> Flow[Changed]:
    return admin.change_chunk(ALL, to, "ann", ids, wait)


def at_once(store: Store, work: Flow[Any]) -> Any:
    """Run a flow that must wait for nobody."""
    return on_thread(lambda: store.run(work)).result(PATIENCE)


def audited(store: Store, job: str) -> list[str]:
    return [line.action for line in store.run(admin.audit(job))]


# Cancel against settle


def test_a_cancel_leaves_out_a_job_that_is_being_settled_and_finds_it_done_afterwards(pg: Store, look: Look) -> None:
    [job, other] = add(pg, None, None)
    lease = next(one for one in pg.run(jobs.claim("mail", limit=2)) if one.job_id == job)
    with stepped(pg, jobs.complete(lease)) as settling:
        settling.rest()
        assert at_once(pg, cancel([job, other])) == Cancelled([], [other])
        with stepped(pg, cancel([job], wait=True)) as cancelling:
            answer = blocked(cancelling, cancelling.commit)
            settling.commit()
            assert answer.result(PATIENCE) == Cancelled()
    assert [(row.id, row.outcome) for row in look.over()] == [(job, "done")]
    assert audited(pg, job) == []


def test_a_whole_cancel_goes_back_to_what_was_locked(pg: Store, look: Look) -> None:
    """The job that a settle had locked when its chunk came goes back to its queue, and is cancelled after all."""
    [job] = add(pg, None)
    [lease] = pg.run(jobs.claim("mail", limit=1))
    settling: Stepped[Any]
    with stepped(pg, jobs.release(lease)) as settling:
        settling.rest()

        def run(work: Flow[Any]) -> Any:
            if work.name != "cancel_chunk" or not settling.open:
                return pg.run(work)
            answer = at_once(pg, work)
            assert answer == Cancelled()
            settling.commit()
            return answer

        assert run_series(admin.cancel_all(ALL, None, "ann"), run) == Cancelled([job])
    assert (look.live(), audited(pg, job)) == ([], ["cancel"])


def test_a_settle_that_meets_a_cancel_of_its_job_ends_it(pg: Store, look: Look) -> None:
    """Who asks a running job to stop may come too late: its work is done, and nothing of it is undone."""
    [job] = add(pg, None)
    [lease] = pg.run(jobs.claim("mail", limit=1))
    with stepped(pg, cancel([job])) as cancelling, stepped(pg, settle(lease)) as settling:
        cancelling.step_through("cancel_leased")
        answer = blocked(settling, settling.commit)
        assert cancelling.commit() == Cancelled([], [job])
        assert answer.result(PATIENCE).done == {job}
    assert [(row.id, row.outcome) for row in look.over()] == [(job, "done")]


def test_the_line_of_a_cancelled_running_job_is_freed_by_its_settle_and_no_claim_comes_between(
    pg: Store, look: Look
) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    first, second = add(pg, "a", "a")
    [lease] = take(pg, 1)
    pg.run(cancel([first]))
    with stepped(pg, settle(lease, outcome="cancelled")) as settling:
        settling.step_through("lines_lock")
        with stepped(pg, lines.claim("mail", ORDERED, limit=9)) as claiming:
            answer = blocked(claiming, claiming.commit)
            settling.commit()
            got = [one.job_id for one in answer.result(PATIENCE).leases]
    assert (got or [one.job_id for one in take(pg)]) == [second]
    assert [(row.id, row.outcome) for row in look.over()] == [(first, "cancelled")]


# Cancel and change against claim


def test_a_claim_that_meets_a_cancel_by_filter_takes_the_others(pg: Store) -> None:
    [job, other] = add(pg, None, None)
    with stepped(pg, cancel([job])) as cancelling:
        cancelling.step_through("live_lock")
        assert [lease.job_id for lease in pg.run(jobs.claim("mail", limit=9))] == [other]
        assert cancelling.commit() == Cancelled([job])


def test_a_job_that_is_claimed_before_a_change_is_left_alone(pg: Store, look: Look) -> None:
    [job] = add(pg, None)
    with stepped(pg, jobs.claim("mail", limit=1)) as claiming:
        claiming.rest()
        assert at_once(pg, change([job])) == Changed()
        with stepped(pg, change([job], wait=True)) as changing:
            answer = blocked(changing, changing.commit)
            [lease] = claiming.commit()
            assert answer.result(PATIENCE) == Changed([], {job: "leased"})
    [row] = look.live()
    assert (row.queue, row.priority, row.fence) == ("mail", 0, lease.fence)
    assert audited(pg, job) == []


def test_a_claim_that_meets_a_change_finds_the_job_where_it_goes(pg: Store) -> None:
    [job] = add(pg, None)
    with stepped(pg, change([job])) as changing:
        changing.rest()
        assert pg.run(jobs.claim(["mail", "bulk"], limit=9)) == []
        assert changing.commit() == Changed([job])
    assert pg.run(jobs.claim("mail", limit=9)) == []
    assert [lease.job_id for lease in pg.run(jobs.claim("bulk", limit=9))] == [job]


@pytest.mark.parametrize("act", [cancel, change])
def test_a_claim_with_a_ticket_that_waits_for_its_line_makes_no_circle(pg: Store, look: Look, act: Any) -> None:
    """The action has the line, the claim has the ticket: the action leaves it out instead of waiting for it."""
    pg.run(lines.declare({"mail": ORDERED}))
    [first] = add(pg, "a")
    [lease] = take(pg)
    [waits] = add(pg, "a")
    assert take(pg) == []
    [ticket] = add(pg, "a")
    with stepped(pg, act([waits, ticket])) as acting, stepped(pg, lines.claim("mail", ORDERED, limit=9)) as claiming:
        acting.step_through("lines_lock")
        claiming.step_through("tickets")
        answer = blocked(claiming, claiming.commit)
        seen = acting.commit().seen
        # InnoDB locks the row behind the last ticket, too; a whole cancel comes back to it.
        assert seen <= {waits}
        assert seen or pg.dialect.name == "mysql"
        assert answer.result(PATIENCE).leases == []
    pg.run(settle(lease))
    assert [one.job_id for one in take(pg)] == [one for one in (waits, ticket) if one not in seen]
    assert first not in {row.id for row in look.live()}


def test_of_two_cancels_by_filter_each_job_goes_to_one(pg: Store) -> None:
    [one, other] = sorted(add(pg, None, None))
    with stepped(pg, cancel([one])) as first:
        first.step_through("live_lock")
        assert at_once(pg, cancel([one, other])) == Cancelled([other])
        assert first.commit() == Cancelled([one])
    assert (audited(pg, one), audited(pg, other)) == (["cancel"], ["cancel"])


@on_postgres
def test_a_drain_by_hand_does_not_revive_a_worker_that_ends(pg: Store) -> None:
    pg.run(registry.beat("w1", "{}"))
    with stepped(pg, registry.leave("w1")) as ending, stepped(pg, draining.drain("w1", None, "ann")) as draws:
        ending.rest()
        draws.step_through("workers_list")
        answer = blocked(draws, draws.commit)
        ending.commit()
        assert answer.result(PATIENCE).left == {"w1": "stopped"}
    assert [worker.status for worker in pg.run(registry.workers())] == ["stopped"]
    assert pg.run(admin.audit()) == []
