"""Delete what has been kept for long enough: finished jobs, noted ids, idempotency and debounce keys."""

from __future__ import annotations

from holdfast.flow import Steps, ask, flow
from holdfast.jobs.enqueueing import NOTED_SECONDS
from holdfast.life import merging
from holdfast.placing import on_every
from holdfast.values.rows import Outcome


@flow
def prune_queues() -> Steps[list[tuple[Outcome, str]]]:
    """List the (outcome, queue) pairs that have finished rows."""
    rows = yield from ask("prune_queues", alone=True)
    return [(outcome, queue) for outcome, queue in rows]


@flow
def prune(outcome: Outcome, queue: str, older_ms: int, *, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of finished jobs older than `older_ms` milliseconds; fewer than `limit` means: no more.

    Rows that are not kept for as long as an enqueue may be repeated have their ids noted, as dropped jobs have.
    Commits: its own, so that no chunk holds locks for long. After a crash: go on with the next chunk.
    """
    noted = older_ms < NOTED_SECONDS * 1000
    rows = yield from ask("prune", outcome=outcome, queue=queue, older_ms=older_ms, limit=limit, alone=not noted)
    if rows and noted:
        yield from ask("dropped_add", ids=[row[0] for row in rows])
    return len(rows)


@flow
def prune_dropped(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of the notes about dropped jobs, once no enqueue of theirs can be repeated any more.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("dropped_prune", older_ms=round(NOTED_SECONDS * 1000), limit=limit, alone=True)
    return len(rows)


@on_every(merging.summed)
@flow
def prune_keys(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of idempotency keys past their window.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("keys_prune", limit=limit, alone=True)
    return len(rows)


@flow
def prune_debounces(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of debounce keys whose job takes no more calls, once no call of theirs can be repeated.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("debounces_prune", older_ms=round(NOTED_SECONDS * 1000), limit=limit, alone=True)
    return len(rows)
