"""What a schedule is: when it ticks, which job each tick adds, and what becomes of ticks that were missed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.flow import text_of
from holdfast.schedules.timetable import Timetable
from holdfast.values.expires import expiry_in
from holdfast.values.ids import tick_id
from holdfast.values.options import NAME_LENGTH, text
from holdfast.values.payload import decode_value
from holdfast.values.retry import Duration, whole
from holdfast.values.rows import NewJob, when
from holdfast.values.views import decoded

CatchUp = Literal["skip", "one", "all"]
CATCH_UPS: tuple[CatchUp, ...] = ("skip", "one", "all")
# Who said last what a schedule is: a worker that started, a deployment, a person.
DeclaredBy = Literal["worker", "sync", "hand"]
# What the job of a tick carries beside its own headers.
SCHEDULE_HEADER = "holdfast-schedule"
TICK_HEADER = "holdfast-tick"

# Columns of their own, and what is each job's own.
_APART = {"id", "queue", "kind", "payload", "run_at"}
# What is not for schedules.
_NOT_HERE = {"idempotency_key", "window_ms", "scope", "debounce", "wait_ms", "max_wait_ms", "after", "after_dead"}
_OPTIONS = tuple(name for name in NewJob._fields if name not in _APART | _NOT_HERE)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was declared; make it with `of`, which checks it, or with `hf.schedule`."""

    name: str
    timetable: Timetable
    catch_up: CatchUp
    job: NewJob

    @classmethod
    def of(
        cls,
        name: str,
        job: NewJob,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Check what was said. Raises: ConfigError."""
        text(name, "schedule", NAME_LENGTH)
        if catch_up not in CATCH_UPS:
            raise ConfigError("catch_up", f"must be one of {', '.join(map(repr, CATCH_UPS))}", catch_up)
        _check_job(job)
        return cls(name, Timetable.of(cron, every, timezone), catch_up, job)

    @property
    def kind(self) -> str:
        return self.job.kind

    @property
    def cron(self) -> str | None:
        return self.timetable.cron

    @property
    def every(self) -> timedelta | None:
        return self.timetable.every

    @property
    def timezone(self) -> str:
        return self.timetable.timezone

    def upcoming(self, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """Return the next ticks after a moment, in UTC; after this host's time by default."""
        whole(count, "count", 1, 10_000)
        if after is not None and after.utcoffset() is None:
            raise ConfigError("after", "must have a time zone, as in datetime.now(UTC)", after)
        return self.timetable.upcoming((after or datetime.now(UTC)).astimezone(UTC), count)

    @property
    def fingerprint(self) -> str:
        """What tells this definition from others of the same name."""
        said = [*self._timetable(), self.catch_up, self.job.kind, self.job.queue, self.job.payload, self.options]
        return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]

    @property
    def options(self) -> str:
        """Write what was said about the job beside its kind, queue and payload; what is the default is left out."""
        given = {name: getattr(self.job, name) for name in _OPTIONS}
        usual = NewJob._field_defaults
        return msgspec.json.encode({name: value for name, value in given.items() if value != usual[name]}).decode()

    def columns(self) -> dict[str, Any]:
        """Return what the row holds of the definition."""
        cron, every_ms, timezone = self._timetable()
        return {
            "name": self.name,
            "kind": self.job.kind,
            "queue": self.job.queue,
            "payload": self.job.payload,
            "options": self.options,
            "cron": cron,
            "every_ms": every_ms,
            "timezone": timezone,
            "catch_up": self.catch_up,
            "fingerprint": self.fingerprint,
        }

    def _timetable(self) -> tuple[str | None, int | None, str]:
        return self.timetable.cron, self.timetable.every_ms, self.timetable.timezone


def _check_job(job: NewJob) -> None:
    """Refuse what cannot be said of a job that comes with every tick."""
    if job.idempotency_key is not None:
        name = "idempotency_key" if job.scope is None else "throttle"
        rule = "is not for schedules: each tick has one job in any case; for one live job at a time there is unique"
        raise ConfigError(name, rule, job.idempotency_key)
    if job.debounce is not None:
        rule = "is not for schedules: nothing follows quickly on a tick; run_after delays its job"
        raise ConfigError("debounce", rule, job.debounce)
    if job.after:
        rule = "is not for schedules: the jobs that it names end once, and ticks go on"
        raise ConfigError("after", rule, list(job.after))
    if job.run_at is not None:
        raise ConfigError("run_after", "must be a delay here, which counts from each tick", job.run_at)
    moment = expiry_in(job.headers, when(0))
    if moment is not None and moment == expiry_in(job.headers, when(1)):
        raise ConfigError("expires", "must be a time after the enqueue here, which counts from each tick", moment)


class Stored(NamedTuple):
    """A schedule as its row has it: the columns of `schedules_list` in their order, times read."""

    name: str
    kind: str
    queue: str
    payload: str
    options: str
    cron: str | None
    every_ms: int | None
    timezone: str
    catch_up: CatchUp
    next_at: datetime
    last_at: datetime | None
    paused_at: datetime | None
    revision: int
    fingerprint: str
    replaced: str
    declared_by: DeclaredBy
    created_at: datetime
    changed_at: datetime
    # The database's time when it was read.
    now: datetime

    @classmethod
    def of(cls, row: Sequence[Any]) -> Stored:
        """Read a row."""
        times = {"next_at", "last_at", "paused_at", "created_at", "changed_at", "now"}
        return cls(*(_read(name in times, value) for name, value in zip(cls._fields, row, strict=True)))

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.cron, self.every_ms, self.timezone)

    def job_of(self, job_id: str, tick: datetime | None = None) -> NewJob:
        """Make the job of a tick, or one by hand.

        Raises: ConfigError when the row holds what this version of Holdfast does not know.
        """
        given = self._given()
        headers: dict[str, str] = decode_value(given.get("headers") or "{}") | {SCHEDULE_HEADER: self.name}
        if tick is not None:
            headers[TICK_HEADER] = tick.isoformat()
        given["headers"] = msgspec.json.encode(headers).decode()
        return NewJob(id=job_id, queue=self.queue, kind=self.kind, payload=self.payload, **given)

    def _given(self) -> dict[str, Any]:
        """Read what was said about the job beside its kind, queue and payload."""
        try:
            given = msgspec.json.decode(self.options, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError("options", "of the schedule must be a JSON object", self.options) from error
        if strange := given.keys() - set(_OPTIONS):
            raise ConfigError("options", "of the schedule name what this version does not know", sorted(strange))
        return given

    def job_at(self, tick: datetime) -> NewJob:
        """Make the job of a tick, whose id is the same from everyone who makes it."""
        return self.job_of(tick_id(self.name, tick), tick)

    def upcoming(self, count: int) -> list[datetime]:
        """Return the next ticks as far as they can be told: none while it is paused."""
        if self.paused_at is not None:
            return []
        return [self.next_at, *self.timetable.upcoming(max(self.next_at, self.now), count - 1)]

    def to_dict(self) -> dict[str, Any]:
        """Return what people read, for JSON."""
        told = self._asdict()
        for name in ("replaced", "now"):
            del told[name]
        return told | {"payload": decoded(self.payload), "options": decoded(self.options)}


def _read(is_time: bool, value: Any) -> Any:
    if value is None or (isinstance(value, int) and not is_time):
        return value
    return when(value) if is_time else text_of(value)
