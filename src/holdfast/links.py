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
from holdfast.errors import DatabaseUnavailable
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
            with suppress(Exception):
                self.tell("rollback")
            raise

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


class Pool:
    """Lends sync links: the last returned is lent first, and a link whose connection was lost is dropped."""

    def __init__(self, size: int, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._slots: queue.LifoQueue[Link | None] = queue.LifoQueue()
        self._size = size
        for _ in range(size):
            self._slots.put(None)

    @contextmanager
    def link(self) -> Iterator[Link]:
        link = self._slots.get()
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
            self._slots.put(keep)

    def close(self) -> None:
        """Close idle links; those lent out close when they come back to a closed store."""
        for _ in range(self._size):
            with suppress(queue.Empty):
                _drop(self._slots.get_nowait())
        for _ in range(self._size):
            self._slots.put(None)


class AsyncPool:
    """The async twin of `Pool`, for one event loop."""

    def __init__(self, size: int, connect: Callable[[], Awaitable[AsyncLink]]) -> None:
        self._connect = connect
        self._slots: asyncio.LifoQueue[AsyncLink | None] = asyncio.LifoQueue()
        self._size = size
        for _ in range(size):
            self._slots.put_nowait(None)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[AsyncLink]:
        link = await self._slots.get()
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
            self._slots.put_nowait(keep)

    def close(self) -> None:
        for _ in range(self._size):
            with suppress(asyncio.QueueEmpty):
                _drop(self._slots.get_nowait())
        for _ in range(self._size):
            self._slots.put_nowait(None)
