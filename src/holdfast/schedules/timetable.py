"""When a schedule ticks: a cron expression in a time zone, or an interval. Worked out from these alone.

The ticks of a timetable are the same for everyone who asks, whenever it was declared: an interval counts from the
beginning of 1970, as a cron expression counts from midnight. So nothing has to be remembered of when a schedule was
first seen, and to declare it again moves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile

from holdfast.errors import ConfigError
from holdfast.values.options import text
from holdfast.values.retry import DAY, Duration, seconds

CRON_LENGTH = 200
ZONE_LENGTH = 100
LONGEST_EVERY = 366 * DAY
# Where the search for the newest ticks begins, and how much further back it looks each time that it found too few.
FIRST_SPAN = timedelta(minutes=1)
WIDER = 4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIELDS = "five fields, minute hour day month weekday, as in '0 2 * * *'"
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Timetable:
    """A cron expression with its time zone, or an interval in milliseconds; make it with `of`, which checks it."""

    cron: str | None
    every_ms: int | None
    timezone: str = "UTC"

    @classmethod
    def of(cls, cron: str | None = None, every: Duration | None = None, timezone: str | None = None) -> Timetable:
        """Check what was said. Raises: ConfigError."""
        if (cron is None) == (every is None):
            raise ConfigError("schedule", "give either cron= or every=", {"cron": cron, "every": every})
        if every is not None:
            return cls(None, _milliseconds(every, timezone))
        made = cls(_expression(cron), None, "UTC" if timezone is None else text(timezone, "timezone", ZONE_LENGTH))
        made.first_after(datetime.now(UTC))
        return made

    def __str__(self) -> str:
        if self.every_ms is not None:
            return f"every {_span(self.every_ms)}"
        return f"{self.cron} {self.timezone}"

    @property
    def every(self) -> timedelta | None:
        return None if self.every_ms is None else timedelta(milliseconds=self.every_ms)

    def first_after(self, moment: datetime) -> datetime:
        """Return the first tick after a moment, in UTC.

        Raises: ConfigError when the expression or the time zone is unknown here, or there is no such tick.
        """
        for tick in self._ticks(moment):
            return tick
        raise ConfigError("cron", "must come within fifty years", self.cron)

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """Return the next ticks after a moment, in UTC."""
        return list(islice(self._ticks(after), count))

    def newest(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """Return the last `most` ticks after one moment and up to another, oldest first.

        It looks back from the end, so that a year of missed minutes is not walked through.
        """
        span = FIRST_SPAN
        while True:
            start = max(after, until - span)
            found = deque(self._up_to(start, until), maxlen=most)
            if len(found) == most or start == after:
                return list(found)
            span *= WIDER

    def count(self, after: datetime, until: datetime, most: int) -> int:
        """Count the ticks after one moment and up to another; it stops at `most`."""
        return sum(1 for _ in islice(self._up_to(after, until), most))

    def _up_to(self, after: datetime, until: datetime) -> Iterator[datetime]:
        return takewhile(lambda tick: tick <= until, self._ticks(after))

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        if self.cron is not None:
            return _by_cron(self.cron, zone_of(self.timezone), after)
        if not isinstance(self.every_ms, int) or not 1000 <= self.every_ms <= LONGEST_EVERY * 1000:
            # Only in a row that was written by hand.
            raise ConfigError("every_ms", "must be from a second to 366 days", self.every_ms)
        return _every(self.every_ms * 1000, after)


def zone_of(name: str) -> tzinfo:
    """Find a time zone. Raises: ConfigError."""
    if name == "UTC":
        # Known also where there is no time zone data.
        return UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if not zoneinfo.available_timezones():
            rule = "cannot be read, because this machine has no time zone data: install the package tzdata"
        else:
            rule = "must be a time zone such as Europe/Berlin or UTC, and known to this machine's tzdata"
        raise ConfigError("timezone", rule, name) from error


def _every(step: int, after: datetime) -> Iterator[datetime]:
    place = (after - _EPOCH) // _MICROSECOND // step
    while True:
        place += 1
        yield _EPOCH + timedelta(microseconds=place * step)


def _by_cron(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    # Late: only schedules need it.
    from cronsim import CronSim

    try:
        ticks = CronSim(expression, after.astimezone(zone))
    except Exception as error:
        # It has an error of its own, and fails in other ways where parts of an expression do not go together.
        why = f"{error}: " if str(error) else ""
        raise ConfigError("cron", f"{why.lower()}it takes {_FIELDS}", expression) from error
    last = after
    for tick in ticks:
        moment = tick.astimezone(UTC)
        # In the hour that a clock is put back, times of day come before the moment that was asked about.
        if moment > last:
            last = moment
            yield moment


def _expression(said: object) -> str:
    words = text(said, "cron", CRON_LENGTH).split()
    if len(words) == 1 and (macro := _MACROS.get(words[0].lower())):
        return macro
    if len(words) == 6:
        raise ConfigError("cron", f"takes {_FIELDS}; for seconds there is every=", said)
    if len(words) != 5:
        raise ConfigError("cron", f"takes {_FIELDS}", said)
    return " ".join(words)


def _span(milliseconds: int) -> str:
    """Write an interval as people type it: 90s is 1m30s."""
    total, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(total, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"), (rest, "ms"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def _milliseconds(every: Duration, timezone: str | None) -> int:
    if timezone is not None:
        raise ConfigError("timezone", "belongs to cron=; every= counts in UTC from the beginning of 1970", timezone)
    return round(seconds(every, "every", at_least=1.0, at_most=LONGEST_EVERY) * 1000)
