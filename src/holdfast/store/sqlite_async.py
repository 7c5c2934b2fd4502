"""A sync transaction in async code: SQLite has no async driver, so each statement hops to a thread.

It stands here and not with the dialect, because any embedded database without an async driver is served like this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from holdfast.errors import OVER, DatabaseUnavailable, TransactionError
from holdfast.flow import Flow, Rows, Statement
from holdfast.store.lending import Completes, Lent
from holdfast.store.pauses import TRIES, pause_after


class AsyncTx:
    """A SQLite transaction for async code: `await tx.execute(…)` runs on a thread and gives the rows, if any.

    `tx=` takes it like any other connection.
    """

    def __init__(self, lent: ThreadedLent) -> None:
        self._lent = lent
        # Its block has ended; the transaction may have gone to somebody else.
        self.over = False

    async def execute(self, sql: str, *params: Any) -> list[Any]:
        """Run one statement; parameters one by one, or a single sequence or mapping."""
        given = params[0] if len(params) == 1 and isinstance(params[0], list | tuple | dict) else params
        rows: list[Any] = await self._call(lambda lent: lent.link.raw.execute(sql, given).fetchall())
        return rows

    fetch = execute

    async def executemany(self, sql: str, rows: Any) -> None:
        await self._call(lambda lent: lent.link.raw.executemany(sql, rows) and None)

    async def run(self, statement: Statement) -> Rows:
        """Run one of our own statements: this makes it a session for `tx=`."""
        rows: Rows = await self._call(lambda lent: lent.link.session.run(statement))
        return rows

    def _call(self, fn: Callable[[Lent], Any]) -> asyncio.Future[Any]:
        if self.over:
            raise TransactionError(OVER)
        return self._lent.call(fn)


class TransactionThreads:
    """Threads that each serve one transaction at a time: to start one for each transaction took 100 µs and more."""

    def __init__(self) -> None:
        self._idle: list[ThreadPoolExecutor] = []

    def take(self) -> ThreadPoolExecutor:
        with suppress(IndexError):
            return self._idle.pop()
        thread = ThreadPoolExecutor(1, "holdfast-transaction")
        try:
            # It starts with its first work. Were that a statement, the executor would keep it and run it later, when
            # the caller has long repeated it.
            thread.submit(int)
        except RuntimeError as error:
            thread.shutdown(wait=False)
            raise DatabaseUnavailable(f"no thread could be started for it: {error}") from error
        return thread

    def put(self, thread: ThreadPoolExecutor) -> None:
        self._idle.append(thread)

    def close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().shutdown(wait=False)


class ThreadedLent:
    """A sync transaction held open by async code, with a thread of its own: what `AsyncLent` is for async drivers.

    One thread, so that its calls keep their order whatever is cancelled: a statement that was sent and then given up
    on is over before the rollback, and never runs on a connection that went back to the pool. It begins with the first
    statement: that is a hop less, and the file's only writer waits for no handler that has nothing to write yet.
    """

    __slots__ = ("_begun", "_lent", "_over", "_thread", "_threads", "_tx")

    def __init__(self, lent: Lent, threads: TransactionThreads) -> None:
        self._lent = lent
        self._threads = threads
        self._thread: ThreadPoolExecutor
        self._tx = AsyncTx(self)
        self._begun = False
        self._over = False

    async def begin(self) -> AsyncTx:
        """Take a thread; where the process has none to give for a moment, wait for it as `Store.arun` does."""
        for tries in range(1, TRIES):
            try:
                self._thread = self._threads.take()
                return self._tx
            except DatabaseUnavailable:
                await asyncio.sleep(pause_after(tries))
        self._thread = self._threads.take()
        return self._tx

    def call(self, fn: Callable[[Lent], Any]) -> asyncio.Future[Any]:
        """Run a function on the transaction's thread, behind what was called before."""
        return self._hop(lambda: fn(self._entered()))

    def _entered(self) -> Lent:
        if self._over:
            raise TransactionError(OVER)
        if not self._begun:
            self._lent.begin()
            self._begun = True
        return self._lent

    def _hop(self, fn: Callable[[], Any]) -> asyncio.Future[Any]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._thread, fn)
        except RuntimeError as error:
            raise DatabaseUnavailable(f"no thread could be started for it: {error}") from error

    def _leaving(self, fn: Callable[[], None]) -> asyncio.Future[None]:
        """Run the last call; then the thread is free for the next transaction."""
        leaving = self._hop(fn)
        leaving.add_done_callback(lambda _: self._threads.put(self._thread))
        return leaving

    async def complete(self, work: Flow[None], completes: Completes) -> None:
        """As `Lent.complete`. The commit goes on when the task is cancelled, and `completes` hears what it came to."""
        leaving = self._leaving(lambda: self._complete(work, completes))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await asyncio.wait([leaving])
            if not leaving.cancelled():
                leaving.exception()
            raise

    def _complete(self, work: Flow[None], completes: Completes) -> None:
        lent = self._entered()
        self._over = True
        lent.complete(work, completes)

    async def keep(self) -> None:
        """As `Lent.keep`."""
        self._tx.over = True
        await self._hop(lambda: self._lent.keep() if self._begun else None)

    async def admit(self, marks: Sequence[str]) -> AsyncTx:
        """As `Lent.admit`."""
        await self.call(lambda lent: lent.admit(marks) and None)
        self._tx = AsyncTx(self)
        return self._tx

    async def undo(self) -> None:
        """As `Lent.undo`."""
        self._tx.over = True
        await self.call(Lent.undo)

    async def roll_back(self, error: BaseException) -> None:
        """As `Lent.roll_back`."""
        # The type, because a handler's error may raise when it is asked for its `__class__`.
        cancelled = not issubclass(type(error), Exception)
        if self._begun and cancelled:
            # Cancelled: a statement that still runs would keep the lock on the file.
            self._lent.link.raw.interrupt()
        leaving = self._leaving(lambda: self._roll_back(error))
        if not self._begun and cancelled:
            # It may still wait for its turn, and leaves right behind. Nobody waits for that any more.
            return
        await asyncio.shield(leaving)

    def _roll_back(self, error: BaseException) -> None:
        self._over = True
        if self._begun:
            self._lent.roll_back(error)
