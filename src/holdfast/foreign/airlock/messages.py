"""Rows of Airlock's outbox table as they are read: the event in each, what is wrong with it, and the lease on it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.values.cloudevents import CloudEvent, from_structured
from holdfast.values.rows import Lease

# Who holds a row, in a column of 64 characters. By its beginning a lease of ours is told from one of Airlock's relay.
HOLDER = "holdfast/"
HOLDER_LENGTH = 64
# The handler of this name takes every type that has no handler of its own.
ANY_TYPE = "*"
_NEEDED = ("aggregate_type", "aggregate_id", "event_type", "partition_key")
_NAMED = re.compile(r"([A-Za-z_][\w.]*): (.*)", re.DOTALL)


def holder(worker: str) -> str:
    """Name a worker as the holder of rows; the end of its id is what no other worker has."""
    return HOLDER + worker[len(HOLDER) - HOLDER_LENGTH :]


def micros(stored: Any) -> int | None:
    """Read a time as whole microseconds since 1970; None for no time, and for one without end."""
    return None if stored is None or not math.isfinite(stored) else round(stored)


class Unreadable(Exception):
    """A row that no relay can use; the reason is for people."""


class Taken(NamedTuple):
    """A row that was just leased: the columns of the `take` query in their order."""

    id: str
    aggregate_type: str | None
    aggregate_id: str | None
    event_type: str | None
    partition_key: str | None
    payload: str | None
    idempotency_key: str | None
    retry_count: int
    next_retry_at: Any
    created_at: Any
    fence: int


class Takes(NamedTuple):
    """What the handler of a type takes: the name of its one parameter ("" for none), and whether as a `CloudEvent`.

    None for what sends events on and calls no handler: the payload is then the event in structured mode, as sinks have
    their messages read from.
    """

    parameter: str | None = ""
    as_event: bool = False

    def payload(self, text: str, event: CloudEvent) -> str:
        """Write the handler's arguments: the event by its fields, or in structured mode as the row has it."""
        if self.parameter is None:
            return text
        if not self.parameter:
            return "{}"
        value = msgspec.json.encode(event).decode() if self.as_event else text
        return f"{{{json.dumps(self.parameter)}:{value}}}"


def event_in(row: Mapping[str, Any]) -> tuple[str, CloudEvent]:
    """Read the event of a row, as text in structured mode and as a value.

    Raises: Unreadable.
    """
    for name in _NEEDED:
        if row[name] is None:
            raise Unreadable(f"the row has no {name}")
    text = _text(row["payload"])
    try:
        event = from_structured(text)
    except (HoldfastError, ValueError) as error:
        raise Unreadable(f"the payload is not a CloudEvent: {error}") from error
    if event.type != row["event_type"]:
        raise Unreadable(f"the event's type is {event.type!r}, but the row's event_type is {row['event_type']!r}")
    return text, event


def _text(payload: str | None) -> str:
    if payload is None:
        raise Unreadable("the row has no payload")
    # Airlock's relay also reads an event that was stored as a JSON text inside of JSON.
    return json.loads(payload) if payload.startswith('"') else payload


def lease_of(row: Taken, takes: Mapping[str, Takes], max_attempts: int, lease_ms: int) -> Lease:
    """Make the lease on a row whose event can be read; its handler finds the row's columns in the headers.

    Raises: Unreadable.
    """
    text, event = event_in(row._asdict())
    kind = event.type if event.type in takes else ANY_TYPE
    headers = {
        "aggregate_type": row.aggregate_type,
        "aggregate_id": row.aggregate_id,
        "partition_key": row.partition_key,
        "idempotency_key": row.idempotency_key,
        "traceparent": event.extensions.get("traceparent"),
    }
    return Lease(
        id=row.id,
        queue=row.aggregate_type or "",
        kind=kind,
        payload=takes[kind].payload(text, event),
        headers=json.dumps({name: value for name, value in headers.items() if value is not None}, ensure_ascii=False),
        key=row.partition_key,
        priority=0,
        attempt=row.retry_count + 1,
        max_attempts=max_attempts,
        fence=row.fence,
        lease_ms=lease_ms,
        available_at=row.next_retry_at,
        created_at=row.created_at,
    )


def reason_of(error: str | None) -> str | None:
    """Write the record of an error as one line for `error_reason`: type and message."""
    if error is None:
        return None
    record: dict[str, Any] = json.loads(error)
    return f"{str(record.get('type')).rpartition('.')[2]}: {record.get('message')}"


def error_in(reason: str | None) -> tuple[str, str]:
    """Read type and message from an `error_reason`; Airlock's own relay writes the message alone."""
    found = _NAMED.fullmatch(reason or "")
    return (found[1], found[2]) if found else ("Error", reason or "")


def flaw_in(row: Mapping[str, Any]) -> str | None:
    """Say why no relay can use a row; None where one can."""
    try:
        event_in(row)
    except Unreadable as flaw:
        return str(flaw)
    return None
