"""Rows as workers and flows see them: plain data, no behaviour beyond reading."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

State = Literal["pending", "waiting", "leased"]


Outcome = Literal["done", "dead", "cancelled"]


OUTCOMES: tuple[Outcome, ...] = ("done", "dead", "cancelled")


AfterDead = Literal["run", "cancel"]


# What headers say of a job that runs after others, that continues one (and the first of its chain), or is in a batch.
AFTER_HEADER, CONTINUES_HEADER, CHAIN_HEADER = "holdfast-after", "holdfast-continues", "holdfast-chain"
BATCH_HEADER = "holdfast-batch"
# The W3C's trace context.
TRACE_HEADERS = ("traceparent", "tracestate")


# "stopped" has ended by itself; "dead" fell silent, or is of a version that told neither from the other.
WorkerStatus = Literal["alive", "draining", "stopped", "dead"]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Where fences and lapses stop to rise; only a row that was written by hand comes there.
LAST_FENCE = 2**63 - 1


MOST_LAPSES = 1_000_000


def when(stored: Any) -> datetime:
    """Read a stored time: a datetime, or microseconds since 1970 (SQLite, and the claims of PostgreSQL).

    What is not a time, in a row that was written by hand, is read as 1970: nobody else's row may suffer from it.
    """
    if isinstance(stored, datetime):
        return stored if stored.tzinfo else stored.replace(tzinfo=UTC)
    if not isinstance(stored, int | float | Decimal) or stored != stored:
        return _EPOCH
    try:
        return _EPOCH + timedelta(microseconds=round(stored))
    except OverflowError:
        # PostgreSQL knows infinity, and SQLite any number.
        return (datetime.max if stored > 0 else datetime.min).replace(tzinfo=UTC)


class NewJob(NamedTuple):
    """A job about to be enqueued; the id is ours, so that a repeated insert is harmless.

    The fields up to `unique` are the parameters of `enqueue` in their order, so that a batch becomes columns at once.
    """

    id: str
    queue: str
    kind: str
    payload: str
    headers: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay_ms: int = 0
    max_attempts: int = 5
    lease_ms: int | None = None
    key: str | None = None
    bucket: int | None = None
    unique: str | None = None
    idempotency_key: str | None = None
    window_ms: int = 86_400_000
    # The jobs that it runs after, and what becomes of it if one of them is dead or cancelled.
    after: tuple[str, ...] = ()
    after_dead: AfterDead = "run"
    # Of the idempotency key; by default the kind.
    scope: str | None = None
    debounce: str | None = None
    wait_ms: int = 0
    max_wait_ms: int = 0


class Enqueued(msgspec.Struct, frozen=True):
    """What an enqueue answers: the job's id, and whether this call created it or found it."""

    id: str
    created: bool = True


class Lease(NamedTuple):
    """A claimed job: the columns of the `claim` query in their order."""

    id: Any
    queue: str
    kind: str
    payload: str
    headers: str | None
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    fence: int
    lease_ms: int
    available_at: Any
    created_at: Any
    # Asked for while an earlier attempt had the job, and not seen by it.
    cancel_requested: Any = False
    # How many processes died while they held the job, since it last came to an end that its own handler gave it.
    lapses: int = 0

    @property
    def job_id(self) -> str:
        return str(self.id)


class Held(NamedTuple):
    """What a holder must show to write: the job and the fence of its claim."""

    id: Any
    fence: int


class Completion(NamedTuple):
    """A leased job that succeeded, to be completed with its effect in one transaction; `then` continues it.

    `before` are the ends of jobs before it in its line that the same worker holds and has not written yet.
    """

    lease: Lease
    result: str | None = None
    keep: bool = True
    then: NewJob | None = None
    before: Sequence[Finish] = ()


class Finish(NamedTuple):
    """The end of a leased job."""

    id: Any
    fence: int
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    keep: bool = True


class PutBack(NamedTuple):
    """A leased job that returns to its queue.

    `delay_ms` None keeps its place in the queue; `attempts_back` 1 gives the attempt back (release, snooze).
    `lapses` is how many processes have died with it; None: as many as before.
    """

    id: Any
    fence: int
    delay_ms: int | None = None
    attempts_back: int = 0
    error: str | None = None
    lapses: int | None = None


class Park(NamedTuple):
    """A leased job that gives its lease back and waits.

    `waits_for` is a short text that the surface chooses (`signal:approved`, `children`). With `delay_ms` the job is due
    by then at the latest, without it when it is woken. The other fields are as in `PutBack`.
    """

    id: Any
    fence: int
    waits_for: str
    delay_ms: int | None = None
    attempts_back: int = 1
    error: str | None = None
    lapses: int | None = None


class Continued(NamedTuple):
    """The end of a leased job that succeeded and is continued by another, which is added in the same transaction."""

    id: Any
    fence: int
    then: NewJob
    keep: bool = True

    @property
    def finish(self) -> Finish:
        """The end of the job by itself."""
        return Finish(self.id, self.fence, "done", keep=self.keep)


# What a worker writes about a lease that it gives up.
End = Finish | PutBack | Park | Continued


class Expired(NamedTuple):
    """A lease that ran out: the columns of the `reap_pick` query in their order."""

    id: Any
    queue: str
    kind: str
    fence: int
    attempt: int
    max_attempts: int
    leased_by: str | None
    leased_at: Any
    lease_expires_at: Any
    cancel_requested: Any
    # Whether the handler is known to have been called under this lease.
    began: Any
    lapses: int
    followers: int | None = None


class Reaped(NamedTuple):
    """What the reaper did with one expired lease."""

    id: str
    queue: str
    kind: str
    attempt: int
    leased_by: str | None
    outcome: Literal["retry", "released", "dead", "cancelled"]
