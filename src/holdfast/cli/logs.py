"""How the log of a worker looks: lines for people, JSON for programs, or what the application or a file says."""

from __future__ import annotations

import json
import logging
import logging.config
import math
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast import events
from holdfast.cli.shared import Exit, Failure, hidden
from holdfast.logs import FIELDS, JobContext
from holdfast.values.failure import type_name

if TYPE_CHECKING:
    from holdfast.app import Holdfast

F = TypeVar("F", bound=Callable[..., Any])

# What `extra` may call as we call something of every line; it stands beside that.
_OURS = frozenset({"time", "level", "logger"})
# How deep what `extra` gave is followed: it may contain itself.
_DEEPEST = 20
# Python writes no longer numbers as text by default.
_LARGEST = 10**4000
LEVELS = ("debug", "info", "warning", "error")
# What a record has by itself; all else came from `extra`, or from us.
_USUAL = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName", "holdfast"}


def log_options(command: F) -> F:
    """Add the options that say what is logged, and how."""
    for option in (
        click.option("--log-config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=_CONFIG_HELP),
        click.option("--log-json", is_flag=True, help="Log one JSON object per line."),
        click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help=_LEVEL_HELP),
    ):
        command = option(command)
    return command


# Python's own default would silence every logger that the file does not name, ours among them.
_KEPT = {"disable_existing_loggers": False}
_LEVEL_HELP = "[default: info, or what the application has set]"
_CONFIG_HELP = "Set logging up by this file: .json or .toml (a dictConfig), .ini or .conf (a fileConfig)."


def set_up_logging(level: str | None, as_json: bool, config: Path | None, *, is_set_up: bool) -> None:
    """Log to stderr, one line per record, unless the application has set logging up itself, or a file says how.

    Called when the application has been imported; `is_set_up` says that it has handlers of its own. They stay unless
    options ask for something else.
    """
    if config is not None:
        _configure(config)
        return
    if is_set_up and not as_json:
        if level is not None:
            logging.getLogger().setLevel(level.upper())
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobContext())
    handler.setFormatter(JsonLines() if as_json else Lines())
    logging.basicConfig(level=(level or "info").upper(), handlers=[handler], force=True)


def tell_of_ends(holdfast: Holdfast) -> None:
    """Log a line for each job that is done, where a person watches: elsewhere nobody wants a line for each of them."""
    root = logging.getLogger()
    ours = any(isinstance(handler.formatter, Lines) for handler in root.handlers)
    if ours and sys.stderr.isatty() and root.isEnabledFor(logging.INFO) and not root.isEnabledFor(logging.DEBUG):
        holdfast.on(events.JobDone, _tell)


def _tell(event: events.JobDone) -> None:
    logging.getLogger("holdfast").info("%s", event, extra={"holdfast": event.fields() | {"event": event.name}})


def _configure(path: Path) -> None:
    try:
        match path.suffix:
            case ".json":
                logging.config.dictConfig(_KEPT | json.loads(path.read_text()))
            case ".toml":
                logging.config.dictConfig(_KEPT | tomllib.loads(path.read_text()))
            case ".ini" | ".conf" | ".cfg":
                logging.config.fileConfig(path, disable_existing_loggers=False)
            case _:
                raise Failure(f"--log-config: {path} must end in .json, .toml, .ini or .conf", Exit.USAGE)
    except (ValueError, TypeError, AttributeError, ImportError, KeyError, RuntimeError) as error:
        hint = "see docs.python.org/3/library/logging.config.html"
        raise Failure(f"--log-config: {path} cannot be used: {error}", Exit.USAGE, hint) from error


class Lines(logging.Formatter):
    """2026-05-01 12:30:00,123 INFO worker started: …; with the job where a handler writes, and with tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] | None = getattr(record, "holdfast", None)
        if event is not None:
            return self._event(record, _hidden(event))
        about = ""
        if kind := getattr(record, "job_kind", ""):
            job_id, attempt = getattr(record, "job_id", ""), getattr(record, "job_attempt", "")
            about = f" [{kind} {job_id} #{attempt}]" if job_id else f" [{kind}]"
        first, newline, rest = super().format(record).partition("\n")
        return hidden(f"{first}{about}{newline}{rest}")

    def _event(self, record: logging.LogRecord, event: dict[str, Any]) -> str:
        words = _ENDS.get(event.get("event", ""))
        said = _message(record) if words is None else _ended(words, event)
        text = super().format(logging.makeLogRecord({**record.__dict__, "msg": said, "args": ()}))
        trace = event.get("traceback")
        return f"{text}\n{trace.rstrip()}" if trace else text


_ENDS = {
    "JobDone": "done",
    "JobRetried": "failed",
    "JobDead": "dead",
    "JobCancelled": "cancelled",
    "JobExpired": "expired",
    "JobSnoozed": "snoozed",
    "FailedAfterDone": "failed after it was done:",
}


def _ended(words: str, event: dict[str, Any]) -> str:
    """Say in one readable line how an attempt ended."""
    took, waited = event.get("duration"), event.get("waited")
    times = [f"in {_short(took)}"] if took is not None else []
    times += [f"after a wait of {_short(waited)}"] if waited is not None and waited >= 1 else []
    said = f"{words} {event['kind']} {event['id']} #{event['attempt']} ({event['queue']})"
    line = " ".join([said, *times])
    if delay := event.get("delay"):
        line += f"; again in {_short(delay)}"
    why = event.get("error") or event.get("reason")
    return f"{line}: {why}" if why else line


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class JsonLines(logging.Formatter):
    """One JSON object per record: an event's fields stand beside the message, and so does what `extra` gave."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": "",
        }
        event: dict[str, Any] = getattr(record, "holdfast", {})
        line |= {name: value for name, value in event.items() if name not in line}
        if "id" in event and "kind" in event:
            line["job_id"] = event["id"]
        for name, value in vars(record).items():
            if name in _OURS:
                line[f"extra_{name}"] = value
            elif name not in _USUAL and name not in line and not (name in FIELDS and value == ""):
                line[name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(_hidden(line) | {"message": _message(record)}, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    """Give the message without passwords, an event's value by value: a mask reaches up to the last @ of its text."""
    match record.args:
        case (events.Event() as event,):
            return event.line(hidden)
        case _:
            return hidden(record.getMessage())


def _hidden(value: Any, depth: int = 0) -> Any:
    """Take passwords out of each text by itself: a mask reaches to the end of its line, and JSON is one line.

    What JSON cannot say becomes a text, whatever `extra` gave: a log line must not fail where it is written.
    """
    match value:
        case str():
            return hidden(value)
        case dict() if depth < _DEEPEST:
            return {_text(name): _hidden(one, depth + 1) for name, one in value.items()}
        case list() | tuple() if depth < _DEEPEST:
            return [_hidden(one, depth + 1) for one in value]
        case dict() | list() | tuple():
            return "…"
        case bool() | None:
            return value
        case int() if -_LARGEST < value < _LARGEST:
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return hidden(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type_name(value)} cannot be written: {type_name(error)}>"
