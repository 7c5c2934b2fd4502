"""Durable runs as rows: starts, journals behind fences, inboxes, parents and children, what a death costs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, jobs, runs
from holdfast.errors import ConfigError, Conflict, LeaseLost, RunFinished, RunNotFound
from holdfast.flow import Flow
from holdfast.runs import CANCEL, RUN, Entry, Letter, Recorded, Wanted
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.ids import new_id, next_id
from holdfast.values.rows import Continued, Finish, Lease, Park
from holdfast.workflows import NewRun, Started, force, resume, start


def new_run(key: str = "order-1", workflow: str = "fulfil", digest: int | None = 1, **fields: Any) -> NewRun:
    """Make a run that is ready to be started."""
    job = new_job("runs", f"{workflow}@1", headers=f'{{"holdfast-run":"{key}"}}')
    return NewRun(job, workflow, key, digest, **fields)


def child_run(parent: Lease, key: str = "ship") -> NewRun:
    return new_run(f"order-1/{key}", "ship", parent_id=parent.job_id, parent_key=key)


def held_run(do: Do, key: str = "order-1", **fields: Any) -> Lease:
    """Start a run and claim it."""
    do(start([new_run(key, **fields)]))
    [lease] = do(jobs.claim("runs", limit=1))
    return lease


def journal_row(seq: int, key: str = "charge", kind: Any = "step", **fields: Any) -> Recorded:
    return Recorded(seq, key, kind, **fields)


def written(do: Do, lease: Lease, *rows: Recorded) -> list[int]:
    """Write rows to the journal of a run that is held; return the places of those that were written."""
    entries = [Entry(lease.job_id, lease.fence, one) for one in rows]
    return sorted(seq for _, seq in do(runs.checkpoint(entries, "w")))


def signalled(do: Do, name: str = "approved", payload: str | None = "1", key: str = "order-1", **fields: Any) -> bool:
    return do(runs.send(key, Letter(new_id(), name, payload, **fields)))


def parked_run(do: Do, lease: Lease, waits_for: str, delay_ms: int | None = None) -> None:
    assert do(jobs.settle([Park(lease.id, lease.fence, waits_for, delay_ms)])).done == {lease.job_id}


def run_states(look: Look) -> list[tuple[str, str | None]]:
    return [(one.state, one.waits_for) for one in look.live()]


def claimed_run(do: Do) -> Lease:
    [lease] = do(jobs.claim("runs", limit=1))
    return lease


def ended_run(lease: Lease, outcome: Any = "done", **fields: Any) -> Flow[jobs.Settled]:
    return jobs.settle([Finish(lease.id, lease.fence, outcome, **fields)])


# Start


def test_a_run_is_started_once_for_its_workflow_and_id(do: Do, clock: Clock, look: Look) -> None:
    first, again, other = new_run(), new_run(), new_run(workflow="ship")
    assert do(start([first])) == [Started(first.job.id, True)]
    assert do(start([again, other])) == [Started(first.job.id, False), Started(other.job.id, True)]
    assert {one.id: one.followers for one in look.live()} == {first.job.id: RUN, other.job.id: RUN}


def test_a_start_that_is_repeated_adds_nothing(do: Do, clock: Clock, look: Look) -> None:
    starting = start([new_run(), new_run("order-2")])
    first = do(starting)
    assert [one.job_id for one in do(starting)] == [one.job_id for one in first]
    assert len(look.live()) == 2


def test_a_start_with_other_arguments_is_a_conflict_and_starts_nothing(do: Do, clock: Clock, look: Look) -> None:
    do(start([new_run(digest=1)]))
    with pytest.raises(Conflict, match="other arguments"):
        do(start([new_run("order-2"), new_run(digest=2)]))
    assert len(look.live()) == 1


def test_an_id_is_given_away_only_by_a_run_that_is_over_and_only_if_asked(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    assert do(start([new_run(digest=1)], reuse="finished")) == [Started(lease.job_id, False)]
    written(do, lease, journal_row(1))
    do(ended_run(lease))
    assert do(start([new_run()])) == [Started(lease.job_id, False)]
    new = new_run(digest=2)
    assert do(start([new], reuse="finished")) == [Started(new.job.id, True)]
    assert do(runs.show("order-1")).job_id == new.job.id
    assert do(runs.journal(new.job.id)) == []


def test_many_runs_are_started_at_once(do: Do, clock: Clock, look: Look) -> None:
    new = [new_run(f"order-{n}") for n in range(50)]
    answers = do(start(new))
    assert answers == [Started(one.job.id, True) for one in new]
    assert len(look.live()) == 50


# Signals


def test_a_signal_wakes_a_run_that_waits_for_it(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    parked_run(do, lease, "signal:approved")
    assert run_states(look) == [("waiting", "signal:approved")]
    assert signalled(do, "other")
    assert run_states(look) == [("waiting", "signal:approved")]
    assert signalled(do)
    assert run_states(look) == [("pending", None)]


def test_a_run_that_parks_finds_a_signal_that_came_before(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    signalled(do)
    parked_run(do, lease, "signal:other,signal:approved", 60_000)
    assert run_states(look) == [("pending", None)]
    assert claimed_run(do).attempt == 1


def test_a_run_that_parks_is_not_woken_by_a_signal_it_does_not_wait_for(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    signalled(do, "other")
    parked_run(do, lease, "timer", 60_000)
    assert run_states(look) == [("pending", "timer")]


def test_a_stuck_run_is_woken_by_nothing_that_is_sent(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    signalled(do, CANCEL)
    parked_run(do, lease, "stuck", 60_000)
    assert run_states(look) == [("pending", "stuck")]
    assert do(jobs.claim("runs", limit=1)) == []


def test_signals_are_taken_by_name_in_the_order_in_which_they_were_sent(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    for payload in ("1", "2", "3"):
        signalled(do, payload=payload)
        clock.advance(1)
    signalled(do, "other", "9")
    wanted = [Wanted("approved", f"signal:approved#{n}", "signal") for n in (1, 2)]
    taken = do(runs.take(lease.job_id, lease.fence, wanted, 5, "w"))
    assert [(one.seq, one.key, one.value) for one in taken] == [
        (5, "signal:approved#1", "1"),
        (6, "signal:approved#2", "2"),
    ]
    [third] = do(runs.take(lease.job_id, lease.fence, wanted, 7, "w"))
    assert third.value == "3"
    assert do(runs.news({lease.job_id: ["approved", "other", "third"]})) == {lease.job_id: {"other"}}


def test_what_was_taken_is_taken_once_by_all_who_ask(do: Do, clock: Clock) -> None:
    """A repeat of the holder answers with the same; a former holder gets nothing."""
    stale = held_run(do)
    signalled(do)
    do(jobs.release(stale))
    lease = claimed_run(do)
    wanted = [Wanted("approved", "signal:approved", "signal")]
    taking = runs.take(lease.job_id, lease.fence, wanted, 1, "w")
    first = do(taking)
    again = do(taking)
    assert [(one.seq, one.value, one.at) for one in again] == [(one.seq, one.value, one.at) for one in first]
    with pytest.raises(LeaseLost):
        do(runs.take(stale.job_id, stale.fence, wanted, 9, "w"))
    assert len(do(runs.journal(lease.job_id))) == 1


def test_a_signal_with_an_idempotency_key_is_sent_once_also_after_it_was_taken(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    assert signalled(do, idempotency_key="k")
    assert not signalled(do, idempotency_key="k")
    do(runs.take(lease.job_id, lease.fence, [Wanted("approved", "a", "signal")], 1, "w"))
    assert not signalled(do, idempotency_key="k")
    clock.advance(86_401)
    assert signalled(do, idempotency_key="k")


def test_a_send_that_is_repeated_sends_nothing_twice(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    letter = Letter(new_id(), "approved", "1")
    do(runs.send("order-1", letter))
    assert do(runs.send("order-1", letter, fresh=False))
    do(runs.take(lease.job_id, lease.fence, [Wanted("approved", "a", "signal")], 1, "w"))
    assert do(runs.send("order-1", letter, fresh=False))
    assert do(runs.news({lease.job_id: ["approved"]})) == {}


def test_a_run_that_is_over_takes_no_signals(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    do(ended_run(lease))
    with pytest.raises(RunFinished):
        signalled(do)
    with pytest.raises(RunNotFound):
        signalled(do, key="nobody")


def test_an_id_that_two_workflows_use_is_not_guessed(do: Do, clock: Clock) -> None:
    do(start([new_run(), new_run(workflow="ship")]))
    with pytest.raises(RunNotFound, match="workflow="):
        signalled(do)
    assert do(runs.send("order-1", Letter(new_id(), "a"), "ship"))


def test_a_run_is_told_of_what_a_callers_transaction_has_sent(do: Do, clock: Clock, look: Look) -> None:
    """A held run cannot be locked there: somebody else sees to it once that is committed."""
    lease = held_run(do)
    look.change("update holdfast_jobs set waits_for = 'signal:approved', state = 'waiting'")
    look.change(
        "insert into holdfast_signals (id, run_id, name, told, created_at)"  # noqa: S608 - an id of ours
        f" select '{new_id()}', id, 'approved', 0, created_at from holdfast_jobs where id = '{lease.job_id}'"
    )
    assert do(runs.tell()) == 1
    assert run_states(look) == [("pending", None)]
    assert do(runs.tell()) == 0


# Ends


def test_a_forced_end_needs_no_code_and_ends_the_children_too(do: Do, clock: Clock, look: Look) -> None:
    parent = held_run(do)
    do(start([child_run(parent)]))
    parked_run(do, claimed_run(do), "signal:never")
    assert do(force("order-1")) == 2
    assert look.live() == []
    assert {one.outcome for one in look.over()} == {"cancelled"}
    assert written(do, parent, journal_row(1)) == []
    assert do(ended_run(parent)).lost == {parent.job_id}
    with pytest.raises(RunFinished):
        do(force("order-1"))


def test_a_run_that_continues_as_new_hands_on_its_id_and_its_inbox(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    written(do, lease, journal_row(1))
    signalled(do)
    then = new_run().job._replace(id=next_id(lease.job_id))
    do(jobs.settle([Continued(lease.id, lease.fence, then)]))
    view = do(runs.show("order-1"))
    assert (view.job_id, view.status) == (then.id, "pending")
    assert do(runs.journal(then.id)) == []
    assert do(runs.news({then.id: ["approved"], lease.job_id: ["approved"]})) == {then.id: {"approved"}}
    assert signalled(do, "more")
    assert [one.followers for one in look.live()] == [RUN]


def test_a_run_is_shown_as_it_is(do: Do, clock: Clock) -> None:
    do(start([new_run()]))
    assert do(runs.show("order-1")).status == "pending"
    lease = claimed_run(do)
    assert do(runs.show(lease.job_id)).status == "running"
    do(runs.stick(lease.job_id, lease.fence, "other code"))
    parked_run(do, lease, "stuck", 60_000)
    assert (do(runs.show("order-1")).status, do(runs.show("order-1")).stuck) == ("stuck", "other code")
    assert [view.id for view in do(runs.runs(runs.RunFilter(status="stuck")))] == ["order-1"]
    clock.advance(61)
    lease = claimed_run(do)
    do(runs.stick(lease.job_id, lease.fence, None))
    parked_run(do, lease, "timer", 60_000)
    assert [view.id for view in do(runs.runs(runs.RunFilter(status="waiting", waits_for="timer")))] == ["order-1"]
    assert do(runs.runs(runs.RunFilter(status="stuck"))) == []
    clock.advance(61)
    do(ended_run(claimed_run(do), "dead"))
    assert do(runs.show("order-1")).status == "dead"


def test_a_dead_run_is_resumed_at_the_step_that_failed(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    written(do, lease, journal_row(1, "a"), journal_row(2, "b", "attempt", ok=0), journal_row(3, "b", ok=0))
    do(ended_run(lease, "dead"))
    do(resume("order-1", "ada"))
    assert [one.key for one in do(runs.journal(lease.job_id))] == ["a"]
    again = claimed_run(do)
    assert (again.job_id, again.attempt) == (lease.job_id, 1)
    with pytest.raises(Conflict, match="running"):
        do(resume("order-1", "ada"))


def test_a_run_is_pruned_as_a_whole_and_its_id_is_free_then(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    written(do, lease, journal_row(1), journal_row(2, "set:a", "set", value="1"))
    signalled(do, "never")
    do(ended_run(lease))
    clock.advance(100)
    assert do(jobs.prune("done", "runs", 50_000)) == 0
    assert do(runs.prune("done", "runs", 200_000)) == 0
    assert do(runs.prune("done", "runs", 50_000)) == 1
    for table in ("runs", "steps", "signals", "attributes", "finished"):
        assert look.rows(f"select 1 from holdfast_{table}") in ([], ())  # noqa: S608 - a name of ours
    assert do(start([new_run(digest=2)]))[0].created


def test_of_a_run_whose_queue_keeps_nothing_nothing_is_left(do: Do, clock: Clock, look: Look) -> None:
    lease = held_run(do)
    written(do, lease, journal_row(1))
    do(ended_run(lease, keep=False))
    for table in ("runs", "steps", "finished"):
        assert look.rows(f"select 1 from holdfast_{table}") in ([], ())  # noqa: S608 - a name of ours


# What a death costs


def test_a_death_after_progress_costs_no_attempt_however_often_it_comes(do: Do, clock: Clock, look: Look) -> None:
    do(start([new_run()]))
    for n in range(1, 8):
        lease = claimed_run(do)
        assert lease.attempt == 1
        clock.advance(1)
        assert written(do, lease, journal_row(n)) == [n]
        clock.pass_lease(lease)
        assert [one.outcome for one in do(jobs.reap())] == ["released"]
    [live] = look.live()
    assert (live.attempts, live.lapses) == (0, 0)


def test_deaths_without_progress_end_a_run(do: Do, clock: Clock, look: Look) -> None:
    do(start([new_run()]))
    outcomes: list[str] = []
    for _ in range(12):
        leases = do(jobs.claim("runs", limit=1))
        if not leases:
            break
        [lease] = leases
        if lease.lapses:
            do(jobs.begin(lease))
        clock.pass_lease(lease)
        outcomes += [one.outcome for one in do(jobs.reap(backoff=lambda kind, attempt: 0))]
    assert outcomes[-1] == "dead"
    assert do(admin.show(look.over()[0].id)).attempts == 5


def test_runs_of_a_status_are_found_behind_others_of_the_same_state(do: Do, clock: Clock) -> None:
    do(start([new_run(key="order-1")]))
    lease = claimed_run(do)
    parked_run(do, lease, "timer", 60_000)
    clock.advance(1)
    do(start([new_run(key="order-2")]))
    clock.advance(1)
    do(start([new_run(key="order-3")]))
    waiting, pending = runs.RunFilter(status="waiting"), runs.RunFilter(status="pending")
    assert [view.id for view in do(runs.runs(waiting, 1))] == ["order-1"]
    [newest] = do(runs.runs(pending, 1))
    assert newest.id == "order-3"
    assert [view.id for view in do(runs.runs(pending, 2, newest.job_id))] == ["order-2"]


def test_runs_that_are_over_are_listed_by_their_outcome_in_pages_the_newest_first(do: Do, clock: Clock) -> None:
    ends = ["done", "dead", "done", "cancelled", "dead", "done"]
    for number, outcome in enumerate(ends):
        do(ended_run(held_run(do, f"order-{number}"), outcome))
        clock.advance(1)
    do(start([new_run("order-6")]))
    for status in ("done", "dead", "cancelled"):
        wanted, after = runs.RunFilter(status=status), None
        found: list[tuple[str, str]] = []
        while page := do(runs.runs(wanted, 2, after)):
            found += [(view.id, view.status) for view in page]
            after = page[-1].job_id
        assert found == [(f"order-{n}", status) for n in (5, 4, 3, 2, 1, 0) if ends[n] == status]
    # One that goes on is not dead any more.
    do(resume("order-4", "ada"))
    assert [view.id for view in do(runs.runs(runs.RunFilter(status="dead")))] == ["order-1"]
    assert do(runs.runs(runs.RunFilter(status="done", workflow="ship"))) == []


def test_a_look_at_runs_stops_behind_a_number_of_them_and_says_where_the_next_one_begins(do: Do, clock: Clock) -> None:
    for number in range(6):
        lease = held_run(do, f"order-{number}")
        said = [journal_row(1, "set:stage", "set", value='"over"')]
        written(do, lease, *said, *[journal_row(2, "set:n", "set", value="1")] * (number == 0))
        do(ended_run(lease, "done" if number % 2 else "dead"))
        clock.advance(1)
    # Those that ended in another way are not counted where an outcome is asked for.
    for status, edges in ((None, ["order-4", "order-2"]), ("done", ["order-3"]), ("dead", ["order-2"])):
        for wanted in (
            runs.RunFilter(status=status, workflow="other"),
            runs.RunFilter(status=status, kind="fulfil@9"),
            runs.RunFilter(status=status, workflow="other", attribute=("stage", '"over"')),
        ):
            after: str | None = None
            stops: list[str] = []
            while (seen := do(runs.look(wanted, 2, after, window=2))).more is not None:
                assert (seen.rows, seen.at_horizon) == ([], True)
                stops.append(do(runs.show(seen.more)).id)
                after = seen.more
            assert stops == edges
    found = do(runs.look(runs.RunFilter(status="dead", workflow="fulfil"), 2, window=2))
    assert [view.id for view in found.rows] == ["order-4", "order-2"]
    assert (found.more, found.at_horizon) == (found.rows[-1].job_id, False)


def test_runs_that_say_what_few_say_are_found_however_old_they_are(do: Do, clock: Clock) -> None:
    for number in range(4):
        lease = held_run(do, f"order-{number}")
        written(do, lease, journal_row(1, "set:n", "set", value=str(number // 2)))
        do(ended_run(lease, "done" if number else "dead"))
        clock.advance(1)
    for status, found in ((None, ["order-1", "order-0"]), ("dead", ["order-0"]), ("cancelled", [])):
        seen = do(runs.look(runs.RunFilter(status=status, attribute=("n", "0")), 5, window=2))
        assert ([view.id for view in seen.rows], seen.more) == (found, None)
    assert do(runs.look(runs.RunFilter(workflow="other", attribute=("n", "0")), 5, window=2)).rows == []
    seen = do(runs.look(runs.RunFilter(attribute=("n", "0")), 1, window=2))
    assert [view.id for view in do(runs.runs(runs.RunFilter(attribute=("n", "0")), 5, seen.more))] == ["order-0"]


def test_what_looks_like_an_id_and_is_none_names_no_run(do: Do) -> None:
    with pytest.raises(RunNotFound):
        do(runs.show("zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"))
    with pytest.raises(ConfigError):
        do(runs.runs(runs.RunFilter(), 1, "zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"))
