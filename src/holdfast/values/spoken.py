"""How people write spans and moments: 30, 90s, 1h30m, 2026-05-01, 2h for two hours ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from holdfast.values.retry import LONGEST

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")


def seconds_in(text: str) -> float | None:
    """Read seconds (30, 0.5) or parts with units (90s, 1h30m, 7d); None for anything else."""
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def moment_in(text: str) -> datetime | None:
    """Read ISO 8601 (local unless it names a zone), or a span that counts back from now; None for anything else."""
    text = text.strip()
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    # A bare number is refused: 2024 is more likely a year than seconds.
    seconds = None if text.isdigit() else seconds_in(text)
    return None if seconds is None or seconds > LONGEST else datetime.now(UTC) - timedelta(seconds=seconds)
