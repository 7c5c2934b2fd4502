"""Connections of our own: a link is one connection with its session and its transaction; a pool lends links out."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Self, TypeVar

from holdfast.errors import DatabaseUnavailable, StoreError, TransactionError
from holdfast.flow import AsyncSession, Flow, Statement, adrive, drive
from holdfast.store.dialects.base import Dialect
from holdfast.store.sessions import Clock, OwnSession, raise_ours, translated

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
        # Nobody may be lent it again.
        self.spoilt = False
        self._connect = connect
        self.clock = clock
        # What begins a transaction of ours, and one that is lent, and what ends that.
        self._begins = (begins(dialect, False), begins(dialect, True))
        self.ends = ends(dialect)
        self._open()

    def _open(self) -> None:
        with translated(self.dialect):
            self.raw = self._connect()
        session = OwnSession(self.dialect, self.dialect.cursors(self.raw), self.dialect.style, self.clock)
        self.session = led_on(getattr(self, "session", None), session)
        self.endings = self.dialect.endings()
        self._lived = False

    def transact(self, work: Flow[T]) -> T:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return drive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractContextManager[Any] | None:
        return None if first.alone and self.dialect.query(first).single else self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        self._begin()
        try:
            yield self.raw
            # Inside, because SQLite leaves the transaction open when COMMIT finds the file busy.
            self.tell("commit")
        except BaseException:
            self.roll_back()
            raise

    def begin_lent(self) -> None:
        """Begin a transaction for statements of the application's own; see `lending.Lent`."""
        self._begin(lent=True)
        if self.endings is not None and self.endings.asks:
            self.endings.learn(self.raw, self.session.run(self.endings.asks))

    def _begin(self, lent: bool = False) -> None:
        first, *more = self._begins[lent]
        try:
            self.tell(first)
        except DatabaseUnavailable:
            if not self._lived:
                raise
            self.close()
            self._open()
            self.tell(first)
        self._lived = True
        for sql in more:
            self.tell(sql)

    def roll_back(self) -> None:
        """Roll back; a connection that refuses is closed, which does the same."""
        try:
            self.tell(tidied("rollback", self.dialect))
        except (StoreError, TransactionError) as error:
            # Closing rolls back. The error to hear about is the one that led here.
            self.spoilt = not self.dialect.embedded
            log.debug("a transaction could not be rolled back, so its connection is closed: %s", error)

    def look_over(self) -> None:
        """See what a handler left on the connection; one that cannot even be asked is not lent again either."""
        try:
            self.spoilt = self.spoilt or self.dialect.is_spoilt(self.raw)
        except Exception as error:
            self.spoilt = True
            if self.dialect.translate(error) is None:
                raise
            log.debug("a connection could not be looked over, so it is closed: %s", error)

    def is_idle(self) -> bool:
        """Tell whether the next borrower finds the connection outside of any transaction and statement."""
        if self.spoilt or (self.endings is not None and self.endings.spoilt):
            return False
        if self.dialect.is_idle(self.raw):
            return True
        if self.dialect.embedded:
            # An interrupt came between two calls. Closing would do, but would take a database in memory with it.
            self.roll_back()
        return self.dialect.is_idle(self.raw)

    def tell(self, sql: str) -> None:
        try:
            self.dialect.tell(self.raw, sql)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise

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
        self.clock = clock
        # As in `Link`.
        self._begins = (begins(dialect, False), begins(dialect, True))
        self.ends = ends(dialect)

    async def open(self) -> Self:
        with translated(self.dialect):
            self.raw = await self._connect()
        self.session = led_on(getattr(self, "session", None), self.dialect.asession(self.raw, self.clock))
        self.endings = self.dialect.endings()
        self._lived = False
        return self

    def transact(self, work: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow in a transaction of its own, or bare when its one statement is one already."""
        return adrive(work, self.session, self._around)

    def _around(self, first: Statement) -> AbstractAsyncContextManager[Any] | None:
        return None if first.alone and self.dialect.query(first).single else self.transaction()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Commit what the block did, or roll it back when it raises."""
        await self._begin()
        try:
            yield self.raw
            await self.tell("commit")
        except BaseException as error:
            await self.roll_back(error)
            raise

    async def begin_lent(self) -> None:
        """As `Link.begin_lent`."""
        await self._begin(lent=True)
        if self.endings is not None and self.endings.asks:
            self.endings.learn(self.raw, await self.session.run(self.endings.asks))

    async def roll_back(self, error: BaseException) -> None:
        """Roll back because of an error; a connection that refuses is closed, which does the same."""
        # The type, because a handler's error may raise when it is asked for its `__class__`.
        if not issubclass(type(error), Exception):
            # Cancelled: waiting for a rollback is not ours to do; closing the connection rolls back.
            self.close()
            return
        try:
            await self.tell(tidied("rollback", self.dialect))
        except (StoreError, TransactionError) as refused:
            # As in `Link.roll_back`. A statement that still runs on the connection is one cause.
            self.close()
            log.debug("a transaction could not be rolled back, so its connection is closed: %s", refused)
        except BaseException:
            self.close()
            raise

    async def _begin(self, lent: bool = False) -> None:
        first, *more = self._begins[lent]
        try:
            await self.tell(first)
        except DatabaseUnavailable:
            if not self._lived:
                raise
            self.close()
            await self.open()
            await self.tell(first)
        self._lived = True
        for sql in more:
            await self.tell(sql)

    async def prove_idle(self) -> None:
        """Close the connection unless the server answers: asyncpg does not tell whether a statement still runs."""
        try:
            await self.dialect.atell(self.raw, self.dialect.nothing)
        except Exception as error:
            # A statement under way, a failed transaction, a lost connection: whatever it is, nobody is lent this one.
            log.debug("a connection was given back while in use, so it is closed: %s", error)
            self.close()

    def is_idle(self) -> bool:
        """As `Link.is_idle`."""
        return not (self.endings is not None and self.endings.spoilt) and self.dialect.ais_idle(self.raw)

    async def tell(self, sql: str) -> None:
        try:
            await self.dialect.atell(self.raw, sql)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise

    def close(self) -> None:
        # As in `Link.close`; on a closed event loop, `shut` ends what this cannot.
        with suppress(Exception):
            self.dialect.cut(self.raw)

    def shut(self) -> None:
        """Hang up on the server where the connection's event loop is closed: its transport can do nothing any more."""
        handle = self.dialect.socket_of(self.raw)
        if handle is not None and handle.fileno() >= 0:
            # Another handle on the same socket: this one is the transport's to close. The peer may be gone already.
            with socket.socket(fileno=os.dup(handle.fileno())) as twin, suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)


def led_on(old: S | None, new: S) -> S:
    """Let a flow that holds the session of a lost connection go on with the one that was opened in its stead."""
    if old is None:
        return new
    vars(old).clear()
    vars(old).update(vars(new))
    return old


def begins(dialect: Dialect, lent: bool) -> list[str]:
    """List what begins a transaction, each a message; one that is lent is marked, so that it is known at its end."""
    marked = [dialect.begin, dialect.mark] if lent and dialect.mark else [dialect.begin]
    return ["; ".join(marked)] if dialect.tidy else marked


def ends(dialect: Dialect) -> list[str]:
    """List what ends a transaction that was lent."""
    commit = tidied("commit", dialect)
    marked = [dialect.insist, commit] if dialect.insist else [commit]
    return ["; ".join(marked)] if dialect.tidy else marked


def tidied(end: str, dialect: Dialect) -> str:
    """Write COMMIT or ROLLBACK with what undoes changes to the session."""
    return f"{end}; {dialect.tidy}" if dialect.tidy else end
