"""Short ways to make what the tests are about."""

from __future__ import annotations

from typing import Any

from holdfast.fingerprint import ErrorRecord
from holdfast.ids import new_id
from holdfast.model import NewJob


def new_job(queue: str = "mail", kind: str = "noop", *, payload: str = "{}", **fields: Any) -> NewJob:
    """Make a job that is ready to be enqueued; fields as in `NewJob`."""
    return NewJob(**({"id": new_id(), "queue": queue, "kind": kind, "payload": payload} | fields))


def failure(message: str = "it broke", attempt: int = 1) -> str:
    """Write the record of a failed attempt."""
    moment = "2026-01-01T00:00:00+00:00"
    return ErrorRecord(attempt, "ValueError", message, "Traceback …", "worker", moment, moment).to_json()
