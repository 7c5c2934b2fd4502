"""How long to wait, and what a handler may answer.

`Retry` is a handler's policy and also an outcome; `Snooze` and `Cancel` are outcomes only.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar

from holdfast.errors import ConfigError, Fatal
from holdfast.values.spelling import spelt_fields

Duration = float | timedelta
ExceptionClasses = type[BaseException] | tuple[type[BaseException], ...]

DAY = 86_400.0
R = TypeVar("R")
# A hundred years: longer than anyone waits, and no database's timestamp overflows on it.
LONGEST = 100 * 366 * DAY
# The tables keep a lease as milliseconds in 32 bits, which end after 24.8 days.
LONGEST_LEASE = 24 * DAY


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is an int or a float, which a bool is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def seconds(value: Duration, field: str, *, at_least: float = 0.0, at_most: float = LONGEST) -> float:
    """Read seconds or a timedelta as float seconds."""
    if type(value) is float and at_least <= value <= at_most:
        return value
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(number):
        raise ConfigError(field, "must be seconds (int or float) or a timedelta", value)
    if not at_least <= number <= at_most:  # also refuses NaN
        most = "100 years" if at_most == LONGEST else f"{at_most / DAY:g} days" if at_most > DAY else "a day"
        least = "1 second" if at_least == 1 else f"{at_least:g} seconds"
        raise ConfigError(field, f"must be from {least} to {most}", value)
    return float(number)


def number(value: float, field: str, low: float, high: float) -> float:
    """Check that a value is a number within bounds."""
    if not is_number(value) or not low <= value <= high:
        raise ConfigError(field, f"must be a number from {low:g} to {high:g}", value)
    return value


def whole(value: int, field: str, low: int, high: int) -> int:
    """Check that a value is a whole number within bounds."""
    if not is_number(value) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(field, f"must be a whole number from {low} to {high}", value)
    return value


class Seconds:
    """A dataclass field that takes seconds or a timedelta and holds float seconds.

    A descriptor, so that type checkers let callers pass a timedelta and still know that they read a float.
    """

    def __init__(self, default: float, *, at_least: float = 0.0, at_most: float = LONGEST) -> None:
        self.default = default
        self.at_least = at_least
        self.at_most = at_most

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> float:
        # Asked of the class, it answers with the default: so a dataclass learns it.
        return self.default if instance is None else instance.__dict__[self.name]

    def __set__(self, instance: object, value: Duration) -> None:
        instance.__dict__[self.name] = seconds(value, self.name, at_least=self.at_least, at_most=self.at_most)


class OptionalSeconds:
    """Like `Seconds`, for a field that may be None and is None by default."""

    def __init__(self, *, at_least: float = 0.0, at_most: float = LONGEST) -> None:
        self.at_least = at_least
        self.at_most = at_most

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> float | None:
        return None if instance is None else instance.__dict__[self.name]

    def __set__(self, instance: object, value: Duration | None) -> None:
        within = {"at_least": self.at_least, "at_most": self.at_most}
        instance.__dict__[self.name] = None if value is None else seconds(value, self.name, **within)


class Exceptions:
    """A dataclass field that takes an exception class or a tuple of them, and holds a tuple; None by default.

    A descriptor for the same reason as `Seconds`.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> tuple[type[BaseException], ...] | None:
        return None if instance is None else instance.__dict__[self.name]

    def __set__(self, instance: object, value: ExceptionClasses | None) -> None:
        instance.__dict__[self.name] = None if value is None else _classes(value, self.name)


def _classes(value: ExceptionClasses, field: str) -> tuple[type[BaseException], ...]:
    given = value if isinstance(value, tuple) else (value,)
    if not all(map(_is_exception_class, given)):
        raise ConfigError(field, "must be an exception class or a tuple of them, as after `except`", value)
    if not given:
        raise ConfigError(field, "must name an exception class; max_attempts=1 never retries", value)
    return given


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


@spelt_fields
@dataclass(frozen=True)
class Retry:
    """Say how often and how late a failed job is tried again, and after which exceptions.

    on: only these, and what is derived from them, are retried; anything else that is raised ends the job as dead at
    once. never: these end it as dead at once, also where `on` names a class above them.
    As a handler's policy all fields count. Returned as an outcome, only the delays and the reason do:
    how many attempts a job has was settled when it was enqueued.
    """

    max_attempts: int = 5
    first_delay: Seconds = Seconds(10.0)
    factor: float = 2.0
    max_delay: Seconds = Seconds(300.0)
    jitter: float = 0.1
    reason: str = ""
    _: KW_ONLY
    on: Exceptions = Exceptions()
    never: Exceptions = Exceptions()

    def __post_init__(self) -> None:
        whole(self.max_attempts, "max_attempts", 1, 1_000_000)
        number(self.factor, "factor", 1.0, 1_000.0)
        number(self.jitter, "jitter", 0.0, 1.0)
        if self.max_delay < self.first_delay:
            raise ConfigError("max_delay", f"must be at least first_delay ({self.first_delay:g} s)", self.max_delay)
        never: tuple[type[BaseException], ...] = (Fatal, *(self.never or ()))
        for wanted in self.on or ():
            if over := next((each for each in never if issubclass(wanted, each)), None):
                why = "is never retried" if over is Fatal else f"is never retried, because never has {over.__name__}"
                raise ConfigError("on", f"{wanted.__name__} {why}", self.on)

    @property
    def chooses(self) -> bool:
        """True if it matters which exception ended an attempt."""
        return self.on is not None or self.never is not None

    def retries(self, error: BaseException) -> bool:
        """Tell whether an attempt that ended with this exception is followed by another one, while there are any left.

        A group of exceptions is, if each of its parts is, or `on` names its own class; not if `never` names any part.
        """
        try:
            return not self._forbids(error) and self._wants(error)
        except BaseException:
            # A group that fails when it is asked for its parts: nobody knows what they are.
            return self.on is None

    # The type is asked, never `__class__`, which may be a property that fails.

    def _forbids(self, error: BaseException) -> bool:
        if issubclass(type(error), (Fatal, *(self.never or ()))):
            return True
        return any(self._forbids(part) for part in _parts(error))

    def _wants(self, error: BaseException) -> bool:
        if self.on is None or issubclass(type(error), self.on):
            return True
        parts = _parts(error)
        return bool(parts) and all(self._wants(part) for part in parts)

    @classmethod
    def after(cls, delay: Duration, reason: str = "") -> Retry:
        """Try again after this delay, the same each time."""
        if cls is not Retry or type(delay) not in _DELAYS:
            return cls(first_delay=delay, factor=1.0, max_delay=delay, jitter=0.0, reason=reason)
        # Handlers return it in a storm of failures, with few delays: to check the fields takes longer than all else.
        made = object.__new__(cls)
        made.__dict__.update(_waiting(delay))
        made.__dict__["reason"] = reason
        return made

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 1) failed."""
        planned = self.first_delay if attempt <= 1 else min(self._grown(attempt), self.max_delay)
        spread = self.jitter * (2.0 * random() - 1.0) if self.jitter else 0.0
        return min(LONGEST, max(0.0, planned * (1.0 + spread)))

    def _grown(self, attempt: int) -> float:
        try:
            return self.first_delay * self.factor ** (attempt - 1)
        except OverflowError:
            # Zero stays zero however often it grows.
            return math.inf if self.first_delay else 0.0


_DELAYS = frozenset({int, float, timedelta})


@lru_cache(maxsize=256)
def _waiting(delay: Duration) -> dict[str, Any]:
    """Give the checked fields of a policy that always waits as long."""
    return dict(Retry(first_delay=delay, factor=1.0, max_delay=delay, jitter=0.0).__dict__)


def _parts(error: BaseException) -> tuple[BaseException, ...]:
    """List what a group of exceptions holds; nothing for a plain one."""
    group: Any = error
    return group.exceptions if issubclass(type(error), BaseExceptionGroup) else ()


def without_exceptions(policy: R, advice: str) -> R:
    """Refuse a policy that goes by exceptions where none reach it. Raises: ConfigError."""
    if isinstance(policy, Retry) and policy.chooses:
        raise ConfigError("retry", f"must not have on= or never= here: {advice}", policy)
    return policy


def delay_by(attempt: int, *policies: Retry) -> tuple[float, BaseException | None]:
    """Ask a policy for its delay. Where a subclass of Retry fails at that, ask the next one, and say why."""
    flaw: BaseException | None = None
    for policy in policies:
        try:
            return seconds(policy.delay(attempt), "delay"), flaw
        except BaseException as error:
            flaw = error if flaw is None else flaw
    return Retry().delay(attempt), flaw


@dataclass(frozen=True, init=False)
class Snooze:
    """Answer "not yet": the job runs again after the delay and the attempt is not counted."""

    delay: float
    reason: str

    def __init__(self, delay: Duration, reason: str = "") -> None:
        object.__setattr__(self, "delay", seconds(delay, "delay"))
        object.__setattr__(self, "reason", reason)


@dataclass(frozen=True)
class Cancel:
    """Answer "no longer wanted": the job ends as cancelled."""

    reason: str = ""
