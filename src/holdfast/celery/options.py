"""Celery's options, read as Holdfast's: those of a task when it is defined, and those of one call.

What has no counterpart is refused where it is said, with what to do instead.
"""

from __future__ import annotations

import random as _random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, cast

from holdfast.celery.exceptions import Retry as RetryAsked
from holdfast.errors import ConfigError
from holdfast.values.options import LOWEST_PRIORITY, MOST_ATTEMPTS, EnqueueKeywords, moment_of, only_options
from holdfast.values.queues import Rate
from holdfast.values.retry import Duration, Retry, is_number, seconds, whole

Moment = datetime | timedelta | float
Errors = type[BaseException] | Sequence[type[BaseException]]

# What Celery has by default.
MAX_RETRIES = 3
RETRY_SECONDS = 180.0
BACKOFF_MAX_SECONDS = 600.0
_RATE = re.compile(r"(\d+)(?:/([smh]))?")
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class RetryKeywords(TypedDict, total=False):
    """What `retry_kwargs` of a task may say."""

    max_retries: int | None
    countdown: float


class TaskKeywords(TypedDict, total=False):
    """What may be said of a task when it is defined, beside `bind`."""

    name: str | None
    queue: str | None
    autoretry_for: Errors
    dont_autoretry_for: Errors
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    retry_kwargs: RetryKeywords
    max_retries: int | None
    default_retry_delay: Duration
    rate_limit: str | float | None
    time_limit: Duration | None
    soft_time_limit: Duration | None
    expires: Moment | None
    priority: int | None
    serializer: str | None
    ignore_result: bool
    lease: Duration
    acks_late: bool
    acks_on_failure_or_timeout: bool
    reject_on_worker_lost: bool
    track_started: bool
    store_errors_even_if_ignored: bool
    send_events: bool


class CallKeywords(TypedDict, total=False):
    """What may be said of one call: of `apply_async`, `set` and `using`."""

    tx: Any
    countdown: Duration | None
    eta: datetime | None
    expires: Moment | None
    queue: str | None
    priority: int | None
    headers: Mapping[str, str] | None
    serializer: str | None
    link: Any
    key: str | None
    unique: str | None
    idempotency_key: str | None


_TASK = ("bind", *TaskKeywords.__annotations__)
_CALL = tuple(CallKeywords.__annotations__)

# What a task cannot say, and what there is instead.
_NOT_OF_A_TASK = {
    "base": "what the methods of a base class did is done by hf.on(JobDead, …), hf.middleware or hf.around_handler",
    "compression": "payloads are not compressed: store what is large elsewhere, and pass a reference to it",
    "pydantic": "annotate the parameters: arguments are checked and read by their annotations",
    "throws": "an error that is expected is told like any other: return a value, or raise Ignore, instead",
    "trail": "what follows a job is shown by `holdfast jobs show`",
    "typing": "arguments are always checked against the function's parameters",
    "backend": "results are kept with the job, in its database",
    "on_failure": "use hf.on(holdfast.events.JobDead, …)",
    "on_success": "use hf.on(holdfast.events.JobDone, …)",
    "on_retry": "use hf.on(holdfast.events.JobRetried, …)",
    "routing_key": "there are no exchanges: say queue=",
    "exchange": "there are no exchanges: say queue=",
}
# What is always so: the other value of these cannot be had.
_ALWAYS = {
    "acks_late": "a job has ended when its handler has; for a task that may start only once say max_retries=0",
    "acks_on_failure_or_timeout": "a job that failed is over, or tried again; raise Reject(requeue=True) for that",
    "reject_on_worker_lost": "a job whose worker died runs again; for at most one start say max_retries=0",
}
# What one call cannot say.
_NOT_OF_A_CALL = {
    "task_id": "ids are made by Holdfast; for the same call twice say idempotency_key=, for one live job unique=",
    "link_error": "use hf.on(holdfast.events.JobDead, …), or a job that runs after it: handler.using(after=[…])",
    "chord": "say chord(header)(callback)",
    "retry": "an enqueue is repeated by itself where that is safe; leave it out",
    "retry_policy": "an enqueue is repeated by itself where that is safe; leave it out",
    "connection": "give tx=, the transaction that the job is to belong to",
    "producer": "give tx=, the transaction that the job is to belong to",
    "exchange": "there are no exchanges: say queue=",
    "routing_key": "there are no exchanges: say queue=",
    "time_limit": "it belongs to the task: say it in the decorator",
    "soft_time_limit": "it belongs to the task: say it in the decorator",
    "ignore_result": "it belongs to the task: say it in the decorator",
    "shadow": "the name of a job is that of its task",
    "compression": "payloads are not compressed",
    "add_to_parent": "what follows a job is shown by `holdfast jobs show`",
    "group_id": "use group(…)",
}


class FullJitter(Retry):
    """A policy whose delays lie anywhere between zero and the planned one, as Celery's do."""

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        return super().delay(attempt, random) * random()


@dataclass(frozen=True)
class TaskOptions:
    """What was said of a task, as Holdfast has it; None leaves it to the application."""

    name: str | None
    bind: bool
    queue: str | None
    # Counts for what `autoretry_for` names, and for attempts that died or took too long.
    retry: Retry
    max_retries: int | None
    # For `self.retry()` without a countdown.
    retry_seconds: float
    timeout: float | None
    expires: Moment | None
    priority: int
    ignore_result: bool
    lease: Duration
    rate: Rate | None

    @classmethod
    def of(cls, call: str, bind: bool, said: TaskKeywords) -> TaskOptions:
        """Read what was said of a task. Raises: ConfigError, which says what there is instead."""
        _refuse(call, said, _TASK, _NOT_OF_A_TASK)
        for name, why in _ALWAYS.items():
            if said.get(name, True) is not True:
                raise ConfigError(name, f"is always so here: {why}", said.get(name))
        _json_only(said.get("serializer"))
        rate = _rate(said.get("rate_limit"))
        if rate is not None and said.get("queue") is None:
            rule = "a rate belongs to a queue here, over all workers: give the task a queue of its own, queue=…"
            raise ConfigError("rate_limit", rule, said.get("rate_limit"))
        tries = said.get("retry_kwargs", {})
        only_options("retry_kwargs", cast("Mapping[str, object]", tries), ("max_retries", "countdown"))
        limit = tries.get("max_retries", said.get("max_retries", MAX_RETRIES))
        delay = seconds(said.get("default_retry_delay", RETRY_SECONDS), "default_retry_delay")
        # As Celery has it, an error is tried again only where it is named; `self.retry()` is no error by then.
        retried = _errors(said.get("autoretry_for", ()), "autoretry_for") or (RetryAsked,)
        spared = _errors(said.get("dont_autoretry_for", ()), "dont_autoretry_for") or None
        policy = _policy(said, _attempts(limit), seconds(tries.get("countdown", delay), "countdown"))
        return cls(
            name=said.get("name"),
            bind=bind,
            queue=said.get("queue"),
            retry=replace(policy, on=retried, never=spared),
            max_retries=limit,
            retry_seconds=delay,
            timeout=_timeout(said),
            expires=said.get("expires"),
            priority=_priority(said.get("priority")) or 0,
            ignore_result=bool(said.get("ignore_result", False)),
            lease=said.get("lease", 30.0),
            rate=rate,
        )


def _attempts(max_retries: int | None) -> int:
    """Return how many attempts leave that many retries; None is for ever."""
    if max_retries is None:
        return MOST_ATTEMPTS
    return whole(max_retries, "max_retries", 0, MOST_ATTEMPTS - 1) + 1


def _policy(said: TaskKeywords, attempts: int, delay: float) -> Retry:
    backoff = said.get("retry_backoff", False)
    if backoff is False:
        return Retry(max_attempts=attempts, first_delay=delay, factor=1.0, max_delay=delay, jitter=0.0)
    first = 1.0 if backoff is True else seconds(backoff, "retry_backoff")
    longest = seconds(said.get("retry_backoff_max", BACKOFF_MAX_SECONDS), "retry_backoff_max")
    policy = FullJitter if said.get("retry_jitter", True) else Retry
    return policy(max_attempts=attempts, first_delay=min(first, longest), factor=2.0, max_delay=longest, jitter=0.0)


def _timeout(said: TaskKeywords) -> float | None:
    """Return the sooner of the two limits: a thread can be left to itself and fenced, but not be interrupted."""
    limits = {name: value for name in ("soft_time_limit", "time_limit") if (value := said.get(name)) is not None}
    return min((seconds(cast("Duration", value), name, at_least=0.001) for name, value in limits.items()), default=None)


def _rate(limit: object) -> Rate | None:
    if limit is None:
        return None
    text = str(limit) if is_number(limit) else limit
    found = _RATE.fullmatch(text.replace(" ", "").removesuffix(".0")) if isinstance(text, str) else None
    if found is None:
        raise ConfigError("rate_limit", "must be a whole number of starts, as in '10/s', '100/m' or '3/h'", limit)
    return Rate(int(found[1]), _PERIODS[found[2] or "s"])


def _errors(given: object, field: str) -> tuple[type[BaseException], ...]:
    kinds = cast("Sequence[object]", given) if isinstance(given, list | tuple) else (given,)
    for one in kinds:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise ConfigError(field, "must be classes of exceptions", f"{one!r}")
    return tuple(cast("Sequence[type[BaseException]]", kinds))


def _priority(value: object) -> int | None:
    return None if value is None else whole(cast("int", value), "priority", LOWEST_PRIORITY, -LOWEST_PRIORITY)


def _eta(value: object) -> datetime | float | None:
    if value is not None and not isinstance(value, datetime):
        raise ConfigError("eta", "must be a datetime with a time zone; for seconds from now say countdown=", value)
    return None if value is None else moment_of(value, "eta")


def _json_only(serializer: object) -> None:
    if serializer not in (None, "json"):
        rule = "arguments are JSON here: annotate the parameters, or convert what JSON has no form for"
        raise ConfigError("serializer", rule, serializer)


def _refuse(call: str, said: Mapping[str, object], takes: Sequence[str], instead: Mapping[str, str]) -> None:
    for name in said:
        if name in instead:
            raise ConfigError(name, f"{call} cannot say it here: {instead[name]}", said[name])
    only_options(call, said, takes)


def call_options(call: str, said: CallKeywords) -> EnqueueKeywords:
    """Read what was said of one call, except for `tx` and `link`. Raises: ConfigError."""
    _refuse(call, said, _CALL, _NOT_OF_A_CALL)
    _json_only(said.get("serializer"))
    countdown, eta = said.get("countdown"), said.get("eta")
    if countdown is not None and eta is not None:
        raise ConfigError("eta", "cannot be said together with countdown", eta)
    kept: dict[str, Any] = {"run_after": _eta(eta) if countdown is None else seconds(countdown, "countdown")}
    for name in ("expires", "queue", "priority", "headers", "key", "unique", "idempotency_key"):
        kept[name] = said.get(name)
    _priority(said.get("priority"))
    return cast("EnqueueKeywords", {name: value for name, value in kept.items() if value is not None})
