"""What was in `beat_schedule`: entries that become schedules of the application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NotRequired, TypedDict, cast

from holdfast.app import Holdfast
from holdfast.celery.canvas import Signature
from holdfast.errors import ConfigError
from holdfast.schedules import Schedule
from holdfast.values.options import only_options
from holdfast.values.retry import is_number

Field = int | str | Iterable[int | str]


@dataclass(frozen=True)
class Crontab:
    """Five fields as cron has them; make it with `crontab(…)`."""

    text: str

    def __str__(self) -> str:
        return self.text


def crontab(
    minute: Field = "*",
    hour: Field = "*",
    day_of_week: Field = "*",
    day_of_month: Field = "*",
    month_of_year: Field = "*",
) -> Crontab:
    """Say when a schedule ticks: `crontab(minute=0, hour="*/3")`."""
    fields = (minute, hour, day_of_month, month_of_year, day_of_week)
    return Crontab(" ".join(map(_field, fields)))


def _field(value: Field) -> str:
    if isinstance(value, str | int):
        return str(value).replace(" ", "")
    return ",".join(str(one) for one in value)


class Entry(TypedDict):
    """An entry of `beat_schedule`."""

    task: str
    schedule: Any
    args: NotRequired[Iterable[Any]]
    kwargs: NotRequired[Mapping[str, Any]]
    options: NotRequired[Mapping[str, Any]]


def entry(name: str, given: object) -> Entry:
    """Check an entry of `beat_schedule`. Raises: ConfigError."""
    said: Mapping[str, object] = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {}
    if not said.keys() >= {"task", "schedule"}:
        rule = f"{name!r} must have a task and a schedule, as in {{'task': 'shop.report', 'schedule': 60.0}}"
        raise ConfigError("beat_schedule", rule, said)
    only_options(f"beat_schedule[{name!r}]", said, tuple(Entry.__annotations__))
    return cast("Entry", given)


def ticks(when: object) -> dict[str, Any]:
    """Read when an entry is due, as `hf.schedule` takes it. Celery's own crontab is known by its fields."""
    if isinstance(when, Crontab):
        return {"cron": str(when)}
    if isinstance(when, timedelta) or is_number(when):
        return {"every": when}
    fields = [getattr(when, f"_orig_{name}", None) for name in _ORIGINAL]
    if None not in fields:
        return {"cron": " ".join(map(_field, cast("list[Field]", fields)))}
    rule = "must be seconds, a timedelta or crontab(…); there is no schedule by the sun"
    raise ConfigError("schedule", rule, when)


_ORIGINAL = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


class Periodic:
    """Calls that come again and again, by name: declared anew when what they depend on has changed.

    So it does not matter whether the time zone, the queues and the tasks themselves are known before them or after.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._declared: dict[str, Schedule] = {}

    def declare(self, name: str, schedule: Any, signature: Signature, timezone: str | None) -> None:
        """Declare one. Raises: ConfigError for a name that another schedule has."""
        when = ticks(schedule)
        bound = signature.task.bound(signature.args, signature.kwargs, signature.options, {})
        self._forget(name)
        self._declared[name] = self._hf.schedule(name, bound, timezone=timezone if "cron" in when else None, **when)

    def keep(self, names: Iterable[str]) -> None:
        """Forget what was declared under other names than these."""
        for name in self._declared.keys() - set(names):
            self._forget(name)

    def _forget(self, name: str) -> None:
        mine, known = self._declared.pop(name, None), self._hf.context.schedules
        if mine is not None and known.get(name) is mine:
            del known[name]


def not_defined(name: str, task: str, tasks: Iterable[str]) -> ConfigError:
    """Say that an entry of `beat_schedule` names a task that there is not."""
    near = get_close_matches(task, list(tasks), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "import its module, as app.autodiscover_tasks([…]) does"
    return ConfigError(
        "beat_schedule", f"{name!r} calls a task that is not defined in what was imported ({hint})", task
    )
