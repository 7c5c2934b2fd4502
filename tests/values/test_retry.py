from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Fatal, TimedOut
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


@pytest.mark.parametrize("delay", [0, 0.0, 5, timedelta(seconds=5)])
def test_after_is_what_its_fields_say_each_time(delay: int | float | timedelta) -> None:
    said = Retry(first_delay=delay, factor=1.0, max_delay=delay, jitter=0.0, reason="once")
    again = Retry(first_delay=delay, factor=1.0, max_delay=delay, jitter=0.0)
    assert (Retry.after(delay, "once"), Retry.after(delay)) == (said, again)
    assert repr(Retry.after(delay, "once")) == repr(said)


@pytest.mark.parametrize("delay", [True, -1, float("nan"), "5", None])
def test_after_refuses_the_same_each_time(delay: Any) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="first_delay"):
            Retry.after(delay)


def test_after_makes_one_of_a_derived_class() -> None:
    class Own(Retry):
        pass

    assert type(Own.after(5)) is Own


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


class Declined(ValueError):
    """A failure that another attempt would not change."""


def test_without_on_and_never_everything_but_fatal_is_retried() -> None:
    assert [Retry().retries(error) for error in (OSError(), KeyboardInterrupt(), Fatal())] == [True, True, False]


def test_on_names_all_that_is_retried_and_never_what_is_not_with_what_is_derived_from_them() -> None:
    some = Retry(on=(OSError, ValueError), never=Declined)
    assert [some.retries(error) for error in (ConnectionError(), ValueError(), Declined(), KeyError())] == [
        True,
        True,
        False,
        False,
    ]
    assert [Retry(never=Declined).retries(error) for error in (Declined(), KeyError())] == [False, True]


def test_an_attempt_that_ran_out_of_time_is_retried_on_pythons_timeouterror() -> None:
    assert Retry(on=TimeoutError).retries(TimedOut(5))
    assert not Retry(on=ConnectionError).retries(TimedOut(5))


def test_a_group_is_retried_if_each_part_is_or_its_own_class_is_named() -> None:
    both = ExceptionGroup("both", [OSError(), ExceptionGroup("inner", [ValueError()])])
    assert Retry(on=(OSError, ValueError)).retries(both)
    assert not Retry(on=OSError).retries(both)
    assert Retry(on=ExceptionGroup).retries(both)
    assert not Retry(on=ExceptionGroup, never=ValueError).retries(both)
    assert not Retry().retries(ExceptionGroup("fatal", [OSError(), Fatal()]))


def test_a_group_that_cannot_be_asked_for_its_parts_is_retried_unless_on_says_otherwise() -> None:
    class Odd(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> Any:
            raise KeyboardInterrupt

    odd = Odd("odd", [OSError()])
    assert (Retry().retries(odd), Retry(on=OSError).retries(odd)) == (True, False)


@pytest.mark.parametrize("value", [OSError(), "OSError", int, [OSError], (OSError, 3), ()])
@pytest.mark.parametrize("field", ["on", "never"])
def test_on_and_never_take_exception_classes_alone(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(**{field: value})
    assert caught.value.field == field
    assert "exception class" in caught.value.rule


@pytest.mark.parametrize("never, named", [(OSError, "never has OSError"), (None, "Fatal is never retried")])
def test_a_class_that_could_not_be_retried_is_refused(never: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Retry(on=ConnectionError if never else Fatal, never=never)


def test_policies_with_exceptions_are_equal_by_what_they_say() -> None:
    assert Retry(on=OSError) == Retry(on=(OSError,)) != Retry()
    assert len({Retry(on=OSError), Retry(on=(OSError,))}) == 1
