"""What people do with finished messages of Airlock's table: replay and discard dead letters, prune.

Dead letters are rows with the status FAILED, in the same table and with the same id; Airlock itself has no tool for
them, and nothing of it deletes what is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from holdfast.errors import Conflict, JobNotFound
from holdfast.flow import Steps, flow
from holdfast.foreign.airlock.flows import AirlockTables
from holdfast.foreign.airlock.messages import flaw_in

Finished = Literal["done", "dead"]
# The columns of the `letters` query in their order.
_LETTER = ("id", "aggregate_type", "aggregate_id", "event_type", "partition_key", "payload")


def refusal(letter_id: str, flaw: str) -> str:
    """Say why a dead letter stays."""
    return (
        f"Dead letter {letter_id} cannot be replayed: {flaw}. Fix the row first (its payload, or the column), or "
        "discard it."
    )


def replay_all(tables: AirlockTables, ids: Sequence[str]) -> Steps[tuple[list[str], dict[str, str]]]:
    """Make dead letters due again; return those that went back, and why others stay that no relay can use.

    The rows stay what they are, so that an idempotency key goes on to hold its producer back.
    """
    rows = [dict(zip(_LETTER, row, strict=True)) for row in (yield from tables.ask("letters", ids=list(ids)))]
    flaws = {row["id"]: flaw for row in rows if (flaw := flaw_in(row))}
    back = [row["id"] for row in rows if row["id"] not in flaws]
    if back:
        yield from tables.ask("replay", ids=back)
    return back, {row_id: refusal(row_id, flaw) for row_id, flaw in flaws.items()}


def discard_all(tables: AirlockTables, ids: Sequence[str]) -> Steps[list[str]]:
    """Delete dead letters for good, and return those that were still there.

    Of one with an idempotency key an empty row stays, as processed, until it is pruned: the producer that repeats its
    request would else make the event anew.
    """
    gone = [row[0] for row in (yield from tables.ask("letters", ids=list(ids)))]
    if gone:
        yield from tables.ask("empty", ids=gone)
        yield from tables.ask("delete", ids=gone)
    return gone


@flow
def replay(tables: AirlockTables, message_id: str) -> Steps[None]:
    """Make one dead letter due again, with no failed attempt.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: JobNotFound when it is not a dead letter, Conflict when no relay can use it.
    After a crash: before commit it stays where it is; after it, safe to repeat (JobNotFound).
    """
    back, stay = yield from replay_all(tables, [message_id])
    if stay:
        raise Conflict(stay[message_id])
    if not back:
        raise JobNotFound(message_id, tables.queries.under, "it is not a dead letter")


@flow
def discard(tables: AirlockTables, message_id: str) -> Steps[None]:
    """Delete one dead letter for good.

    Commits: its own. Raises: JobNotFound. After a crash: safe to repeat (JobNotFound).
    """
    if not (yield from discard_all(tables, [message_id])):
        raise JobNotFound(message_id, tables.queries.under, "it is not a dead letter")


@flow
def prune(
    tables: AirlockTables, older: timedelta, what: Finished = "done", *, queue: str | None = None, limit: int = 1000
) -> Steps[int]:
    """Delete a chunk of messages that ended longer ago; fewer than `limit` means that no more are left.

    Commits: its own, so that no chunk holds locks for long; rows that somebody locks are passed over.
    After a crash: what was not committed is still there; safe to repeat.
    """
    age_ms = round(older.total_seconds() * 1000)
    rows = yield from tables.ask("prune", queue=queue, age_ms=age_ms, limit=limit, **{what: True})
    return len(rows)
