"""Wake-ups: hints that a job is due. Polling always runs beside them, so losing them costs latency, never work.

What they share is here; each dialect has its own beside it, because each database tells of changes in another way.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Protocol

from holdfast import events
from holdfast.errors import redact
from holdfast.store.connections import AsyncLink, Link
from holdfast.store.sessions import translated
from holdfast.values.options import StoreOptions

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 30.0

Wake = Callable[[str | None], None]
Emit = Callable[[events.Event], None]


class Opens(Protocol):
    """What a waker needs of a store: connections of its own."""

    url: str
    options: StoreOptions

    def open(self) -> Link: ...

    async def aopen(self, url: str | None = None, name: str = "holdfast") -> AsyncLink: ...


class Waker:
    """What wakes a worker; it says once that it is lost, and once that it is back."""

    def __init__(self, store: Opens, worker: str, wake: Wake, emit: Emit) -> None:
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


class Watcher(Waker):
    """Looks for a change many times a second, on a thread and a connection of its own.

    On the event loop a look took half as much CPU again: docs/decisions/0011-idle-cost.md.
    """

    def __init__(self, store: Opens, worker: str, wake: Wake, emit: Emit) -> None:
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
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return threading.Thread(target=self._serve, name="holdfast-watcher", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                # The system has no thread to spare now; the worker polls until it has.
                self._say_lost(error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    def _serve(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._watch()
            except Exception as error:
                self._tell(self._say_lost, error)
            pause = FIRST_PAUSE_SECONDS if self.alive else min(self._longest_pause(), pause * 2)
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
        return LONGEST_PAUSE_SECONDS
