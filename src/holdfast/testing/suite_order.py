"""Ordered queues: jobs of one key run one after the other, in the order of their enqueues, whatever happens between."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.errors import LeaseLost
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease, PutBack

ORDERED = QueueSettings(ordered=True)
PASS = QueueSettings(ordered=True, on_retry="pass")
STOP = QueueSettings(ordered=True, on_dead="stop")


def say(do: Do, settings: QueueSettings = ORDERED, queue: str = "mail") -> None:
    do(lines.declare({queue: settings}))


def add(do: Do, *keys: str | None, **fields: Any) -> list[str]:
    """Enqueue a job for each key and return the ids."""
    return [do(jobs.enqueue(new_job(key=key, **fields))).id for key in keys]


def take(do: Do, limit: int = 9, settings: QueueSettings = ORDERED, **said: Any) -> list[Lease]:
    """Claim from the queue, as a worker does that knows its settings."""
    return do(lines.claim("mail", settings, limit=limit, **said)).leases


def ids(leases: list[Lease]) -> list[str]:
    return [lease.job_id for lease in leases]


def done(do: Do, *leases: Lease) -> None:
    """End jobs well, as a worker does: it knows what it has claimed."""
    lined = [lease for lease in leases if isinstance(lease, lines.LinedLease)]
    settled = do(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases], lined))
    assert settled.done == set(ids(list(leases)))


def drain(do: Do, settings: QueueSettings = ORDERED, limit: int = 9) -> list[str]:
    """Run everything that is due and return the ids in the order of their starts."""
    ran: list[str] = []
    while claimed := take(do, limit, settings):
        ran += ids(claimed)
        done(do, *claimed)
    return ran


def states(look: Look) -> dict[str, str]:
    return {row.id: row.state for row in look.live()}


def line_rows(look: Look) -> list[tuple[str, int]]:
    return [(str(key), int(held)) for key, held in look.rows("select key, held from holdfast_lines order by key")]


def test_jobs_of_one_key_come_in_the_order_of_their_enqueues(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    mine = add(do, "a", "a", "a")
    other = add(do, "b")
    claimed = take(do)
    assert [one for one in ids(claimed) if one in mine] == mine
    assert set(ids(claimed)) == {*mine, *other}
    assert line_rows(look) == [("a", 3), ("b", 1)]
    done(do, *claimed)
    assert line_rows(look) == []


def test_a_batch_comes_back_in_line_order(do: Do, clock: Clock) -> None:
    say(do)
    first = [do(jobs.enqueue_many([new_job(key="a") for _ in range(3)])) for _ in range(2)]
    wanted = [one.id for batch in first for one in batch]
    # The order is that of the enqueues, whatever priority says inside of a line.
    urgent = add(do, "a", priority=9)
    assert ids(take(do)) == wanted + urgent


def test_priority_picks_among_lines(do: Do, clock: Clock) -> None:
    say(do)
    add(do, "slow")
    urgent = add(do, "quick", priority=5)
    assert ids(take(do, 1)) == urgent


def test_a_key_that_is_held_gives_nothing_more(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    first = add(do, "a")
    [lease] = take(do)
    later = add(do, "a", "a")
    assert take(do, worker="other") == []
    assert [states(look)[one] for one in later] == ["waiting", "waiting"]
    done(do, lease)
    assert drain(do) == later
    assert first[0] not in states(look)


def test_a_waiting_job_always_has_a_line(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    add(do, "a", "b")
    leases = take(do)
    add(do, "a", "a", "b", "c")
    leases += take(do)
    assert {row.key for row in look.live() if row.state == "waiting"} <= {key for key, _ in line_rows(look)}
    done(do, *leases)
    assert {row.key for row in look.live() if row.state == "waiting"} <= {key for key, _ in line_rows(look)}
    assert len(drain(do)) == 3
    assert (line_rows(look), look.live()) == ([], [])


def test_a_line_that_is_won_with_an_empty_stint_is_freed(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    [first] = add(do, "a")
    [lease] = take(do)
    do(jobs.settle([PutBack(lease.id, lease.fence, 60_000, 0, failure())]))
    later = add(do, "a")
    # The line is free, and its first job is not due: nothing is leased, and nothing is held.
    assert take(do) == []
    assert line_rows(look) == [("a", 0)]
    clock.advance(60)
    assert drain(do) == [first, *later]
    assert line_rows(look) == []


def test_a_ticket_is_never_overtaken(do: Do, clock: Clock) -> None:
    say(do)
    first = add(do, "a", priority=-5)
    clock.advance(1)
    # More urgent and found first; the line still begins with the one that was there first.
    second = add(do, "a", priority=5)
    assert ids(take(do, 1)) == first
    assert take(do, 1) == []
    assert second


def test_a_blocked_key_does_not_starve_others(do: Do, clock: Clock) -> None:
    say(do)
    do(jobs.enqueue_many([new_job(key="hot") for _ in range(200)]))
    [_] = take(do, 1)
    [other] = add(do, "cold")
    got: list[str] = []
    for _ in range(3):
        got += ids(take(do, 5))
    assert got == [other]


def test_a_hot_key_is_put_aside_in_large_steps(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    do(jobs.enqueue_many([new_job(key="hot") for _ in range(120)]))
    [_] = take(do, 1)
    take(do, 5)
    take(do, 5)
    assert [row.state for row in look.live()].count("pending") == 0


def test_a_future_job_does_not_stall_its_line(do: Do, clock: Clock) -> None:
    say(do)
    [later] = add(do, "a", delay_ms=60_000)
    now = add(do, "a", "a")
    assert drain(do) == now
    clock.advance(60)
    assert drain(do) == [later]


def test_a_job_that_failed_holds_its_line_until_it_is_tried_again(do: Do, clock: Clock) -> None:
    say(do)
    first, second = add(do, "a", "a")
    other = add(do, "b")
    [lease] = take(do, 1)
    assert lease.job_id == first
    do(jobs.retry(lease, 5_000, failure()))
    assert drain(do) == other
    clock.advance(5)
    assert drain(do) == [first, second]


def test_with_pass_the_others_go_by_a_job_that_failed(do: Do, clock: Clock) -> None:
    say(do, PASS)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1, PASS)
    do(jobs.retry(lease, 5_000, failure()))
    assert drain(do, PASS) == [second]
    clock.advance(5)
    assert drain(do, PASS) == [first]


def test_a_job_that_failed_is_claimed_alone(do: Do, clock: Clock) -> None:
    say(do)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1)
    do(jobs.retry(lease, 0, failure()))
    assert ids(take(do)) == [first]
    assert second


def test_a_snoozed_job_holds_its_line(do: Do, clock: Clock) -> None:
    say(do)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1)
    do(jobs.snooze(lease, 5_000))
    assert take(do) == []
    clock.advance(5)
    assert drain(do) == [first, second]


def test_a_released_stint_comes_back_in_its_order(do: Do, clock: Clock) -> None:
    say(do)
    mine = add(do, "a", "a", "a")
    for lease in take(do):
        do(jobs.release(lease))
    assert ids(take(do)) == mine


def test_a_called_job_takes_its_place_at_now(do: Do, clock: Clock, look: Look) -> None:
    """The next of a line stands behind what is due already: keys take turns."""
    say(do)
    add(do, "a", "a")
    [lease] = take(do, 1)
    take(do, 1)
    clock.advance(10)
    other = add(do, "b")
    clock.advance(10)
    done(do, lease)
    [called] = [row for row in look.live() if row.key == "a"]
    assert (called.state, called.available_at) == ("pending", clock.now)
    assert ids(take(do, 1)) == other


def test_a_dead_letter_lets_its_line_go_on(do: Do, clock: Clock) -> None:
    say(do)
    _, second = add(do, "a", "a")
    [lease] = take(do, 1)
    do(jobs.kill(lease, failure(), "g"))
    assert drain(do) == [second]


def test_a_line_survives_the_last_attempt(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    _, second = add(do, "a", "a", max_attempts=1)
    [lease] = take(do, 1)
    do(jobs.begin(lease))
    clock.pass_lease(lease)
    assert [one.outcome for one in do(jobs.reap())] == ["dead"]
    assert drain(do) == [second]
    assert line_rows(look) == []


def test_a_line_stops_for_a_dead_letter_where_its_queue_says_so(do: Do, clock: Clock) -> None:
    say(do, STOP)
    first, second = add(do, "a", "a")
    other = add(do, "b")
    [lease] = take(do, 1, STOP)
    do(jobs.kill(lease, failure(), "g"))
    assert drain(do, STOP) == other
    clock.advance(3_600)
    assert take(do, 9, STOP) == []
    # Replayed, it runs at its old place, and its line goes on.
    do(admin.replay(admin.Filter(ids=(first,)), 1, "ada"))
    assert drain(do, STOP) == [first, second]


def test_a_stopped_line_goes_on_when_its_dead_letter_is_discarded(do: Do, clock: Clock) -> None:
    say(do, STOP)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1, STOP)
    do(jobs.kill(lease, failure(), "g"))
    do(admin.discard(admin.Filter(ids=(first,)), 1, "ada"))
    assert drain(do, STOP) == [second]


def test_a_replayed_dead_letter_runs_at_its_old_place(do: Do, clock: Clock) -> None:
    say(do)
    first, passed = add(do, "a", "a")
    [lease] = take(do, 1)
    do(jobs.kill(lease, failure(), "g"))
    assert drain(do) == [passed]
    later = add(do, "a")
    do(admin.replay(admin.Filter(ids=(first,)), 1, None))
    assert drain(do) == [first, *later]


def test_a_stale_holder_cannot_release_twice(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    add(do, "a", "a")
    [stale] = take(do, 1)
    clock.pass_lease(stale)
    do(jobs.reap())
    clock.advance(3_600)
    [again] = take(do, 1)
    assert line_rows(look) == [("a", 1)]
    assert do(jobs.settle([Finish(stale.id, stale.fence, "done")])).lost == {stale.job_id}
    with pytest.raises(LeaseLost):
        do(jobs.complete(stale))
    with pytest.raises(LeaseLost):
        do(jobs.release(stale))
    assert line_rows(look) == [("a", 1)]
    done(do, again)
    done(do, *take(do))
    assert line_rows(look) == []


def test_a_settle_that_is_repeated_gives_nothing_back_twice(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    add(do, "a", "a")
    leases = take(do)
    for _ in range(2):
        assert do(jobs.settle([Finish(leases[0].id, leases[0].fence, "done")])).done == {leases[0].job_id}
    assert line_rows(look) == [("a", 1)]


def test_a_killed_holder_frees_its_line_with_its_lease(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    mine = add(do, "a", "a")
    [lease, _] = take(do)
    assert take(do, worker="other") == []
    clock.pass_lease(lease)
    do(jobs.reap())
    assert line_rows(look) == [("a", 0)]
    clock.advance(3_600)
    assert drain(do) == mine


def test_a_death_charges_only_the_first_job_of_a_stint_that_has_not_ended(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    first, second, third = add(do, "a", "a", "a")
    leases = take(do)
    done(do, leases[0])
    clock.pass_lease(leases[0])
    assert {one.id: one.outcome for one in do(jobs.reap())} == {second: "retry", third: "released"}
    rows = {row.id: row for row in look.live()}
    assert (rows[second].lapses, rows[third].lapses, rows[third].attempts) == (1, 0, 0)
    assert first not in rows


def test_a_job_that_began_behind_another_is_not_started_more_often_than_it_may(do: Do, clock: Clock) -> None:
    """The process died when the first had ended, and its end was not written yet."""
    say(do)
    first, second, third = add(do, "a", "a", "a", max_attempts=1)
    one, two, _ = take(do)
    do(jobs.begin(one))
    do(jobs.begin(two))
    clock.pass_lease(one)
    assert {one.id: one.outcome for one in do(jobs.reap())} == {first: "dead", second: "dead", third: "released"}
    assert drain(do) == [third]


def test_a_suspect_is_claimed_alone(do: Do, clock: Clock) -> None:
    say(do)
    first, second = add(do, "a", "a")
    [lease, _] = take(do)
    clock.pass_lease(lease)
    do(jobs.reap())
    clock.advance(3_600)
    assert take(do, suspects=False) == []
    assert ids(take(do)) == [first]
    assert second


def test_a_job_without_a_key_stands_in_no_line(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    loose = add(do, None, None)
    assert set(ids(take(do))) == set(loose)
    assert line_rows(look) == []


def test_a_cancelled_head_lets_its_line_go_on(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1)
    take(do)
    do(jobs.retry(lease, 3_600_000, failure()))
    assert states(look) == {first: "pending", second: "waiting"}
    assert do(admin.cancel(first, "ada")) == "cancelled"
    assert drain(do) == [second]


def test_a_cancelled_job_that_was_called_lets_its_line_go_on(do: Do, clock: Clock) -> None:
    say(do)
    _, second, third = add(do, "a", "a", "a")
    [lease] = take(do, 1)
    take(do)
    done(do, lease)
    assert do(admin.cancel(second, "ada")) == "cancelled"
    assert drain(do) == [third]


def test_a_cancelled_ticket_lets_its_line_go_on(do: Do, clock: Clock) -> None:
    """A job for later that has become due brings its line up by itself, so the line has called nobody."""
    say(do)
    [later] = add(do, "a", delay_ms=1_000)
    add(do, "a")
    [lease] = take(do, 1)
    [last] = add(do, "a")
    take(do)
    clock.advance(1)
    done(do, lease)
    assert do(admin.cancel(later, "ada")) == "cancelled"
    assert drain(do) == [last]


def test_a_cancelled_waiting_job_is_gone_from_its_line(do: Do, clock: Clock) -> None:
    say(do)
    _, second, third = add(do, "a", "a", "a")
    [lease] = take(do, 1)
    take(do)
    assert do(admin.cancel(second, "ada")) == "cancelled"
    done(do, lease)
    assert drain(do) == [third]


def test_a_job_of_another_kind_at_the_head_is_left_to_its_own_workers(do: Do, clock: Clock) -> None:
    say(do)
    [first] = add(do, "a", kind="other")
    later = add(do, "a")
    mine = {"noop": 30_000}
    assert take(do, leases=mine) == []
    assert ids(take(do, leases={"other": 30_000})) == [first]
    assert later


def test_a_stint_ends_before_a_job_of_another_kind(do: Do, clock: Clock) -> None:
    say(do)
    first = add(do, "a")
    [other] = add(do, "a", kind="other")
    last = add(do, "a")
    claimed = take(do, leases={"noop": 30_000})
    assert ids(claimed) == first
    done(do, *claimed)
    assert take(do, leases={"noop": 30_000}) == []
    others = take(do, leases={"other": 30_000})
    assert ids(others) == [other]
    done(do, *others)
    assert drain(do) == last


def test_many_idle_keys_cost_nothing(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    do(jobs.enqueue_many([new_job(key=f"k{n}") for n in range(50)]))
    assert len(drain(do, limit=20)) == 50
    assert line_rows(look) == []


def test_a_parked_job_of_another_surface_is_not_taken(do: Do, clock: Clock) -> None:
    say(do)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1)
    do(jobs.park(lease, "signal:approved"))
    # It has begun, so it holds its line.
    assert take(do) == []
    do(jobs.wake([first]))
    assert drain(do) == [first, second]


def test_with_pass_the_others_go_by_jobs_that_are_parked(do: Do, clock: Clock) -> None:
    say(do, PASS)
    mine = add(do, *["a"] * 12)
    for job in mine[:-1]:
        [lease] = take(do, 1, PASS)
        assert lease.job_id == job
        do(jobs.park(lease, "signal:approved"))
    assert drain(do, PASS) == mine[-1:]
    do(jobs.wake(mine[:-1]))
    assert drain(do, PASS) == mine[:-1]


def test_the_ends_of_a_stint_may_come_in_several_batches(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    add(do, "a", "a", "a")
    one, two, three = take(do)
    [later] = add(do, "a")
    done(do, one)
    assert take(do) == []
    do(jobs.complete(two))
    assert line_rows(look) == [("a", 1)]
    do(jobs.complete(three, keep=False))
    assert drain(do) == [later]


def test_other_queues_have_lines_of_their_own(do: Do, clock: Clock) -> None:
    say(do)
    say(do, queue="post")
    add(do, "a")
    other = add(do, "a", queue="post")
    assert len(take(do)) == 1
    assert ids(do(lines.claim("post", ORDERED, limit=9)).leases) == other
