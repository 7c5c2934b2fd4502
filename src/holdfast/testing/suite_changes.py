"""Other settings for a queue that is at work: what runs counts, what waits goes on, and nobody is overtaken."""

from __future__ import annotations

from dataclasses import fields

from holdfast import jobs, lines
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.suite_order import ORDERED, add, done, drain, ids, line_rows, say, states, take
from holdfast.values.queues import QueueSettings, Rate

PLAIN = QueueSettings()
TWO_OF_A_KEY = QueueSettings(key_concurrency=2)
SLOW_KEYS = QueueSettings(ordered=True, key_rate=Rate(1, per=60))


def change(do: Do, settings: QueueSettings) -> None:
    """Store these settings, whatever was stored before."""
    do(lines.change("mail", {each.name: getattr(settings, each.name) for each in fields(settings)}))


def test_a_queue_that_gets_limits_for_keys_counts_what_runs_already(do: Do, clock: Clock, look: Look) -> None:
    add(do, "a", "a", "a", "b")
    first, _ = do(jobs.claim("mail", limit=2))
    change(do, TWO_OF_A_KEY)
    assert line_rows(look) == [("a", 2)]
    assert [lease.key for lease in take(do, 9, TWO_OF_A_KEY)] == ["b"]
    done(do, first)
    assert [lease.key for lease in take(do, 9, TWO_OF_A_KEY)] == ["a"]
    assert do(lines.recount("mail")) == []


def test_what_a_deployment_says_first_counts_what_runs_already(do: Do, clock: Clock, look: Look) -> None:
    add(do, "a", "a")
    [running] = do(jobs.claim("mail", limit=1))
    say(do, ORDERED)
    assert line_rows(look) == [("a", 1)]
    assert take(do) == []
    done(do, running)
    assert len(drain(do)) == 1
    assert line_rows(look) == []


def test_a_queue_that_becomes_ordered_waits_for_a_later_job_that_runs_already(do: Do, clock: Clock) -> None:
    [first] = add(do, "a")
    add(do, "a", priority=9)
    [urgent] = do(jobs.claim("mail", limit=1))
    change(do, ORDERED)
    assert take(do) == []
    done(do, urgent)
    assert drain(do) == [first]


def test_what_runs_in_two_ways_gives_back_what_it_counts_once(do: Do, clock: Clock, look: Look) -> None:
    """A lease that was of a line, then of none, then of one again counts for one job."""
    say(do, ORDERED)
    add(do, "a", "a", "a")
    [lease] = take(do, 1)
    take(do)
    change(do, PLAIN)
    do(jobs.release(lease))
    plain = do(jobs.claim("mail", limit=2))
    change(do, TWO_OF_A_KEY)
    assert line_rows(look) == [("a", 2)]
    done(do, plain[0])
    assert line_rows(look) == [("a", 1)]
    done(do, plain[1])
    assert len(drain(do, TWO_OF_A_KEY)) == 1
    assert line_rows(look) == []


def test_a_limit_of_keys_that_is_raised_lets_more_run_at_once(do: Do, clock: Clock) -> None:
    one = QueueSettings(key_concurrency=1)
    say(do, one)
    add(do, "a", "a", "a")
    assert len(take(do, 9, one)) == 1
    assert take(do, 9, one) == []
    change(do, TWO_OF_A_KEY)
    assert len(take(do, 9, TWO_OF_A_KEY)) == 1


def test_what_waits_behind_a_job_that_failed_goes_on_where_it_may_pass_now(do: Do, clock: Clock) -> None:
    passing = QueueSettings(ordered=True, on_retry="pass")
    say(do, ORDERED)
    first, second = add(do, "a", "a")
    [lease] = take(do, 1)
    take(do)
    do(jobs.snooze(lease, 60_000))
    assert take(do) == []
    change(do, passing)
    assert drain(do, passing) == [second]
    clock.advance(60)
    assert drain(do, passing) == [first]


def test_a_job_that_its_line_has_called_for_later_is_not_overtaken(do: Do, clock: Clock) -> None:
    say(do, SLOW_KEYS)
    first, second, third = add(do, "a", "a", "a")
    [lease] = take(do, 9, SLOW_KEYS)
    assert lease.job_id == first
    done(do, lease)
    assert take(do, 9, SLOW_KEYS) == []
    # The next one is called for when the rate lets it start. Without the rate it may start now, and first.
    change(do, ORDERED)
    assert drain(do) == [second, third]


def test_what_waits_in_a_stopped_line_is_due_where_its_queue_has_no_lines_any_more(
    do: Do, clock: Clock, look: Look
) -> None:
    say(do, ORDERED)
    mine = add(do, "a", "a")
    do(lines.stop("mail", ["a"]))
    assert drain(do) == []
    change(do, PLAIN)
    assert set(states(look).values()) == {"pending"}
    assert line_rows(look) == []
    assert ids(do(jobs.claim("mail", limit=9))) == mine


def test_what_waits_behind_a_job_that_runs_is_due_where_its_queue_has_no_lines_any_more(do: Do, clock: Clock) -> None:
    say(do, ORDERED)
    _, second, third = add(do, "a", "a", "a")
    take(do, 1)
    take(do)
    do(lines.stop("mail", ["a"]))
    change(do, PLAIN)
    assert ids(do(jobs.claim("mail", limit=9))) == [second, third]


def test_a_change_of_something_else_gives_nothing_of_a_rate_back(do: Do, clock: Clock) -> None:
    once = QueueSettings(rate=Rate(1, per=60))
    say(do, once)
    add(do, None, None)
    assert len(take(do, 9, once)) == 1
    both = QueueSettings(rate=Rate(1, per=60), concurrency=5)
    change(do, both)
    assert take(do, 9, both) == []
    clock.advance(60)
    assert len(take(do, 9, both)) == 1


def test_a_recount_makes_the_line_that_a_lease_counts_for(do: Do, clock: Clock, look: Look) -> None:
    say(do, ORDERED)
    add(do, "a", "a")
    [lease] = take(do, 1)
    look.change("delete from holdfast_lines")
    assert do(lines.recount("mail")) == [("mail", "a", 0, 1)]
    assert take(do) == []
    done(do, lease)
    assert len(drain(do)) == 1
