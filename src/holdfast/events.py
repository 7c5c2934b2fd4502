"""What happens, as typed events: logging, metrics and tracing subscribe here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.telling import Event as Event
from holdfast.telling import Events as Events
from holdfast.telling import complain as complain
from holdfast.telling import log as log
from holdfast.telling import log_events as log_events


class JobsEnqueued(Event, frozen=True):
    """Jobs were handed to the database; those in the caller's transaction are there only once that commits."""

    level = logging.DEBUG
    ids: Sequence[str]
    kinds: Sequence[str]
    in_transaction: bool
    queues: Sequence[str] = ()


class WorkerStarted(Event, frozen=True):
    worker: str
    queues: Sequence[str]
    kinds: Sequence[str]
    concurrency: int
    shards: Sequence[int] | None = None


class WorkerStopping(Event, frozen=True):
    worker: str
    running: int
    why: str


class WorkerStopped(Event, frozen=True):
    worker: str
    released: int


class WorkerBroke(Event, frozen=True):
    """A part of the worker failed, which is a bug in Holdfast: the worker stops, and `run()` raises WorkerFailed."""

    level = logging.ERROR
    worker: str
    part: str
    error: str


class JobsClaimed(Event, frozen=True):
    level = logging.DEBUG
    worker: str
    count: int
    seconds: float
    source: str = "jobs"


class JobsSettled(Event, frozen=True):
    """The outcomes of `count` jobs were committed in one batch, except for `lost` ones, whose lease was gone."""

    level = logging.DEBUG
    worker: str
    count: int
    seconds: float
    lost: int
    source: str = "jobs"


class _Measured(Event, frozen=True, kw_only=True):
    """What events of a job have at their end: the tables it is from, and seconds from due to start, and of its run."""

    source: str = "jobs"
    waited: float | None = None
    duration: float | None = None


class JobEvent(_Measured, frozen=True):
    worker: str
    id: str
    kind: str
    queue: str
    attempt: int


class JobStarted(JobEvent, frozen=True):
    level = logging.DEBUG


class JobDone(JobEvent, frozen=True):
    level = logging.DEBUG
    seconds: float


class JobRetried(JobEvent, frozen=True):
    level = logging.WARNING
    delay: float
    error: str
    # Of what the handler raised, here and in other events; the row of the job keeps it.
    traceback: str = ""
    # The object itself, while this process still has it: not after a reap, nor where nothing was raised.
    exception: BaseException | None = None


class JobSnoozed(JobEvent, frozen=True):
    delay: float
    reason: str


class JobDead(JobEvent, frozen=True):
    level = logging.ERROR
    error: str
    traceback: str = ""
    exception: BaseException | None = None


class JobCancelled(JobEvent, frozen=True):
    reason: str


class JobExpired(JobCancelled, frozen=True):
    """A job was not begun, because its time was over; it is cancelled. `reason` says when that was."""


class RunParked(JobEvent, frozen=True):
    """A run has given its lease back and waits; `waits_for` says for what."""

    level = logging.DEBUG
    waits_for: str


class RunStuck(JobEvent, frozen=True):
    """A run cannot go on with the code that is there; it is tried again every minute, and no attempt is used."""

    level = logging.ERROR
    reason: str


class StepsUnawaited(JobEvent, frozen=True):
    """A run's body returned right after it had asked for these steps, without waiting for them: they were not made."""

    level = logging.WARNING
    steps: str


class RemoteStepEnded(Event, frozen=True):
    """A remote step is done, retried or failed; `waited` from its dispatch, then `took`: seconds, None if not told."""

    level = logging.DEBUG
    worker: str
    run: str
    key: str
    step: str
    outcome: str
    attempt: int
    waited: float | None
    took: float | None


class DispatchLost(Event, frozen=True):
    """Neither the task nor a result of a remote step was there any more: it was sent again, for the `lost`th time."""

    level = logging.WARNING
    worker: str
    engine: str
    run: str
    key: str
    lost: int


class JobReleased(JobEvent, frozen=True):
    level = logging.DEBUG


class JobReaped(JobEvent, frozen=True):
    """A lease ran out and was taken back; `worker` is who lost it, `outcome` what became of the job."""

    level = logging.WARNING
    outcome: str


class LeaseWasLost(JobEvent, frozen=True):
    """A worker found that it no longer holds the job; whatever its handler did is not recorded."""

    level = logging.WARNING


class ResultDropped(JobEvent, frozen=True):
    """The handler returned what JSON cannot hold: the job is done, its result is not kept."""

    level = logging.WARNING
    error: str


class FailedAfterDone(JobEvent, frozen=True):
    """The handler raised, or asked for another end, after its transaction had completed the job: it stays done."""

    level = logging.WARNING
    error: str
    traceback: str = ""
    exception: BaseException | None = None


class SettleRefused(JobEvent, frozen=True):
    """The database refuses to store what came of the attempt, whatever is left out: its lease will run out."""

    level = logging.ERROR
    error: str


class UpkeepFailed(Event, frozen=True):
    """The database refused a piece of a worker's upkeep (reap, beat, prune); it is tried again at its next turn."""

    level = logging.ERROR
    worker: str
    what: str
    error: str


class JobStuck(Event, frozen=True):
    """A row that was written by hand can neither be claimed nor reaped; said once by each worker."""

    level = logging.ERROR
    worker: str
    id: str
    why: str


class QueueSettingsDiffer(Event, frozen=True):
    """The code of this worker says something else of a queue than what is stored, which counts; told once for each."""

    level = logging.WARNING
    worker: str
    queue: str
    stored: str
    said: str


class QueueSettingsChanged(Event, frozen=True):
    """A worker goes by other settings of a queue from now on: somebody has changed what is stored."""

    worker: str
    queue: str
    settings: str


class KeyMissing(Event, frozen=True):
    """A job without a key came to a queue with order, turns or limits for keys: it stands in no line. Once a kind."""

    level = logging.WARNING
    worker: str
    queue: str
    kind: str
    settings: str


class KindUnhandled(Event, frozen=True):
    """Jobs are due, the first for `oldest` seconds, of a kind that no live worker handles, in a queue of this one's."""

    level = logging.WARNING
    worker: str
    queue: str
    kind: str
    due: int
    oldest: float


class KindShared(Event, frozen=True):
    """A live worker of other `packages` serves kinds of this one's from the same tables: each takes jobs of both."""

    level = logging.WARNING
    worker: str
    other: str
    packages: list[str]
    kinds: list[str]


class LimitMiscounted(Event, frozen=True):
    """A limit, or the line of a key, did not count what is leased: a defect, or rows changed by hand. It does now."""

    level = logging.ERROR
    worker: str
    queue: str
    key: str | None
    counted: int
    leased: int


class QueuePaused(Event, frozen=True):
    """This worker claims nothing of a queue any more, or starts with it paused; what it runs goes on."""

    level = logging.WARNING
    worker: str
    queue: str
    since: str
    by: str | None
    reason: str | None


class QueueResumed(Event, frozen=True):
    """This worker claims from a queue again."""

    worker: str
    queue: str


class KindPaused(Event, frozen=True):
    """As QueuePaused, for the jobs of one kind."""

    level = logging.WARNING
    worker: str
    kind: str
    since: str
    by: str | None
    reason: str | None


class KindResumed(Event, frozen=True):
    """As QueueResumed, for the jobs of one kind."""

    worker: str
    kind: str


class WorkerBuried(Event, frozen=True):
    level = logging.WARNING
    worker: str


class DatabaseLost(Event, frozen=True):
    """The database cannot be reached; said once per outage."""

    level = logging.ERROR
    worker: str
    error: str
    store: str = ""


class DatabaseRegained(Event, frozen=True):
    worker: str
    seconds: float
    store: str = ""


class ListenerLost(Event, frozen=True):
    """Wake-ups no longer arrive; polling carries on alone."""

    level = logging.WARNING
    worker: str
    error: str


class ListenerRegained(Event, frozen=True):
    worker: str
    seconds: float


class RingMoved(Event, frozen=True):
    """The workers of a ring have changed: this one owns `owned` of `buckets` buckets now, among `workers`."""

    worker: str
    workers: int
    owned: int
    buckets: int


class LoopBlocked(Event, frozen=True):
    """The event loop stood still for `seconds`, so that leases could hardly be renewed, or not at all.

    A handler blocked it (a long computation, a sync call in an async handler), or the process was stopped.
    """

    level = logging.WARNING
    worker: str
    seconds: float


class Pruned(Event, frozen=True):
    level = logging.DEBUG
    worker: str
    jobs: int
    keys: int
    audit: int = 0  # lines of the audit


class ScheduleStored(Event, frozen=True):
    """What a worker's application declares took effect: a schedule was `created` or `changed`."""

    worker: str
    schedule: str
    what: str
    when: str


class ScheduleKept(Event, frozen=True):
    """A worker's application declares a schedule otherwise than it is stored, and the stored one stays.

    Another version of the application is at work, or somebody changed it by hand; said once by each worker.
    """

    level = logging.WARNING
    worker: str
    schedule: str
    when: str


class ScheduleTicked(Event, frozen=True):
    """The job of a tick was added, `late` seconds after its time; `created` is False where a unique job was there."""

    worker: str
    schedule: str
    tick: str
    id: str
    kind: str
    queue: str
    created: bool
    late: float


class TicksSkipped(Event, frozen=True):
    """Ticks were missed and are left out, as the schedule's `catch_up` says; `count` stops at 1,000."""

    level = logging.WARNING
    worker: str
    schedule: str
    count: int
    first: str
    last: str
    catch_up: str


class ScheduleFailed(Event, frozen=True):
    """A schedule is due and this worker cannot do its tick; it is left to others, and tried again."""

    level = logging.ERROR
    worker: str
    schedule: str
    error: str


class MessagesReceived(Event, frozen=True):
    """Messages of a broker were stored and then acknowledged; `new` of them are new, the others were known already."""

    level = logging.DEBUG
    worker: str
    broker: str
    kind: str
    count: int
    new: int
    unreadable: int
    seconds: float


class MessageUnreadable(Event, frozen=True):
    """A message cannot be read as its handler takes it: it was stored as it came, and becomes a dead letter."""

    level = logging.WARNING
    worker: str
    broker: str
    kind: str
    position: str
    reason: str


class BrokerLost(Event, frozen=True):
    """A broker that messages come from cannot be reached; said once per outage, and tried again until it is back."""

    level = logging.ERROR
    worker: str
    broker: str
    error: str


class BrokerRegained(Event, frozen=True):
    """Messages are received again, `seconds` after the broker was lost."""

    worker: str
    broker: str
    seconds: float


class SinkDown(Event, frozen=True):
    """A sink takes nothing now, said once for each outage: it is tried after `pause` seconds, no attempt is used."""

    level = logging.WARNING
    worker: str
    sink: str
    reason: str
    pause: float


class SinkBack(Event, frozen=True):
    """A sink takes messages again, `down_for` seconds after it was found down."""

    worker: str
    sink: str
    down_for: float
