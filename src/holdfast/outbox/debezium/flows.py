"""Captured events as flows: write them, hand them over to routes of ours, delete old ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast import jobs
from holdfast.admin.recording import record
from holdfast.errors import Conflict
from holdfast.flow import Columns, Row, Statement, Steps, flow, number_of, text_of
from holdfast.jobs.enqueueing import take_keys
from holdfast.outbox.debezium.table import Captured, EventTable
from holdfast.outbox.envelope import Envelope
from holdfast.outbox.routes import Route
from holdfast.values.cloudevents import JSON_TYPE, SPEC_VERSION
from holdfast.values.ids import bucket
from holdfast.values.rows import Enqueued, NewJob

PLUGIN = "pgoutput"
# Rows of one statement.
CHUNK_ROWS = 5_000


@flow
def create(table: EventTable) -> Steps[None]:
    """Make the table if it is not there.

    Commits: its own.
    """
    yield from table.surface.ask("create")


@flow
def write(table: EventTable, events: Sequence[Captured]) -> Steps[list[Enqueued]]:
    """Add events; one that an idempotency key already names is not added.

    Commits: with the caller's transaction when one is given, else its own; all or none.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    keyed = [one.once for one in events if one.once is not None]
    found = (yield from take_keys(keyed)) if keyed else {}
    new = [one[:-1] for one in events if one.id not in found]
    for start in range(0, len(new), CHUNK_ROWS):
        columns = zip(*new[start : start + CHUNK_ROWS], strict=True)
        batch: Columns = dict(zip(Captured._fields, map(list, columns), strict=False))
        yield Statement("write", {}, batch, surface=table.surface)
    return [Enqueued(found[one.id], created=False) if one.id in found else Enqueued(one.id) for one in events]


class HandedOver(NamedTuple):
    """What became of a chunk: for each event its id, type and routes; which types no route takes; where to go on."""

    events: list[dict[str, Any]]
    untaken: set[str]
    last: str | None
    read: int


@flow
def hand_over(
    table: EventTable,
    ways: Callable[[str], Sequence[Route]],
    limit: int,
    actor: str | None,
    *,
    buckets: int,
    ids: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
    dry_run: bool = False,
) -> Steps[HandedOver]:
    """Make deliveries of up to `limit` captured events, the oldest first, and delete them from the table.

    They keep their ids, and stand before what was published later under their keys. One that no route takes stays.
    Commits: its own, all or none. Of two at once exactly one gets each event. After a crash: nothing happened. When
    only the reply was lost, a repeat goes on with those that come next.
    """
    asked = {"ids": ids, "since": since, "until": until, "after": after}
    rows = yield from table.surface.ask("pick", limit=limit, **asked)
    new: list[NewJob] = []
    lines: list[tuple[str | None, dict[str, Any]]] = []
    untaken: set[str] = set()
    for row in rows:
        event_id, type = text_of(row[0]), str(row[1])
        routes = ways(type)
        if not routes:
            untaken.add(type)
            continue
        new += _deliveries(row, routes, buckets)
        lines.append((event_id, {"event": event_id, "type": type, "to": [route.name for route in routes]}))
    if new and not dry_run:
        yield from jobs.enqueue_many(new)
        yield from table.surface.ask("remove", ids=[event_id for event_id, _ in lines])
        yield from record("hand-over", actor, lines)
    told = [{"id": event_id} | said for event_id, said in lines]
    return HandedOver(told, untaken, text_of(rows[-1][0]) if len(rows) == limit else None, len(rows))


def _deliveries(row: Row, routes: Sequence[Route], buckets: int) -> list[NewJob]:
    event_id, headers = text_of(row[0]), None if row[11] is None else text_of(row[11])
    type, data, source, time, subject, schema, version, key, parent, state = map(_text, row[1:11])
    moment = msgspec.json.decode(msgspec.json.encode(time), type=datetime)
    raw = msgspec.Raw((data or "null").encode())
    envelope = Envelope(
        SPEC_VERSION,
        event_id,
        source or "",
        type or "",
        moment,
        JSON_TYPE,
        raw,
        subject,
        schema,
        version,
        key,
        parent,
        state,
    )
    payload = msgspec.json.encode(envelope).decode()
    part = None if key is None else bucket(key, buckets)
    return [
        NewJob(
            event_id if place == 0 else _beside(event_id, route.name),
            route.queue,
            route.queue,
            payload,
            headers,
            max_attempts=route.retry.max_attempts,
            key=key,
            bucket=part,
        )
        for place, route in enumerate(routes)
    ]


def _text(value: Any) -> str | None:
    return None if value is None else text_of(value)


def _beside(event_id: str, route: str) -> str:
    """Return the id of a further delivery: the same from everyone who works it out, and as old as the event.

    Deliveries of a key are in the order of their ids.
    """
    digest = hashlib.sha256(f"{event_id}\n{route}".encode()).hexdigest()
    return f"{event_id[:18]}-8{digest[:3]}-{digest[3:15]}"


@flow
def count(
    table: EventTable,
    *,
    ids: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    older_ms: int | None = None,
) -> Steps[int]:
    """Count captured events."""
    [[counted]] = yield from table.surface.ask("count", ids=ids, since=since, until=until, older_ms=older_ms)
    return number_of(counted)


@flow
def prune(table: EventTable, older_ms: int, *, limit: int) -> Steps[int]:
    """Delete one chunk of events that were written longer ago; fewer than `limit` means: no more.

    Commits: its own, so that no chunk holds locks for long. After a crash: go on with the next chunk.
    """
    return len((yield from table.surface.ask("prune", older_ms=older_ms, limit=limit)))


@flow
def untaken(table: EventTable, slot: str, publication: str) -> Steps[list[str]]:
    """List the ids of events that the reader of a replication slot has not confirmed, in the order of their commits.

    Raises: Conflict where there is no such slot, somebody reads from it, or it is read by another plugin.
    """
    found = yield from table.surface.ask("slot", slot=slot)
    if not found:
        raise Conflict(
            f"There is no replication slot {slot!r} in this database: pg_replication_slots lists those that there are. "
            "Only PostgreSQL has them; elsewhere, say from which time on."
        )
    [[plugin, active]] = found
    if active:
        raise Conflict(f"Somebody reads from the replication slot {slot!r} now: stop the connector first.")
    if plugin != PLUGIN:
        raise Conflict(f"The replication slot {slot!r} is read by {plugin!r}, not by {PLUGIN!r}: say from when on.")
    return [text_of(one) for [one] in (yield from table.surface.ask("untaken", slot=slot, publication=publication))]
