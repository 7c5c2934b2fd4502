"""Delete what has been kept for long enough of runs: the finished job, the run and its journal, in one transaction."""

from __future__ import annotations

from holdfast.flow import Steps, ask, flow, text_of
from holdfast.values.rows import Outcome


@flow
def prune(outcome: Outcome, queue: str, older_ms: int, *, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of runs that ended longer ago than `older_ms` milliseconds; fewer than `limit`: no more.

    Commits: its own. After a crash: a run is there as a whole, or gone as a whole; go on with the next chunk.
    """
    rows = yield from ask("runs_old", outcome=outcome, queue=queue, older_ms=older_ms, limit=limit)
    ids = sorted(text_of(row[0]) for row in rows)
    if ids:
        yield from ask("runs_forget", ids=ids)
        yield from ask("runs_over", ids=ids)
    return len(ids)
