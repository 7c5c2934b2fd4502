"""What passes between the parts of a worker: a claimed job, and what its attempt came to."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Literal

from holdfast import events
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.jobs.source import OURS
from holdfast.life.source import Source
from holdfast.values.rows import Finish, Lease, PutBack

Write = Finish | PutBack
# Why an attempt must stop: its lease is gone, somebody cancelled the job, the worker stops.
Interrupt = Literal["lost", "cancelled", "stop"]


class Work:
    """A claimed job in a worker's hands, from claim to settle."""

    __slots__ = (
        "handler",
        "interrupt",
        "job",
        "keep",
        "key",
        "lease",
        "renewed",
        "slot",
        "source",
        "started",
        "taken",
    )

    def __init__(self, lease: Lease, handler: Handler[..., Any], keep: bool, now: float, source: Source = OURS) -> None:
        self.lease = lease
        self.source = source
        # Ours are unique by themselves; ids of foreign tables are so only with the table's name.
        self.key = lease.id if source.name == OURS.name else f"{source.name}/{lease.job_id}"
        self.handler = handler
        self.keep = keep
        self.taken = now
        self.renewed = now
        # What the handler sees of it; a plain async handler that does not ask for its job has none.
        self.job: Job | None = None
        self.slot: Any = None
        self.started = 0.0
        self.interrupt: Interrupt | None = None

    @property
    def settled(self) -> bool:
        """Tell whether the handler's own transaction has completed it."""
        return self.job is not None and self.job.settled

    @property
    def started_at(self) -> datetime:
        """When the attempt began, by the host's clock: for the error record only."""
        running = time.monotonic() - self.started if self.started else 0.0
        return datetime.fromtimestamp(time.time() - running, UTC)


class Ended:
    """What an attempt came to: what to write (None when nothing may be), and the event for when that is committed.

    The event is None when nobody listens to it.
    """

    __slots__ = ("error", "event", "work", "write")

    def __init__(
        self, work: Work, write: Write | None, event: events.JobEvent | None, error: BaseException | None = None
    ) -> None:
        self.work = work
        self.write = write
        self.event = event
        # What the handler raised, when that is why it ended so.
        self.error = error
