"""Parents and children among runs: how an end reaches its parent, what nobody asks for, whose child has an id."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import jobs, runs
from holdfast.errors import Conflict
from holdfast.runs import CANCEL, CHILD, Wanted
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.suite_runs import child_run, claimed_run, ended_run, held_run, new_run, parked_run, run_states
from holdfast.values.ids import new_id, next_id
from holdfast.values.rows import Continued, Finish, Lease
from holdfast.workflows import start, start_children


def wanted_children(number: int) -> list[Wanted]:
    return [Wanted(CHILD, f"ship#{n}", "child") for n in range(number)]


def parent_of_ended(do: Do, number: int) -> Lease:
    """Start children of a held run, have them end, and return the parent's lease."""
    parent = held_run(do)
    do(start([child_run(parent, f"ship#{n}") for n in range(number)]))
    children = do(jobs.claim("runs", limit=number))
    do(jobs.settle([Finish(one.id, one.fence, "done") for one in children]))
    return parent


@pytest.mark.parametrize("outcome", ["done", "dead", "cancelled"])
def test_the_end_of_a_child_wakes_its_parent_and_is_in_its_inbox(
    do: Do, clock: Clock, look: Look, outcome: Any
) -> None:
    parent = held_run(do)
    do(start([child_run(parent)]))
    child = claimed_run(do)
    parked_run(do, parent, "children")
    do(ended_run(child, outcome, result='{"a": 1}' if outcome == "done" else None))
    assert run_states(look) == [("pending", None)]
    parent = claimed_run(do)
    [taken] = do(runs.take(parent.job_id, parent.fence, [Wanted(CHILD, "ship", "child")], 1, "w"))
    assert (taken.kind, f'"outcome":"{outcome}"' in str(taken.value)) == ("child", True)


def test_a_parent_that_parks_finds_a_child_that_ended_before(do: Do, clock: Clock, look: Look) -> None:
    parent = held_run(do)
    do(start([child_run(parent)]))
    do(ended_run(claimed_run(do)))
    parked_run(do, parent, "children")
    assert run_states(look) == [("pending", None)]


def test_children_of_one_batch_wake_their_parent_once_and_all_ends_are_there(do: Do, clock: Clock, look: Look) -> None:
    parent = held_run(do)
    do(start([child_run(parent, f"ship#{n}") for n in range(5)]))
    children = do(jobs.claim("runs", limit=9))
    parked_run(do, parent, "children")
    do(jobs.settle([Finish(one.id, one.fence, "done") for one in children]))
    assert run_states(look) == [("pending", None)]
    parent = claimed_run(do)
    taken = do(runs.take(parent.job_id, parent.fence, wanted_children(5), 1, "w"))
    assert [one.key for one in taken] == [f"ship#{n}" for n in range(5)]
    assert do(runs.news({parent.job_id: [CHILD]})) == {}


def test_of_many_children_that_ended_some_are_taken_at_once_and_none_is_forgotten(do: Do, clock: Clock) -> None:
    many = runs.TAKEN_AT_ONCE + 20
    parent = parent_of_ended(do, many)
    places = 1
    keys: list[str] = []
    for number in (runs.TAKEN_AT_ONCE, 20, 0):
        taken = do(runs.take(parent.job_id, parent.fence, wanted_children(many), places, "w"))
        assert len(taken) == number
        places += number
        keys += [one.key for one in taken]
    assert sorted(keys) == sorted(one.key for one in wanted_children(many))


def test_ends_that_nobody_will_ask_for_are_deleted_and_hide_no_others(do: Do, clock: Clock, look: Look) -> None:
    many = runs.TAKEN_AT_ONCE + 20
    parent = parent_of_ended(do, many)
    last = wanted_children(many)[-1:]
    asked: list[str] = []

    def unwanted(key: str) -> bool:
        asked.append(key)
        return key != "ship#3"

    [taken] = do(runs.take(parent.job_id, parent.fence, last, 1, "w", unwanted))
    assert (taken.key, last[0].key in asked) == (last[0].key, False)
    assert len(look.rows("select id from holdfast_signals")) == 1
    # What nobody asks for yet, and may, stays.
    [kept] = do(runs.take(parent.job_id, parent.fence, wanted_children(4), 2, "w", unwanted))
    assert kept.key == "ship#3"


def test_a_child_that_is_found_over_is_told_of_again_until_its_parent_has_taken_its_end(do: Do, clock: Clock) -> None:
    parent = parent_of_ended(do, 2)
    do(runs.take(parent.job_id, parent.fence, [Wanted(CHILD, "other", "child")], 1, "w", lambda key: True))
    assert do(runs.news({parent.job_id: [CHILD]})) == {}
    for _ in range(2):
        do(start_children(parent.job_id, parent.fence, [child_run(parent, "ship#1")]))
    [taken] = do(runs.take(parent.job_id, parent.fence, wanted_children(2), 1, "w"))
    assert taken.key == "ship#1"


def test_a_child_of_another_run_gives_its_id_away_once_it_is_over(do: Do, clock: Clock, look: Look) -> None:
    """A run that continues another, or has its id from one that is over, has children of its own."""
    before = held_run(do)
    do(start([child_run(before)]))
    old = claimed_run(do)
    then = new_run().job._replace(id=next_id(before.job_id))
    do(jobs.settle([Continued(before.id, before.fence, then)]))
    after = claimed_run(do)
    with pytest.raises(Conflict, match="not over"):
        do(start_children(after.job_id, after.fence, [child_run(after)]))
    do(ended_run(old))
    own = child_run(after)
    do(start_children(after.job_id, after.fence, [own]))
    assert do(runs.show("order-1/ship")).job_id == own.job.id
    assert do(runs.news({after.job_id: [CHILD]})) == {}


def test_a_run_that_continues_another_does_not_take_the_end_of_a_child_of_that_one(do: Do, clock: Clock) -> None:
    before = parent_of_ended(do, 1)
    do(runs.send("order-1", runs.Letter(new_id(), "paid")))
    then = new_run().job._replace(id=next_id(before.job_id))
    do(jobs.settle([Continued(before.id, before.fence, then)]))
    after = claimed_run(do)
    do(start_children(after.job_id, after.fence, [child_run(after, "ship#0")]))
    wanted = [*wanted_children(1), Wanted("paid", "paid", "signal")]
    taken = do(runs.take(after.job_id, after.fence, wanted, 1, "w"))
    assert [one.key for one in taken] == ["paid"]
    do(ended_run(claimed_run(do), result='"its own"'))
    [end] = do(runs.take(after.job_id, after.fence, wanted_children(1), 2, "w"))
    assert "its own" in str(end.value)


def test_a_run_that_ends_badly_asks_its_children_to_stop(do: Do, clock: Clock, look: Look) -> None:
    parent = held_run(do)
    do(start([child_run(parent)]))
    child = claimed_run(do)
    parked_run(do, child, "signal:never")
    do(ended_run(parent, "dead"))
    assert do(runs.news({child.job_id: [CANCEL]})) == {child.job_id: {CANCEL}}
    assert run_states(look) == [("pending", None)]
