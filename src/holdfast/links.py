"""Connections of our own: a link is one connection with its session and its transaction; a pool lends links out."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, TypeVar

from holdfast.dialects.base import Dialect
from holdfast.dialects.sessions import Clock, DbapiSession, translated
from holdfast.errors import DatabaseBusy, DatabaseUnavailable
from holdfast.flow import Flow, Statement, adrive, drive

T = TypeVar("T")


def runs_alone(dialect: Dialect, first: Statement) -> bool:
    """Tell whether a flow that starts with this statement needs no BEGIN."""
    return (
        first.alone
        and first.text is None
        and len(dialect.queries[first.name]) == 1
        and first.name not in dialect.row_wise
    )


class Link:
    """A sync connection in autocommit mode, with explicit transactions."""

    def __init__(self, raw: Any, dialect: Dialect, clock: Clock) -> None:
        self.raw = raw
        self.dialect = dialect
        # Its transaction could not be ended: nobody may be lent this link again.
        self.broken = False
        self.session = DbapiSession(dialect, raw.cursor, dialect.style, clock)

    def transact(self, work: Flow[T]) -> T:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return drive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractContextManager[Any]:
        return nullcontext() if runs_alone(self.dialect, first) else self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        self.tell(self.dialect.begin)
        try:
            yield self.raw
            # Inside, because SQLite leaves the transaction open when COMMIT finds the file busy.
            self.tell("commit")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        try:
            self.tell("rollback")
        except Exception:
            self.broken = True

    def tell(self, sql: str) -> None:
        with translated(self.dialect):
            self.dialect.tell(self.raw, sql)

    def close(self) -> None:
        with suppress(Exception):
            self.raw.close()


class AsyncLink:
    """An async connection in autocommit mode, with explicit transactions."""

    def __init__(self, raw: Any, dialect: Dialect, clock: Clock) -> None:
        self.raw = raw
        self.dialect = dialect
        self.session = dialect.asession(raw, clock)

    async def transact(self, work: Flow[T]) -> T:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return await adrive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractAsyncContextManager[Any]:
        return nullcontext() if runs_alone(self.dialect, first) else self.transaction()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        await self.tell(self.dialect.begin)
        try:
            yield self.raw
        except Exception:
            with suppress(Exception):
                await self.tell("rollback")
            raise
        except BaseException:
            # Cancelled: waiting for a rollback is not ours to do; closing the connection rolls back.
            self.close()
            raise
        await self.tell("commit")

    async def tell(self, sql: str) -> None:
        with translated(self.dialect):
            await self.dialect.atell(self.raw, sql)

    def close(self) -> None:
        with suppress(Exception):
            self.dialect.cut(self.raw)


def _drop(link: Link | AsyncLink | None) -> None:
    """Close a link that is not to be lent again."""
    if link is not None:
        link.close()


def _exhausted(patience: float) -> DatabaseBusy:
    """Say so instead of waiting for ever: those who hold all links may be waiting for one more themselves."""
    return DatabaseBusy("busy", f"no connection of the pool came free within {patience:g} s; raise pool_size")


class Pool:
    """Lends sync links: the last returned is lent first, and a link whose connection was lost is dropped."""

    def __init__(self, size: int, connect: Callable[[], Link], patience: float) -> None:
        self._connect = connect
        self._patience = patience
        self._slots: queue.LifoQueue[Link | None] = queue.LifoQueue()
        self._closings = 0
        for _ in range(size):
            self._slots.put(None)

    @contextmanager
    def link(self) -> Iterator[Link]:
        link, closings = self._take(), self._closings
        keep: Link | None = None
        try:
            link = link or self._connect()
            keep = link
            yield link
        except DatabaseUnavailable:
            keep = None
            _drop(link)
            raise
        except GeneratorExit:
            keep = None
            _drop(link)
            raise
        finally:
            if keep is not None and (keep.broken or closings != self._closings):
                _drop(keep)
                keep = None
            self._slots.put(keep)

    def _take(self) -> Link | None:
        try:
            return self._slots.get(timeout=self._patience)
        except queue.Empty:
            raise _exhausted(self._patience) from None

    def close(self) -> None:
        """Close idle links; those lent out close when they come back."""
        self._closings += 1
        idle = []
        with suppress(queue.Empty):
            while True:
                idle.append(self._slots.get_nowait())
        for link in idle:
            _drop(link)
            self._slots.put(None)


class AsyncPool:
    """The async twin of `Pool`, for one event loop."""

    def __init__(self, size: int, connect: Callable[[], Awaitable[AsyncLink]], patience: float) -> None:
        self._connect = connect
        self._patience = patience
        self._slots: asyncio.LifoQueue[AsyncLink | None] = asyncio.LifoQueue()
        self._closings = 0
        for _ in range(size):
            self._slots.put_nowait(None)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[AsyncLink]:
        link, closings = await self._take(), self._closings
        keep: AsyncLink | None = None
        try:
            if link is None or link.dialect.is_closed(link.raw):
                link = await self._connect()
            keep = link
            yield link
        except DatabaseUnavailable:
            keep = None
            _drop(link)
            raise
        except Exception:
            raise
        except BaseException:
            # Cancelled in the middle of a statement: its reply would go to the next borrower.
            keep = None
            _drop(link)
            raise
        finally:
            if closings != self._closings:
                _drop(keep)
                keep = None
            self._slots.put_nowait(keep)

    async def _take(self) -> AsyncLink | None:
        if not self._slots.empty():
            return self._slots.get_nowait()
        try:
            async with asyncio.timeout(self._patience):
                return await self._slots.get()
        except TimeoutError:
            raise _exhausted(self._patience) from None

    def close(self) -> None:
        """As in `Pool`; call it on the pool's own event loop."""
        self._closings += 1
        idle = []
        with suppress(asyncio.QueueEmpty):
            while True:
                idle.append(self._slots.get_nowait())
        for link in idle:
            _drop(link)
            self._slots.put_nowait(None)
