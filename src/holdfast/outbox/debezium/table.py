"""The table of captured events: what it is called, which events go there, and what a row of it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.flow import Surface
from holdfast.outbox.envelope import Envelope, sealed, written
from holdfast.outbox.patterns import Pattern
from holdfast.outbox.publishing import Draft, once_key
from holdfast.sinks import Message
from holdfast.sinks.templates import Naming, Template, Unroutable
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.ids import new_id
from holdfast.values.reserved import UNROUTED
from holdfast.values.rows import NewJob

DEFAULT_TABLE = "debezium_outbox"
ROOM = "outbox/debezium"
# What becomes part of a topic's name, as Kafka takes it.
NAMING = Naming(re.compile(r"[^a-zA-Z0-9._-]"), 200)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Captured(NamedTuple):
    """One event as a row of the table; the fields are the parameters of `write` in their order."""

    id: str
    aggregatetype: str
    aggregateid: str
    type: str
    payload: str
    source: str
    specversion: str
    datacontenttype: str
    time: str
    subject: str | None
    dataschema: str | None
    dataversion: str | None
    partitionkey: str | None
    traceparent: str | None
    tracestate: str | None
    tracingspancontext: str | None
    headers: str | None
    # What is noted of its idempotency key; not a column.
    once: NewJob | None = None


@dataclass(frozen=True)
class EventTable:
    """Which events are captured, and where they are written.

    aggregate: what the router makes a topic of, over the fields of an event; None: the type without its last segment.
    """

    table: str = DEFAULT_TABLE
    patterns: tuple[Pattern, ...] = ()
    aggregate: Template | None = None

    @classmethod
    def of(cls, patterns: Sequence[str], table: str, aggregate: str | None) -> EventTable:
        """Check settings. Raises: ConfigError."""
        named: object = table
        if not isinstance(named, str) or not _NAME.fullmatch(named):
            raise ConfigError("table", "must be 1 to 63 letters, digits and _, not starting with a digit", named)
        by = None if aggregate is None else Template("aggregate", aggregate, NAMING)
        return cls(table, tuple(map(Pattern, patterns)), by)

    @property
    def surface(self) -> Surface:
        return Surface(ROOM, f"debezium:{self.table}", (("foreign_events", self.table),))

    def takes(self, type: str) -> bool:
        """Tell whether events of a type are captured."""
        return any(pattern.matches(type) for pattern in self.patterns)

    def aggregate_of(self, envelope: Envelope) -> str:
        """Return the aggregate of an event. Raises: ConfigError where it lacks a field that the setting names."""
        if self.aggregate is None:
            return envelope.type.rpartition(".")[0] or envelope.type
        event = CloudEvent(envelope.id, envelope.source, envelope.type, subject=envelope.subject)
        try:
            return self.aggregate.of(Message(event, envelope.partitionkey))
        except Unroutable as error:
            raise ConfigError("aggregate", str(error), envelope.type) from error


def captured(draft: Draft, table: EventTable, source: str, limit: int) -> Captured:
    """Make the row of an event. Raises: PayloadTooLarge, ConfigError."""
    type, data, said, subject, key, once, headers = draft
    one = sealed(new_id(), type, data, source, said, subject, key, headers)
    written(one, limit)
    return Captured(
        one.id,
        table.aggregate_of(one),
        key or subject or one.id,
        type,
        data.decode(),
        one.source,
        one.specversion,
        one.datacontenttype,
        msgspec.json.encode(one.time).decode()[1:-1],
        subject,
        one.dataschema,
        one.dataversion,
        key,
        one.traceparent,
        one.tracestate,
        _span(one),
        msgspec.json.encode(headers).decode() if headers else None,
        None if once is None else NewJob(one.id, UNROUTED, UNROUTED, "", idempotency_key=once_key(type, once)),
    )


def _span(event: Envelope) -> str | None:
    """Write a trace context as Debezium reads it, in the form of Java's properties."""
    said = {"traceparent": event.traceparent, "tracestate": event.tracestate}
    return "".join(f"{name}={value}\n" for name, value in said.items() if value is not None) or None
