"""How values are said in text that people read: spans, counts, and whatever a row may hold on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta


def age(span: timedelta | float) -> str:
    """Write a span in its two largest units: 45 s, 3 m 12 s, 2 h 5 m, 4 d 3 h."""
    total = int(span.total_seconds() if isinstance(span, timedelta) else span)
    if total < 0:
        return f"in {age(-total)}"
    if total < 60:
        return f"{total} s"
    minutes, seconds = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} m {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} m"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def span(value: float | timedelta | None) -> str:
    """Write a span that may be short: 4 ms, 1.2 s, 3 m 12 s."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 0.001:
        return "0 ms" if seconds <= 0 else "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def clean(value: object) -> str:
    """Make any value one line of text without control characters: rows may hold what a terminal would obey."""
    text = "" if value is None else str(value)
    text = " ".join(text.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def one_line(value: object, limit: int = 120) -> str:
    """Shorten a text to one line."""
    text = clean(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plural(count: int, singular: str, several: str | None = None) -> str:
    """1 job, 2 jobs."""
    return f"{count:,} {singular if count == 1 else several or singular + 's'}"


def install_hint(extra: str) -> str:
    """Say how an extra is installed: from PyPI, and from a clone as long as there is no release."""
    return (
        f'pip install "holdfast-db[{extra}]" (until the first release: pip install ".[{extra}]" in a clone of Holdfast)'
    )


def shards_named(numbers: Sequence[int]) -> str:
    """Shard 1, shards 0 and 2."""
    *first, last = map(str, numbers)
    return f"shards {', '.join(first)} and {last}" if first else f"shard {last}"


def without_application(command: str) -> str:
    """Write a command as it is typed where a framework says which application it is for."""
    return re.sub(r" APP\b| --app \S+", "", command)
