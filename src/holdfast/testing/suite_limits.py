"""Limits that do not leak: what a queue and a key may run at once and start in a time, and keys that take turns."""

from __future__ import annotations

import pytest

from holdfast import admin, jobs, lines
from holdfast.errors import LeaseLost
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_order import add, done, drain, ids, line_rows, say, states, take
from holdfast.values.queues import QueueSettings, Rate
from holdfast.values.rows import Finish, Lease

TWO = QueueSettings(concurrency=2)
TEN_A_SECOND = QueueSettings(rate=Rate(10, per=1))
FAIR = QueueSettings(fair=True)
TWO_OF_A_KEY = QueueSettings(fair=True, key_concurrency=2)
FIVE_OF_A_KEY = QueueSettings(key_rate=Rate(5, per=1))


def counted(look: Look, queue: str = "mail") -> int:
    [[count]] = look.rows(f"select held from holdfast_queues where name = '{queue}'")  # noqa: S608 - a name of ours
    return int(count)


def started(do: Do, clock: Clock, settings: QueueSettings, seconds: float, step: float) -> list[float]:
    """Claim again and again for some time, settle at once, and return when each job started, in seconds from now."""
    begin = clock.now
    starts: list[float] = []
    while (at := (clock.now - begin).total_seconds()) < seconds:
        claimed = take(do, 100, settings)
        starts += [at] * len(claimed)
        if claimed:
            done(do, *claimed)
        clock.advance(step)
    return starts


def most_in(starts: list[float], period: float) -> int:
    """Count the most starts in any stretch of that length."""
    return max((sum(first <= at < first + period for at in starts) for first in starts), default=0)


def test_a_queue_runs_no_more_jobs_at_once_than_its_limit(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO)
    add(do, None, "a", "a", None)
    first = take(do, 9, TWO)
    assert (len(first), counted(look)) == (2, 2)
    assert take(do, 9, TWO, worker="other") == []
    done(do, first[0])
    assert len(take(do, 9, TWO, worker="other")) == 1
    assert counted(look) == 2


def test_every_way_out_gives_a_place_back_once(do: Do, clock: Clock, look: Look) -> None:
    say(do, QueueSettings(concurrency=9))
    add(do, *[None] * 7)
    done_, dropped, killed, retried, snoozed, released, parked = take(do, 9, QueueSettings(concurrency=9))
    assert counted(look) == 7
    do(jobs.complete(done_))
    do(jobs.settle([Finish(dropped.id, dropped.fence, "done", keep=False)]))
    do(jobs.kill(killed, failure(), "g"))
    do(jobs.retry(retried, 5_000, failure()))
    do(jobs.snooze(snoozed, 5_000))
    do(jobs.release(released))
    do(jobs.park(parked, "signal:approved"))
    assert counted(look) == 0


def test_a_killed_holder_frees_its_limit_with_its_lease(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO)
    add(do, None, None, None)
    leases = take(do, 9, TWO)
    clock.pass_lease(leases[0])
    # Not before: the lease has run out, but nobody has taken it back.
    assert take(do, 9, TWO) == []
    do(jobs.reap())
    assert counted(look) == 0
    clock.advance(3_600)
    assert len(take(do, 9, TWO)) == 2


def test_a_slow_job_beyond_its_lease_keeps_its_limit(do: Do, clock: Clock) -> None:
    say(do, TWO)
    add(do, None, None, None)
    leases = take(do, 9, TWO)
    for _ in range(5):
        clock.advance(20)
        assert len(do(jobs.renew([(lease, 30_000) for lease in leases])).kept) == 2
        do(jobs.reap())
        assert take(do, 9, TWO) == []


def test_a_stale_holder_cannot_give_a_place_back_twice(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO)
    add(do, None, None, None)
    [stale, other] = take(do, 9, TWO)
    done(do, other)
    clock.pass_lease(stale)
    do(jobs.reap())
    clock.advance(3_600)
    assert len(take(do, 9, TWO)) == 2
    assert do(jobs.settle([Finish(stale.id, stale.fence, "done")])).lost == {stale.job_id}
    with pytest.raises(LeaseLost):
        do(jobs.complete(stale))
    assert counted(look) == 2


def test_a_restart_after_a_kill_keeps_the_limit(do: Do, clock: Clock) -> None:
    """What a dead process holds counts until its leases end, however many workers start meanwhile."""
    say(do, TWO)
    add(do, *[None] * 5)
    take(do, 9, TWO, worker="dead")
    for restart in range(3):
        say(do, TWO)
        assert take(do, 9, TWO, worker=f"restart-{restart}") == []


def test_a_cancelled_pending_job_gives_no_place_back(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO)
    add(do, None, None)
    first, _ = take(do, 9, TWO)
    do(jobs.release(first))
    assert do(admin.cancel(first.job_id, "ada")) == "cancelled"
    assert counted(look) == 1


def test_a_rate_is_never_exceeded_in_any_period(do: Do, clock: Clock) -> None:
    say(do, TEN_A_SECOND)
    do(jobs.enqueue_many([new_job() for _ in range(60)]))
    starts = started(do, clock, TEN_A_SECOND, 3, 0.05)
    assert most_in(starts, 1.0) <= 10
    assert len(starts) >= 25


def test_a_rate_that_does_not_divide_its_period_lets_jobs_start(do: Do, clock: Clock) -> None:
    thirds = QueueSettings(rate=Rate(3, per=1))
    say(do, thirds)
    do(jobs.enqueue_many([new_job() for _ in range(9)]))
    starts = started(do, clock, thirds, 3, 0.05)
    assert most_in(starts, 1.0) <= 3
    assert len(starts) >= 7


def test_a_rate_starts_several_at_once_where_it_is_quick(do: Do, clock: Clock) -> None:
    quick = QueueSettings(rate=Rate(1000, per=1))
    say(do, quick)
    do(jobs.enqueue_many([new_job() for _ in range(1_500)]))
    starts = started(do, clock, quick, 1.2, 0.02)
    assert most_in(starts, 1.0) <= 1_000
    assert len(starts) >= 1_000


def test_a_rate_is_spent_at_the_claim_and_not_given_back(do: Do, clock: Clock) -> None:
    once = QueueSettings(rate=Rate(1, per=60))
    say(do, once)
    add(do, None, None)
    [lease] = take(do, 9, once)
    do(jobs.release(lease))
    assert take(do, 9, once) == []
    clock.advance(60)
    assert len(take(do, 9, once)) == 1


def test_a_claim_says_when_a_rate_lets_the_next_job_start(do: Do, clock: Clock) -> None:
    once = QueueSettings(rate=Rate(1, per=60))
    say(do, once)
    add(do, None, None)
    assert do(lines.claim("mail", once, limit=9)).again_in == pytest.approx(60)
    clock.advance(20)
    assert do(lines.claim("mail", once, limit=9)).again_in == pytest.approx(40)


def test_a_clock_that_is_put_back_stops_no_rate_for_long(do: Do, clock: Clock) -> None:
    once = QueueSettings(rate=Rate(1, per=60))
    say(do, once)
    add(do, None, None)
    assert len(take(do, 9, once)) == 1
    [job] = add(do, None, run_at=clock.now.replace(year=clock.now.year - 2))
    clock.advance(-86_400 * 365)
    assert do(lines.claim("mail", once, limit=9)).again_in == pytest.approx(60)
    clock.advance(60)
    assert ids(take(do, 9, once)) == [job]


def test_a_queue_without_a_row_gives_nothing(do: Do, clock: Clock) -> None:
    """A worker that believes in a limit which somebody has taken out of the table by hand exceeds nothing."""
    add(do, None)
    assert take(do, 9, TWO) == []


def test_a_key_runs_no_more_jobs_at_once_than_its_limit(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO_OF_A_KEY)
    mine = add(do, *["a"] * 5)
    other = add(do, "b")
    first = take(do, 9, TWO_OF_A_KEY)
    assert sorted(str(lease.key) for lease in first) == ["a", "a", "b"]
    assert take(do, 9, TWO_OF_A_KEY) == []
    assert line_rows(look) == [("a", 2), ("b", 1)]
    done(do, first[0])
    assert len(take(do, 9, TWO_OF_A_KEY)) == 1
    assert len(mine + other) == 6


def test_full_keys_hide_no_others(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO_OF_A_KEY)
    do(jobs.enqueue_many([new_job(key="hot") for _ in range(100)]))
    assert len(take(do, 5, TWO_OF_A_KEY)) == 2
    [other] = add(do, "cold")
    assert other in ids([*take(do, 5, TWO_OF_A_KEY), *take(do, 5, TWO_OF_A_KEY)])
    assert set(states(look).values()) == {"leased", "waiting"}


def test_all_jobs_of_keys_with_limits_run(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO_OF_A_KEY)
    added = [one for n in range(12) for one in add(do, *["a", "b", "c"][: 1 + n % 3])]
    assert sorted(drain(do, TWO_OF_A_KEY, 4)) == sorted(added)
    assert line_rows(look) == []


def test_a_rate_of_a_key_is_never_exceeded_and_others_go_on(do: Do, clock: Clock, look: Look) -> None:
    say(do, FIVE_OF_A_KEY)
    do(jobs.enqueue_many([new_job(key="hot") for _ in range(30)]))
    other = add(do, "cold")
    ran: dict[str, list[float]] = {"hot": [], "cold": []}
    begin = clock.now
    while (at := (clock.now - begin).total_seconds()) < 3:
        claimed = take(do, 100, FIVE_OF_A_KEY)
        for lease in claimed:
            ran[str(lease.key)].append(at)
        if claimed:
            done(do, *claimed)
        clock.advance(0.05)
    assert most_in(ran["hot"], 1.0) <= 5
    assert len(ran["hot"]) >= 13
    assert (len(ran["cold"]), len(other)) == (1, 1)


def test_a_rate_of_a_key_outlives_its_line(do: Do, clock: Clock) -> None:
    once = QueueSettings(key_rate=Rate(1, per=60))
    say(do, once)
    add(do, "a")
    assert len(drain(do, once)) == 1
    add(do, "a")
    assert drain(do, once) == []
    clock.advance(60)
    assert len(drain(do, once)) == 1


def test_keys_take_turns_however_many_jobs_one_has(do: Do, clock: Clock) -> None:
    say(do, FAIR)
    do(jobs.enqueue_many([new_job(key="big") for _ in range(40)]))
    clock.advance(1)
    do(jobs.enqueue_many([new_job(key="small") for _ in range(3)]))
    ran: list[str] = []
    for _ in range(40):
        claimed = take(do, 4, FAIR)
        ran += [str(lease.key) for lease in claimed]
        clock.advance(1)
        if claimed:
            done(do, *claimed)
    assert (ran.count("big"), ran.count("small")) == (40, 3)
    assert max(n for n, key in enumerate(ran) if key == "small") < 20


def test_jobs_of_one_key_run_side_by_side_where_nothing_limits_them(do: Do, clock: Clock) -> None:
    say(do, FAIR)
    add(do, "a", "a", "a")
    assert len(take(do, 9, FAIR)) == 3


def test_a_limit_of_the_queue_holds_beside_its_order(do: Do, clock: Clock, look: Look) -> None:
    both = QueueSettings(ordered=True, concurrency=2)
    say(do, both)
    mine = add(do, "a", "b", "c", "a", "b", "c")
    ran: list[str] = []
    while claimed := take(do, 9, both):
        assert len(claimed) <= 2
        assert counted(look) == len(claimed)
        ran += ids(claimed)
        done(do, *claimed)
    assert sorted(ran) == sorted(mine)
    for first, second in zip(mine[:3], mine[3:], strict=True):
        assert ran.index(first) < ran.index(second)


# Settings


def test_what_is_stored_of_a_queue_wins(do: Do, clock: Clock) -> None:
    assert do(lines.declare({"mail": TWO}))["mail"].settings == TWO
    assert do(lines.declare({"mail": QueueSettings(concurrency=9), "post": FAIR}))["mail"].settings == TWO
    assert {name: one.settings for name, one in do(lines.stored()).items()} == {"mail": TWO, "post": FAIR}


def test_a_plain_queue_is_not_stored(do: Do, clock: Clock) -> None:
    assert do(lines.declare({"mail": QueueSettings()})) == {}


def test_a_changed_limit_holds_from_the_next_claim_on(do: Do, clock: Clock, look: Look) -> None:
    say(do, TWO)
    add(do, *[None] * 6)
    take(do, 9, TWO)
    assert do(lines.change("mail", {"concurrency": 3}, "ada")) == (TWO, QueueSettings(concurrency=3))
    # A worker that still believes in two reads what is stored.
    assert len(take(do, 9, TWO)) == 1
    assert do(lines.stored())["mail"].changed_by == "ada"


def test_a_new_limit_counts_what_runs_already(do: Do, clock: Clock, look: Look) -> None:
    add(do, None, None, None)
    running = do(jobs.claim("mail", limit=2))
    do(lines.change("mail", {"concurrency": 2}))
    assert take(do, 9, TWO) == []
    do(jobs.complete(running[0]))
    assert len(take(do, 9, TWO)) == 1
    assert counted(look) == 2


def test_a_queue_that_becomes_ordered_waits_for_what_runs_already(do: Do, clock: Clock) -> None:
    mine = add(do, "a", "a", "a")
    [running] = do(jobs.claim("mail", limit=1))
    ordered = QueueSettings(ordered=True)
    do(lines.change("mail", {"ordered": True}))
    assert take(do, 9, ordered) == []
    do(jobs.complete(running))
    clock.advance(2)
    assert drain(do, ordered) == mine[1:]


def test_a_queue_that_is_not_ordered_any_more_wakes_what_waits(do: Do, clock: Clock, look: Look) -> None:
    ordered = QueueSettings(ordered=True)
    say(do, ordered)
    mine = add(do, "a", "a", "a", "b", "b")
    leases = [*take(do, 2, ordered), *take(do, 9, ordered)]
    assert "waiting" in states(look).values()
    do(lines.change("mail", {"ordered": False}))
    left: list[Lease] = do(jobs.claim("mail", limit=9))
    # What waits for a line that is held is woken when that is free.
    done(do, *leases, *left)
    do(lines.tidy("mail"))
    left += do(jobs.claim("mail", limit=9))
    assert set(ids([*leases, *left])) == set(mine)
    assert line_rows(look) == []


# Upkeep


def test_a_recount_puts_right_what_differs_and_says_so(do: Do, clock: Clock, look: Look) -> None:
    both = QueueSettings(ordered=True, concurrency=5)
    say(do, both)
    add(do, "a", "a", "b")
    leases = take(do, 9, both)
    assert do(lines.recount("mail")) == []
    look.change("update holdfast_queues set held = 5")
    look.change("update holdfast_lines set held = 7 where key = 'a'")
    look.change("update holdfast_lines set held = 0 where key = 'b'")
    found = do(lines.recount("mail"))
    assert found == [("mail", None, 5, 3), ("mail", "a", 7, 2), ("mail", "b", 0, 1)]
    assert (counted(look), line_rows(look)) == (3, [("a", 2), ("b", 1)])
    done(do, *leases)
    assert (counted(look), line_rows(look), do(lines.recount("mail"))) == (0, [], [])


def test_a_line_that_waits_for_nobody_is_found(do: Do, clock: Clock, look: Look) -> None:
    """Somebody deletes rows by hand: whatever was to bring a line up is gone, and upkeep calls the next."""
    ordered = QueueSettings(ordered=True)
    say(do, ordered)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1, ordered)
    take(do, 9, ordered)
    do(jobs.retry(lease, 3_600_000, failure()))
    look.change(f"delete from holdfast_jobs where id = '{first}'")  # noqa: S608 - an id of ours
    assert take(do, 9, ordered) == []
    assert do(lines.queues_in_lines()) == ["mail"]
    assert do(lines.tidy("mail")) is None
    assert drain(do, ordered) == [second]


def test_a_line_that_lost_the_job_it_called_is_found(do: Do, clock: Clock, look: Look) -> None:
    ordered = QueueSettings(ordered=True)
    say(do, ordered)
    _, called, third = add(do, "a", "a", "a")
    [lease] = take(do, 1, ordered)
    take(do, 9, ordered)
    done(do, lease)
    look.change(f"delete from holdfast_jobs where id = '{called}'")  # noqa: S608 - an id of ours
    assert take(do, 9, ordered) == []
    do(lines.tidy("mail"))
    assert drain(do, ordered) == [third]


def test_lines_that_are_left_empty_go(do: Do, clock: Clock, look: Look) -> None:
    once = QueueSettings(key_rate=Rate(1, per=60))
    say(do, once)
    add(do, "a", "b")
    assert len(drain(do, once)) == 2
    do(lines.tidy("mail"))
    assert len(line_rows(look)) == 2
    clock.advance(60)
    do(lines.tidy("mail"))
    assert line_rows(look) == []


# By hand


def test_a_line_that_was_stopped_by_hand_waits_until_it_is_started(do: Do, clock: Clock) -> None:
    ordered = QueueSettings(ordered=True)
    say(do, ordered)
    mine = add(do, "a", "a")
    other = add(do, "b")
    assert do(lines.stop("mail", ["a"])) == ["a"]
    assert do(lines.stop("mail", ["a"])) == []
    assert drain(do, ordered) == other
    assert do(lines.start("mail", ["a", "b"])) == ["a"]
    assert drain(do, ordered) == mine
    assert do(lines.start("mail", ["a"])) == []
