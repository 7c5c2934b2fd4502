"""Forget joins that nobody asks for: their child was cancelled before any worker saw it, or pruned."""

from __future__ import annotations

from holdfast.flow import Steps, ask, flow, text_of

# Younger ones are left alone: an enqueue that is repeated may be about to ask for them.
ORPHAN_MS = 3_600_000
CHUNK = 1_000


@flow
def forget_orphans(after: str | None = None, older_ms: int = ORPHAN_MS) -> Steps[str | None]:
    """Delete a chunk of joins whose child is neither alive nor kept; return where to go on, None at the end.

    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    rows = yield from ask("joins_orphans", after=after, limit=CHUNK, older_ms=older_ms, look=True)
    ids = [text_of(row[0]) for row in rows]
    if ids:
        yield from ask("joins_drop", ids=ids)
    return ids[-1] if len(ids) == CHUNK else None
