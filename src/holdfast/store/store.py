"""The store: a database with Holdfast's tables, and the pumps that run flows on it in either colour."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import AccessRefused, DatabaseBusy, DatabaseUnavailable, FileRefused, NoIO, StoreError, redact
from holdfast.flow import Flow, Statement, adrive, drive
from holdfast.store import callers, migrate
from holdfast.store.connections import AsyncLink, Link
from holdfast.store.dialects import SCHEMA_VERSION, dialect_for
from holdfast.store.dialects.base import Echo
from holdfast.store.group_pumps import AsyncGroups, SyncGroups
from holdfast.store.groups import Seat
from holdfast.store.lending import AsyncLent, Lent
from holdfast.store.migrate import Migration
from holdfast.store.pauses import TRIES, pause_after
from holdfast.store.pool import AsyncPool, Loan, Pool
from holdfast.store.sessions import translated
from holdfast.store.sqlite_async import AsyncTx, ThreadedLent
from holdfast.store.turns import Line, Turn
from holdfast.store.writers import Writer
from holdfast.values.options import StoreOptions

T = TypeVar("T")
FILE_MISSING = (
    "it is not there. Restore it, or check its path and the working folder; if the shard is a new one, "
    "`holdfast migrate apply` makes it."
)


class Store:
    """Runs flows: each in a transaction of its own, or in the caller's.

    Every flow that runs in its own transaction is safe to repeat, so a deadlock, a busy database or a lost connection
    re-runs it from the start, on a new connection where needed.
    """

    # True where a flow that is run without a transaction may be part of one of the caller's all the same, because a
    # framework has one for each thread. Nobody may wait for its end.
    joins = False

    def __init__(self, url: str, options: StoreOptions | None = None, *, beside: Store | None = None) -> None:
        self._url = url
        self.options = options or StoreOptions()
        self.dialect = dialect_for(url, self.options)
        # None is the database's own clock; tests put a time here.
        self.now: datetime | None = None
        self.embedded = self.dialect.embedded
        self._beside = beside
        # Whether a file that is not there is made when it is opened; that of a shard only by a migration.
        self.makes_file = True
        # SQLite lets one write at a time: waiting in line here beats its own polling for the lock.
        self._line: Line = Line() if beside is None else beside._line
        self._left_behind: list[object] = []
        self._open_pools()
        _stores.add(self)
        self._make_ready()

    def _make_ready(self) -> None:
        """Make the tables of a database in memory, where nobody else could."""
        if self.in_memory:
            self.run(migrate.apply(self.migrations))

    def __repr__(self) -> str:
        return f"<Store {redact(self.url)}>"

    @property
    def url(self) -> str:
        """Where the database is."""
        return self._url

    @property
    def in_memory(self) -> bool:
        """Whether the data is gone with the process."""
        return self.embedded and self.dialect.file_of(self.url) is None

    @property
    def file(self) -> Path | None:
        """The file that holds the data; None where a server does, or the memory."""
        path = self.dialect.file_of(self.url)
        return None if path is None else Path(path)

    @property
    def schema_version(self) -> int:
        """The version of the tables that this library needs."""
        return SCHEMA_VERSION

    @property
    def migrations(self) -> list[Migration]:
        return [Migration(*entry) for entry in self.dialect.migrations()]

    def clock(self) -> datetime | None:
        return self.now if self._beside is None else self._beside.clock()

    def beside(self, pool_size: int) -> Store:
        """Return a store on the same database with connections of its own, which nobody else can use up."""
        return self if self.in_memory else Store(self.url, replace(self.options, pool_size=pool_size), beside=self)

    def _open_pools(self) -> None:
        size = 1 if self.in_memory else self.options.pool_size
        self._pool = Pool(size, self.open, self.options.connect_timeout)
        self._async_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPool] = weakref.WeakKeyDictionary()
        self._threads: ThreadPoolExecutor | None = None
        self._thread_count = size
        self._writer = Writer(self.options.busy_timeout)
        self._groups = SyncGroups(self.lend, self.dialect)
        self._async_groups: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGroups] = (
            weakref.WeakKeyDictionary()
        )

    def forked(self) -> None:
        """Forget the connections and threads of the parent process: they are not this process's to use or to close."""
        self._line = Line() if self._beside is None else self._beside._line
        self._threads = None
        self._writer = Writer(self.options.busy_timeout)
        if self.in_memory:
            return
        if not self.embedded:
            # Kept, because a driver that is thrown away closes its connection: for asyncio that is the parent's, too.
            self._left_behind += [self._pool, *self._async_pools.values()]
        self._open_pools()

    def _turn(self) -> AbstractContextManager[None]:
        return Turn(self._line, self.options.busy_timeout) if self.embedded else nullcontext()

    def run(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        """Run a flow in a transaction of its own; `again` makes what to run once a first try has failed."""
        for tries in range(1, TRIES):
            try:
                return self.run_once(work)
            except AccessRefused:
                raise
            except (DatabaseBusy, DatabaseUnavailable) as error:
                self._after_failure(error, tries, self._pool)
                time.sleep(pause_after(tries))
            work = again() if again else work
        return self.run_once(work)

    def _after_failure(self, error: StoreError, tries: int, pool: Pool | AsyncPool) -> None:
        """Have idle connections closed once a second one was lost: they have been through the same outage.

        Else a pool of them takes more tries than there are.
        """
        if tries > 1 and isinstance(error, DatabaseUnavailable) and not self.in_memory:
            pool.close()

    def run_once(self, work: Flow[T]) -> T:
        _refuse_in_a_body()
        if not self.embedded:
            with Loan(self._pool) as link:
                return link.transact(work)
        with self._turn(), Loan(self._pool) as link:
            return link.transact(work)

    async def arun(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        """As `run`, without blocking the event loop."""
        for tries in range(1, TRIES):
            try:
                return await self.arun_once(work)
            except AccessRefused:
                raise
            except (DatabaseBusy, DatabaseUnavailable) as error:
                self._after_failure(error, tries, self._pool if self.embedded else self._apool())
                await asyncio.sleep(pause_after(tries))
            work = again() if again else work
        return await self.arun_once(work)

    def arun_once(self, work: Flow[T]) -> Awaitable[T]:
        if self.embedded:
            # SQLite has no async driver: one hop to a thread for the whole flow, not one per statement.
            try:
                return asyncio.get_running_loop().run_in_executor(self._executor(), self.run_once, work)
            except RuntimeError as error:
                # The process may have no more threads for a moment. The executor keeps the work and may still do it
                # later, so it counts as sent: a repeat must be ready for that, as after a lost reply.
                raise DatabaseUnavailable(f"no thread could be started for it: {error}") from error
        return self._apool().transact(work)

    def open_tx(self) -> Any:
        """Return the transaction that is open on the calling thread, where a framework has one; None elsewhere."""
        return None

    def looks_aside(self, tx: Any) -> bool:
        """Tell whether something may be read in passing where the caller works, in `tx` or without one."""
        return self.dialect.reads_aside or (tx is None and self.open_tx() is None)

    def apart(self) -> Store:
        """Return a store whose flows are part of no transaction that is open on the calling thread."""
        return self

    def mark(self) -> Callable[[bool], None] | None:
        """Mark a place in a test's own transaction, where attempts run inside one; None elsewhere.

        What it returns leaves the mark behind: True if what came since has failed, and is undone if it broke the
        transaction.
        """
        return None

    def run_async(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on an event loop of its own, from a thread that has none."""
        return asyncio.run(main)

    async def on_its_thread(self, fn: Callable[[], T]) -> T:
        """Call a function on the thread that async flows run on, where they are bound to one; else on any."""
        return await asyncio.to_thread(fn)

    def run_in(self, tx: Any, work: Flow[T], what: str = "the job") -> T:
        """Run a flow in the caller's transaction, which the caller ends."""
        _refuse_in_a_body()
        return drive(work, callers.session(tx, self.dialect, self.clock, what))

    async def arun_in(self, tx: Any, work: Flow[T], what: str = "the job") -> T:
        """Run a flow in the caller's transaction, on a connection of async code."""
        session = tx if isinstance(tx, AsyncTx) else await callers.asession(tx, self.dialect, self.clock, what)
        return await adrive(work, session)

    def tell_in(self, tx: Any, statement: Statement, what: str) -> None:
        """Run a statement that gives nothing in the caller's transaction: as `run_in`, without a flow."""
        _refuse_in_a_body()
        callers.session(tx, self.dialect, self.clock, what).run(statement)

    async def atell_in(self, tx: Any, statement: Statement, what: str) -> None:
        """The async twin of `tell_in`."""
        session = tx if isinstance(tx, AsyncTx) else await callers.asession(tx, self.dialect, self.clock, what)
        await session.run(statement)

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Lend a sync connection."""
        with self._pool.link() as link:
            yield link

    @contextmanager
    def transaction(self) -> Iterator[Link]:
        """Lend a sync connection inside a transaction, which the block's end commits."""
        with self._turn(), self._pool.link() as link, link.transaction():
            yield link

    def lend(self) -> Any:
        """Return a transaction for the application's own statements, not yet begun, on a sync connection (`Lent`)."""
        return Lent(self._pool, self._turn() if self.embedded else None)

    def alend(self) -> AsyncLent | ThreadedLent:
        """The async twin of `lend`."""
        return ThreadedLent(self.lend(), self._writer) if self.embedded else AsyncLent(self._apool())

    def share(self) -> Any:
        """Return a part in a transaction that other jobs share, not yet begun, on a sync connection (`Seat`)."""
        return self._groups.seat()

    def ashare(self) -> Seat:
        """The async twin of `share`."""
        loop = asyncio.get_running_loop()
        groups = self._async_groups.get(loop)
        if groups is None:
            groups = self._async_groups[loop] = AsyncGroups(self.alend, self.dialect)
        return groups.seat()

    @asynccontextmanager
    async def alink(self) -> AsyncIterator[AsyncLink]:
        """Lend an async connection (not on SQLite, which has none); closed if a statement still runs at the end."""
        async with self._apool().link() as link:
            try:
                yield link
            except Exception:
                await link.prove_idle()
                raise
            await link.prove_idle()

    def echo(self, timeout: float) -> Echo:
        """Send a notification to where workers listen and see whether it comes back, where the database has them."""
        listen_url = self.options.listen_url
        ear = Store(listen_url, self.options) if listen_url else self
        try:
            with ear.link() as listening, self.link() as speaking, translated(self.dialect):
                return self.dialect.echo(listening.raw, speaking.raw, timeout)
        finally:
            if ear is not self:
                ear.close()

    def encoding(self) -> str | None:
        """Name the encoding that the database keeps texts in; None where it can keep them all."""
        with self.link() as link, translated(self.dialect):
            return self.dialect.encoding(link.raw)

    def check(self) -> None:
        """Raise unless the tables are there in the version this library needs."""
        self.run(migrate.check(SCHEMA_VERSION))

    def close(self) -> None:
        """Close every connection; the next use opens new ones. Async ones are closed by `aclose`, on their loop."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        self._writer.close()
        self._pool.close()
        for loop, pool in list(self._async_pools.items()):
            if loop.is_closed():
                pool.shut()
            elif loop.is_running():
                # A transport is for its own loop's thread to touch.
                loop.call_soon_threadsafe(pool.close)
            else:
                pool.close()

    def forget_loop(self) -> None:
        """Cut the async connections of the running event loop, before that loop is closed."""
        pool = self._async_pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        """Close every connection; those of the running loop here: a transport is not for other threads to touch."""
        self.forget_loop()
        # Their sockets close when the loop comes round to it.
        await asyncio.sleep(0)
        await asyncio.to_thread(self.close)

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._thread_count, "holdfast-sqlite")
        return self._threads

    def open(self) -> Link:
        """Open a sync connection that belongs to the caller."""
        return Link(self._connect, self.dialect, self.clock)

    def _connect(self) -> Any:
        if not (self._beside or self).makes_file and self.file is not None and not self.file.exists():
            raise FileRefused(str(self.file), FILE_MISSING)
        return self.dialect.connect(self.url)

    async def aopen(self, url: str | None = None, name: str = "holdfast") -> AsyncLink:
        """Open an async connection that belongs to the caller."""
        return await AsyncLink(lambda: self.dialect.aconnect(url or self.url, name), self.dialect, self.clock).open()

    def _apool(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        pool = self._async_pools.get(loop)
        if pool is None:
            self._shut_closed_loops()
            pool = self._async_pools[loop] = AsyncPool(self.options.pool_size, self.aopen, self.options.connect_timeout)
            pool.close_with_loop()
        return pool

    def _shut_closed_loops(self) -> None:
        """Hang up on connections whose event loop was closed in a hurry: they keep it alive, and it them."""
        for loop in [loop for loop in self._async_pools if loop.is_closed()]:
            self._async_pools.pop(loop).shut()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    """Let every store of a child process open connections of its own."""
    for store in sorted(_stores, key=lambda store: store._beside is not None):
        store.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _refuse_in_a_body() -> None:
    """Refuse what the body of a workflow must not do: its loop says so of itself, and only sees what is awaited."""
    if getattr(asyncio._get_running_loop(), "only_waits", False):
        raise NoIO("a call that goes to the database (to enqueue, start, signal, cancel or look)")
