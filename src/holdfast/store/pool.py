"""Pools of links: the last given back is lent first, and none is lent whose state is not known."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import DatabaseBusy, DatabaseUnavailable, HoldfastError, ReadOnlyDatabase
from holdfast.flow import Flow
from holdfast.store.connections import AsyncLink, Link

T = TypeVar("T")


def _drop(link: Link | AsyncLink | None) -> None:
    """Close a link that is not to be lent again."""
    if link is not None:
        link.close()


def _is_lost(link: Link | AsyncLink, error: BaseException | None) -> bool:
    """Tell whether an error says that its connection is of no use any more, though it may look idle.

    The driver's own errors, of the application's statements, count where the server takes no writes any more: it
    answers all the same. An error may also be a handler's, whose attributes may raise anything, even its `__class__`:
    that would cost the pool this place.
    """
    kind = type(error)
    if error is None or issubclass(kind, HoldfastError) or not issubclass(kind, Exception):
        return issubclass(kind, DatabaseUnavailable)
    try:
        return isinstance(link.dialect.translate(error), ReadOnlyDatabase)
    except BaseException:
        return False


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
            # Counted before the look: a link given back after it finds that somebody waits.
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
        if self._closings != pool.closings or _is_lost(link, error) or not link.is_idle():
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
        cut = error is not None and not issubclass(type(error), Exception)
        if cut or self._closings != pool.closings or _is_lost(link, error) or not link.is_idle():
            link.close()
            pool.put(None)
        else:
            pool.put(link)
