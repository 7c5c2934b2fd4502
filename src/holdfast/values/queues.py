"""What may be said of a queue beyond how long it keeps finished jobs: order, limits, rates and turns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.values.retry import Duration, seconds, whole
from holdfast.values.spelling import spelt_fields

Ordered = bool | Literal["commit"]
OnRetry = Literal["hold", "pass"]
OnDead = Literal["go_on", "stop"]
Across = Literal["one", "split"]

MOST_AT_ONCE = 1_000_000
LONGEST_PERIOD = timedelta(days=366).total_seconds()
# A claim may take as many starts at once as a rate gives in this time, so that a quick rate needs no claim for each.
BURST_SECONDS = 0.02


@spelt_fields
@dataclass(frozen=True)
class Rate:
    """At most `count` starts in any period of `per` seconds (or a timedelta), by the database's clock."""

    count: int
    per: Duration = 1.0

    def __post_init__(self) -> None:
        whole(self.count, "rate", 1, MOST_AT_ONCE)
        object.__setattr__(self, "per", seconds(self.per, "per", at_least=0.001, at_most=LONGEST_PERIOD))

    def __str__(self) -> str:
        return f"{self.count}/{self.period:g}s"

    def part(self, share: Share) -> Rate:
        """Return what a shard has of it: in any period, all parts together give no more than the whole."""
        return replace(self, count=share.of(self.count))

    @property
    def period(self) -> float:
        """`per` in seconds."""
        return seconds(self.per, "per")

    @property
    def burst(self) -> int:
        """How many may start at once."""
        return max(1, int(self.count * min(1.0, BURST_SECONDS / self.period)))

    @property
    def interval_us(self) -> float:
        """Microseconds from one start to the next.

        A little more than `per / count`, because what starts at once must not add up to more than `count` in any
        period.
        """
        return self.period * 1e6 / (self.count - self.burst + 1)


class Share(NamedTuple):
    """Which part of a queue's limits a shard has: that of its number, among `shards` of them."""

    number: int
    shards: int

    def of(self, limit: int) -> int:
        """Return this part of a limit. The parts are the limit together; with more shards, none of them grows."""
        return max(1, ceil((limit - self.number) / self.shards))


def _one_of(value: object, name: str, allowed: tuple[object, ...]) -> None:
    if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
        raise ConfigError(name, f"must be one of {', '.join(map(repr, allowed))}", value)


@dataclass(frozen=True)
class QueueSettings:
    """What is said of one queue, as it is stored; the defaults are those of a plain queue.

    ordered: jobs of one key run one after the other, in the order of their enqueues ("commit": of their commits).
    on_retry: whether a job that failed holds its line until it is tried again, or lets the others pass.
    on_dead: whether a line goes on behind a dead letter, or stops. concurrency, rate: of the whole queue, over all
    workers. fair: keys take turns. key_concurrency, key_rate: of each key. across: with shards, whether the queue is
    kept in one of them because of its limits, or each has a part of these. share: which part this shard has.
    """

    ordered: Ordered = False
    on_retry: OnRetry = "hold"
    on_dead: OnDead = "go_on"
    concurrency: int | None = None
    rate: Rate | None = None
    fair: bool = False
    key_concurrency: int | None = None
    key_rate: Rate | None = None
    across: Across = "one"
    share: Share | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _one_of(self.ordered, "ordered", (True, False, "commit"))
        _one_of(self.on_retry, "on_retry", get_args(OnRetry))
        _one_of(self.on_dead, "on_dead", get_args(OnDead))
        _one_of(self.fair, "fair", (True, False))
        _one_of(self.across, "across", get_args(Across))
        for name in ("concurrency", "key_concurrency"):
            if (limit := getattr(self, name)) is not None:
                whole(limit, name, 1, MOST_AT_ONCE)
        for name in ("rate", "key_rate"):
            if (rate := getattr(self, name)) is not None and not isinstance(rate, Rate):
                raise ConfigError(name, "must be a Rate, as in Rate(100, per=1)", rate)
        self._check_together()

    def _check_together(self) -> None:
        if self.ordered and (self.key_concurrency or 1) > 1:
            rule = "an ordered queue runs one job of a key at a time; leave key_concurrency out, or ordered"
            raise ConfigError("key_concurrency", rule, self.key_concurrency)
        if not self.ordered and (self.on_retry, self.on_dead) != ("hold", "go_on"):
            name = "on_retry" if self.on_retry != "hold" else "on_dead"
            raise ConfigError(name, "is for ordered queues; add ordered=True, or leave it out", getattr(self, name))

    @property
    def is_plain(self) -> bool:
        return not (self.is_lined or self.is_limited)

    @property
    def is_lined(self) -> bool:
        """Whether the jobs of each key stand in a line."""
        return bool(self.ordered or self.fair or self.key_concurrency or self.key_rate)

    @property
    def is_limited(self) -> bool:
        """Whether the queue as a whole has a limit."""
        return bool(self.concurrency or self.rate)

    @property
    def is_split(self) -> bool:
        """Whether each shard has a part of the limits."""
        return self.is_limited and self.across == "split"

    @property
    def here(self) -> QueueSettings:
        """The settings with the part of the limits that this shard has."""
        share = self.share
        if share is None or not self.is_split:
            return self
        concurrency = None if self.concurrency is None else share.of(self.concurrency)
        return replace(self, concurrency=concurrency, rate=None if self.rate is None else self.rate.part(share))

    def require_parts(self, shards: int) -> None:
        """Raises: ConfigError where the limits are split, and too small for each of these shards to have a part."""
        if not self.is_split:
            return
        limits = {"concurrency": self.concurrency, "rate": None if self.rate is None else self.rate.count}
        for name, limit in limits.items():
            if limit is not None and limit < shards:
                rule = (
                    f'must be {shards} or more with across="split": each of the {shards} shards has a part of it. '
                    'across="one" keeps the queue in one shard, with any limit'
                )
                more = "; a rate can have a larger count in a longer time" if name == "rate" else ""
                raise ConfigError(name, rule + more, limit)

    @property
    def differences(self) -> dict[str, Any]:
        """What is not as in a plain queue."""
        plain = QueueSettings()
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return {name: value for name, value in values.items() if value != getattr(plain, name)}

    def __str__(self) -> str:
        said = {name: "yes" if value is True else value for name, value in self.differences.items()}
        return ", ".join(f"{name} {value}" for name, value in said.items()) or "plain"

    def changed(self, **said: Any) -> QueueSettings:
        """Return these settings with what is said instead. Raises: ConfigError."""
        return replace(self, **said)

    def to_dict(self) -> dict[str, Any]:
        """Return what is not as in a plain queue, ready for JSON; a rate is its count and its period in seconds."""
        said = self.differences
        for name in ("rate", "key_rate"):
            if name in said:
                said[name] = [said[name].count, said[name].period]
        return said

    def to_json(self) -> str:
        return msgspec.json.encode(self.to_dict() | ({"share": self.share} if self.share else {})).decode()

    @classmethod
    def from_json(cls, stored: str) -> QueueSettings:
        """Read what is stored.

        Raises: ConfigError for what this version cannot read: to take such a queue for a plain one would break its
        order.
        """
        try:
            said = msgspec.json.decode(stored)
            for name in ("rate", "key_rate"):
                if name in said:
                    said[name] = Rate(*said[name])
            if "share" in said:
                said["share"] = Share(*said["share"])
            return cls(**said)
        except (msgspec.MsgspecError, ConfigError, TypeError) as error:
            rule = "this version cannot read what is stored of a queue; store it anew with `holdfast queues set`"
            raise ConfigError("settings", rule, stored) from error


def tokens(rate: Rate, tat: int | None, now: int) -> int:
    """Say how many may start now; times are microseconds of the database's clock.

    `tat` is the theoretical arrival time of the next start (GCRA): one column, and nothing to count down.
    """
    room = rate.burst * rate.interval_us - _ahead(rate, tat, now)
    return max(0, int(room / rate.interval_us + 1e-9))


def spent(rate: Rate, tat: int | None, now: int, count: int) -> int:
    """Return the `tat` after that many starts, rounded up: a microsecond less each time would add up to a start."""
    return now + ceil(_ahead(rate, tat, now) + count * rate.interval_us)


def wait_us(rate: Rate, tat: int | None, now: int) -> int:
    """Say in how many microseconds the next may start; 0: now."""
    return max(0, ceil(_ahead(rate, tat, now) - (rate.burst - 1) * rate.interval_us))


def _ahead(rate: Rate, tat: int | None, now: int) -> int:
    """Say how many microseconds `tat` is ahead of now.

    A difference of whole numbers: an interval of 333,333.3 µs beside the microseconds since 1970 is rounded so that
    nothing could ever start. Further ahead than all it gives at once it can be only when the clock was put back.
    """
    return min(max((tat or 0) - now, 0), ceil(rate.burst * rate.interval_us))


PLAIN = QueueSettings()
