"""Options, one frozen object per concern, checked when they are made.

Where an argument is left out, the environment decides (`StoreOptions.of`), then the default.
"""

# ruff: noqa: RUF009 - the calls in class bodies make descriptors and frozen values

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

from holdfast.errors import ConfigError
from holdfast.values.debounce import THROTTLE_SCOPE, Debounce, Throttle
from holdfast.values.expires import EXPIRES_HEADER, header_of
from holdfast.values.ids import parse_id
from holdfast.values.once import INBOX_SCOPE, ONCE_SCOPE, RECEIVED_SCOPE
from holdfast.values.queues import PLAIN, QueueSettings
from holdfast.values.reserved import unreserved
from holdfast.values.retry import DAY, LONGEST_LEASE, Duration, OptionalSeconds, Retry, Seconds, seconds, whole
from holdfast.values.rows import OUTCOMES, AfterDead, Enqueued, Outcome
from holdfast.values.spelling import only_options
from holdfast.values.texts import KEY_LENGTH, NAME_LENGTH, storable, text

__all__ = [
    "KEY_LENGTH",
    "NAME_LENGTH",
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
    "storable",
    "switch",
    "text",
]

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
MOST_ATTEMPTS = 1_000_000
MOST_PARENTS = 10_000
# A bucket is a SMALLINT.
MOST_BUCKETS = 2**15
# What every database and driver keeps and gives back, in any time zone: MySQL's times begin with the first of these
# years, and Python's end with the one after the last.
FIRST_YEAR, LAST_YEAR = 1000, 9998

Commit = Literal["alone", "together"]
COMMITS: tuple[Commit, ...] = ("alone", "together")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}")
# What keeps keys of other promises apart from idempotency keys, whose scope is a kind.
_KEPT_ENDINGS = {
    THROTTLE_SCOPE: "throttles",
    INBOX_SCOPE: "messages",
    RECEIVED_SCOPE: "messages",
    ONCE_SCOPE: "effects",
}
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def identifier(value: object, field: str) -> str:
    """Check a table prefix or schema name, which become part of SQL text."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise ConfigError(field, "must be 1 to 40 of a-z, 0-9 and _, not starting with a digit", value)
    return value


def switch(value: object, field: str) -> bool | None:
    """Check what may be said to be on or off, or be left to a setting."""
    if value is not None and not isinstance(value, bool):
        raise ConfigError(field, "must be True, False or None", value)
    return value


def kind_name(value: object) -> str:
    """Check the name of a handler."""
    kind = text(value, "kind", NAME_LENGTH)
    for ending, whose in _KEPT_ENDINGS.items():
        if kind.endswith(ending):
            raise ConfigError("kind", f"must not end in {ending!r}, which keys of {whose} have behind it", kind)
    unreserved(kind, "kind")
    return kind


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
    debounce: Debounce | None
    throttle: Throttle | None
    expires: datetime | timedelta | float | None
    max_attempts: int | None
    lease: Duration | None
    headers: Mapping[str, str] | None
    after: Sequence[Enqueued | str] | None
    after_dead: AfterDead | None


# What `using` takes, in the order of its signature.
USING = ("tx", "notify", *EnqueueKeywords.__annotations__)


@dataclass(frozen=True)
class EnqueueOptions:
    """What may be said about one job; None leaves it to the handler or the queue.

    `run_after` and `expires` are kept as seconds, counted by the database's clock, or as a datetime in UTC: read
    `delay`, `at` and `expiry`. `window` is how long an idempotency key is remembered.
    """

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | timedelta | float | None = None
    key: str | None = None
    idempotency_key: str | None = None
    window: _SecondsOr = _SecondsOr(DAY)
    unique: str | None = None
    debounce: Debounce | None = None
    throttle: Throttle | None = None
    expires: datetime | timedelta | float | None = None
    max_attempts: int | None = None
    lease: OptionalSeconds = OptionalSeconds(at_least=1.0, at_most=LONGEST_LEASE)
    headers: Mapping[str, str] | None = field(default=None, hash=False)
    after: Sequence[Enqueued | str] | None = None
    after_dead: AfterDead | None = None

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
        if self.queue is not None:
            unreserved(self.queue, "queue")
        if self.priority is not None:
            whole(self.priority, "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if self.max_attempts is not None:
            whole(self.max_attempts, "max_attempts", 1, MOST_ATTEMPTS)
        if self.run_after is not None:
            object.__setattr__(self, "run_after", moment_of(self.run_after, "run_after"))
        if self.expires is not None:
            object.__setattr__(self, "expires", moment_of(self.expires, "expires", at_least=0.001))
        if self.headers is not None:
            object.__setattr__(self, "headers", header_map(self.headers))
        if self.after is not None:
            object.__setattr__(self, "after", _parents(self.after))
        if self.after_dead is not None and self.after_dead not in ("run", "cancel"):
            raise ConfigError("after_dead", "must be 'run' or 'cancel'", self.after_dead)
        if self.debounce is not None or self.throttle is not None:
            self._check_together()
        if EXPIRES_HEADER in (self.headers or ()):
            raise ConfigError("headers", f"must not hold {EXPIRES_HEADER!r}; say expires= instead", self.headers)

    def _check_together(self) -> None:
        """Refuse what says two different things about when the job comes, or whether it does."""
        if self.debounce is not None:
            _instance(self.debounce, "debounce", Debounce)
            for name, why in _NOT_WITH_DEBOUNCE.items():
                if getattr(self, name) is not None:
                    raise ConfigError(name, f"cannot be said together with debounce: {why}", getattr(self, name))
        if self.throttle is not None:
            _instance(self.throttle, "throttle", Throttle)
            if self.idempotency_key is not None:
                rule = "cannot be said together with throttle: each of them names the job that a repeat finds"
                raise ConfigError("idempotency_key", rule, self.idempotency_key)
        if vars(self)["window"] is not None:
            raise ConfigError("window", "is for idempotency_key; a Throttle has a window of its own", self.window)

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the jobs that this one runs after."""
        return cast("tuple[str, ...]", self.after or ())

    @property
    def delay(self) -> float | None:
        """Seconds to wait, when `run_after` was given as a delay."""
        return self.run_after if isinstance(self.run_after, float) else None

    @property
    def at(self) -> datetime | None:
        """The moment in UTC, when `run_after` was given as a datetime."""
        return self.run_after if isinstance(self.run_after, datetime) else None

    @property
    def expiry(self) -> str | None:
        """What the job's headers say of when it expires."""
        return None if self.expires is None else header_of(moment_of(self.expires, "expires"))

    def merged(self, other: EnqueueOptions) -> EnqueueOptions:
        """Return these options with whatever `other` says instead."""
        said = {name: value for name, value in vars(other).items() if value is not None}
        return EnqueueOptions(**{**vars(self), **said})


def _parents(given: object) -> tuple[str, ...]:
    """Check the jobs to run after, and return their ids, each once."""
    rule = f"must be up to {MOST_PARENTS:,} jobs, as `enqueue` answers with, or their ids (for more there is hf.batch)"
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ConfigError("after", rule, given)
    for one in cast("Sequence[object]", given):
        if not isinstance(one, Enqueued | str):
            raise ConfigError("after", f"{rule}; enqueue them first", one)
    ids = [one.id if isinstance(one, Enqueued) else parse_id(one) for one in cast("Sequence[Enqueued | str]", given)]
    if not 1 <= len(ids) <= MOST_PARENTS:
        raise ConfigError("after", rule, f"{len(ids)} jobs")
    return tuple(dict.fromkeys(ids))


# What a debounce says already, or would make untrue.
_NOT_WITH_DEBOUNCE = {
    "throttle": "the first call counts, or the last",
    "run_after": "its wait says when the job is due",
    "unique": "a call while the job runs must add another; for one live job at a time leave debounce out",
    "idempotency_key": "a repeated call changes nothing but the payload, until the job begins",
}


def moment_of(value: datetime | timedelta | float, field: str, *, at_least: float = 0.0) -> datetime | float:
    """Read a moment: seconds from now, or a datetime, which is returned in UTC. Raises: ConfigError for `field`."""
    if not isinstance(value, datetime):
        return seconds(value, field, at_least=at_least)
    if value.utcoffset() is None:
        raise ConfigError(field, "must have a time zone, as in datetime.now(UTC)", value)
    rule = f"must lie in the years {FIRST_YEAR} to {LAST_YEAR} in UTC"
    try:
        moment = value.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError(field, rule, value) from error
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ConfigError(field, rule, value)
    return moment


def header_map(headers: object, field: str = "headers") -> dict[str, str]:
    """Check what should map text to text, and copy it."""
    if not isinstance(headers, Mapping):
        raise ConfigError(field, "must map text to text", headers)
    pairs = cast("Mapping[object, object]", headers).items()
    return {text(name, field, KEY_LENGTH): storable(value, field) for name, value in pairs}


@dataclass(frozen=True)
class QueueOptions:
    """How long a queue keeps finished jobs (0 deletes them at once), and what the code says of order and limits."""

    name: str
    keep_done: Seconds = Seconds(DAY)
    keep_dead: Seconds = Seconds(30 * DAY)
    keep_cancelled: Seconds = Seconds(7 * DAY)
    settings: QueueSettings = PLAIN

    def __post_init__(self) -> None:
        text(self.name, "queue", NAME_LENGTH)

    @classmethod
    def of(
        cls, name: str, retention: Duration | Mapping[str, Duration] | None = None, settings: QueueSettings = PLAIN
    ) -> QueueOptions:
        """Read `retention` as the time to keep done jobs, or as one time for each of done, dead and cancelled."""
        if retention is None:
            return cls(name, settings=settings)
        if not isinstance(retention, Mapping):
            return cls(name, keep_done=seconds(retention, "retention"), settings=settings)
        if strange := set(retention) - {"done", "dead", "cancelled"}:
            raise ConfigError("retention", "may name done, dead and cancelled", sorted(map(str, strange)))
        kept = {outcome: seconds(each, f"retention[{outcome!r}]") for outcome, each in retention.items()}
        return cls(name, **{f"keep_{outcome}": each for outcome, each in kept.items()}, settings=settings)

    def __str__(self) -> str:
        kept = {each: self.keeps(each) for each in OUTCOMES}
        plain = QueueOptions(self.name)
        said = [f"{each} jobs kept for {kept[each]:g} s" for each in OUTCOMES if kept[each] != plain.keeps(each)]
        return ", ".join([*([] if self.settings.is_plain else [str(self.settings)]), *said]) or "plain"

    def keeps(self, outcome: Outcome) -> float:
        """Return for how many seconds jobs of this outcome are kept."""
        return {"done": self.keep_done, "dead": self.keep_dead, "cancelled": self.keep_cancelled}[outcome]


@dataclass(frozen=True)
class HandlerOptions:
    """How a handler's jobs run unless `enqueue` says otherwise.

    `concurrency` bounds how many run at once in one worker; `timeout` bounds one attempt. `commit` says whether
    `job.transaction()` commits alone or together with other jobs. `key` is a template that arguments fill.
    """

    queue: str = "default"
    retry: Retry = Retry()
    lease: Seconds = Seconds(30.0, at_least=1.0, at_most=LONGEST_LEASE)
    timeout: OptionalSeconds = OptionalSeconds(at_least=0.001)
    concurrency: int | None = None
    priority: int = 0
    commit: Commit = "alone"
    key: str | None = None

    def __post_init__(self) -> None:
        text(self.queue, "queue", NAME_LENGTH)
        if self.commit not in COMMITS:
            raise ConfigError("commit", f"must be one of {', '.join(map(repr, COMMITS))}", self.commit)
        _instance(self.retry, "retry", Retry)
        whole(self.priority, "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY)
        if self.concurrency is not None:
            whole(self.concurrency, "concurrency", 1, 100_000)


# What a worker serves of foreign tables: what has handlers, what is sent on by routes, or both.
Part = Literal["all", "handlers", "routes"]


class StoreKeywords(TypedDict, total=False):
    """The keywords of `Holdfast(…)`: the fields of `StoreOptions`, and `shards`; None leaves it to the environment."""

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
    audit_retention: Duration | None
    event_source: str | None
    shards: int | Sequence[str] | None


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `hf.worker(…)`: see `Worker`, which has the defaults."""

    queues: Sequence[str] | None
    concurrency: int
    poll: Duration
    drain: Duration
    name: str | None
    buffer: int
    ring: bool
    receive: bool
    shards: Sequence[int] | None


@dataclass(frozen=True)
class StoreOptions:
    """How the database is used.

    Set `prepare` to False behind a PgBouncer that keeps no prepared statements, and `listen_url` to the server's own
    address when the main URL goes through a PgBouncer: LISTEN needs a session of its own. `audit_retention` is how long
    lines about what was done by hand are kept. `event_source` is what published events say of where they come from.
    """

    prefix: str = "holdfast"
    schema: str | None = None
    payload_limit: int = 1024 * 1024
    pool_size: int = 20
    busy_timeout: Seconds = Seconds(5.0, at_most=DAY)
    connect_timeout: Seconds = Seconds(10.0, at_least=0.1, at_most=DAY)
    notify: bool = True
    prepare: bool = True
    listen_url: str | None = field(default=None, repr=False)
    buckets: int = 1024
    audit_retention: Seconds = Seconds(90 * DAY)
    event_source: str = "holdfast"

    def __post_init__(self) -> None:
        identifier(self.prefix, "prefix")
        if self.schema is not None and identifier(self.schema, "schema").startswith("pg_"):
            raise ConfigError("schema", "must not start with pg_, which PostgreSQL keeps for itself", self.schema)
        if self.listen_url is not None:
            storable(self.listen_url, "listen_url")
        text(self.event_source, "event_source", KEY_LENGTH)
        whole(self.payload_limit, "payload_limit", 2, 1024**3)
        whole(self.pool_size, "pool_size", 1, 10_000)
        whole(self.buckets, "buckets", 1, MOST_BUCKETS)
        _instance(self.notify, "notify", bool)
        _instance(self.prepare, "prepare", bool)

    @classmethod
    def of(cls, **overrides: Unpack[StoreKeywords]) -> StoreOptions:
        """Take what is given and not None, else the environment (`HOLDFAST_PREFIX`, …), else the default."""
        known = [each.name for each in fields(cls)]
        given: dict[str, Any] = {
            name: value for name, value in overrides.items() if value is not None and name != "shards"
        }
        only_options("Holdfast()", overrides, [*known, "shards"])
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
    "audit_retention": (float, "seconds"),
    "notify": (_switch, "true or false"),
    "prepare": (_switch, "true or false"),
}


def _instance(value: object, field: str, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(field, f"must be a {wanted.__name__}", value)
