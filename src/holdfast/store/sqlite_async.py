"""A sync transaction in async code: SQLite has no async driver, so each statement hops to a thread.

It stands here and not with the dialect, because `job.py` uses it and nothing above the store imports a dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any

from holdfast.errors import StoreError
from holdfast.flow import Rows, Statement
from holdfast.store.connections import Lent, Link


class AsyncTx:
    """A SQLite transaction for async code: `await tx.execute(…)` runs on a thread and gives the rows, if any.

    `tx=` takes it like any other connection.
    """

    def __init__(self, call: Callable[[Callable[[], Any]], Any], link: Link) -> None:
        self._call = call
        self._link = link

    async def execute(self, sql: str, *params: Any) -> list[Any]:
        """Run one statement; parameters one by one, or a single sequence or mapping."""
        given = params[0] if len(params) == 1 and isinstance(params[0], list | tuple | dict) else params
        rows: list[Any] = await self._call(lambda: self._link.raw.execute(sql, given).fetchall())
        return rows

    fetch = execute

    async def executemany(self, sql: str, rows: Any) -> None:
        await self._call(lambda: self._link.raw.executemany(sql, rows) and None)

    async def run(self, statement: Statement) -> Rows:
        """Run one of our own statements: this makes it a session for `tx=`."""
        rows: Rows = await self._call(lambda: self._link.session.run(statement))
        return rows


class Threaded:
    """A sync transaction held open by async code, with a thread of its own.

    One thread, so that its calls keep their order whatever is cancelled: a statement that was sent and then given up
    on is over before the rollback, and never runs on a connection that went back to the pool.
    """

    lent: Lent[Link]
    tx: AsyncTx

    def __init__(self, block: AbstractContextManager[Lent[Link]]) -> None:
        self._block = block
        self._thread = ThreadPoolExecutor(1, "holdfast-transaction")
        self.on_commit: Callable[[], None] = lambda: None

    async def call(self, fn: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, fn)

    async def __aenter__(self) -> Threaded:
        entering = asyncio.get_running_loop().run_in_executor(self._thread, self._block.__enter__)
        try:
            self.lent = await asyncio.shield(entering)
        except asyncio.CancelledError as error:
            # It may enter all the same: then it leaves right behind.
            self._thread.submit(self._leave_if_entered, error)
            self._thread.shutdown(wait=False)
            raise
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self.tx = AsyncTx(self.call, self.lent.link)
        return self

    def _leave_if_entered(self, error: BaseException) -> None:
        # Nobody waits for the answer any more, and the pool lends the link again only if it is idle. The block raises
        # the very error that it is given, or RuntimeError when it never began.
        with suppress(asyncio.CancelledError, RuntimeError, StoreError):
            self._block.__exit__(type(error), error, error.__traceback__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None and not isinstance(error, Exception):
            # Cancelled: a statement that still runs would keep the lock on the file.
            self.lent.link.raw.interrupt()
        loop = asyncio.get_running_loop()
        leaving = loop.run_in_executor(self._thread, lambda: self._leave(kind, error, trace))
        self._thread.shutdown(wait=False)
        try:
            return await asyncio.shield(leaving)
        except asyncio.CancelledError:
            # The commit goes on: wait for it, so that the attempt knows what it came to.
            await asyncio.wait([leaving])
            if not leaving.cancelled():
                leaving.exception()
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        swallowed = self._block.__exit__(kind, error, trace)
        if error is None:
            self.on_commit()
        return swallowed
