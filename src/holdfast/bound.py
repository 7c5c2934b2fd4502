"""Jobs that are ready to be enqueued."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.flow import Pattern
from holdfast.values.ids import bucket
from holdfast.values.options import EnqueueOptions, HandlerOptions
from holdfast.values.payload import encode_value
from holdfast.values.rows import NewJob


class Bound(NamedTuple):
    """A job that is ready to be enqueued: its checked payload, and the row that it becomes, except for the id."""

    payload: str
    like: NewJob
    pattern: Pattern | None = None

    @property
    def kind(self) -> str:
        return self.like.kind

    def new_job(self, job_id: str) -> NewJob:
        """Make the row; each call makes another job."""
        _, queue, kind, _, *rest = self.like
        # Without the frame of NewJob's own `__new__`.
        return tuple.__new__(NewJob, (job_id, queue, kind, self.payload, *rest))  # pyright: ignore[reportUnknownMemberType]


def likeness(kind: str, said: EnqueueOptions, usual: HandlerOptions, buckets: int) -> NewJob:
    """Make the row that all jobs share about which the same was said; id and payload are still to come."""
    return NewJob(
        id="",
        queue=said.queue or usual.queue,
        kind=kind,
        payload="",
        headers=encode_value(said.headers, "headers") if said.headers else None,
        priority=usual.priority if said.priority is None else said.priority,
        run_at=said.at,
        delay_ms=round((said.delay or 0) * 1000),
        max_attempts=said.max_attempts or usual.retry.max_attempts,
        lease_ms=None if said.lease is None else round(said.lease * 1000),
        key=said.key,
        bucket=None if said.key is None else bucket(said.key, buckets),
        unique=said.unique,
        idempotency_key=said.idempotency_key,
        window_ms=round(said.window * 1000),
    )
