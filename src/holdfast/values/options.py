"""Options, one frozen object per concern, checked when they are made.

Where an argument is left out, the environment decides (`StoreOptions.of`), then the default.
"""

# ruff: noqa: RUF009 - the calls in class bodies make descriptors and frozen values

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

from holdfast.errors import ConfigError
from holdfast.values.retry import DAY, LONGEST_LEASE, Duration, OptionalSeconds, Retry, Seconds, seconds, whole
from holdfast.values.rows import Outcome

__all__ = [
    "USING",
    "EnqueueKeywords",
    "EnqueueOptions",
    "HandlerOptions",
    "QueueOptions",
    "StoreKeywords",
    "StoreOptions",
    "WorkerKeywords",
    "header_map",
    "identifier",
    "kind_name",
    "only_options",
    "seconds",
    "switch",
    "text",
]

NAME_LENGTH = 100
KEY_LENGTH = 200
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
MOST_ATTEMPTS = 1_000_000
# A bucket is a SMALLINT.
MOST_BUCKETS = 2**15
# What every database and driver keeps and gives back, in any time zone: MySQL's times begin with the first of these
# years, and Python's end with the one after the last.
FIRST_YEAR, LAST_YEAR = 1000, 9998

Commit = Literal["alone", "together"]
COMMITS: tuple[Commit, ...] = ("alone", "together")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def identifier(value: object, field: str) -> str:
    """Check a table prefix or schema name, which become part of SQL text."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise ConfigError(field, "must be 1 to 40 of a-z, 0-9 and _, not starting with a digit", value)
    return value


def text(value: object, field: str, longest: int) -> str:
    """Check text that goes into a column of limited length."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise ConfigError(field, f"must be text of 1 to {longest} characters", value)
    return storable(value, field)


def storable(value: object, field: str) -> str:
    """Check that every database can keep this text."""
    if not isinstance(value, str):
        raise ConfigError(field, "must be text", value)
    if _UNSTORABLE.search(value):
        raise ConfigError(field, "must not contain NUL characters or lone surrogates", value)
    return value


def switch(value: object, field: str) -> bool | None:
    """Check what may be said to be on or off, or be left to a setting."""
    if value is not None and not isinstance(value, bool):
        raise ConfigError(field, "must be True, False or None", value)
    return value


def kind_name(value: object) -> str:
    """Check the name of a handler."""
    return text(value, "kind", NAME_LENGTH)


def only_options(call: str, given: Mapping[str, object], takes: Collection[str], advice: str = "") -> None:
    """Check that a call was given no option that it does not take; `advice` may name it as `{name}`.

    Raises: ConfigError, which names the call as people write it, and the option that was meant.
    """
    for name, value in given.items():
        if name in takes:
            continue
        near = get_close_matches(name, takes, n=1)
        hints = [f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes)}"]
        if advice:
            hints.append(advice.replace("{name}", name))
        raise ConfigError(name, f"{call} takes no such option ({'; '.join(hints)})", value)


class _SecondsOr(OptionalSeconds):
    """Seconds that read as the default until they are said, so that `merged` can tell the two apart."""

    def __init__(self, default: float) -> None:
        super().__init__()
        self.default = default

    @overload
    def __get__(self, instance: None, owner: type) -> None: ...
    @overload
    def __get__(self, instance: object, owner: type) -> float: ...
    def __get__(self, instance: object | None, owner: type) -> float | None:
        said = super().__get__(instance, owner)
        return self.default if instance is not None and said is None else said


class EnqueueKeywords(TypedDict, total=False):
    """The keywords by which something is said about one job: see `Handler.using`."""

    queue: str | None
    priority: int | None
    run_after: datetime | timedelta | float | None
    key: str | None
    idempotency_key: str | None
    window: Duration | None
    unique: str | None
    max_attempts: int | None
    lease: Duration | None
    headers: Mapping[str, str] | None


# What `using` takes, in the order of its signature.
USING = ("tx", "notify", *EnqueueKeywords.__annotations__)


@dataclass(frozen=True)
class EnqueueOptions:
    """What may be said about one job; None leaves it to the handler or the queue.

    `run_after` is kept as seconds, counted by the database's clock, or as a datetime in UTC: read `delay` and `at`.
    `window` is how long an idempotency key is remembered.
    """

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | timedelta | float | None = None
    key: str | None = None
    idempotency_key: str | None = None
    window: _SecondsOr = _SecondsOr(DAY)
    unique: str | None = None
    max_attempts: int | None = None
    lease: OptionalSeconds = OptionalSeconds(at_least=1.0, at_most=LONGEST_LEASE)
    headers: Mapping[str, str] | None = field(default=None, hash=False)

    _limits: ClassVar[dict[str, int]] = {
        "queue": NAME_LENGTH,
        "key": KEY_LENGTH,
        "idempotency_key": KEY_LENGTH,
        "unique": KEY_LENGTH,
    }

    def __post_init__(self) -> None:
        for name, longest in self._limits.items():
            if (value := getattr(self, name)) is not None:
                text(value, name, longest)
        if self.priority is not None:
            whole(self.priority, "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if self.max_attempts is not None:
            whole(self.max_attempts, "max_attempts", 1, MOST_ATTEMPTS)
        if self.run_after is not None:
            object.__setattr__(self, "run_after", _moment(self.run_after))
        if self.headers is not None:
            object.__setattr__(self, "headers", header_map(self.headers))

    @property
    def delay(self) -> float | None:
        """Seconds to wait, when `run_after` was given as a delay."""
        return self.run_after if isinstance(self.run_after, float) else None

    @property
    def at(self) -> datetime | None:
        """The moment in UTC, when `run_after` was given as a datetime."""
        return self.run_after if isinstance(self.run_after, datetime) else None

    def merged(self, other: EnqueueOptions) -> EnqueueOptions:
        """Return these options with whatever `other` says instead."""
        said = {name: value for name, value in vars(other).items() if value is not None}
        return EnqueueOptions(**{**vars(self), **said})


def _moment(value: datetime | timedelta | float) -> datetime | float:
    if not isinstance(value, datetime):
        return seconds(value, "run_after")
    if value.utcoffset() is None:
        raise ConfigError("run_after", "must have a time zone, as in datetime.now(UTC)", value)
    rule = f"must lie in the years {FIRST_YEAR} to {LAST_YEAR} in UTC"
    try:
        moment = value.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError("run_after", rule, value) from error
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ConfigError("run_after", rule, value)
    return moment


def header_map(headers: object, field: str = "headers") -> dict[str, str]:
    """Check what should map text to text, and copy it."""
    if not isinstance(headers, Mapping):
        raise ConfigError(field, "must map text to text", headers)
    pairs = cast("Mapping[object, object]", headers).items()
    return {text(name, field, KEY_LENGTH): storable(value, field) for name, value in pairs}


@dataclass(frozen=True)
class QueueOptions:
    """How long a queue keeps its finished jobs; 0 deletes them at once."""

    name: str
    keep_done: Seconds = Seconds(DAY)
    keep_dead: Seconds = Seconds(30 * DAY)
    keep_cancelled: Seconds = Seconds(7 * DAY)

    def __post_init__(self) -> None:
        text(self.name, "queue", NAME_LENGTH)

    @classmethod
    def of(cls, name: str, retention: Duration | Mapping[str, Duration] | None = None) -> QueueOptions:
        """Read `retention` as the time to keep done jobs, or as one time for each of done, dead and cancelled."""
        if retention is None:
            return cls(name)
        if not isinstance(retention, Mapping):
            return cls(name, keep_done=seconds(retention, "retention"))
        if strange := set(retention) - {"done", "dead", "cancelled"}:
            raise ConfigError("retention", "may name done, dead and cancelled", sorted(map(str, strange)))
        kept = {outcome: seconds(each, f"retention[{outcome!r}]") for outcome, each in retention.items()}
        return cls(name, **{f"keep_{outcome}": each for outcome, each in kept.items()})

    def keeps(self, outcome: Outcome) -> float:
        """Return for how many seconds jobs of this outcome are kept."""
        return {"done": self.keep_done, "dead": self.keep_dead, "cancelled": self.keep_cancelled}[outcome]


@dataclass(frozen=True)
class HandlerOptions:
    """How a handler's jobs run unless `enqueue` says otherwise.

    `concurrency` bounds how many run at once in one worker; `timeout` bounds one attempt. `commit` says whether
    `job.transaction()` commits alone or together with other jobs.
    """

    queue: str = "default"
    retry: Retry = Retry()
    lease: Seconds = Seconds(30.0, at_least=1.0, at_most=LONGEST_LEASE)
    timeout: OptionalSeconds = OptionalSeconds(at_least=0.001)
    concurrency: int | None = None
    priority: int = 0
    commit: Commit = "alone"

    def __post_init__(self) -> None:
        text(self.queue, "queue", NAME_LENGTH)
        if self.commit not in COMMITS:
            raise ConfigError("commit", f"must be one of {', '.join(map(repr, COMMITS))}", self.commit)
        _instance(self.retry, "retry", Retry)
        whole(self.priority, "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if self.concurrency is not None:
            whole(self.concurrency, "concurrency", 1, 100_000)


class StoreKeywords(TypedDict, total=False):
    """The keywords of `Holdfast(…)`: the fields of `StoreOptions`; None leaves it to the environment."""

    prefix: str | None
    schema: str | None
    payload_limit: int | None
    pool_size: int | None
    busy_timeout: Duration | None
    connect_timeout: Duration | None
    notify: bool | None
    prepare: bool | None
    listen_url: str | None
    buckets: int | None


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `hf.worker(…)`: see `Worker`, which has the defaults."""

    queues: Sequence[str] | None
    concurrency: int
    poll: Duration
    drain: Duration
    name: str | None
    buffer: int


@dataclass(frozen=True)
class StoreOptions:
    """How the database is used.

    Set `prepare` to False behind a PgBouncer that keeps no prepared statements, and `listen_url` to the server's own
    address when the main URL goes through a PgBouncer: LISTEN needs a session of its own.
    """

    prefix: str = "holdfast"
    schema: str | None = None
    payload_limit: int = 1024 * 1024
    pool_size: int = 10
    busy_timeout: Seconds = Seconds(5.0, at_most=DAY)
    connect_timeout: Seconds = Seconds(10.0, at_least=0.1, at_most=DAY)
    notify: bool = True
    prepare: bool = True
    listen_url: str | None = field(default=None, repr=False)
    buckets: int = 1024

    def __post_init__(self) -> None:
        identifier(self.prefix, "prefix")
        if self.schema is not None and identifier(self.schema, "schema").startswith("pg_"):
            raise ConfigError("schema", "must not start with pg_, which PostgreSQL keeps for itself", self.schema)
        if self.listen_url is not None:
            storable(self.listen_url, "listen_url")
        whole(self.payload_limit, "payload_limit", 2, 1024**3)
        whole(self.pool_size, "pool_size", 1, 10_000)
        whole(self.buckets, "buckets", 1, MOST_BUCKETS)
        _instance(self.notify, "notify", bool)
        _instance(self.prepare, "prepare", bool)

    @classmethod
    def of(cls, **overrides: Unpack[StoreKeywords]) -> StoreOptions:
        """Take what is given and not None, else the environment (`HOLDFAST_PREFIX`, …), else the default."""
        known = [each.name for each in fields(cls)]
        given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
        only_options("Holdfast()", overrides, known)
        return cls(**{**_from_environment(known), **given})


def _from_environment(names: list[str]) -> dict[str, Any]:
    values = {name: os.environ.get(f"HOLDFAST_{name.upper()}", "") for name in names}
    return {name: _parsed(name, value) for name, value in values.items() if value}


def _parsed(name: str, value: str) -> object:
    parse, rule = _PARSERS.get(name, (str, "text"))
    try:
        return parse(value)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"HOLDFAST_{name.upper()}", f"must be {rule}", value) from error


def _switch(word: str) -> bool:
    return _WORDS[word.strip().lower()]


_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "payload_limit": (int, "a whole number of bytes"),
    "pool_size": (int, "a whole number"),
    "buckets": (int, "a whole number"),
    "busy_timeout": (float, "seconds"),
    "connect_timeout": (float, "seconds"),
    "notify": (_switch, "true or false"),
    "prepare": (_switch, "true or false"),
}


def _instance(value: object, field: str, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(field, f"must be a {wanted.__name__}", value)
