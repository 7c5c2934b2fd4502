"""An event that is to be published, and the rows that it becomes: one for each route that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from holdfast import jobs
from holdfast.errors import ConfigError
from holdfast.flow import Steps, flow
from holdfast.jobs.enqueueing import Drawn, take_keys
from holdfast.outbox.envelope import EventType, checked_subject, sealed, written, written_data
from holdfast.outbox.routes import Route
from holdfast.values.ids import bucket, new_id, new_ids
from holdfast.values.options import header_map
from holdfast.values.reserved import UNROUTED
from holdfast.values.rows import Enqueued, NewJob
from holdfast.values.texts import KEY_LENGTH, text

# Headers that Holdfast itself reads begin so.
OWN_HEADERS = "holdfast-"
# Nobody tries an event that no route takes; what is published again has the attempts of its route.
UNROUTED_ATTEMPTS = 1


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


def likes_of(event: Draft, routes: Sequence[Route], buckets: int) -> list[NewJob]:
    """Make what is known of an event's rows before they have ids and a payload."""
    part = None if event.key is None else bucket(event.key, buckets)
    once = None if event.idempotency_key is None else once_key(event.type, event.idempotency_key)
    queues = [route.queue for route in routes] or [UNROUTED]
    return [NewJob("", queue, queue, "", key=event.key, bucket=part, idempotency_key=once) for queue in queues]


def rows_of(
    event: Draft, routes: Sequence[Route], source: str, limit: int, buckets: int, ids: Sequence[str] = ()
) -> list[NewJob]:
    """Make the rows of an event: a delivery for each route, or one that waits for a route.

    The first has its id, and its idempotency key for all of them. ids: of the rows, where they are not drawn here.

    Raises: PayloadTooLarge.
    """
    type, data, said, subject, key, once, headers = event
    ids = ids or ([new_id()] if len(routes) < 2 else new_ids(len(routes)))
    payload = written(sealed(ids[0], type, data, source, said, subject, key, headers), limit)
    text_of_headers = msgspec.json.encode(headers).decode() if headers else None
    part = None if key is None else bucket(key, buckets)
    ways = [(route.queue, route.retry.max_attempts) for route in routes] or [(UNROUTED, UNROUTED_ATTEMPTS)]
    rows = [
        NewJob(row_id, queue, queue, payload, text_of_headers, 0, None, 0, attempts, None, key, part)
        for row_id, (queue, attempts) in zip(ids, ways, strict=True)
    ]
    if once is not None:
        # One scope for all routes: other routes may take the type when the publish is repeated.
        rows[0] = rows[0]._replace(idempotency_key=once_key(type, once), scope=UNROUTED)
    return rows


@flow
def publish(
    events: Sequence[Sequence[NewJob]], *, fresh: bool = False, drawn: Drawn | None = None
) -> Steps[list[Enqueued]]:
    """Add the rows of events, and answer for each row; of an event that a key already names nothing is added.

    `fresh` and `drawn` as in `jobs.enqueue_many`.
    Commits: with the caller's transaction when one is given, else its own; all or none.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    keyed = [rows[0] for rows in events if rows[0].idempotency_key is not None]
    if not keyed:
        return (
            yield from jobs.enqueue_many([row for rows in events for row in rows], fresh=fresh, drawn=drawn).start()
        )
    found = yield from take_keys(keyed)
    # The key is taken, and says nothing of one row alone.
    new = [row._replace(idempotency_key=None) for rows in events if rows[0].id not in found for row in rows]
    yield from jobs.enqueue_many(new, fresh=fresh, drawn=drawn)
    return [
        Enqueued(found[rows[0].id], created=False) if rows[0].id in found else Enqueued(row.id)
        for rows in events
        for row in rows
    ]


def once_key(type: str, key: str) -> str:
    """Return the idempotency key of deliveries: one key may be used for events of several types."""
    whole = f"{type} {key}"
    return whole if len(whole) <= KEY_LENGTH else blake2b(whole.encode(), digest_size=32).hexdigest()


def answer(rows: Enqueued | Sequence[Enqueued], routes: Sequence[Route]) -> Published:
    """Say what became of an event, from what became of its row, or of its rows."""
    first = rows if isinstance(rows, Enqueued) else rows[0]
    return Published(first.id, first.created, tuple([route.name for route in routes]))
