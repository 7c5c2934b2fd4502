"""A sync transaction in async code: SQLite has no async driver, so each statement hops to a thread.

It stands here and not with the dialect, because any embedded database without an async driver is served like this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import OVER, DatabaseUnavailable, TransactionError
from holdfast.flow import Flow, Rows, Statement
from holdfast.store.lending import Completes, Lent
from holdfast.store.pauses import TRIES, pause_after
from holdfast.store.writers import Served, Writer


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


class ThreadedLent(Served):
    """A sync transaction held open by async code, on the thread of a `Writer`: what `AsyncLent` is for async drivers.

    One thread, so that its calls keep their order whatever is cancelled: a statement that was sent and then given up
    on is over before the rollback, and never runs on a connection that went back to the pool. It begins with the first
    statement: that is a hop less, and the file's only writer waits for no handler that has nothing to write yet.
    """

    __slots__ = ("_given_up", "_lent", "_tx", "_writer")

    def __init__(self, lent: Lent, writer: Writer) -> None:
        super().__init__()
        self._lent = lent
        self._writer = writer
        self._tx = AsyncTx(self)
        # Left before it had begun: what was called until then need not be done.
        self._given_up = False

    async def begin(self) -> AsyncTx:
        """Have a thread; where the process has none to give for a moment, wait for it as `Store.arun` does."""
        for tries in range(1, TRIES):
            try:
                self._writer.start()
                return self._tx
            except DatabaseUnavailable:
                await asyncio.sleep(pause_after(tries))
        self._writer.start()
        return self._tx

    def call(self, fn: Callable[[Lent], Any]) -> asyncio.Future[Any]:
        """Run a function on the thread, behind what was called before."""
        return self._writer.call(self, lambda: fn(self._entered())).future

    def _entered(self) -> Lent:
        if self.over or self._given_up:
            raise TransactionError(OVER)
        if not self.begun:
            if self.late:
                raise self._writer.refusal()
            self._lent.begin()
            self.begun = True
        return self._lent

    async def complete(self, work: Flow[None], completes: Completes) -> None:
        """As `Lent.complete`. The commit goes on when the task is cancelled, and `completes` hears what it came to."""
        await self._writer.call(self, lambda: self._complete(work, completes)).over()

    def _complete(self, work: Flow[None], completes: Completes) -> None:
        lent = self._entered()
        self.over = True
        lent.complete(work, completes)

    async def keep(self) -> None:
        """As `Lent.keep`."""
        self._tx.over = True
        if self.in_line:
            await self._writer.call(self, lambda: self._lent.keep() if self.begun else None).future

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
        if self.begun and cancelled:
            # Cancelled: a statement that still runs would keep the lock on the file.
            self._lent.link.raw.interrupt()
        self._given_up = not self.begun
        if not self.in_line:
            # Nothing was ever called, or it could not begin.
            self.over = True
            return
        leaving = self._writer.call(self, lambda: self._roll_back(error))
        if not self.begun and cancelled:
            # It may still wait for its turn, and leaves right behind. Nobody waits for that any more.
            return
        await leaving.over()

    def _roll_back(self, error: BaseException) -> None:
        self.over = True
        if self.begun:
            self._lent.roll_back(error)
