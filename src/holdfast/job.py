"""The job as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast import chains, jobs
from holdfast.bound import Bound, following, plain_bound
from holdfast.chains import Parents
from holdfast.errors import (
    Conflict,
    HoldfastError,
    SharedTransactionUndone,
    TransactionError,
    UnsupportedConnection,
    WrongColour,
)
from holdfast.flow import Flow, Steps, flow, notifying
from holdfast.jobs.source import OURS
from holdfast.life.source import Source
from holdfast.store.groups import Joining
from holdfast.values.ids import new_id
from holdfast.values.once import ONCE_WINDOW
from holdfast.values.payload import decode_value, encode_value
from holdfast.values.retry import Duration, Retry, seconds
from holdfast.values.rows import BATCH_HEADER, Completion, Finish, Lease, NewJob, when
from holdfast.values.texts import KEY_LENGTH, text

if TYPE_CHECKING:
    from holdfast.store import Store


class Job:
    """A claimed job, handed to a handler that asks for it by annotation.

    `lost` turns True when the lease is gone: a `def` handler should look at it in long loops and return; an async one
    is cancelled. `cancel_requested` turns True when someone cancelled the running job.
    """

    __slots__ = (
        "_before",
        "_keep",
        "_source",
        "_store",
        "_worker",
        "cancel_requested",
        "completing",
        "context",
        "following",
        "in_transaction",
        "lease",
        "lost",
        "open_tx",
        "result",
        "retry",
        "settled",
        "shares_commit",
        "undone",
    )

    def __init__(
        self,
        lease: Lease,
        store: Store,
        *,
        keep: bool = True,
        source: Source = OURS,
        worker: str = "",
        shares_commit: bool = False,
        before: Callable[[], Sequence[Finish]] = tuple,
    ) -> None:
        self.lease = lease
        self.lost = False
        self.cancel_requested = False
        # True once the completion was committed together with the handler's own writes.
        self.settled = False
        # True from the moment the completion is sent: a renewal would wait for the row, or miss it, and mean nothing.
        self.completing = False
        # True inside the block of `transaction()`.
        self.in_transaction = False
        # What that block was given.
        self.open_tx: Any = None
        # What `transaction()` and `complete()` record as the job's result.
        self.result: Any = None
        # What continues the job once it is done: see `then`.
        self.following: Bound | None = None
        # How a failure of this attempt is tried again, where that is not as the handler's policy says.
        self.retry: Retry | None = None
        # Free for middlewares and handlers: whatever belongs to this attempt.
        self.context: dict[str, Any] = {}
        # Whether `transaction()` commits together with those of other jobs.
        self.shares_commit = shares_commit
        # True when its effect was rolled back with those of other jobs, and no later block was committed.
        self.undone = False
        self._store = store
        self._keep = keep
        self._source = source
        self._worker = worker
        # Lists the ends of jobs before it in its line that its worker has yet to write.
        self._before = before

    def __repr__(self) -> str:
        return f"<Job {self.kind} {self.id} attempt {self.attempt}>"

    @property
    def id(self) -> str:
        return self.lease.job_id

    @property
    def kind(self) -> str:
        return self.lease.kind

    @property
    def queue(self) -> str:
        return self.lease.queue

    @property
    def worker(self) -> str:
        """The id of the worker that holds the job."""
        return self._worker

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def max_attempts(self) -> int:
        return self.lease.max_attempts

    @property
    def key(self) -> str | None:
        return self.lease.key

    @property
    def fence(self) -> int:
        """The fence of this claim: hand it to other systems that can refuse an older one."""
        return self.lease.fence

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_value(self.lease.headers) if self.lease.headers else {}

    @property
    def created_at(self) -> datetime:
        return when(self.lease.created_at)

    def transaction(self) -> Transaction:
        """Open a transaction in which effect and completion commit together, fenced: `with` or `async with`.

        Gives the worker's own connection: psycopg or asyncpg on PostgreSQL, sqlite3 on SQLite (in async code an object
        with an awaitable `execute`). Leaving the block completes the job; an exception rolls both back.
        Raises: LeaseLost at the end of the block when the lease is gone; nothing is written then.
        """
        return Transaction(self, self._store, self._completion)

    def complete(self, tx: Any = None, result: Any = None) -> None:
        """Complete the job inside a transaction that the handler opened itself; any connection that `tx=` takes.

        Commit soon: from here on the lease is no longer renewed, because the row is that transaction's.
        tx: may be left out inside Django's `transaction.atomic()`, with `holdfast.django`.
        """
        tx = given_tx(tx, self._store, "job.complete()")
        with self._while_completing():
            self._store.run_in(tx, quiet(self._completion(result)), f"the completion of {self.kind}")

    async def acomplete(self, tx: Any, result: Any = None) -> None:
        """The async twin of `complete`; it is always given its transaction."""
        with self._while_completing():
            await self._store.arun_in(tx, quiet(self._completion(result)), f"the completion of {self.kind}")

    def once(self, key: str, *, window: Duration = ONCE_WINDOW, tx: Any = None) -> Once:
        """Guard an effect inside `job.transaction()`: `with job.once("charge:9182") as first:` or `async with`.

        `first` is True the first time that a transaction with this key commits, and False in every later attempt or
        job, whatever its kind, for as long as `window` (90 days by default). The key is recorded in the transaction of
        the effect, and so rolls back with it; an exception that leaves the block takes it back, too.
        tx: the transaction of the effect, where the handler opened it itself, as for `job.complete(tx=…)`.
        A block that another transaction has open with the same key is waited for until that transaction ends.
        Raises: TransactionError outside a transaction.
        """
        return Once(self, text(key, "key", KEY_LENGTH), seconds(window, "window", at_least=0.001), tx)

    def then(self, job: Bound) -> None:
        """Have another job continue this one when it is done, in the same commit, whatever completes it.

        As a handler that returns `Continue(job)` does; this is for `transaction()` and `complete()`, which complete the
        job before the handler returns. The last call counts. The job then has no result of its own.
        """
        self.following = plain_bound(job, "job.then()")

    @property
    def batch(self) -> str | None:
        """The id of the batch that the job is a member of."""
        return self.headers.get(BATCH_HEADER)

    def parents(self) -> Parents | None:
        """Read what the job has waited for, with the results of each; None for a job that was to run after no other."""
        return self._store.run(chains.parents_of(self.id))

    async def aparents(self) -> Parents | None:
        """The async twin of `parents`."""
        return await self._store.arun(chains.parents_of(self.id))

    def progress(self, value: Any) -> None:
        """Store how far the job is: any JSON value. Raises: LeaseLost; Conflict after `complete`."""
        self._store.apart().run(self._progress(value))

    async def aprogress(self, value: Any) -> None:
        """The async twin of `progress`."""
        await self._store.arun(self._progress(value))

    def _progress(self, value: Any) -> Flow[None]:
        if not self._source.ours:
            raise Conflict(f"The tables of {self._source.name} have no place for progress.")
        if self.completing and not self.settled:
            # The row is locked by the handler's own transaction, which would wait here for itself.
            raise Conflict(f"Job {self.id} is complete; call job.progress(…) before job.complete(…).")
        return jobs.progress(self.lease, encode_value(value, "progress"))

    def _completion(self, result: Any) -> Flow[None]:
        value = self.result if result is None else result
        text = None if value is None else encode_value(value, "result")
        completion = Completion(self.lease, text, self._keep, self._then(), self._before())
        if self.shares_commit:
            return Completing(self._source, completion, self._worker)
        return self._source.complete(completion, self._worker)

    def _then(self) -> NewJob | None:
        return None if self.following is None else following(self.following, self.lease, self._source)

    @contextmanager
    def _while_completing(self) -> Iterator[None]:
        """Keep the lease from being renewed or called lost while the completion is under way; a failure undoes that."""
        if self.completing:
            raise Conflict(f"Job {self.id} is complete already; one attempt completes once.")
        self.completing = True
        try:
            yield
        except BaseException:
            self.completing = False
            raise


def given_tx(tx: Any, store: Store, call: str) -> Any:
    """Return the transaction that a call was given, or the one that is open here. Raises: TransactionError."""
    tx = store.open_tx() if tx is None else tx
    if tx is None:
        raise TransactionError(f"{call} needs the transaction of the effect: give it as tx=…")
    return tx


def quiet(completion: Flow[None]) -> Flow[None]:
    """Return the same completion, which notifies nobody: the transaction may be one that is to be prepared.

    Those who wait for the job find its end at their next look.
    """
    return notifying(completion, False)


class Completing(Joining):
    """The completion of one job, which also says what it completes: jobs that share a transaction are completed by one
    statement.
    """

    __slots__ = ("completion", "source", "worker")

    def __init__(self, source: Source, completion: Completion, worker: str) -> None:
        super().__init__("complete", source.complete(completion, worker).start)
        self.source = source
        self.completion = completion
        self.worker = worker

    def joined(self, others: Sequence[Completing]) -> Flow[None]:
        return _complete_all([self, *others])


@flow
def _complete_all(works: Sequence[Completing]) -> Steps[None]:
    for source, worker in {(work.source, work.worker) for work in works}:
        completions = [work.completion for work in works if (work.source, work.worker) == (source, worker)]
        yield from source.complete_all(completions, worker)


def completion_of(job: Job) -> Completion:
    """Return what completes a job together with others, in one statement. Raises: InvalidPayload, for its result."""
    text = None if job.result is None else encode_value(job.result, "result")
    return Completion(job.lease, text, job._keep, job._then(), job._before())  # pyright: ignore[reportPrivateUsage]


class Completed(Protocol):
    """What a transaction completes: a job, or all jobs of a bulk handler's call. The flags are those of `Job`."""

    in_transaction: bool
    open_tx: Any
    undone: bool
    shares_commit: bool

    @property
    def completing(self) -> bool: ...
    @completing.setter
    def completing(self, value: bool, /) -> None: ...
    @property
    def settled(self) -> bool: ...
    @settled.setter
    def settled(self, value: bool, /) -> None: ...


class Transaction:
    """`job.transaction()`: a context manager of either colour. Written out, because a handler pays for each frame."""

    __slots__ = ("_alent", "_complete", "_job", "_lent", "_store")

    def __init__(self, job: Completed, store: Store, complete: Callable[[Any], Flow[None]]) -> None:
        self._job = job
        self._store = store
        self._complete = complete

    def __enter__(self) -> Any:
        self._enter()
        try:
            self._lent = self._store.share() if self._job.shares_commit else self._store.lend()
            tx = self._job.open_tx = self._lent.begin()
            return tx
        except BaseException as error:
            self._note(error)
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            work = self._completion() if error is None else error
            if isinstance(work, BaseException):
                self._lent.roll_back(work)
            else:
                self._lent.complete(work, self)
        except BaseException as failure:
            self._fail(failure)
            raise
        finally:
            self._leave()
        if error is None and isinstance(work, BaseException):
            raise work

    async def __aenter__(self) -> Any:
        self._enter()
        try:
            self._alent = self._store.ashare() if self._job.shares_commit else self._store.alend()
            tx = self._job.open_tx = await self._alent.begin()
            return tx
        except BaseException as error:
            self._note(error)
            self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            work = self._completion() if error is None else error
            if isinstance(work, BaseException):
                await self._alent.roll_back(work)
            else:
                await self._alent.complete(work, self)
        except BaseException as failure:
            self._fail(failure)
            raise
        finally:
            self._leave()
        if error is None and isinstance(work, BaseException):
            raise work

    def _enter(self) -> None:
        job = self._job
        if job.in_transaction or job.completing:
            raise Conflict(
                f"{job!r} is complete already, or about to be; one attempt completes once. "
                "Put all effects into one block."
            )
        job.in_transaction = True

    def _fail(self, error: BaseException) -> None:
        # What comes behind the commit, as the error of a callback does, leaves the job complete.
        if not self._job.settled:
            self._job.completing = False
        self._note(error)

    def _note(self, error: BaseException) -> None:
        """Remember that nothing of the block is left, whatever the handler makes of the error."""
        if type(error) is SharedTransactionUndone:
            self._job.undone = True

    def _leave(self) -> None:
        self._job.in_transaction = False
        self._job.open_tx = None

    def _completion(self) -> Flow[None] | BaseException:
        """Return what completes the job, or why it cannot be completed."""
        job = self._job
        if job.completing:
            return Conflict(f"{job!r} is complete already; one attempt completes once.")
        try:
            work = self._complete(None)
        except BaseException as error:
            # The result is not JSON, for one.
            return error
        return work

    def sending(self) -> None:
        self._job.completing = True

    def committed(self) -> None:
        self._job.settled = True


class Once:
    """`job.once(…)`: a context manager of either colour that says whether the effect of its key is still to happen."""

    __slots__ = ("_job", "_key", "_mark", "_tx", "_window_ms", "first")

    def __init__(self, job: Job, key: str, window: float, tx: Any) -> None:
        self._job = job
        self._key = key
        self._window_ms = round(window * 1000)
        self._tx = tx
        # Of this block alone: the same job may have recorded the key in an attempt before.
        self._mark = new_id()
        self.first = False

    def __enter__(self) -> bool:
        work = self._begin()
        with self._colour("with", "async with"):
            self.first = self._store.run_in(self._tx, work, self._what)
        return self.first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.first and error is not None:
            # A transaction that is broken refuses this, and then nothing of it is ever committed.
            with suppress(HoldfastError):
                self._store.run_in(self._tx, jobs.forget_once(self._key, self._mark), self._what)

    async def __aenter__(self) -> bool:
        work = self._begin()
        with self._colour("async with", "with"):
            self.first = await self._store.arun_in(self._tx, work, self._what)
        return self.first

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not while the coroutine is being thrown away: nothing can be waited for then, and nothing is committed.
        if self.first and error is not None and not isinstance(error, GeneratorExit):
            with suppress(HoldfastError):
                await self._store.arun_in(self._tx, jobs.forget_once(self._key, self._mark), self._what)

    @property
    def _store(self) -> Store:
        return self._job._store  # pyright: ignore[reportPrivateUsage]

    @property
    def _what(self) -> str:
        return f"once({self._key!r})"

    def _begin(self) -> Flow[bool]:
        """Return what records the key. Raises: TransactionError without a transaction to record it in."""
        job = self._job
        if not job._source.ours:  # pyright: ignore[reportPrivateUsage]
            raise Conflict(f"The tables of {job._source.name} have no place for keys of effects.")  # pyright: ignore[reportPrivateUsage]
        if self._tx is None:
            self._tx = job.open_tx or self._store.open_tx()
        if self._tx is None:
            raise TransactionError(
                f"job.once({self._key!r}) is outside a transaction: what it guards must commit together with its key. "
                "Put it inside `with job.transaction() as tx:`, or give it the transaction of the effect: tx=…"
            )
        return jobs.take_once(self._key, self._window_ms, self._mark)

    @contextmanager
    def _colour(self, mine: str, other: str) -> Iterator[None]:
        """Say of a connection of the other colour how the block is written."""
        try:
            yield
        except (WrongColour, UnsupportedConnection) as error:
            if isinstance(error, UnsupportedConnection) and self._tx is not self._job.open_tx:
                raise
            raise WrongColour(f"`{mine} job.once(…)`", f"`{other} job.once(…)`") from error
