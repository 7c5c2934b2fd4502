"""How pages are written: jinja2 with everything escaped, and the words for times, spans and values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.dashboard.assets import address
from holdfast.dashboard.guard import guarded
from holdfast.dashboard.http import Request, Response, link
from holdfast.dashboard.search import said
from holdfast.dashboard.setting import Setting
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.values.words import age, install_hint, one_line, plural, span, without_application

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

# The way through the pages, with the key that leads there after `g`.
PAGES = (
    ("", "Overview", "o"),
    ("jobs", "Jobs", "j"),
    ("dead", "Dead letters", "d"),
    ("queues", "Queues", "q"),
    ("schedules", "Schedules", "s"),
    ("workers", "Workers", "w"),
    ("outbox", "Outbox", "e"),
    ("runs", "Runs", "r"),
    ("stores", "Foreign", "f"),
    ("audit", "Audit", "a"),
)
# A value longer than this is cut in the page; the command line shows all of it.
LONGEST_VALUE = 20_000


@lru_cache(maxsize=1)
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
    except ImportError as error:
        rule = f"the dashboard needs jinja2: {install_hint('dashboard')}"
        raise ConfigError("dashboard", rule, "jinja2") from error
    made = Environment(
        loader=PackageLoader("holdfast.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"age": age, "one_line": one_line, "clock": clock, "pretty": pretty, "number": number, "iso": iso}
    made.filters |= {"span": span, "moment_of": moment_of, "measure": measure, "flat": flat}
    made.filters["commands"] = pass_context(commands)
    made.globals |= {"plural": plural, "search": said}
    return made


def require() -> None:
    """Raise ConfigError where jinja2 is not installed: at the start, not at the first visit."""
    _environment()


def render(visit: Visit, template: str, title: str, *, code: int = 200, **told: Any) -> Response:
    """Write a page."""
    return _page(visit.setting, visit.request, template, title, code, told | {"visit": visit, "may": visit.access.may})


def error_page(setting: Setting, request: Request, status: int, why: str) -> Response:
    """Write a page that says why there is no other."""
    told = {"why": why, "status": status, "visit": None, "may": lambda action: False}
    return _page(setting, request, "error.html", "Not possible" if status != 404 else "Not found", status, told)


def _page(setting: Setting, request: Request, template: str, title: str, status: int, told: dict[str, Any]) -> Response:
    shown = {
        "title": title,
        "site": setting.title,
        "refresh_ms": round(setting.refresh * 1000),
        "now": datetime.now(UTC),
        "pages": PAGES,
        "here": request.path.strip("/").partition("/")[0],
        "link": lambda path, **fields: link(request.base, path, **fields),
        "static": lambda name: link(request.base, address(name)),
        "redaction": setting.redaction,
        "database": setting.store.dialect.name,
        "program": setting.context.program,
        "away": setting.away.now(),
    }
    text = _environment().get_template(template).render(shown | told)
    return guarded(Response(status, text.encode("utf-8", "replace")))


def clock(moment: datetime | None) -> str:
    """Write a time in UTC, to the second."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def number(value: float | None) -> str:
    """Write a count with its thousands, a fraction with what matters of it."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"


def pretty(value: Any) -> str:
    """Write a value as indented JSON; numbers stay what they are, however long."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}\n… {len(text) - LONGEST_VALUE:,} more characters"


def commands(page: Context, text: str) -> Any:
    """Write what stands in backticks as code, commands as they are typed here; everything is escaped."""
    from markupsafe import Markup, escape

    program = page["program"]
    parts = [
        escape(part) if place % 2 == 0 else Markup("<code>{}</code>").format(_typed(part, program))
        for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _typed(code: str, program: str | None) -> str:
    if program is None or not code.startswith("holdfast "):
        return code
    return without_application(f"{program} {code.removeprefix('holdfast ')}")


def flat(value: Any) -> str:
    """Write a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def moment_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M:%S")


def measure(value: float | None, unit: str) -> str:
    """Write a point of a chart."""
    return "" if value is None else span(value) if unit == "s" else number(value)


def chart(name: str, title: str, unit: str, times: Sequence[float], lines: Mapping[str, Sequence[float | None]]) -> Any:
    """Describe a chart: lines over times in seconds since 1970; the page draws it, and has a table behind it."""
    return {
        "name": name,
        "title": title,
        "unit": unit,
        "labels": list(lines),
        "times": list(times),
        "data": json.dumps({"unit": unit, "labels": list(lines), "data": [list(times), *map(list, lines.values())]}),
        "lines": {label: list(values) for label, values in lines.items()},
    }
