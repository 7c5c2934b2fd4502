"""Lines and limits at the end of jobs that a worker knows it has claimed from them, and lines of all lengths."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.life import door
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure
from holdfast.testing.suite_door import BIT, note
from holdfast.testing.suite_order import ORDERED, add, done, drain, ids, line_rows, say, take
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import End, Finish, Lease, PutBack

BOTH = QueueSettings(ordered=True, concurrency=9)


def _settle(do: Do, leases: list[Lease], ends: list[End] | None = None) -> jobs.Settled:
    """Settle as a worker does that claimed all of these."""
    lined = [lease for lease in leases if isinstance(lease, lines.LinedLease)]
    return do(jobs.settle([_finish(lease) for lease in leases] if ends is None else ends, lined))


def _finish(lease: Lease, **fields: Any) -> Finish:
    return Finish(lease.id, lease.fence, "done", **fields)


def _held(look: Look) -> int:
    [[count]] = look.rows("select held from holdfast_queues")
    return int(count)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_claimed_stint_gives_back_what_it_held(do: Do, clock: Clock, look: Look, keep: bool) -> None:
    say(do, BOTH)
    add(do, "a", "a", "b", None)
    claimed = take(do, 9, BOTH)
    assert (_held(look), line_rows(look)) == (4, [("a", 2), ("b", 1)])
    settled = _settle(do, claimed, [_finish(lease, keep=keep) for lease in claimed])
    assert (settled.done, settled.lost, settled.followed) == (set(ids(claimed)), set(), True)
    assert (_held(look), line_rows(look)) == (0, [])


def test_a_lost_lease_gives_nothing_back_and_the_others_do(do: Do, clock: Clock, look: Look) -> None:
    say(do, BOTH)
    add(do, "a", "b")
    [stale, other] = take(do, 9, BOTH)
    clock.pass_lease(stale)
    do(jobs.reap(exclude=[other.id]))
    clock.advance(3_600)
    [again] = take(do, 1, BOTH)
    settled = _settle(do, [stale, other])
    assert (settled.done, settled.lost) == ({other.job_id}, {stale.job_id})
    assert (_held(look), line_rows(look)) == (1, [("a", 1)])
    done(do, again)
    assert (_held(look), line_rows(look)) == (0, [])


def test_who_lost_a_job_of_a_stint_has_lost_all_behind_it(do: Do, clock: Clock, look: Look) -> None:
    """Otherwise a late holder may end the second before the first, which was taken back, has run again."""
    say(do)
    mine = first, second, third = add(do, "a", "a", "a")
    claimed = take(do)
    clock.pass_lease(claimed[0])
    reaped = do(jobs.reap(exclude=[lease.id for lease in claimed[1:]], limit=1))
    assert {one.id: one.outcome for one in reaped} == {first: "retry", second: "released", third: "released"}
    assert _settle(do, claimed).lost == set(mine)
    clock.advance(3_600)
    assert drain(do) == mine


def test_who_lost_a_job_of_a_stint_still_has_those_before_it(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    first, second, third = add(do, "a", "a", "a")
    claimed = take(do)
    clock.pass_lease(claimed[0])
    assert {one.id for one in do(jobs.reap(exclude=[claimed[0].id]))} == {second, third}
    assert _settle(do, claimed).done == {first}
    assert drain(do) == [second, third]


def test_a_claimed_stint_that_is_settled_twice_gives_back_once(do: Do, clock: Clock, look: Look) -> None:
    say(do, BOTH)
    add(do, "a", "a", "b")
    claimed = take(do, 9, BOTH)
    for _ in range(2):
        assert _settle(do, claimed[:1]).done == {claimed[0].job_id}
    assert _held(look) == 2


def test_what_was_said_of_a_job_since_its_claim_follows_its_end(do: Do, clock: Clock, look: Look) -> None:
    say(do, ORDERED)
    add(do, "a", "b")
    claimed = take(do)
    door.attach(BIT, note)
    try:
        do(jobs.follow([claimed[0].job_id], BIT))
        assert _settle(do, claimed).done == set(ids(claimed))
    finally:
        door.detach(BIT)
    told = [(line.job_id, line.actor) for line in do(admin.audit()) if line.action == "followed"]
    assert told == [(claimed[0].job_id, "done")]
    assert line_rows(look) == []


def test_a_batch_of_claimed_and_plain_jobs_with_all_ends_is_settled(do: Do, clock: Clock, look: Look) -> None:
    say(do, ORDERED)
    add(do, "a", "a")
    add(do, None, queue="plain")
    first, second = take(do)
    [plain] = do(jobs.claim("plain", limit=1))
    ends: list[End] = [_finish(plain), PutBack(second.id, second.fence, 1_000, 0, failure()), _finish(first)]
    assert _settle(do, [first, second], ends).done == {plain.job_id, first.job_id, second.job_id}
    assert line_rows(look) == [("a", 0)]
    clock.advance(1)
    assert drain(do) == [second.job_id]


@pytest.mark.parametrize("standing", ["ticket", "waiting", "called", "leased"])
def test_a_cancelled_job_that_is_replayed_comes_back_to_its_place(do: Do, clock: Clock, standing: str) -> None:
    say(do)
    first, second, third, fourth = add(do, "a", "a", "a", "a")
    ran: list[str] = []
    if standing == "called":
        # The line calls its next job when the first one ends.
        done(do, *take(do, 1))
        ran, first = [first], ""
    elif standing == "waiting":
        [lease] = take(do, 1)
        assert take(do) == []
        do(jobs.release(lease))
    if standing == "leased":
        held = take(do, 2)
        assert do(admin.cancel(second, None)) == "requested"
        _settle(do, held, [PutBack(held[0].id, held[0].fence, 0, 1), Finish(held[1].id, held[1].fence, "cancelled")])
    else:
        assert do(admin.cancel(second, None)) == "cancelled"
    cancelled = admin.Filter(ids=(second, third), states=("cancelled",))
    assert do(admin.cancel(third, None)) == "cancelled"
    fifth = add(do, "a")
    assert do(admin.replay(cancelled, 9, None)).ids == [second, third]
    assert ran + drain(do) == [one for one in (*ran, first, second, third, fourth, *fifth) if one]


@pytest.mark.parametrize(
    "settings",
    [ORDERED, BOTH, QueueSettings(concurrency=9), QueueSettings(fair=True), QueueSettings(key_concurrency=2)],
    ids=str,
)
def test_lines_and_limits_leave_jobs_of_other_buckets_until_they_are_overdue(
    do: Do, clock: Clock, settings: QueueSettings
) -> None:
    def claimed() -> list[str]:
        return ids(take(do, 9, settings, buckets=[3, 5], overdue_ms=10_000))

    say(do, settings)
    [ours], [theirs], [anyones] = add(do, "a", bucket=3), add(do, "b", bucket=4), add(do, None)
    assert sorted(claimed()) == sorted([ours, anyones])
    clock.advance(9.999)
    assert claimed() == []
    clock.advance(0.002)
    assert claimed() == [theirs]


def test_lines_are_claimed_for_no_bucket_when_they_are_overdue(do: Do, clock: Clock) -> None:
    say(do, ORDERED)
    [theirs], [anyones] = add(do, "b", bucket=4), add(do, None)
    assert ids(take(do, 9, buckets=[], overdue_ms=10_000)) == [anyones]
    clock.advance(11)
    assert ids(take(do, 9, buckets=[], overdue_ms=10_000)) == [theirs]


def test_long_and_short_lines_are_read_in_their_order(do: Do, clock: Clock) -> None:
    say(do, ORDERED)
    long = add(do, *["long"] * 40)
    short = {key: add(do, key, key) for key in ("a", "b", "c")}
    claimed = take(do, 99)
    of = {key: [lease.job_id for lease in claimed if lease.key == key] for key in ("long", *short)}
    assert of == {"long": long[: len(of["long"])], **short}
    done(do, *claimed)
    assert [*of["long"], *drain(do, limit=99)] == long
