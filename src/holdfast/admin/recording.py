"""Audit lines: who did what by hand, written in the transaction of the action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.flow import Columns, Steps, ask


def record(action: str, actor: str | None, lines: Sequence[tuple[str, dict[str, Any]]]) -> Steps[None]:
    """Write one line for each (id, detail). The id must be a UUID, as those of our jobs are."""
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
