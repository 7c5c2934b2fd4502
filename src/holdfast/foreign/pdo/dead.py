"""What people do with the dead letters of the PHP queue tables: replay, discard, prune.

How one is written is in `dead_letter_format.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.errors import Conflict, JobNotFound
from holdfast.flow import Steps, flow
from holdfast.foreign.pdo.envelope import Envelope, Malformed, read
from holdfast.foreign.pdo.flows import PdoTables, decoded, publish


class Failed(NamedTuple):
    """A row of the failed table: the columns of the `failed` query in their order."""

    id: int
    queue: str
    urn: str
    trace_id: str | None
    attempts: int
    payload: str
    reason: str
    failed_at: Any
    created_at: Any

    @classmethod
    def of(cls, row: Sequence[Any]) -> Failed:
        return cls(*(decoded(value) for value in row))


@flow
def replay(tables: PdoTables, failed_id: int) -> Steps[int]:
    """Put a dead letter back into its queue with its attempts forgotten, and return the new row's id.

    Commits: with the caller's transaction when one is given, else its own; both tables together.
    Raises: JobNotFound when the row is gone, Conflict when its body was never a message.
    """
    rows = yield from tables.ask("failed_lock", id=failed_id)
    if not rows:
        raise JobNotFound(str(failed_id))
    dead = Failed.of(rows[0])
    envelope = message_of(dead.payload, failed_id)
    letter = envelope.body.get("dead_letter")
    home = letter.get("original_queue") if isinstance(letter, dict) else None
    back_to = home if isinstance(home, str) and 1 <= len(home) <= 255 else dead.queue
    new_id = yield from publish(tables, envelope.revived(), back_to)
    yield from tables.ask("failed_delete", id=failed_id)
    return new_id


def message_of(body: str, failed_id: int) -> Envelope:
    """Read the message in a dead letter; one that an older program found malformed may be good by now."""
    try:
        return read(body)
    except Malformed as flaw:
        reason = flaw.reason
        letter = (flaw.body or {}).get("dead_letter")
    raw = letter.get("raw") if isinstance(letter, dict) and not letter.get("raw_cut") else None
    try:
        return read(raw) if isinstance(raw, str) else read("")
    except Malformed as flaw:
        raise Conflict(
            f"Dead letter {failed_id} cannot be replayed: its body is not a message ({reason}). "
            "Fix the payload in the failed table first, or discard it."
        ) from flaw


@flow
def discard(tables: PdoTables, failed_id: int) -> Steps[None]:
    """Delete a dead letter for good.

    Commits: with the caller's transaction when one is given, else its own. Raises: JobNotFound.
    """
    if not (yield from tables.ask("failed_lock", id=failed_id)):
        raise JobNotFound(str(failed_id))
    yield from tables.ask("failed_delete", id=failed_id)


@flow
def prune(tables: PdoTables, older: timedelta, *, queue: str | None = None, limit: int = 500) -> Steps[int]:
    """Delete a chunk of dead letters older than a span; fewer than `limit` means that no more are left.

    Commits: its own, so that no chunk holds locks for long.
    """
    now = yield from tables.now()
    rows = yield from tables.ask("prune", before=tables.stamp(now - older), queue=queue, limit=limit)
    for row in rows:
        yield from tables.ask("failed_delete", id=row[0])
    return len(rows)
