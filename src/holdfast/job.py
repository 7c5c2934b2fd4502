"""The job as its handler sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast import jobs
from holdfast.errors import Conflict
from holdfast.flow import Flow, adrive, drive
from holdfast.jobs.source import OURS
from holdfast.life.source import Source
from holdfast.store.sqlite_async import Threaded
from holdfast.values.payload import decode_value, encode_value
from holdfast.values.rows import Lease, when

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.store.connections import Lent, Link


class Job:
    """A claimed job, handed to a handler that asks for it by annotation.

    `lost` turns True when the lease is gone: a `def` handler should look at it in long loops and return; an async one
    is cancelled. `cancel_requested` turns True when someone cancelled the running job.
    """

    __slots__ = (
        "_inside",
        "_keep",
        "_source",
        "_store",
        "_worker",
        "cancel_requested",
        "completing",
        "context",
        "lease",
        "lost",
        "result",
        "settled",
    )

    def __init__(
        self, lease: Lease, store: Store, *, keep: bool = True, source: Source = OURS, worker: str = ""
    ) -> None:
        self.lease = lease
        self.lost = False
        self.cancel_requested = False
        # True once the completion was committed together with the handler's own writes.
        self.settled = False
        # True from the moment the completion is sent: a renewal would wait for the row, or miss it, and mean nothing.
        self.completing = False
        # What `transaction()` and `complete()` record as the job's result.
        self.result: Any = None
        # Free for middlewares and handlers: whatever belongs to this attempt.
        self.context: dict[str, Any] = {}
        self._store = store
        self._keep = keep
        self._source = source
        self._worker = worker
        self._inside = False

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
        return Transaction(self)

    def complete(self, tx: Any, result: Any = None) -> None:
        """Complete the job inside a transaction that the handler opened itself; any connection that `tx=` takes.

        Commit soon: from here on the lease is no longer renewed, because the row is that transaction's.
        """
        with self._while_completing():
            self._store.run_in(tx, self._completion(result), f"the completion of {self.kind}")

    async def acomplete(self, tx: Any, result: Any = None) -> None:
        """The async twin of `complete`."""
        with self._while_completing():
            await self._store.arun_in(tx, self._completion(result), f"the completion of {self.kind}")

    def progress(self, value: Any) -> None:
        """Store how far the job is: any JSON value. Raises: LeaseLost."""
        self._store.run(self._progress(value))

    async def aprogress(self, value: Any) -> None:
        """The async twin of `progress`."""
        await self._store.arun(self._progress(value))

    def _progress(self, value: Any) -> Flow[None]:
        if not self._source.ours:
            raise Conflict(f"The tables of {self._source.name} have no place for progress.")
        return jobs.progress(self.lease, encode_value(value, "progress"))

    def _completion(self, result: Any) -> Flow[None]:
        value = self.result if result is None else result
        text = None if value is None else encode_value(value, "result")
        return self._source.complete(self.lease, text, keep=self._keep, worker=self._worker)

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

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._inside or self.completing:
            raise Conflict(f"Job {self.id} is complete already, or about to be; one attempt completes once.")
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    @contextmanager
    def _sync_transaction(self) -> Iterator[Any]:
        with self._entered(), self._while_leaving() as leaving:
            with self._store.lent() as lent:
                yield lent.link.raw
                leaving()
                self._complete_in(lent)
            self.settled = True

    def _complete_in(self, lent: Lent[Link]) -> None:
        lent.insist_on_it()
        drive(self._completion(None), lent.link.session)

    @asynccontextmanager
    async def _async_transaction(self) -> AsyncIterator[Any]:
        with self._entered(), self._while_leaving() as leaving:
            if self._store.embedded:
                async with Threaded(self._store.lent()) as threaded:
                    yield threaded.tx
                    leaving()
                    threaded.on_commit = self._set_settled
                    await threaded.call(lambda: self._complete_in(threaded.lent))
                return
            async with self._store.alent() as lent:
                yield lent.link.raw
                leaving()
                lent.insist_on_it()
                await adrive(self._completion(None), lent.link.session)
            self.settled = True

    @contextmanager
    def _while_leaving(self) -> Iterator[Callable[[], None]]:
        """Give what to call when the handler's own statements are over; a failure before or after undoes it."""
        with ExitStack() as stack:
            yield lambda: stack.enter_context(self._while_completing())

    def _set_settled(self) -> None:
        self.settled = True


class Transaction:
    """`job.transaction()`: a context manager of either colour."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sync: AbstractContextManager[Any] | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Any:
        self._sync = self._job._sync_transaction()  # pyright: ignore[reportPrivateUsage]
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._sync is None else self._sync.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        self._async = self._job._async_transaction()  # pyright: ignore[reportPrivateUsage]
        return await self._async.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._async is None else await self._async.__aexit__(kind, error, trace)
