"""How words on the command line become durations, moments and payloads."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.values.retry import LONGEST
from holdfast.values.spoken import moment_in, seconds_in

if TYPE_CHECKING:
    # Click's types are generic only in its newer releases.
    _DurationType = click.ParamType[timedelta]
    _MomentType = click.ParamType[datetime]
    _TextType = click.ParamType[str]
else:
    _DurationType = _MomentType = _TextType = click.ParamType


class Duration(_DurationType):
    """Seconds (30, 0.5) or parts with units (90s, 1h30m, 7d)."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        seconds = seconds_in(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a duration: write seconds (30) or units (90s, 15m, 1h30m, 7d)", param, ctx)
        if seconds > LONGEST:
            self.fail(f"{value!r} is more than 100 years", param, ctx)
        return timedelta(seconds=seconds)


class Moment(_MomentType):
    """A time: ISO 8601 (local unless it names a zone), or a duration that counts back from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        read = moment_in(str(value))
        if read is None:
            wanted = "2026-05-01, 2026-05-01T12:30+02:00, or 2h for two hours ago"
            self.fail(f"{value!r} is not a time: write {wanted}", param, ctx)
        return read


class PointInTime(_MomentType):
    """A time that may be to come: ISO 8601, local unless it names a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value).strip()).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: write 2026-05-01 or 2026-05-01T12:30+02:00", param, ctx)


class RowId(_TextType):
    """The id of a job or row: each desk reads its own kind."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value).strip()


DURATION = Duration()
MOMENT = Moment()
POINT_IN_TIME = PointInTime()
ROW_ID = RowId()


def texts_of(words: Sequence[str]) -> dict[str, str]:
    """Read name=value pairs as they were typed."""
    return {name: text for name, equals, text in (word.partition("=") for word in words) if equals}


def payload_of(words: Sequence[str]) -> dict[str, Any]:
    """Read a job's arguments: nothing, one JSON object, `-` for JSON on stdin, or name=value pairs."""
    if not words:
        return {}
    if len(words) == 1 and (words[0] == "-" or words[0].lstrip()[:1] in ("{", "[", '"')):
        return _json_object(sys.stdin.read() if words[0] == "-" else words[0])
    return _pairs(words)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"the payload is not JSON: {error}", param_hint="JSON") from error
    if not isinstance(value, dict):
        what = """the payload must be an object of the handler's arguments, like {"order_id": 5}"""
        raise click.BadParameter(f"{what}; got {type(value).__name__}", param_hint="JSON")
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            what = f"{word!r} is neither a JSON object nor name=value"
            raise click.BadParameter(what, param_hint="JSON")
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="JSON")
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
