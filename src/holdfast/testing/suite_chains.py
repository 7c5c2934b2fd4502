"""Chains, jobs that run after others, batches: one continuation for each completion, and a callback after the last."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, chains, jobs, lines
from holdfast.chains import Parents
from holdfast.errors import LeaseLost
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.ids import next_id
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import AFTER_HEADER, Continued, End, Finish, Lease, NewJob

ORDERED = QueueSettings(ordered=True)
MARK = f'{{"{AFTER_HEADER}":"1"}}'


def child_of(*parents: str, **fields: Any) -> NewJob:
    """A job that runs after others."""
    return new_job(after=parents, headers=MARK, kind="child", **fields)


def claim_met(do: Do, limit: int = 100, queue: str = "mail") -> list[Lease]:
    """Claim as a worker does: what has parents is looked at."""
    return do(jobs.meet(do(jobs.claim(queue, limit=limit))))


def taken_of(do: Do, *ids: str) -> list[Lease]:
    """Claim everything, and return the leases of these."""
    by_id = {lease.job_id: lease for lease in claim_met(do)}
    return [by_id[one] for one in ids]


def end_as(do: Do, lease: Lease, outcome: Any = "done", result: str | None = None, keep: bool = True) -> None:
    do(jobs.settle([Finish(lease.id, lease.fence, outcome, result, keep=keep)]))


def go_on(do: Do, lease: Lease, keep: bool = True, **fields: Any) -> str:
    """End a job with another that continues it; return that one's id."""
    following = new_job(id=next_id(lease.job_id), **fields)
    settled = do(jobs.settle([Continued(lease.id, lease.fence, following, keep)]))
    assert settled.done == {lease.job_id}
    return following.id


def live_states(look: Look) -> dict[str, str]:
    return {row.id: row.state for row in look.live()}


def parents_of(do: Do, job: str) -> Parents:
    found = do(chains.parents_of(job))
    assert found is not None
    return found


def put(do: Do, *new: NewJob) -> list[str]:
    return [do(jobs.enqueue(one)).id for one in new]


# Chains


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_completion_and_the_job_that_continues_it_are_one_commit(do: Do, look: Look, keep: bool) -> None:
    [first] = put(do, new_job())
    [lease] = claim_met(do)
    following = go_on(do, lease, keep)
    assert live_states(look) == {following: "pending"}
    assert [row.id for row in look.over()] == ([first] if keep else [])


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_child_finds_the_last_job_of_a_chain_that_went_on_before_it(do: Do, keep: bool) -> None:
    """Also where the jobs in between have left nothing, and where more of them ended than one look walks along."""
    [first] = put(do, new_job())
    for _ in range(130 if keep else 30):
        [lease] = claim_met(do)
        go_on(do, lease, keep)
    [last] = claim_met(do)
    [child] = put(do, child_of(first))
    assert claim_met(do) == []
    end_as(do, last, result='"end"')
    [lease] = claim_met(do)
    assert lease.job_id == child
    assert [(one.id, one.last, one.result) for one in parents_of(do, child).each] == [(first, last.job_id, "end")]


def test_a_child_of_a_long_chain_that_is_over_runs_at_once(do: Do) -> None:
    [first] = put(do, new_job())
    for _ in range(130):
        [lease] = claim_met(do)
        go_on(do, lease)
    [last] = claim_met(do)
    end_as(do, last, result='"end"')
    [child] = put(do, child_of(first))
    assert [lease.job_id for lease in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {first: "end"}


def test_a_lost_lease_continues_nothing(do: Do, look: Look, clock: Clock) -> None:
    put(do, new_job())
    [stale] = claim_met(do)
    clock.pass_lease(stale)
    do(jobs.reap())
    following = new_job(id=next_id(stale.job_id))
    settled = do(jobs.settle([Continued(stale.id, stale.fence, following)]))
    assert (settled.done, settled.lost) == (set(), {stale.job_id})
    with pytest.raises(LeaseLost):
        do(jobs.complete(stale, then=following))
    assert [*live_states(look)] == [stale.job_id]


def test_a_repeated_settle_adds_one_continuation(do: Do, look: Look) -> None:
    """The reply to the COMMIT was lost: the same ends are settled again, also after the continuation is over."""
    put(do, new_job())
    [lease] = claim_met(do)
    continued = Continued(lease.id, lease.fence, new_job(id=next_id(lease.job_id)))
    assert do(jobs.settle([continued])).done == {lease.job_id}
    assert do(jobs.settle([continued])).done == {lease.job_id}
    [following] = claim_met(do)
    end_as(do, following)
    assert do(jobs.settle([continued])).done == {lease.job_id}
    assert look.live() == []


def test_continued_jobs_settle_beside_others(do: Do, look: Look) -> None:
    one, other, third = put(do, new_job(), new_job(), new_job())
    a, b, c = taken_of(do, one, other, third)
    ends: list[End] = [
        Continued(a.id, a.fence, new_job(id=next_id(one))),
        Finish(b.id, b.fence, "done"),
        Continued(c.id, c.fence + 1, new_job(id=next_id(third))),
    ]
    settled = do(jobs.settle(ends))
    assert (settled.done, settled.lost) == ({one, other}, {third})
    assert live_states(look) == {next_id(one): "pending", third: "leased"}


def test_a_completion_in_the_callers_transaction_can_be_continued(do: Do, look: Look) -> None:
    put(do, new_job())
    [lease] = claim_met(do)
    do(jobs.complete(lease, then=new_job(id=next_id(lease.job_id))))
    assert [*live_states(look)] == [next_id(lease.job_id)]


def test_an_ordered_line_goes_on_when_its_job_is_continued(do: Do, look: Look) -> None:
    do(lines.declare({"mail": ORDERED}))
    one, other = put(do, new_job(key="a"), new_job(key="a"))
    [lease, behind] = do(lines.claim("mail", ORDERED, limit=9)).leases
    assert (lease.job_id, behind.job_id) == (one, other)
    go_on(do, lease, key="a")
    end_as(do, behind)
    assert [one.job_id for one in do(lines.claim("mail", ORDERED, limit=9)).leases] == [next_id(one)]


# Jobs that run after others


def test_a_child_runs_once_all_its_parents_have_ended(do: Do, look: Look) -> None:
    one, other = put(do, new_job(), new_job())
    [child] = put(do, child_of(one, other))
    first, second = taken_of(do, one, other)
    assert live_states(look)[child] == "waiting"
    end_as(do, first, result='"a"')
    assert claim_met(do) == []
    end_as(do, second, result='"b"')
    [lease] = claim_met(do)
    assert (lease.job_id, lease.attempt) == (child, 1)
    assert parents_of(do, child).results() == {one: "a", other: "b"}


def test_a_child_whose_parents_have_ended_runs_at_once(do: Do) -> None:
    [one] = put(do, new_job())
    [lease] = claim_met(do)
    end_as(do, lease, result="7")
    [child] = put(do, child_of(one))
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: 7}


def test_a_parent_that_runs_during_the_enqueue_is_counted(do: Do, look: Look) -> None:
    [one] = put(do, new_job())
    [lease] = claim_met(do)
    [child] = put(do, child_of(one))
    assert claim_met(do) == []
    assert live_states(look)[child] == "waiting"
    end_as(do, lease, result="1")
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: 1}


def test_a_parent_that_ends_between_the_enqueue_and_the_first_look_is_counted(do: Do) -> None:
    [one] = put(do, new_job())
    [lease] = claim_met(do)
    [child] = put(do, child_of(one))
    end_as(do, lease, result="1")
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: 1}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_results_reach_the_child_also_where_done_jobs_are_not_kept(do: Do, keep: bool) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    end_as(do, lease, result='{"n":1}', keep=keep)
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: {"n": 1}}


def test_a_parent_of_which_nothing_is_known_counts_as_ended(do: Do) -> None:
    [child] = put(do, child_of(new_job().id))
    [lease] = claim_met(do)
    assert lease.job_id == child
    [parent] = parents_of(do, child).each
    assert parent.outcome == "gone"


def test_a_child_waits_for_the_end_of_a_chain(do: Do) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    following = go_on(do, lease)
    [lease] = claim_met(do)
    assert lease.job_id == following
    last = go_on(do, lease, keep=False)
    [lease] = claim_met(do)
    end_as(do, lease, result='"last"')
    assert [one.job_id for one in claim_met(do)] == [child]
    [parent] = parents_of(do, child).each
    assert (parent.id, parent.last, parent.result) == (one, last, "last")


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_child_of_a_job_that_was_continued_before_waits_for_the_rest_of_the_chain(do: Do, keep: bool) -> None:
    [one] = put(do, new_job())
    [lease] = claim_met(do)
    go_on(do, lease, keep)
    [lease] = claim_met(do)
    [child] = put(do, child_of(one))
    assert claim_met(do) == []
    end_as(do, lease, result="2")
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: 2}


def test_a_child_of_a_job_and_of_its_continuation_waits_once(do: Do) -> None:
    [one] = put(do, new_job())
    [lease] = claim_met(do)
    following = go_on(do, lease)
    [child] = put(do, child_of(one, following))
    [lease] = taken_of(do, following)
    end_as(do, lease, result="2")
    assert [one.job_id for one in claim_met(do)] == [child]
    assert parents_of(do, child).results()[following] == 2


@pytest.mark.parametrize("outcome", ["dead", "cancelled"])
def test_a_dead_or_cancelled_parent_does_not_hang_its_child(do: Do, outcome: str) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    end_as(do, lease, outcome)
    [lease] = claim_met(do)
    assert (lease.job_id, bool(lease.cancel_requested)) == (child, False)
    assert parents_of(do, child).each[0].outcome == outcome


@pytest.mark.parametrize("outcome", ["dead", "cancelled"])
def test_a_child_is_cancelled_for_a_dead_parent_where_it_was_said(do: Do, outcome: str) -> None:
    one, other = put(do, new_job(), new_job())
    [child] = put(do, child_of(one, other, after_dead="cancel"))
    lease, _ = taken_of(do, one, other)
    end_as(do, lease, outcome)
    [stopped] = claim_met(do)
    assert stopped.job_id == child
    assert one in stopped.cancel_requested


def test_a_parent_that_is_cancelled_by_hand_is_counted(do: Do) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    do(admin.cancel(one, None))
    assert [lease.job_id for lease in claim_met(do)] == [child]


def test_a_child_that_was_asked_to_stop_waits_for_nobody(do: Do) -> None:
    """The request came between its claim and the look at its parents: to wait would have it claimed again and again."""
    [parent] = put(do, new_job())
    claim_met(do)
    [child] = put(do, child_of(parent))
    claimed = do(jobs.claim("mail", limit=1))
    assert do(admin.cancel(child, "ada")) == "requested"
    assert do(jobs.meet(claimed)) == []
    [lease] = claim_met(do)
    assert (lease.job_id, bool(lease.cancel_requested)) == (child, True)


def test_a_parent_that_is_reaped_to_the_dead_letters_is_counted(do: Do, clock: Clock) -> None:
    [one] = put(do, new_job(max_attempts=1))
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    do(jobs.begin(lease))
    clock.pass_lease(lease)
    do(jobs.reap())
    assert [lease.job_id for lease in claim_met(do)] == [child]
    assert parents_of(do, child).dead == 1


def test_a_parent_that_fails_and_is_tried_again_is_waited_for(do: Do, look: Look, clock: Clock) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    do(jobs.retry(lease, 0, failure()))
    assert [lease.job_id for lease in claim_met(do)] == [one]
    assert live_states(look)[child] == "waiting"


def test_a_replayed_parent_is_waited_for_while_others_hold_its_child_up(do: Do, look: Look) -> None:
    one, other = put(do, new_job(), new_job())
    [child] = put(do, child_of(one, other))
    first, second = taken_of(do, one, other)
    end_as(do, first, "dead")
    assert do(admin.replay(admin.Filter(ids=(one,)), 10, None)).ids == [one]
    end_as(do, second)
    [again] = claim_met(do)
    assert again.job_id == one
    end_as(do, again, result='"now"')
    assert [lease.job_id for lease in claim_met(do)] == [child]
    found = parents_of(do, child)
    assert (found.dead, found.done, found.results()[one]) == (0, 2, "now")


@pytest.mark.parametrize("key", [None, "a"])
def test_a_replayed_parent_that_ended_before_its_child_was_looked_at_is_waited_for(do: Do, key: str | None) -> None:
    one, other = put(do, new_job(key=key), new_job())
    assert do(admin.cancel(one, None)) == "cancelled"
    [child] = put(do, child_of(one, other))
    [second] = claim_met(do)
    assert second.job_id == other
    assert do(admin.replay(admin.Filter(ids=(one,), states=("cancelled",)), 10, None)).ids == [one]
    end_as(do, second)
    [again] = claim_met(do)
    assert again.job_id == one
    end_as(do, again, result='"now"')
    assert [lease.job_id for lease in claim_met(do)] == [child]
    found = parents_of(do, child)
    assert (found.cancelled, found.done, found.results()[one]) == (0, 2, "now")


def test_a_replayed_parent_whose_child_was_let_go_changes_nothing_for_it(do: Do, look: Look) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    end_as(do, lease, "dead")
    [running] = claim_met(do)
    assert running.job_id == child
    do(admin.replay(admin.Filter(ids=(one,)), 10, None))
    [again] = claim_met(do)
    end_as(do, again)
    assert live_states(look) == {child: "leased"}
    end_as(do, running)
    assert look.live() == []


def test_a_child_that_is_over_leaves_nothing_behind(do: Do, look: Look) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    end_as(do, lease)
    [lease] = claim_met(do)
    end_as(do, lease)
    assert do(chains.parents_of(child)) is None
    assert [*look.rows("select child from holdfast_waits"), *look.rows("select child from holdfast_joins")] == []


def test_a_dead_child_keeps_what_its_replay_asks_for(do: Do) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    [lease] = taken_of(do, one)
    end_as(do, lease, result='"kept"')
    [lease] = claim_met(do)
    end_as(do, lease, "dead")
    do(admin.replay(admin.Filter(ids=(child,)), 10, None))
    assert [lease.job_id for lease in claim_met(do)] == [child]
    assert parents_of(do, child).results() == {one: "kept"}


def test_what_a_cancelled_child_waited_for_is_forgotten_when_nobody_can_ask(do: Do, look: Look, clock: Clock) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    do(admin.cancel(child, None))
    do(admin.discard(admin.Filter(ids=(child,), states=("cancelled",)), 10, None))
    assert list(look.rows("select child from holdfast_joins"))
    clock.advance(7200)
    assert do(chains.forget_orphans()) is None
    assert not list(look.rows("select child from holdfast_joins"))
    [lease] = claim_met(do)
    end_as(do, lease)
    assert look.live() == []


def test_a_repeated_enqueue_of_a_child_counts_its_parents_once(do: Do) -> None:
    [one] = put(do, new_job())
    child = child_of(one)
    put(do, child, child)
    assert parents_of(do, child.id).open == 1
    [lease] = taken_of(do, one)
    end_as(do, lease)
    [lease] = claim_met(do)
    end_as(do, lease)
    put(do, child)
    assert claim_met(do) == []
    assert do(chains.parents_of(child.id)) is None


def test_many_children_wait_for_one_parent(do: Do) -> None:
    [one] = put(do, new_job())
    children = [child_of(one) for _ in range(50)]
    do(jobs.enqueue_many(children))
    [lease] = taken_of(do, one)
    end_as(do, lease)
    assert {lease.job_id for lease in claim_met(do)} == {child.id for child in children}


def test_a_child_joins_its_line_when_its_parents_have_ended(do: Do, look: Look) -> None:
    """As a job for later does: what is behind it goes on."""
    do(lines.declare({"mail": ORDERED}))
    [one] = put(do, new_job(queue="other"))
    [child, behind] = put(do, child_of(one, key="a"), new_job(key="a"))
    [lease] = do(jobs.meet(do(lines.claim("mail", ORDERED, limit=9)).leases))
    assert lease.job_id == behind
    [last] = put(do, new_job(key="a"))
    [parent] = claim_met(do, queue="other")
    end_as(do, parent)
    assert do(jobs.meet(do(lines.claim("mail", ORDERED, limit=9)).leases)) == []
    end_as(do, lease)
    claimed: list[Lease] = []
    while more := do(jobs.meet(do(lines.claim("mail", ORDERED, limit=9)).leases)):
        claimed += more
        for lease in more:
            end_as(do, lease)
    assert [lease.job_id for lease in claimed] == [child, last]


def test_a_child_waits_for_a_chain_that_stands_behind_it_in_its_line(do: Do, look: Look) -> None:
    do(lines.declare({"mail": ORDERED}))
    [one] = put(do, new_job(key="a"))
    [child] = put(do, child_of(one, key="a"))
    [lease] = do(jobs.meet(do(lines.claim("mail", ORDERED, limit=1)).leases))
    following = go_on(do, lease, key="a")
    claimed: list[Lease] = []
    for _ in range(4):
        more = do(jobs.meet(do(lines.claim("mail", ORDERED, limit=9)).leases))
        claimed += more
        for lease in more:
            end_as(do, lease)
    assert [lease.job_id for lease in claimed] == [following, child]


def test_a_child_that_was_cancelled_for_a_parent_can_be_replayed(do: Do) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one, after_dead="cancel"))
    [lease] = taken_of(do, one)
    end_as(do, lease, "dead")
    [stopped] = claim_met(do)
    end_as(do, stopped, "cancelled")
    do(admin.replay(admin.Filter(ids=(child,), states=("cancelled",)), 10, None))
    [lease] = claim_met(do)
    assert (lease.job_id, bool(lease.cancel_requested)) == (child, False)


def test_a_child_that_waits_for_a_job_and_for_the_one_to_come_keeps_nobody_from_ending(do: Do) -> None:
    [one] = put(do, new_job())
    [child] = put(do, child_of(one, next_id(one)))
    [lease] = taken_of(do, one)
    following = go_on(do, lease)
    # What was not there when it was looked for counts as ended.
    assert {lease.job_id for lease in claim_met(do)} == {following, child}


def test_parents_and_children_of_one_limited_queue_run(do: Do, look: Look) -> None:
    limited = QueueSettings(concurrency=1)
    do(lines.declare({"mail": limited}))
    [one] = put(do, new_job())
    [child] = put(do, child_of(one))
    ran: list[str] = []
    for _ in range(6):
        for lease in do(jobs.meet(do(lines.claim("mail", limited, limit=9)).leases)):
            ran.append(lease.job_id)
            end_as(do, lease)
    assert ran == [one, child]
    assert [int(held) for [held] in look.rows("select held from holdfast_queues")] == [0]
