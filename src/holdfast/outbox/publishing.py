"""An event that is to be published, and the rows that it becomes: one for each route that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.outbox.envelope import EventType, checked_subject, sealed, written, written_data
from holdfast.outbox.routes import Route
from holdfast.values.ids import bucket, new_ids
from holdfast.values.options import header_map
from holdfast.values.reserved import UNROUTED
from holdfast.values.rows import Enqueued, NewJob
from holdfast.values.texts import KEY_LENGTH, text

# Headers that Holdfast itself reads begin so.
OWN_HEADERS = "holdfast-"


class Published(msgspec.Struct, frozen=True):
    """What a publish answers: the event's id, whether this call created it or found it, and the routes that take it.

    No routes: none takes the event. It is kept, `holdfast doctor` names it, and `holdfast outbox republish` sends it
    on once a route takes it.
    """

    id: str
    created: bool = True
    routes: tuple[str, ...] = ()


class Draft(NamedTuple):
    """One event as it was given to be published, checked."""

    type: str
    data: bytes
    said: EventType | None
    subject: str | None
    key: str | None
    idempotency_key: str | None
    headers: dict[str, str] | None


def draft_of(
    type: str,
    data: Any,
    said: EventType | None = None,
    *,
    subject: str | None = None,
    key: str | None = None,
    idempotency_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Draft:
    """Check what is said of an event, and write its data. Raises: ConfigError, InvalidPayload."""
    if subject is not None:
        checked_subject(subject)
    if key is not None:
        text(key, "key", KEY_LENGTH)
    if idempotency_key is not None:
        text(idempotency_key, "idempotency_key", KEY_LENGTH)
    given = None
    if headers is not None:
        given = header_map(headers)
        if own := [name for name in given if name.startswith(OWN_HEADERS)]:
            raise ConfigError("headers", f"must not begin with {OWN_HEADERS!r}", own[0])
    return Draft(type, written_data(said, type, data), said, subject, key, idempotency_key, given)


def rows_of(event: Draft, routes: Sequence[Route], source: str, limit: int, buckets: int) -> list[NewJob]:
    """Make the rows of an event: a delivery for each route, or one that waits for a route. The first has its id.

    Raises: PayloadTooLarge.
    """
    ids = new_ids(len(routes) or 1)
    key, headers = event.key, event.headers
    envelope = sealed(ids[0], event.type, event.data, source, event.said, event.subject, key, headers)
    payload = written(envelope, limit)
    text_of_headers = msgspec.json.encode(headers).decode() if headers else None
    part = None if key is None else bucket(key, buckets)
    once = None if event.idempotency_key is None else _once(event.type, event.idempotency_key)
    if not routes:
        attempts = NewJob._field_defaults["max_attempts"]
        return [_row(ids[0], UNROUTED, payload, text_of_headers, attempts, key, part, once)]
    return [
        _row(row_id, route.queue, payload, text_of_headers, route.retry.max_attempts, key, part, once)
        for row_id, route in zip(ids, routes, strict=True)
    ]


def _row(
    row_id: str,
    queue: str,
    payload: str,
    headers: str | None,
    attempts: int,
    key: str | None,
    part: int | None,
    once: str | None,
) -> NewJob:
    row = NewJob(row_id, queue, queue, payload, headers, 0, None, 0, attempts, None, key, part)
    return row if once is None else row._replace(idempotency_key=once)


def _once(type: str, key: str) -> str:
    """Return the idempotency key of deliveries: one key may be used for events of several types."""
    whole = f"{type} {key}"
    return whole if len(whole) <= KEY_LENGTH else blake2b(whole.encode(), digest_size=32).hexdigest()


def answer(rows: Sequence[Enqueued], routes: Sequence[Route]) -> Published:
    """Say what became of an event, from what became of its rows."""
    return Published(rows[0].id, rows[0].created, tuple(route.name for route in routes))
