"""Short ways to make what the tests are about."""

from __future__ import annotations

from typing import Any

from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store
from holdfast.values.failure import ErrorRecord
from holdfast.values.ids import new_id
from holdfast.values.rows import NewJob

# What holds the version of the tables and not rows of theirs.
META = "meta"


def new_job(queue: Any = "mail", kind: Any = "noop", *, payload: Any = "{}", **fields: Any) -> NewJob:
    """Make a job that is ready to be enqueued; fields as in `NewJob`."""
    given: dict[str, Any] = {"id": new_id(), "queue": queue, "kind": kind, "payload": payload}
    return NewJob(**(given | fields))


def failure(message: str = "it broke", attempt: int = 1) -> str:
    """Write the record of a failed attempt."""
    moment = "2026-01-01T00:00:00+00:00"
    return ErrorRecord(attempt, "ValueError", message, "Traceback …", "worker", moment, moment).to_json()


@flow
def empty(store: Store) -> Steps[None]:
    """Delete every job, key and worker: faster than a database for each test."""
    for table in store.dialect.tables:
        if table != META:
            yield from run_text("empty", f"delete from {store.dialect.table(table)}")  # noqa: S608 - a name of ours
