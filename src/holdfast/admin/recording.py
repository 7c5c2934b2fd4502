"""Audit lines: who did what by hand, written in the transaction of the action, and deleted when they are old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.flow import Columns, Steps, ask, flow, number_of
from holdfast.life import merging
from holdfast.observe import COUNTED
from holdfast.placing import on_every


def record(action: str, actor: str | None, lines: Sequence[tuple[str | None, dict[str, Any]]]) -> Steps[None]:
    """Write one line for each (id, detail). The id is a UUID, as those of our jobs are; None: it is not about a job."""
    if lines:
        batch: Columns = {
            "action": [action] * len(lines),
            "job_id": [job_id for job_id, _ in lines],
            "actor": [actor] * len(lines),
            "detail": [msgspec.json.encode(detail).decode() for _, detail in lines],
        }
        yield from ask("audit_add", batch=batch)


def is_present() -> Steps[bool]:
    """Tell whether there is a table for audit lines; foreign tables may stand in a database that has none of ours."""
    [[present]] = yield from ask("meta_present")
    return bool(present)


@on_every(merging.summed)
@flow
def prune_audit(older_ms: int, *, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of audit lines older than `older_ms` milliseconds; fewer than `limit` means: no more.

    Commits: its own, so that no chunk holds locks for long. After a crash: go on with the next chunk.
    """
    rows = yield from ask("audit_prune", older_ms=older_ms, limit=limit, alone=True)
    return len(rows)


@on_every(merging.summed)
@flow
def count_older(older_ms: int) -> Steps[int]:
    """Count the audit lines that `prune_audit` would delete, no further than to one more than `COUNTED`."""
    [[count]] = yield from ask("audit_older", older_ms=older_ms, most=COUNTED + 1, alone=True)
    return number_of(count)
