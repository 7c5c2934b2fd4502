"""Wake-ups: hints that a job is due. Polling always runs beside them, so losing them costs latency, never work."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from holdfast import events
from holdfast.errors import DatabaseBusy, HoldfastError, redact
from holdfast.store import Store
from holdfast.store.connections import Link
from holdfast.store.dialects.postgres import Postgres
from holdfast.store.dialects.sqlite import path_of
from holdfast.store.sessions import translated

# How often the listening session proves itself alive, and how long its own echo may take.
PROBE, ECHO = 10.0, 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
# How often to look at SQLite's log, and at MySQL's newest job; docs/decisions/0011-idle-cost.md has what that costs.
WATCH = 0.03
LOOK = 0.06
# SQLite: a log written within so many seconds may belong to a commit that is not to be seen yet (its fsync takes long),
# or be written again without a later time; then only the change counter tells.
FRESH = 1.0
# A file that is away (a folder unmounted, a disk failing) is tried again so soon.
LONGEST_FILE_PAUSE = 1.0

Wake = Callable[[str | None], None]
Emit = Callable[[events.Event], None]


class NoEcho(HoldfastError):
    def __init__(self) -> None:
        super().__init__(
            "The listening session did not hear its own notification: a pooler in transaction mode drops them. "
            "Set listen_url to a direct address."
        )


class Waker:
    """What wakes a worker; it says once that it is lost, and once that it is back."""

    def __init__(self, store: Store, worker: str, wake: Wake, emit: Emit) -> None:
        self._store = store
        self._worker = worker
        self._wake = wake
        self._emit = emit
        self._lost_at: float | None = None
        # Whether this connection has ever worked: then the next is tried at once.
        self.alive = False

    async def serve(self) -> None:
        raise NotImplementedError

    def _say_alive(self) -> None:
        if self._lost_at is not None:
            self._emit(events.ListenerRegained(self._worker, time.monotonic() - self._lost_at))
            self._lost_at = None
            self._wake(None)

    def _say_lost(self, error: Exception) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._emit(events.ListenerLost(self._worker, redact(f"{type(error).__name__}: {error}")))


class PostgresListener(Waker):
    """LISTENs on a connection of its own, and notices when that goes deaf: it must hear its own echo."""

    def __init__(self, store: Store, worker: str, wake: Wake, emit: Emit) -> None:
        super().__init__(store, worker, wake, emit)
        self._echo = asyncio.Event()
        self._lost = asyncio.Event()

    async def serve(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._say_lost(error)
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = FIRST_PAUSE if self.alive else min(LONGEST_PAUSE, pause * 2)
            self.alive = False

    async def _listen(self) -> None:
        link = await self._store.aopen(self._store.options.listen_url, "holdfast-listener")
        self._lost.clear()
        try:
            link.raw.add_termination_listener(lambda _: self._lost.set())
            async with asyncio.timeout(ECHO):
                await link.raw.add_listener(self._channel, self._heard)
            # Whatever was enqueued before this moment told nobody.
            self._wake(None)
            while True:
                await self._probe(link.raw)
                self.alive = True
                self._say_alive()
                await self._lost_within(PROBE)
        finally:
            link.close()

    @property
    def _channel(self) -> str:
        dialect: Postgres = self._store.dialect  # type: ignore[assignment]
        return dialect.channel

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        if payload.startswith("\x1f"):
            if payload == f"\x1f{self._worker}":
                self._echo.set()
            return
        self._wake(payload)

    async def _probe(self, raw: Any) -> None:
        self._echo.clear()
        await raw.execute("select pg_notify($1, $2)", self._channel, f"\x1f{self._worker}", timeout=ECHO)
        try:
            async with asyncio.timeout(ECHO):
                await self._echo.wait()
        except TimeoutError as error:
            raise NoEcho from error

    async def _lost_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            return
        raise ConnectionError("the connection was closed")


class Watcher(Waker):
    """Looks for a change many times a second, on a thread and a connection of its own.

    On the event loop a look took half as much CPU again: docs/decisions/0011-idle-cost.md.
    """

    def __init__(self, store: Store, worker: str, wake: Wake, emit: Emit) -> None:
        super().__init__(store, worker, wake, emit)
        # Held until the thread is to end; waiting for it is the thread's sleep.
        self._end = threading.Lock()
        self._end.acquire()

    async def serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._start()
        try:
            await self._loop.create_future()
        finally:
            self._end.release()

    async def _start(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                return threading.Thread(target=self._serve, name="holdfast-watcher", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                # The system has no thread to spare now; the worker polls until it has.
                self._say_lost(error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _serve(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                return self._watch()
            except Exception as error:
                self._tell(self._say_lost, error)
            pause = FIRST_PAUSE if self.alive else min(self._longest_pause(), pause * 2)
            self.alive = False
            if self._is_over(random.uniform(0.5, 1.0) * pause):
                return

    def _watch(self) -> None:
        """Tell of changes until the thread is to end."""
        with closing(self._store.open()) as link, translated(link.dialect):
            look = self._looker(link)
            seen: Any = None
            while True:
                found = look()
                if found is not None and found != seen:
                    seen = found
                    self._tell(self._wake, None)
                if not self.alive:
                    self.alive = True
                    self._tell(self._say_alive)
                if self._is_over(self._period()):
                    return

    def _is_over(self, seconds: float) -> bool:
        """Sleep; tell whether the thread is to end: the worker has stopped, or its loop was closed under it."""
        return self._end.acquire(timeout=seconds) or self._loop.is_closed()

    def _tell(self, what: Callable[..., None], *about: Any) -> None:
        # A closed loop refuses: nobody is left who could be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *about)

    def _looker(self, link: Link) -> Callable[[], Any]:
        """Return what looks: its answer tells one state of the database from another; None: it cannot be told now."""
        raise NotImplementedError

    def _period(self) -> float:
        raise NotImplementedError

    def _longest_pause(self) -> float:
        return LONGEST_PAUSE


class SqliteWatcher(Watcher):
    """Watches the file's change counter, which every commit of another connection moves, when the log was written."""

    def _looker(self, link: Link) -> Callable[[], Any]:
        log = f"{path_of(self._store.url)}-wal"
        # Opening may wait for a lock; reading the counter never does.
        link.tell("pragma busy_timeout = 0")
        before: Any = None
        version: int | None = None

        def look() -> int | None:
            nonlocal before, version
            stamp = log_stamp(log)
            # Reading the counter takes as much CPU as all the rest of a look.
            if stamp is None or stamp != before:
                version = self._version(link)
                # A file too busy to be read is looked at again.
                before = stamp if version is not None else None
            return version

        return look

    def _version(self, link: Link) -> int | None:
        try:
            [version] = link.raw.execute("pragma data_version").fetchone()
        except Exception as error:
            if isinstance(link.dialect.translate(error), DatabaseBusy):
                return None
            raise
        return int(version)

    def _period(self) -> float:
        return WATCH

    def _longest_pause(self) -> float:
        return LONGEST_FILE_PAUSE


def log_stamp(path: str) -> tuple[int, int, int] | None:
    """Tell one state of SQLite's write-ahead log from another; None when it cannot be told."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if time.time() - found.st_mtime < FRESH:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class MysqlWatcher(Watcher):
    """Looks for the newest job: MySQL has nothing that tells.

    Ids rise with time, so a job that was just enqueued is the last by primary key. A retry or a replay keeps its id and
    waits for the worker's own poll.
    """

    def _looker(self, link: Link) -> Callable[[], Any]:
        newest = link.dialect.place("select max(id) from holdfast_jobs")
        link.raw.give_up_after(ECHO)
        return lambda: link.raw.answer(newest)

    def _period(self) -> float:
        return LOOK


def make_waker(store: Store, worker: str, wake: Wake, emit: Emit) -> Waker | None:
    """Choose what wakes a worker of this store; None leaves it to polling."""
    if store.in_memory or not store.options.notify:
        return None
    if store.embedded:
        return SqliteWatcher(store, worker, wake, emit)
    chosen = MysqlWatcher if store.dialect.name == "mysql" else PostgresListener
    return chosen(store, worker, wake, emit)
