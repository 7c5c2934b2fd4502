"""Remote steps as rows: dispatches with their journal rows, results with theirs, what is lost, late, or not wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import jobs, remote, runs
from holdfast.errors import Conflict, LeaseLost
from holdfast.foreign.durable import flows as workers
from holdfast.foreign.durable.engine import TablesTransport, tables_of
from holdfast.foreign.durable.flows import Takes
from holdfast.remote import Arrived, Awaited, Dispatch, Result, Sending
from holdfast.remote.transport import Told
from holdfast.runs import Recorded
from holdfast.store import Store
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.suite_runs import claimed_run, ended_run, held_run, parked_run, run_states
from holdfast.values.rows import Finish, Lease
from holdfast.workflows import force

LOST_MS = 10_000


@pytest.fixture
def transport(do: Do, store: Store, look: Look) -> TablesTransport:
    """The two tables, empty."""
    made = tables_of(store, "durable", "durable", LOST_MS)
    for name in ("create_tasks", "create_results", "create_index"):
        do(workers.create_table(made.tables, name))
    look.change("delete from durable_transport_tasks")
    look.change("delete from durable_transport_results")
    return made


def step_of(lease: Lease, seq: int = 1) -> str:
    return remote.step_id(lease.job_id, seq)


def sending(lease: Lease, seq: int = 1, attempt: int = 1, place: int | None = None, given: str = "1") -> Sending:
    """Make a step to be sent, told of at a place of the journal."""
    key = f"remote:echo#{seq}"
    sent = Dispatch(lease.job_id, seq, key, "durable", "echo", "echo", given, attempt)
    return Sending(sent, Recorded(place or seq, key, "dispatch", attempt=attempt, ref=sent.step_id))


def dispatched(do: Do, transport: TablesTransport, lease: Lease, *steps: Sending) -> list[Recorded]:
    return do(remote.dispatch(lease.job_id, lease.fence, steps or [sending(lease)], "w", transport))


def decided(one: Awaited, result: Result | None) -> Recorded:
    if result is None:
        return Recorded(0, one.key, "remote", 0, '"late"')
    kind: Any = "attempt" if result.status == "failed" else "remote"
    return Recorded(0, one.key, kind, int(result.status == "completed"), result.output or result.error)


def collected(
    do: Do, transport: TablesTransport, lease: Lease, first: int = 50, late: bool = False, steps: Sequence[int] = (1,)
) -> list[tuple[str, int, str | None]]:
    """Take what is there for steps of a held run; return kinds, places and values."""
    awaited = [Awaited(step_of(lease, seq), f"remote:echo#{seq}", late) for seq in steps]
    work = remote.collect(lease.job_id, lease.fence, awaited, first, "w", transport, decided)
    return [(row.kind, row.seq, row.value) for row in do(work).rows]


def worked(do: Do, transport: TablesTransport, outcome: Any = "done", result: str | None = '"out"') -> list[str]:
    """Do what tasks there are, as our own worker does."""
    leases = do(workers.claim(transport.tables, {"echo": Takes("value")}, 10, "remote"))
    error = None if outcome == "done" else '{"type": "ValueError", "message": "no"}'
    ends = [Finish(one.id, one.fence, outcome, result if outcome == "done" else None, error) for one in leases]
    do(workers.settle(transport.tables, ends, "remote"))
    return [one.id for one in leases]


def tasks(look: Look) -> list[tuple[str, int, bool]]:
    rows = look.rows("select step_id, attempt, claimed_at from durable_transport_tasks order by step_id")
    return [(str(step), int(attempt), claimed is not None) for step, attempt, claimed in rows]


def results(look: Look) -> list[str]:
    return [str(row[0]) for row in look.rows("select step_id from durable_transport_results order by step_id")]


def pending(look: Look) -> list[tuple[int, int, int]]:
    rows = look.rows("select seq, attempt, lost from holdfast_dispatches order by seq")
    return [(int(seq), int(attempt), int(lost)) for seq, attempt, lost in rows]


def swept(do: Do, transport: TablesTransport) -> remote.Swept:
    return do(remote.sweep("durable", transport, LOST_MS))


# Sending


def test_a_dispatch_its_task_and_its_journal_row_are_one(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    [row] = dispatched(do, transport, lease)
    assert do(runs.journal(lease.job_id)) == [row._replace(worker="w")]
    assert tasks(look) == [(step_of(lease), 1, False)]
    assert pending(look) == [(1, 1, 0)]


def test_only_the_holder_sends(do: Do, clock: Clock, look: Look, transport: TablesTransport) -> None:
    stale = held_run(do)
    do(jobs.release(stale))
    claimed_run(do)
    with pytest.raises(LeaseLost):
        dispatched(do, transport, stale)
    assert (tasks(look), pending(look), do(runs.journal(stale.job_id))) == ([], [], [])


def test_a_dispatch_that_is_repeated_sends_nothing_twice(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    """The first try was committed and its answer lost; by now the step is done."""
    lease = held_run(do)
    [row] = dispatched(do, transport, lease)
    worked(do, transport)
    [again] = dispatched(do, transport, lease)
    assert (again.seq, again.at) == (row.seq, row.at)
    assert tasks(look) == []


def test_a_step_that_is_sent_again_takes_the_place_of_the_task_that_is_there(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    [held] = do(workers.claim(transport.tables, {"echo": Takes("value")}, 10, "slow"))
    assert tasks(look) == [(step_of(lease), 1, True)]
    dispatched(do, transport, lease, sending(lease, 1, 2, place=7))
    assert tasks(look) == [(step_of(lease), 2, False)]
    # Its holder of before has lost it, and cannot write a result any more.
    settled = do(workers.settle(transport.tables, [Finish(held.id, held.fence, "done", "1")], "slow"))
    assert (settled.lost, results(look)) == ({held.id}, [])


# Results


def test_a_result_wakes_its_run_and_is_taken_once_with_its_journal_row(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    parked_run(do, lease, "remote")
    worked(do, transport)
    assert do(remote.ring(transport)) == Arrived(1, 0)
    assert run_states(look) == [("pending", None)]
    assert results(look) == [step_of(lease)]
    lease = claimed_run(do)
    assert collected(do, transport, lease) == [("remote", 50, '"out"')]
    assert (tasks(look), results(look), pending(look)) == ([], [], [])
    assert do(runs.news({lease.job_id: [runs.REMOTE]})) == {}
    assert collected(do, transport, lease, 51) == []


def test_a_run_that_parks_finds_a_result_of_which_it_was_told_before(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport)
    do(remote.ring(transport))
    parked_run(do, lease, "remote", 60_000)
    assert run_states(look) == [("pending", None)]


def test_a_result_does_not_wake_a_run_that_waits_for_something_else(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    parked_run(do, lease, "signal:approved")
    worked(do, transport)
    do(remote.ring(transport))
    assert run_states(look) == [("waiting", "signal:approved")]


def test_a_result_that_was_seen_is_not_told_again_before_its_time(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport)
    assert do(remote.ring(transport)) == Arrived(1, 0)
    assert do(remote.ring(transport)) == Arrived(0, 0)
    clock.advance(31)
    assert do(remote.ring(transport)) == Arrived(1, 0)
    assert len(look.rows("select id from holdfast_signals")) == 1


def test_a_result_that_nobody_waits_for_is_deleted(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    look.change(
        "insert into durable_transport_results (step_id, run_id, seq, status, created_at)"  # noqa: S608 - ids of ours
        f" values ('{step_of(lease, 9)}', 'x', 9, 'completed', 1), ('somebody:0', 'somebody', 0, 'completed', 2)"
    )
    assert do(remote.ring(transport)) == Arrived(0, 2)
    assert results(look) == []


def test_a_former_holder_takes_no_result(do: Do, clock: Clock, look: Look, transport: TablesTransport) -> None:
    stale = held_run(do)
    dispatched(do, transport, stale)
    worked(do, transport)
    do(remote.ring(transport))
    do(jobs.release(stale))
    lease = claimed_run(do)
    with pytest.raises(LeaseLost):
        collected(do, transport, stale)
    assert results(look) == [step_of(lease)]
    assert collected(do, transport, lease) == [("remote", 50, '"out"')]


def test_a_take_that_is_repeated_gives_the_same_answer(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport)
    do(remote.ring(transport))
    assert collected(do, transport, lease) == collected(do, transport, lease) == [("remote", 50, '"out"')]
    assert len(do(runs.journal(lease.job_id))) == 2


def test_a_failed_attempt_is_over_before_the_next_is_sent(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    """A result of the first attempt that comes then belongs to nobody; one that comes later counts for the second."""
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport, "dead")
    do(remote.ring(transport))
    assert [kind for kind, _, _ in collected(do, transport, lease)] == ["attempt"]
    assert (pending(look), tasks(look), results(look)) == ([], [], [])
    dispatched(do, transport, lease, sending(lease, 1, 2, place=60))
    assert tasks(look) == [(step_of(lease), 2, False)]
    assert worked(do, transport) == [step_of(lease)]
    do(remote.ring(transport))
    assert collected(do, transport, lease, 61) == [("remote", 61, '"out"')]


def test_the_task_of_a_worker_that_died_behind_its_result_goes_with_the_result(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    look.change(
        "insert into durable_transport_results (step_id, run_id, seq, status, output, created_at)"  # noqa: S608 - an id
        f" values ('{step_of(lease)}', '{lease.job_id}', 1, 'completed', '7', 1)"
    )
    do(remote.ring(transport))
    assert collected(do, transport, lease) == [("remote", 50, "7")]
    assert (tasks(look), results(look)) == ([], [])


def test_steps_that_the_journal_knows_and_nobody_else_are_named(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    awaited = [Awaited(step_of(lease), "remote:echo")]
    work = remote.collect(lease.job_id, lease.fence, awaited, 5, "w", transport, decided)
    assert do(work) == remote.Collected([], ["remote:echo"])


def test_a_result_that_somebody_else_has_taken_is_waited_for_further(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport)
    do(remote.ring(transport))
    look.change("delete from durable_transport_results")
    assert collected(do, transport, lease) == []
    assert (pending(look), do(runs.news({lease.job_id: [runs.REMOTE]}))) == ([(1, 1, 0)], {})
    clock.advance(11)
    assert [one.step_id for one in swept(do, transport).lost] == [step_of(lease)]


def test_messages_are_kept_as_letters_each_once(do: Do, clock: Clock, look: Look, transport: TablesTransport) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    parked_run(do, lease, "remote")
    told = [Told(step_of(lease), '{"first": 1}'), Told(step_of(lease), '{"second": 2}'), Told("unknown:1", "{}")]
    assert do(remote.received(transport, told)) == Arrived(2, 1)
    assert do(remote.received(transport, told[1:2])) == Arrived(1, 0)
    assert [str(row[0]) for row in look.rows("select payload from holdfast_signals")] == ['{"first": 1}']
    assert run_states(look) == [("pending", None)]


# Time-outs and withdrawals


def test_a_step_whose_time_is_over_is_withdrawn_and_its_late_result_dropped(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    [held] = do(workers.claim(transport.tables, {"echo": Takes("value")}, 10, "slow"))
    assert collected(do, transport, lease, late=True) == [("remote", 50, '"late"')]
    assert (tasks(look), pending(look)) == ([], [])
    assert do(workers.renew(transport.tables, [held], "slow")).kept == set()
    look.change(
        "insert into durable_transport_results (step_id, run_id, seq, status, output, created_at)"  # noqa: S608 - an id
        f" values ('{step_of(lease)}', '{lease.job_id}', 1, 'completed', '7', 1)"
    )
    assert do(remote.ring(transport)) == Arrived(0, 1)


def test_a_result_that_is_there_when_the_time_is_over_counts(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    """Nobody has told the run of it yet."""
    lease = held_run(do)
    dispatched(do, transport, lease)
    worked(do, transport)
    assert collected(do, transport, lease, late=True) == [("remote", 50, '"out"')]
    assert (tasks(look), results(look), pending(look)) == ([], [], [])


def test_a_step_that_is_withdrawn_leaves_nothing(do: Do, clock: Clock, look: Look, transport: TablesTransport) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease, sending(lease, 1), sending(lease, 2))
    worked(do, transport)
    do(remote.ring(transport))
    steps = [step_of(lease, 1), step_of(lease, 2)]
    do(remote.withdraw(lease.job_id, lease.fence, steps, transport))
    do(remote.withdraw(lease.job_id, lease.fence, steps, transport))
    assert (tasks(look), results(look), pending(look), do(runs.news({lease.job_id: [runs.REMOTE]}))) == ([], [], [], {})


# Looking after


def test_a_dispatch_without_task_and_result_is_sent_again_after_a_while(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    look.change("delete from durable_transport_tasks")
    assert swept(do, transport).looked == 0
    clock.advance(11)
    assert [one.step_id for one in swept(do, transport).lost] == [step_of(lease)]
    assert (tasks(look), pending(look)) == ([(step_of(lease), 1, False)], [(1, 1, 1)])
    assert swept(do, transport).looked == 0


def test_a_dispatch_that_is_waited_for_is_not_sent_again(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    """Free, held, or done and not taken: in each case a row is there."""
    lease = held_run(do)
    dispatched(do, transport, lease)
    clock.advance(11)
    assert swept(do, transport)[:2] == (1, [])
    [held] = do(workers.claim(transport.tables, {"echo": Takes("value")}, 10, "remote"))
    clock.advance(12)
    assert swept(do, transport)[:2] == (1, [])
    do(workers.settle(transport.tables, [Finish(held.id, held.fence, "done", "1")], "remote"))
    clock.advance(24)
    assert swept(do, transport)[:2] == (1, [])
    assert tasks(look) == []


def test_the_longer_a_dispatch_waits_the_less_often_it_is_looked_at(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    dispatched(do, transport, held_run(do))
    looks = 0
    for _ in range(3600):
        clock.advance(1)
        looks += swept(do, transport).looked if clock.now.second % 10 == 0 else 0
    assert 5 <= looks <= 20


def test_the_steps_of_a_run_that_was_ended_by_force_are_withdrawn(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    parked_run(do, lease, "remote")
    do(force("order-1"))
    clock.advance(11)
    assert swept(do, transport).withdrawn == [step_of(lease)]
    assert (tasks(look), pending(look)) == ([], [])


def test_people_have_steps_sent_again(do: Do, clock: Clock, look: Look, transport: TablesTransport) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease, sending(lease, 1), sending(lease, 2))
    do(workers.claim(transport.tables, {"echo": Takes("value")}, 10, "hangs"))
    assert do(remote.redispatch("order-1", "remote:echo#1")) == ["remote:echo#1"]
    assert [one.step_id for one in swept(do, transport).again] == [step_of(lease)]
    assert tasks(look) == [(step_of(lease, 1), 1, False), (step_of(lease, 2), 1, True)]
    assert sorted(do(remote.redispatch("order-1"))) == ["remote:echo#1", "remote:echo#2"]
    with pytest.raises(Conflict, match="does not wait for a remote step nothing"):
        do(remote.redispatch("order-1", "nothing"))


def test_messages_are_sent_by_one_and_again_after_a_crash(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    """The tables stand for messages here: what is due is taken to be sent."""
    lease = held_run(do)
    dispatched(do, transport, lease, sending(lease, 1), sending(lease, 2))
    look.change("update holdfast_dispatches set look_at = sent_at")
    taken = do(remote.to_send("durable"))
    assert [one.seq for one in taken] == [1, 2]
    assert do(remote.to_send("durable")) == []
    do(remote.were_sent(taken[:1]))
    clock.advance(31)
    assert [one.seq for one in do(remote.to_send("durable"))] == [2]
    do(remote.were_sent(taken))
    clock.advance(3_600)
    assert do(remote.to_send("durable")) == []
    do(remote.redispatch("order-1", "remote:echo#2"))
    assert [one.seq for one in do(remote.to_send("durable"))] == [2]
    do(remote.were_sent(taken))
    do(remote.forget_over("durable"))
    assert len(pending(look)) == 2
    do(ended_run(lease))
    do(remote.forget_over("durable"))
    assert pending(look) == []


def test_dispatches_that_nobody_looks_after_are_listed(
    do: Do, clock: Clock, look: Look, transport: TablesTransport
) -> None:
    lease = held_run(do)
    dispatched(do, transport, lease)
    assert do(remote.open_dispatches(60_000, 3, 10)) == []
    clock.advance(71)
    [one] = do(remote.open_dispatches(60_000, 3, 10))
    assert (one.run, one.key, one.engine, one.unwatched) == ("order-1", "remote:echo#1", "durable", True)
    swept(do, transport)
    assert do(remote.open_dispatches(60_000, 3, 10)) == []
    do(ended_run(lease))
