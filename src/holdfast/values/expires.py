"""When a job expires, as its headers say it: no attempt begins after that time.

In a header, because a claim then gives it to the worker without a column of its own, which every job would pay for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

EXPIRES_HEADER = "holdfast-expires"
# A hundred years, as the longest of all durations (`retry.py`, which this module may not import).
LONGEST_MS = 100 * 366 * 86_400_000


def header_of(expires: float | datetime) -> str:
    """Write a moment in UTC, or seconds after the enqueue, as the header has it."""
    return f"+{round(expires * 1000)}" if isinstance(expires, float) else expires.astimezone(UTC).isoformat()


def expiry_of(headers: object, created_at: datetime) -> datetime | None:
    """Read when a job expires that was enqueued then; None where the headers say nothing that can be read.

    Somebody may have written the header by hand: a job that runs late does less harm than one that never runs.
    """
    said: Any = headers.get(EXPIRES_HEADER) if isinstance(headers, Mapping) else None
    if not isinstance(said, str):
        return None
    try:
        if said.startswith("+"):
            return created_at + timedelta(milliseconds=min(int(said), LONGEST_MS))
        moment = datetime.fromisoformat(said)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def expiry_in(headers: str | None, created_at: datetime) -> datetime | None:
    """As `expiry_of`, from headers as the row has them."""
    if headers is None or EXPIRES_HEADER not in headers:
        return None
    try:
        return expiry_of(msgspec.json.decode(headers), created_at)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def counted_from(headers: str | None, now: datetime) -> str | None:
    """Return headers in which the moment stands instead of a time after the enqueue, counted from `now`."""
    moment = expiry_in(headers, now)
    if headers is None or moment is None:
        return headers
    return msgspec.json.encode(msgspec.json.decode(headers) | {EXPIRES_HEADER: header_of(moment)}).decode()
