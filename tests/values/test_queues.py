"""Rates: how many may start now, in exact numbers, at the times that databases have."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.values.queues import QueueSettings, Rate, spent, tokens, wait_us

NOW = 1_790_000_000_000_000
rates = st.builds(Rate, st.integers(1, 5_000), st.sampled_from([0.5, 1, 7, 60, 3_600, 86_400.0]))


@given(rate=rates, now=st.integers(NOW, 2 * NOW))
def test_every_rate_lets_something_start_when_nothing_has(rate: Rate, now: int) -> None:
    assert tokens(rate, None, now) == rate.burst
    assert wait_us(rate, None, now) == 0


@given(rate=rates, now=st.integers(NOW, 2 * NOW), late=st.lists(st.integers(0, 3), min_size=5, max_size=40))
def test_a_job_that_waits_as_long_as_it_says_may_start_and_no_period_has_more_than_its_count(
    rate: Rate, now: int, late: list[int]
) -> None:
    tat: int | None = None
    starts: list[int] = []
    for extra in late:
        now += wait_us(rate, tat, now) + extra
        count = tokens(rate, tat, now)
        assert count > 0
        starts += [now] * count
        tat = spent(rate, tat, now, count)
    period = round(rate.period * 1e6)
    assert max(sum(first <= at < first + period for at in starts) for first in starts) <= rate.count


@pytest.mark.parametrize("count", [3, 9, 12, 30])
def test_a_rate_whose_interval_is_no_whole_number_of_microseconds_lets_jobs_start(count: int) -> None:
    assert tokens(Rate(count, per=1), None, NOW) > 0


def test_a_clock_that_was_put_back_makes_nobody_wait_for_more_than_an_interval() -> None:
    rate = Rate(1, per=60)
    assert wait_us(rate, NOW + 10**12, NOW) == 60_000_000


def test_a_queue_is_said_once_or_twice_the_same() -> None:
    hf = Holdfast("sqlite://")
    hf.queue("orders", ordered=True, retention=0)
    hf.queue("orders", ordered=True, retention={"done": 0})
    with pytest.raises(
        ConfigError, match=r"queue: hf.queue\(\) was told of it before, with other settings \(ordered yes, "
    ):
        hf.queue("orders", concurrency=5)
    assert hf.queue_options("orders").settings == QueueSettings(ordered=True), "the first counts"
    hf.queue("mail", retention=timedelta(hours=1))
    with pytest.raises(ConfigError, match=r"\(done jobs kept for 3600 s\); say all of it in one call; got 'mail'"):
        hf.queue("mail")


@pytest.mark.parametrize("rate", [Rate(10, per=0.01), Rate(1000, per=1), Rate(100, per=0.02), Rate(60_000, per=60)])
def test_a_rate_gives_nearly_what_it_says_in_the_long_run(rate: Rate) -> None:
    in_a_period = rate.period * 1e6 / rate.interval_us
    assert 0.9 * rate.count <= in_a_period <= rate.count
