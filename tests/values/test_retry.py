from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.values.retry import Cancel, Retry, Snooze


def test_the_default_waits_ten_seconds_then_doubles_up_to_five_minutes() -> None:
    retry = Retry(jitter=0)
    assert [retry.delay(attempt) for attempt in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]


def test_delays_are_seconds_or_timedeltas_and_kept_as_float_seconds() -> None:
    retry = Retry(first_delay=timedelta(minutes=1), max_delay=3600)
    assert (retry.first_delay, retry.max_delay) == (60.0, 3600.0)
    assert isinstance(retry.max_delay, float)
    assert retry == Retry(first_delay=60, max_delay=timedelta(hours=1))


def test_jitter_is_symmetric_around_the_planned_delay() -> None:
    retry = Retry(first_delay=100, jitter=0.2)
    drawn = [retry.delay(1, random=lambda share=share: share) for share in (0.0, 0.5, 1.0)]  # type: ignore[misc]
    assert drawn == pytest.approx([80, 100, 120])


@given(
    attempt=st.integers(min_value=-5, max_value=10**12),
    first=st.floats(0, 1e6),
    factor=st.floats(1, 1000),
    extra=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    share=st.floats(0, 1),
)
def test_a_delay_stays_between_zero_and_the_maximum_with_its_jitter(
    attempt: int, first: float, factor: float, extra: float, jitter: float, share: float
) -> None:
    retry = Retry(first_delay=first, factor=factor, max_delay=first + extra, jitter=jitter)
    delay = retry.delay(attempt, random=lambda: share)
    assert math.isfinite(delay)
    assert 0 <= delay <= (first + extra) * (1 + jitter) * (1 + 1e-9)


def test_a_zero_delay_stays_zero_for_any_attempt() -> None:
    assert Retry(first_delay=0).delay(10**9) == 0


def test_after_waits_the_same_each_time() -> None:
    retry = Retry.after(timedelta(seconds=30), reason="rate limited")
    assert [retry.delay(attempt) for attempt in (1, 2, 1000)] == [30, 30, 30]
    assert retry.reason == "rate limited"


def test_after_may_wait_longer_than_the_default_maximum() -> None:
    assert Retry.after(timedelta(days=1)).delay(1) == 86_400


@pytest.mark.parametrize(
    "field, options",
    [
        ("max_attempts", {"max_attempts": 0}),
        ("max_attempts", {"max_attempts": 2.5}),
        ("max_attempts", {"max_attempts": True}),
        ("first_delay", {"first_delay": -1}),
        ("first_delay", {"first_delay": math.nan}),
        ("first_delay", {"first_delay": "10"}),
        ("max_delay", {"max_delay": math.inf}),
        ("max_delay", {"first_delay": 10, "max_delay": 5}),
        ("max_delay", {"max_delay": timedelta.max}),
        ("factor", {"factor": 0.5}),
        ("factor", {"factor": math.nan}),
        ("jitter", {"jitter": 1.5}),
        ("jitter", {"jitter": True}),
    ],
)
def test_a_bad_policy_is_refused_by_the_name_of_its_field(field: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_outcomes_are_values() -> None:
    assert Snooze(timedelta(minutes=1), "closed") == Snooze(60, reason="closed")
    assert hash(Snooze(1)) == hash(Snooze(1.0))
    assert Cancel() == Cancel("")
    with pytest.raises(ConfigError, match="delay"):
        Snooze(-1)
