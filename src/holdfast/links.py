"""Connections of our own: a link is one connection with its session and its transaction; a pool lends links out."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Generic, NamedTuple, Self, TypeVar

from holdfast.dialects.base import Dialect
from holdfast.dialects.sessions import Clock, OwnSession, translated
from holdfast.errors import DatabaseBusy, DatabaseUnavailable, StoreError, TransactionEnded, TransactionError
from holdfast.flow import AsyncSession, Flow, Statement, adrive, drive

T = TypeVar("T")
S = TypeVar("S")

log = logging.getLogger("holdfast")


class Link:
    """A sync connection in autocommit mode, with explicit transactions.

    A connection that lay idle through an outage is dead, and BEGIN is where that shows. Nothing has been done yet then,
    so it is begun again on a new connection.
    """

    def __init__(self, connect: Callable[[], Any], dialect: Dialect, clock: Clock) -> None:
        self.dialect = dialect
        self._connect = connect
        self._clock = clock
        self._open()

    def _open(self) -> None:
        with translated(self.dialect):
            self.raw = self._connect()
        session = OwnSession(self.dialect, self.dialect.cursors(self.raw), self.dialect.style, self._clock)
        self.session = led_on(getattr(self, "session", None), session)
        self._lived = False

    def transact(self, work: Flow[T]) -> T:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return drive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractContextManager[Any] | None:
        return None if first.alone and first.name in self.dialect.single else self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        self._begin()
        try:
            yield self.raw
            # Inside, because SQLite leaves the transaction open when COMMIT finds the file busy.
            self.tell("commit")
        except BaseException:
            self._roll_back()
            raise

    @contextmanager
    def lent(self) -> Iterator[Callable[[], None]]:
        """As `transaction`, for statements of the application's own; gives what to call when those are over.

        That raises TransactionEnded where the database, or the application, has ended the transaction meanwhile. What
        the application did to its session is undone with the transaction.
        """
        self._begin()
        mine = self.dialect.transaction_of(self.raw)
        try:
            yield lambda: insist_on(mine, self.dialect.transaction_of(self.raw))
            self.tell(tidied("commit", self.dialect))
        except BaseException:
            self._roll_back()
            raise

    def _begin(self) -> None:
        try:
            self.tell(self.dialect.begin)
        except DatabaseUnavailable:
            if not self._lived:
                raise
            self.close()
            self._open()
            self.tell(self.dialect.begin)
        self._lived = True

    def _roll_back(self) -> None:
        try:
            self.tell(tidied("rollback", self.dialect))
        except (StoreError, TransactionError) as error:
            # The link is not idle, so the pool closes it, and that rolls back. The error to hear about is the one that
            # led here.
            log.debug("a transaction could not be rolled back, so its connection is closed: %s", error)

    def is_idle(self) -> bool:
        """Tell whether the next borrower finds the connection outside of any transaction and statement."""
        if self.dialect.is_idle(self.raw):
            return True
        if self.dialect.embedded:
            # An interrupt came between two calls. Closing would do, but would take a database in memory with it.
            self._roll_back()
        return self.dialect.is_idle(self.raw)

    def tell(self, sql: str) -> None:
        with translated(self.dialect):
            self.dialect.tell(self.raw, sql)

    def close(self) -> None:
        # A lost connection may refuse to be closed, each driver in its own way; it is gone all the same.
        with suppress(Exception):
            self.raw.close()


class AsyncLink:
    """The async twin of `Link`; made by `open`."""

    raw: Any
    session: AsyncSession

    def __init__(self, connect: Callable[[], Awaitable[Any]], dialect: Dialect, clock: Clock) -> None:
        self.dialect = dialect
        self._connect = connect
        self._clock = clock

    async def open(self) -> Self:
        with translated(self.dialect):
            self.raw = await self._connect()
        self.session = led_on(getattr(self, "session", None), self.dialect.asession(self.raw, self._clock))
        self._lived = False
        return self

    def transact(self, work: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return adrive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractAsyncContextManager[Any] | None:
        return None if first.alone and first.name in self.dialect.single else self.transaction()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        await self._begin()
        async with self._rolled_back():
            yield self.raw
            await self.tell("commit")

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Callable[[], None]]:
        """As `Link.lent`."""
        await self._begin()
        mine = self.dialect.atransaction_of(self.raw)
        async with self._rolled_back():
            self.dialect.lend(self.raw)
            try:
                yield lambda: insist_on(mine, self.dialect.atransaction_of(self.raw))
            finally:
                self.dialect.take_back(self.raw)
            await self.tell(tidied("commit", self.dialect))

    @asynccontextmanager
    async def _rolled_back(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            try:
                await self.tell(tidied("rollback", self.dialect))
            except (StoreError, TransactionError) as error:
                # As in `Link._roll_back`. A statement that still runs on the connection is one cause.
                log.debug("a transaction could not be rolled back, so its connection is closed: %s", error)
            raise
        except BaseException:
            # Cancelled: waiting for a rollback is not ours to do; closing the connection rolls back.
            self.close()
            raise

    async def _begin(self) -> None:
        try:
            await self.tell(self.dialect.begin)
        except DatabaseUnavailable:
            if not self._lived:
                raise
            self.close()
            await self.open()
            await self.tell(self.dialect.begin)
        self._lived = True

    def is_idle(self) -> bool:
        """As `Link.is_idle`."""
        return self.dialect.ais_idle(self.raw)

    async def tell(self, sql: str) -> None:
        with translated(self.dialect):
            await self.dialect.atell(self.raw, sql)

    def close(self) -> None:
        # As in `Link.close`; on a closed event loop, `shut` ends what this cannot.
        with suppress(Exception):
            self.dialect.cut(self.raw)

    def shut(self) -> None:
        """Hang up on the server where the connection's event loop is closed: its transport can do nothing any more."""
        handle = self.dialect.socket_of(self.raw)
        if handle is not None and handle.fileno() >= 0:
            # Another handle on the same socket: this one is the transport's to close. A peer that is gone is no matter.
            with socket.socket(fileno=os.dup(handle.fileno())) as twin, suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)


def led_on(old: S | None, new: S) -> S:
    """Let a flow that holds the session of a lost connection go on with the one that was opened in its stead."""
    if old is None:
        return new
    vars(old).clear()
    vars(old).update(vars(new))
    return old


L = TypeVar("L", Link, AsyncLink)


class Lent(NamedTuple, Generic[L]):
    """A connection in the application's hands, and what to call when its own statements are over."""

    link: L
    insist_on_it: Callable[[], None]


def insist_on(mine: Any, now: Any) -> None:
    """Raise unless the open transaction is the one that was begun."""
    if now is None or now != mine:
        raise TransactionEnded


def tidied(end: str, dialect: Dialect) -> str:
    """Write COMMIT or ROLLBACK with what undoes changes to the session."""
    return f"{end}; {dialect.tidy}" if dialect.tidy else end


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
        self.connect = connect
        self._patience = patience
        self._slots: list[Link | None] = [None] * size
        # For those who find no slot; a LifoQueue, which locks for all, takes 3 µs a loan.
        self._freed = threading.Condition()
        self._waiting = 0
        self.closings = 0

    def link(self) -> Loan:
        return Loan(self)

    def take(self) -> Link | None:
        try:
            return self._slots.pop()
        except IndexError:
            return self._take_in_time()

    def _take_in_time(self) -> Link | None:
        deadline = time.monotonic() + self._patience
        with self._freed:
            # Counted before the look: whoever gives back after it sees that somebody waits.
            self._waiting += 1
            try:
                while True:
                    with suppress(IndexError):
                        return self._slots.pop()
                    if not self._freed.wait(max(0.0, deadline - time.monotonic())) and not self._slots:
                        raise _exhausted(self._patience)
            finally:
                self._waiting -= 1

    def put(self, link: Link | None) -> None:
        self._slots.append(link)
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def close(self) -> None:
        """Close idle links; those lent out close when they come back."""
        self.closings += 1
        idle = []
        with suppress(IndexError):
            while True:
                idle.append(self._slots.pop())
        for link in idle:
            _drop(link)
            self.put(None)


class Loan:
    """A link on loan. It is a class because a generator took 2 µs more, and every statement that runs alone pays it."""

    __slots__ = ("_closings", "_link", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> Link:
        pool = self._pool
        link, self._closings = pool.take(), pool.closings
        try:
            self._link = link or pool.connect()
        except BaseException:
            pool.put(None)
            raise
        return self._link

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pool, link = self._pool, self._link
        if isinstance(error, DatabaseUnavailable) or self._closings != pool.closings or not link.is_idle():
            link.close()
            pool.put(None)
        else:
            pool.put(link)


class AsyncPool:
    """The async twin of `Pool`, for one event loop."""

    def __init__(self, size: int, connect: Callable[[], Awaitable[AsyncLink]], patience: float) -> None:
        self.connect = connect
        self._patience = patience
        self.slots: list[AsyncLink | None] = [None] * size
        self._waiting: deque[asyncio.Future[AsyncLink | None]] = deque()
        self.closings = 0

    def link(self) -> AsyncLoan:
        return AsyncLoan(self)

    async def transact(self, work: Flow[T]) -> T:
        """Run a flow on a link: as `async with` a loan, without the two coroutines of that."""
        loan = AsyncLoan(self)
        link = loan.at_once() or await loan.in_time()
        try:
            value = await link.transact(work)
        except BaseException as error:
            loan.over(error)
            raise
        loan.over(None)
        return value

    async def take(self) -> AsyncLink | None:
        return self.slots.pop() if self.slots else await self._handed_over()

    async def _handed_over(self) -> AsyncLink | None:
        """Wait in line for what is given back: nobody who comes later takes it first."""
        waiting: asyncio.Future[AsyncLink | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._patience):
                return await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled():
                # It came as we were called off: to the next in line.
                self.put(waiting.result())
            if isinstance(error, TimeoutError):
                raise _exhausted(self._patience) from None
            raise

    def put(self, link: AsyncLink | None) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # else it was called off
                waiting.set_result(link)
                return
        self.slots.append(link)

    def close(self) -> None:
        """As in `Pool`; call it on the pool's own event loop."""
        self.closings += 1
        for place, link in enumerate(self.slots):
            _drop(link)
            self.slots[place] = None

    def close_with_loop(self) -> None:
        """See to it that the running event loop closes the links before it is closed itself.

        An event loop that ends, as `asyncio.run` does, closes the async generators that were begun on it.
        """
        self._keeper = self._kept_open()
        # Its first step waits for nothing, so it can be taken without awaiting.
        with suppress(StopIteration):
            self._keeper.__anext__().send(None)

    async def _kept_open(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.close()
            # Sockets close when the loop comes round to it.
            await asyncio.sleep(0)

    def shut(self) -> None:
        """Hang up where the event loop is closed already."""
        for place, link in enumerate(self.slots):
            if link is not None:
                link.shut()
            self.slots[place] = None


class AsyncLoan:
    """The async twin of `Loan`."""

    __slots__ = ("_closings", "_link", "_pool")

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool

    async def __aenter__(self) -> AsyncLink:
        return self.at_once() or await self.in_time()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.over(error)

    def at_once(self) -> AsyncLink | None:
        """Take the link that was given back last, if it is there and alive: nothing to wait for."""
        slots = self._pool.slots
        link = slots[-1] if slots else None
        if link is None or link.dialect.is_closed(link.raw):
            return None
        self._link, self._closings = link, self._pool.closings
        slots.pop()
        return link

    async def in_time(self) -> AsyncLink:
        """Wait for a link, or open one."""
        pool = self._pool
        # Before the wait: what is handed over may be older than a closing that comes between.
        self._closings = pool.closings
        link = await pool.take()
        try:
            self._link = await pool.connect() if link is None or link.dialect.is_closed(link.raw) else link
        except BaseException:
            pool.put(None)
            raise
        return self._link

    def over(self, error: BaseException | None) -> None:
        """Give the link back, or close it if it is no longer good."""
        pool, link = self._pool, self._link
        # Cancelled in the middle of a statement: its reply would go to the next borrower.
        cut = error is not None and not isinstance(error, Exception)
        if cut or isinstance(error, DatabaseUnavailable) or self._closings != pool.closings or not link.is_idle():
            link.close()
            pool.put(None)
        else:
            pool.put(link)
