"""Wake-ups: hints that a job is due. Polling always runs beside them, so losing them costs latency, never work."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any

from holdfast import events
from holdfast.dialects.postgres import Postgres
from holdfast.dialects.sessions import translated
from holdfast.dialects.sqlite import path_of
from holdfast.errors import DatabaseBusy, HoldfastError, redact
from holdfast.links import Link
from holdfast.store import Store

# How often the listening session proves itself alive, and how long its own echo may take.
PROBE, ECHO = 10.0, 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
# How often to look at SQLite's log, and at MySQL's newest job; docs/decisions/0011-idle-cost.md has what that costs.
WATCH = 0.03
LOOK = 0.06
# SQLite: a log written within so many seconds may belong to a commit that is not to be seen yet (its fsync takes long),
# or be written again without a later time; then only the change counter tells.
FRESH = 1.0
LONGEST_WATCH_PAUSE = 1.0

Wake = Callable[[str | None], None]
Emit = Callable[[events.Event], None]


class NoEcho(HoldfastError):
    def __init__(self) -> None:
        super().__init__(
            "The listening session did not hear its own notification: a pooler in transaction mode drops them. "
            "Set listen_url to a direct address."
        )


class PostgresListener:
    """LISTENs on a connection of its own, and notices when that goes deaf: it must hear its own echo."""

    def __init__(self, store: Store, worker: str, wake: Wake, emit: Emit) -> None:
        self._store = store
        self._worker = worker
        self._wake = wake
        self._emit = emit
        self._echo = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost_at: float | None = None
        self.alive = False

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

    def _say_alive(self) -> None:
        self.alive = True
        if self._lost_at is not None:
            self._emit(events.ListenerRegained(self._worker, time.monotonic() - self._lost_at))
            self._lost_at = None
            self._wake(None)

    def _say_lost(self, error: Exception) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._emit(events.ListenerLost(self._worker, redact(f"{type(error).__name__}: {error}")))


class SqliteWatcher:
    """Watches the file's change counter, which every commit of another connection moves, when the log was written."""

    def __init__(self, store: Store, worker: str, wake: Wake, emit: Emit) -> None:
        self._store = store
        self._worker = worker
        self._wake = wake
        self._emit = emit
        self._lost_at: float | None = None

    async def serve(self) -> None:
        while True:
            try:
                await self._watch()
            except HoldfastError as error:
                # The file is away (a folder unmounted, a disk failing): the worker's own work says so and waits too.
                if self._lost_at is None:
                    self._lost_at = time.monotonic()
                    self._emit(events.ListenerLost(self._worker, str(error)))
            await asyncio.sleep(LONGEST_WATCH_PAUSE)

    async def _watch(self) -> None:
        # Opening may wait for a lock; reading the counter never does.
        link = await asyncio.to_thread(self._store.open)
        log = f"{path_of(self._store.url)}-wal"
        try:
            link.tell("pragma busy_timeout = 0")
            seen = before = None
            while True:
                stamp = log_stamp(log)
                # Reading the counter takes as much CPU as all the rest of a look.
                if stamp is None or stamp != before:
                    version = self._version(link)
                    # A file too busy to be read is looked at again.
                    before = stamp if version is not None else None
                    if version != seen and version is not None:
                        seen = version
                        self._wake(None)
                await asyncio.sleep(WATCH)
        finally:
            link.close()

    def _version(self, link: Link) -> int | None:
        with translated(link.dialect):
            try:
                [version] = link.raw.execute("pragma data_version").fetchone()
            except Exception as error:
                if isinstance(link.dialect.translate(error), DatabaseBusy):
                    return None
                raise
        if self._lost_at is not None:
            self._emit(events.ListenerRegained(self._worker, time.monotonic() - self._lost_at))
            self._lost_at = None
        return int(version)


def log_stamp(path: str) -> tuple[int, int, int] | None:
    """Tell one state of SQLite's write-ahead log from another; None when it cannot be told."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if time.time() - found.st_mtime < FRESH:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class MysqlWatcher(PostgresListener):
    """Looks for the newest job many times a second, on a connection of its own: MySQL has nothing that tells.

    Ids rise with time, so a job that was just enqueued is the last by primary key. A retry or a replay keeps its id and
    waits for the worker's own poll.
    """

    async def _listen(self) -> None:
        link = await self._store.aopen(None, "holdfast-watcher")
        newest = link.dialect.place("select max(id) from holdfast_jobs")
        seen: Any = None
        try:
            while True:
                async with asyncio.timeout(ECHO):
                    rows = await link.raw.fetch(newest)
                if rows != seen:
                    seen = rows
                    self._wake(None)
                self._say_alive()
                await asyncio.sleep(LOOK)
        finally:
            link.close()


def make_waker(store: Store, worker: str, wake: Wake, emit: Emit) -> PostgresListener | SqliteWatcher | None:
    """Choose what wakes a worker of this store; None leaves it to polling."""
    if store.in_memory or not store.options.notify:
        return None
    if store.embedded:
        return SqliteWatcher(store, worker, wake, emit)
    chosen = MysqlWatcher if store.dialect.name == "mysql" else PostgresListener
    return chosen(store, worker, wake, emit)
