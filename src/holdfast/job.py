"""The job as its handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast import jobs
from holdfast.errors import Conflict
from holdfast.flow import adrive, drive
from holdfast.model import Lease, when
from holdfast.payload import decode_value, encode_value

if TYPE_CHECKING:
    from holdfast.links import Link
    from holdfast.store import Store


class Job:
    """A claimed job, handed to a handler that asks for it by annotation.

    `lost` turns True when the lease is gone: a `def` handler should look at it in long loops and return; an async one
    is cancelled. `cancel_requested` turns True when someone cancelled the running job.
    """

    __slots__ = ("_keep", "_store", "cancel_requested", "context", "lease", "lost", "result", "settled")

    def __init__(self, lease: Lease, store: Store, *, keep: bool = True) -> None:
        self.lease = lease
        self.lost = False
        self.cancel_requested = False
        # True once the completion was committed together with the handler's own writes.
        self.settled = False
        # What `transaction()` and `complete()` record as the job's result.
        self.result: Any = None
        # Free for middlewares and handlers: whatever belongs to this attempt.
        self.context: dict[str, Any] = {}
        self._store = store
        self._keep = keep

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
        """Complete the job inside a transaction that the handler opened itself; any connection that `tx=` takes."""
        self._store.run_in(tx, self._completion(result), f"the completion of {self.kind}")

    async def acomplete(self, tx: Any, result: Any = None) -> None:
        """The async twin of `complete`."""
        await self._store.arun_in(tx, self._completion(result), f"the completion of {self.kind}")

    def progress(self, value: Any) -> None:
        """Store how far the job is: any JSON value. Raises: LeaseLost."""
        self._store.run(jobs.progress(self.lease, encode_value(value, "progress")))

    async def aprogress(self, value: Any) -> None:
        """The async twin of `progress`."""
        await self._store.arun(jobs.progress(self.lease, encode_value(value, "progress")))

    def _completion(self, result: Any) -> Any:
        if self.settled:
            raise Conflict(f"Job {self.id} is complete already; one attempt completes once.")
        value = self.result if result is None else result
        text = None if value is None else encode_value(value, "result")
        return jobs.complete(self.lease, text, keep=self._keep)

    @contextmanager
    def _sync_transaction(self) -> Iterator[Any]:
        with self._store.link() as link, link.transaction() as raw:
            yield raw
            drive(self._completion(None), link.session)
        self.settled = True

    @asynccontextmanager
    async def _async_transaction(self) -> AsyncIterator[Any]:
        if not self._store.embedded:
            async with self._store.alink() as link, link.transaction() as raw:
                yield raw
                await adrive(self._completion(None), link.session)
            self.settled = True
            return
        async with _Threaded(self._store.link()) as threaded:
            yield threaded.tx
            await threaded.call(lambda: drive(self._completion(None), threaded.link.session))
        self.settled = True


class Transaction:
    """`job.transaction()`: a context manager of either colour."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sync: AbstractContextManager[Any] | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> Any:
        self._sync = self._job._sync_transaction()
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._sync is None else self._sync.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        self._async = self._job._async_transaction()
        return await self._async.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._async is None else await self._async.__aexit__(kind, error, trace)


class AsyncTx:
    """A SQLite transaction for async code: `await tx.execute(…)` runs on a thread and gives the rows, if any."""

    def __init__(self, call: Callable[[Callable[[], Any]], Any], raw: Any) -> None:
        self._call = call
        self._raw = raw

    async def execute(self, sql: str, *params: Any) -> list[Any]:
        """Run one statement; parameters one by one, or a single sequence or mapping."""
        given = params[0] if len(params) == 1 and isinstance(params[0], list | tuple | dict) else params
        rows: list[Any] = await self._call(lambda: self._raw.execute(sql, given).fetchall())
        return rows

    fetch = execute

    async def executemany(self, sql: str, rows: Any) -> None:
        await self._call(lambda: self._raw.executemany(sql, rows) and None)


class _Threaded:
    """A sync link and its transaction, held open by async code, every call on a worker thread."""

    def __init__(self, lend: AbstractContextManager[Link]) -> None:
        self._lend = lend

    async def call(self, fn: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(fn)

    async def __aenter__(self) -> _Threaded:
        self.link = await self.call(self._lend.__enter__)
        self._transaction = self.link.transaction()
        try:
            raw = await self.call(self._transaction.__enter__)
        except BaseException as error:
            self._lend.__exit__(type(error), error, error.__traceback__)
            raise
        self.tx = AsyncTx(self.call, raw)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        # Not awaited on a thread when cancelled: the lock on the file must go at once.
        if error is not None and not isinstance(error, Exception):
            return self._leave(kind, error, trace)
        result: bool | None = await self.call(lambda: self._leave(kind, error, trace))
        return result

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            swallowed: bool | None = self._transaction.__exit__(kind, error, trace)
            return swallowed
        except BaseException as failed:
            kind, error, trace = type(failed), failed, failed.__traceback__
            raise
        finally:
            self._lend.__exit__(kind, error, trace)
