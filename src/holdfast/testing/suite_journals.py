"""Journals of runs: rows behind fences, one effect for a place, what a run says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import jobs, runs
from holdfast.errors import LeaseLost
from holdfast.runs import Entry
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do
from holdfast.testing.suite_runs import claimed_run, held_run, journal_row, written
from holdfast.values.rows import Lease


def test_a_journal_is_read_back_as_it_was_written_in_its_order(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    text = 'Zoë 🦑 "quoted" \\ %s :now null'
    first = journal_row(1, value=f'"{text}"'.replace("\\", "\\\\"), digest=-(2**63), attempt=3, took_ms=7)
    second = journal_row(2, "b#2", "attempt", ok=0)
    assert written(do, lease, second, first) == [1, 2]
    found = do(runs.journal(lease.job_id))
    at = round(clock.now.timestamp() * 1_000_000)
    assert found == [first._replace(worker="w", at=at), second._replace(worker="w", at=at)]


def test_only_the_holder_writes_to_a_journal(do: Do, clock: Clock) -> None:
    stale = held_run(do)
    do(jobs.release(stale))
    lease = claimed_run(do)
    assert written(do, stale, journal_row(1)) == []
    assert written(do, lease, journal_row(1, "mine")) == [1]
    assert written(do, stale, journal_row(1, "late")) == []
    assert [one.key for one in do(runs.journal(lease.job_id))] == ["mine"]


def test_a_batch_with_one_lost_run_writes_the_others(do: Do, clock: Clock) -> None:
    lost, held = held_run(do, "a"), held_run(do, "b")
    do(jobs.release(lost))
    entries = [Entry(one.job_id, one.fence, journal_row(seq)) for one in (held, lost) for seq in (1, 2)]
    assert set(do(runs.checkpoint(entries, "w"))) == {(held.job_id, 1), (held.job_id, 2)}


def test_fences_are_paired_with_their_own_runs(do: Do, clock: Clock) -> None:
    """A run whose old fence is another's fence of today is lost all the same."""
    one, other = held_run(do, "a"), held_run(do, "b")
    do(jobs.release(other))
    again = claimed_run(do)
    entries = [Entry(again.job_id, one.fence, journal_row(1)), Entry(one.job_id, again.fence, journal_row(1))]
    assert do(runs.checkpoint(entries, "w")) == {}


def test_a_checkpoint_that_is_repeated_gives_the_same_answer_and_changes_nothing(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    writing = runs.checkpoint(
        [Entry(lease.job_id, lease.fence, journal_row(1)), Entry(lease.job_id, lease.fence, journal_row(2))], "w"
    )
    first = do(writing)
    clock.advance(5)
    assert do(writing) == first
    assert len(do(runs.journal(lease.job_id))) == 2


def test_an_effect_and_its_row_are_fenced_together(do: Do, clock: Clock) -> None:
    stale = held_run(do)
    do(jobs.release(stale))
    with pytest.raises(LeaseLost):
        do(runs.add_one(Entry(stale.job_id, stale.fence, journal_row(1, kind="tx")), "w"))
    assert do(runs.journal(stale.job_id)) == []


def tried(lease: Lease, ref: str, **fields: Any) -> Entry:
    return Entry(lease.job_id, lease.fence, journal_row(1, "book", "tx", ref=ref, **fields))


def test_a_second_try_of_a_transaction_finds_the_row_of_the_first(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    first = tried(lease, "try-1", value="1")
    assert do(runs.add_one(first, "w")) == do(runs.journal(lease.job_id))[0].at
    with pytest.raises(runs.EffectThere) as there:
        do(runs.add_one(tried(lease, "try-2", value="2"), "w"))
    assert there.value.row.value == "1"
    assert [row.value for row in do(runs.journal(lease.job_id))] == ["1"]


def test_a_transaction_that_was_given_up_finds_its_place_taken(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    failed = Entry(lease.job_id, lease.fence, journal_row(1, "book", "attempt", ok=0, value="late"))
    assert do(runs.decide(failed, "w")).kind == "attempt"
    assert do(runs.decide(failed, "w")).kind == "attempt"
    with pytest.raises(runs.EffectThere):
        do(runs.add_one(tried(lease, "try-1"), "w"))
    assert [row.kind for row in do(runs.journal(lease.job_id))] == ["attempt"]


def test_a_transaction_that_came_through_is_found_when_it_is_given_up(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    do(runs.add_one(tried(lease, "try-1", value="1"), "w"))
    failed = Entry(lease.job_id, lease.fence, journal_row(1, "book", "attempt", ok=0))
    assert do(runs.decide(failed, "w"))[2:5] == ("tx", 1, "1")
    do(jobs.release(lease))
    with pytest.raises(LeaseLost):
        do(runs.decide(failed, "w"))


def test_what_a_run_says_of_itself_is_the_last_it_said(do: Do, clock: Clock) -> None:
    lease = held_run(do)
    written(do, lease, journal_row(1, "set:stage", "set", value='"new"'))
    written(do, lease, journal_row(2, "set:stage#2", "set", value='"old"'), journal_row(3, "set:n", "set", value="7"))
    assert do(runs.show("order-1")).attributes == {"stage": "old", "n": 7}
    found = do(runs.runs(runs.RunFilter(attribute=("stage", '"old"'))))
    assert [view.id for view in found] == ["order-1"]
    assert do(runs.runs(runs.RunFilter(attribute=("stage", '"new"')))) == []
