"""Many calls, one job: what `using(debounce=…)` and `using(throttle=…)` take."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.values.retry import LONGEST, Duration, seconds
from holdfast.values.spelling import spelt_fields
from holdfast.values.texts import KEY_LENGTH, text

# How many times `wait` a series of calls waits at most, where no `max_wait` is given: it must have an end.
WAITS_AT_MOST = 10
# What the scope of a throttle's key has behind the kind: it keeps such keys apart from idempotency keys.
THROTTLE_SCOPE = " (throttle)"


@spelt_fields
@dataclass(frozen=True)
class Debounce:
    """Wait until calls with this key have been quiet for `wait`, then run once, with what the last of them said.

    `max_wait` is how long the first call of a series waits at most, however many follow; ten times `wait` by default.
    """

    key: str
    wait: Duration
    max_wait: Duration | None = None

    def __post_init__(self) -> None:
        text(self.key, "debounce", KEY_LENGTH)
        wait = seconds(self.wait, "wait")
        longest = min(LONGEST, WAITS_AT_MOST * wait) if self.max_wait is None else seconds(self.max_wait, "max_wait")
        if longest < wait:
            raise ConfigError("max_wait", f"must be at least wait ({wait:g} s)", self.max_wait)
        object.__setattr__(self, "wait", wait)
        object.__setattr__(self, "max_wait", longest)

    @property
    def wait_ms(self) -> int:
        return round(seconds(self.wait, "wait") * 1000)

    @property
    def max_wait_ms(self) -> int:
        return round(seconds(self.max_wait or 0.0, "max_wait") * 1000)


@spelt_fields
@dataclass(frozen=True)
class Throttle:
    """Add one job for this key in `window`: the first call's. The others are answered with that job."""

    key: str
    window: Duration

    def __post_init__(self) -> None:
        text(self.key, "throttle", KEY_LENGTH)
        object.__setattr__(self, "window", seconds(self.window, "window", at_least=0.001))

    @property
    def window_ms(self) -> int:
        return round(seconds(self.window, "window") * 1000)


def throttle_scope(kind: str) -> str:
    """Name the scope in which throttles of a kind keep their keys."""
    return kind + THROTTLE_SCOPE
