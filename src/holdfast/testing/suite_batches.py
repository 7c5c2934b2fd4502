"""Batches: a callback that runs once, after all members have ended, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.errors import BatchNotFound, Conflict
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_chains import MARK, claim_met, end_as, go_on, parents_of
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease, NewJob


def batch_of(do: Do, count: int, **said: Any) -> tuple[str, list[NewJob]]:
    members = [new_job() for _ in range(count)]
    then = new_job(headers=MARK, kind="callback")
    answers = do(jobs.add_batch(then, members, fresh=True, **said))
    assert [answer.id for answer in answers] == [member.id for member in members]
    return then.id, members


def end_all(do: Do, leases: Sequence[Lease], outcome: Any = "done") -> None:
    do(jobs.settle([Finish(lease.id, lease.fence, outcome, keep=False) for lease in leases]))


def test_a_callback_runs_once_all_members_have_ended(do: Do, look: Look) -> None:
    callback, members = batch_of(do, 30)
    leases = claim_met(do)
    assert {lease.job_id for lease in leases} == {member.id for member in members}
    end_all(do, leases[:10])
    end_all(do, leases[10:20], "dead")
    assert claim_met(do) == []
    end_all(do, leases[20:])
    [lease] = claim_met(do)
    assert (lease.job_id, lease.attempt) == (callback, 1)
    found = parents_of(do, callback)
    assert (found.total, found.done, found.dead, found.open) == (30, 20, 10, 0)
    assert len(found.each) == 10
    assert claim_met(do) == []


def test_a_batch_without_members_calls_back_at_once(do: Do) -> None:
    callback, _ = batch_of(do, 0)
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_members_done_before_the_seal_still_call_back(do: Do) -> None:
    callback, _ = batch_of(do, 2, sealed=False)
    end_all(do, claim_met(do))
    assert claim_met(do) == []
    assert do(jobs.seal_batch(callback)) is True
    assert do(jobs.seal_batch(callback)) is False
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_members_add_members_until_the_batch_is_sealed(do: Do) -> None:
    callback, _ = batch_of(do, 1, sealed=False)
    leases = claim_met(do)
    late = [new_job(), new_job()]
    do(jobs.grow_batch(callback, late, fresh=True))
    do(jobs.seal_batch(callback))
    with pytest.raises(Conflict, match="sealed"):
        do(jobs.grow_batch(callback, [new_job()], fresh=True))
    end_all(do, leases)
    rest = claim_met(do)
    assert {lease.job_id for lease in rest} == {job.id for job in late}
    end_all(do, rest)
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_an_unknown_batch_is_named(do: Do) -> None:
    with pytest.raises(BatchNotFound, match="no open batch"):
        do(jobs.grow_batch(new_job().id, [new_job()]))
    with pytest.raises(BatchNotFound, match="no open batch"):
        do(jobs.seal_batch(new_job().id))


def test_a_repeated_batch_adds_nothing(do: Do, look: Look) -> None:
    members, then = [new_job(), new_job()], new_job(headers=MARK)
    do(jobs.add_batch(then, members, fresh=True))
    do(jobs.add_batch(then, members))
    assert parents_of(do, then.id).open == 2
    end_all(do, claim_met(do))
    do(jobs.add_batch(then, members))
    [lease] = claim_met(do)
    do(jobs.settle([Finish(lease.id, lease.fence, "done", keep=False)]))
    do(jobs.add_batch(then, members))
    assert claim_met(do) == []
    assert look.live() == []


def test_a_repeated_extension_counts_its_members_once(do: Do) -> None:
    callback, _ = batch_of(do, 0, sealed=False)
    late = [new_job(), new_job()]
    do(jobs.grow_batch(callback, late, fresh=True))
    do(jobs.grow_batch(callback, late))
    assert (parents_of(do, callback).open, parents_of(do, callback).total) == (3, 2)
    end_all(do, claim_met(do))
    do(jobs.grow_batch(callback, late))
    assert parents_of(do, callback).open == 1
    do(jobs.seal_batch(callback))
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_a_member_that_failed_and_was_tried_again_calls_back(do: Do) -> None:
    callback, _ = batch_of(do, 1)
    [lease] = claim_met(do)
    do(jobs.retry(lease, 0, failure()))
    end_all(do, claim_met(do))
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_a_dead_or_cancelled_member_does_not_hang_its_callback(do: Do) -> None:
    callback, members = batch_of(do, 3)
    one, other = claim_met(do, 2)
    end_as(do, one, "dead")
    end_as(do, other)
    [last] = {member.id for member in members} - {one.job_id, other.job_id}
    assert do(admin.cancel(last, "ada")) == "cancelled"
    assert [lease.job_id for lease in claim_met(do)] == [callback]
    found = parents_of(do, callback)
    assert (found.done, found.dead, found.cancelled) == (1, 1, 1)


def test_a_replayed_member_is_waited_for_until_the_callback_was_let_go(do: Do) -> None:
    callback, _ = batch_of(do, 2)
    one, other = claim_met(do)
    end_as(do, one, "dead")
    dead = admin.Filter(ids=(one.job_id,))
    assert do(admin.replay(dead, 1, None)).ids == [one.job_id]
    end_as(do, other)
    [again] = claim_met(do)
    assert again.job_id == one.job_id
    end_as(do, again, "dead")
    # Both have ended, so the callback may run; another replay runs beside it and calls nobody back.
    assert do(admin.replay(dead, 1, None)).ids == [one.job_id]
    leases = claim_met(do)
    assert {lease.job_id for lease in leases} == {callback, one.job_id}
    for lease in leases:
        end_as(do, lease)
    assert claim_met(do) == []


def test_a_member_that_is_continued_is_waited_for_to_the_end_of_its_chain(do: Do) -> None:
    callback, _ = batch_of(do, 1)
    [lease] = claim_met(do)
    go_on(do, lease, keep=False)
    [lease] = claim_met(do)
    end_all(do, [lease])
    assert [lease.job_id for lease in claim_met(do)] == [callback]


def test_a_dead_member_cancels_the_callback_where_it_was_said(do: Do) -> None:
    callback, _ = batch_of(do, 2, on_dead="cancel")
    one, _ = claim_met(do)
    end_all(do, [one], "dead")
    [stopped] = claim_met(do)
    assert (stopped.job_id, one.job_id in stopped.cancel_requested) == (callback, True)


def test_a_callback_in_the_line_of_its_members_runs_behind_them(do: Do) -> None:
    ordered = QueueSettings(ordered=True)
    do(lines.declare({"mail": ordered}))
    members, then = [new_job(key="a"), new_job(key="a")], new_job(headers=MARK, kind="callback", key="a")
    do(jobs.add_batch(then, members, fresh=True))
    ran: list[str] = []
    for _ in range(5):
        leases = do(jobs.meet(do(lines.claim("mail", ordered, limit=9)).leases))
        ran += [lease.job_id for lease in leases]
        end_all(do, leases)
    assert ran == [members[0].id, members[1].id, then.id]
