"""What passes between the parts of a worker: a claimed job, and what its attempt came to."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextvars import Context
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from holdfast import events
from holdfast.errors import ConfigError
from holdfast.handlers import Registration
from holdfast.job import Job
from holdfast.jobs.source import OURS
from holdfast.life.source import Source
from holdfast.observe import Tally
from holdfast.values.given import told
from holdfast.values.rows import End, Finish, Lease, when
from holdfast.worker.db_clock import DbClock
from holdfast.worker.handler_threads import Given, Threads

# Why an attempt must stop: its lease is gone, somebody cancelled the job, the worker stops.
Interrupt = Literal["lost", "cancelled", "stop"]
# Where work that is made outside a worker is counted: nobody reads it.
NOWHERE = Tally("", "")


class Hidden(NamedTuple):
    """A coroutine that a `def` handler returned, for a decorator hid that it is async, and the attempt's context."""

    coroutine: Coroutine[Any, Any, Any]
    variables: Context


class BaseExecutor:
    """What runs claimed jobs in a slot: `executors.py` lists those that a source may name.

    One is made for each worker and store, from the application's context, the worker's id, its threads, the store's
    `Begins` and the store itself. It sets `work.started` (by the monotonic clock) when an attempt begins, and has its
    `Ended` made by `Outcomes` (`outcomes.py`), which knows what to write and what to tell.

    `batch_limit` says how many jobs one call takes: with 1 a slot calls `attempt`, with more `attempt_batch`. Neither
    may raise: whatever a handler does becomes an outcome. `batch_of` and `goes_with` say which jobs make a batch; with
    `takes_stints`, jobs that wait behind one of it in the line of their key go into the same batch, behind it.

    Where `takes_streak` is True for a job, a slot calls neither, but lends itself to a thread (`streaks.py`): `prepare`
    there comes before everything, `call` is the handler's call, `judge` and `finish` are what the loop makes of it.
    """

    # All that runs in the slots of the worker: from it code can tell for which job it runs.
    running: Collection[Work] = ()
    batch_limit = 1
    takes_stints = False
    threads: Threads
    # What the hooks of the worker's start have given, by annotation.
    given: Mapping[Any, Any] = MappingProxyType({})
    # The time of the store, by which jobs are due.
    clock = DbClock()

    def given_to(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the resources that a function asks for, by parameter. Raises: ConfigError where one is missing."""
        try:
            return {name: self.given[hint] for name, hint in asked.items()}
        except KeyError as error:
            rule = "no on_start hook of this worker gives it"
            raise ConfigError(f"resource {told(error.args[0])}", rule, ", ".join(asked)) from error

    def takes_streak(self, work: Work) -> bool:
        """Tell whether a thread may take this job out of the buffer by itself; from any thread, and quickly."""
        return False

    def prepare(self, work: Work) -> None:
        """Make what the rest of the worker sees of a running job."""

    def call(self, work: Work) -> Ended | Given | Hidden:
        """Call the handler, on the thread; `Ended` where nothing is left to judge."""
        raise NotImplementedError

    def judge(self, work: Work, value: Any, error: BaseException | None) -> Ended:
        """Make an end of what a handler gave."""
        raise NotImplementedError

    def finish(self, work: Work, hidden: Hidden) -> Coroutine[Any, Any, Ended]:
        """Run the coroutine that a handler gave."""
        raise NotImplementedError

    def attempt(self, work: Work) -> Coroutine[Any, Any, Ended]:
        """Run one job."""
        raise NotImplementedError

    def batch_of(self, first: Work) -> int:
        """Return how many jobs may run in one call with this one, itself included."""
        return self.batch_limit

    def goes_with(self, first: Work, other: Work) -> bool:
        """Tell whether a job may run in one call with another of the same executor and source."""
        return True

    def attempt_batch(self, works: Sequence[Work]) -> Coroutine[Any, Any, Sequence[Ended]]:
        """Run jobs of one source together, and return the end of each in the order in which they are to be written.

        They come in the order of the claim. One whose `interrupt` is set at the end has lost its lease or was
        cancelled meanwhile; only a stop of the worker cancels the call itself.
        """
        raise NotImplementedError


class Work:
    """A claimed job in a worker's hands, from claim to settle. Each field has one owner; the others only read it.

    `took` is how many seconds an attempt took: the slots set it at its end, and it is not there before.
    """

    __slots__ = (
        "executor",
        "handler",
        "interrupt",
        "job",
        "keep",
        "key",
        "lease",
        "next",
        "renewed",
        "slot",
        "source",
        "started",
        "stint",
        "taken",
        "tally",
        "took",
    )
    took: float

    def __init__(
        self,
        lease: Lease,
        handler: Registration[..., Any],
        keep: bool,
        now: float,
        source: Source = OURS,
        executor: BaseExecutor | None = None,
        tally: Tally = NOWHERE,
    ) -> None:
        # The claim: never changed afterwards, except that a run's comes to say that it is one. `taken` is a time of the
        # monotonic clock, like all times here.
        self.lease = lease
        self.handler = handler
        self.keep = keep
        self.taken = now
        self.source = source
        self.executor = executor
        # Where its end is counted.
        self.tally = tally
        # Ids of our own tables are unique by themselves, those of foreign tables only within their source.
        self.key = lease.id if source.ours else (source, lease.id)
        # The renewal round: when the lease was last put off.
        self.renewed = now
        # The slot: the task that runs it, and why the attempt must stop.
        self.slot: Any = None
        self.interrupt: Interrupt | None = None
        # The executor: when the attempt began (0.0: not yet), and what the handler sees of it; a plain async handler
        # that does not ask for its job has none.
        self.started = 0.0
        self.job: Job | None = None
        # The slots: what runs when this one has ended well, of the same stint of an ordered queue.
        self.next: Work | None = None
        # What it shares with others of its key that one claim gave together; None without such.
        self.stint: Stint | None = None

    @property
    def ready(self) -> float:
        """Return from when on nothing but a slot was missing: it may have waited for others before that."""
        return self.taken + self.handler.linger

    @property
    def settled(self) -> bool:
        """Tell whether the handler's own transaction has completed it."""
        return self.job is not None and self.job.settled

    def waited(self) -> float | None:
        """Return the seconds from the moment the job was due to its start, by the store's clock; None before that."""
        if not self.started:
            return None
        clock = BaseExecutor.clock if self.executor is None else self.executor.clock
        due = self.lease.available_at
        # Most claims give microseconds: a datetime is made of anything else, and of what is in no calendar.
        usual = type(due) in (int, float) and 0 < due < 1e17
        return max(0.0, clock.at(self.started) - (due / 1_000_000 if usual else when(due).timestamp()))


class Stint:
    """What jobs of one key share that one claim gave together, and that run one after the other."""

    __slots__ = ("refused", "unwritten")

    def __init__(self) -> None:
        # The ends behind which the next one began, in their order, until they are known to be written.
        self.unwritten: list[Ended] = []
        # Whether the database refuses one of them for good: nothing behind it may end before it.
        self.refused = False

    def ends(self) -> list[Finish]:
        """List the ends that are not known to be written; from any thread."""
        return [ended.write for ended in tuple(self.unwritten) if isinstance(ended.write, Finish)]

    def forget(self, work: Work) -> None:
        """Note that the end of a job is written, or that nothing may be written for it."""
        if self.refused:
            return
        for n, ended in enumerate(self.unwritten):
            if ended.work is work:
                del self.unwritten[n]
                return


class Ended:
    """What an attempt came to: what to write (None when nothing may be), and the event for when that is committed.

    The event is None when nobody listens to it.
    """

    __slots__ = ("error", "event", "work", "write")

    def __init__(
        self, work: Work, write: End | None, event: events.JobEvent | None, error: BaseException | None = None
    ) -> None:
        self.work = work
        self.write = write
        self.event = event
        # What the handler raised, when that is why it ended so.
        self.error = error

    @property
    def well(self) -> bool:
        """Tell whether the job succeeded, as far as this worker can tell: nobody has told it that the lease is lost."""
        work = self.work
        if work.interrupt is not None or (work.job is not None and work.job.lost):
            return False
        if work.stint is not None and work.stint.refused:
            return False
        return work.settled if self.write is None else isinstance(self.write, Finish) and self.write.outcome == "done"
