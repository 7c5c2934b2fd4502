"""What hears of jobs that end elsewhere: a connection that listens, where the database tells of ends."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.events import Event, ListenerLost, ListenerRegained
from holdfast.results import read_told
from holdfast.store import Store
from holdfast.values.ids import new_id

# Takes the ids that were told, or None: anything may have ended.
Hint = Callable[[list[str] | None], None]
Emit = Callable[[Event], None]


class Ears:
    """A listening connection that heals by itself; `hear` is true while it is proven to work."""

    def __init__(self, store: Store, hint: Hint, emit: Emit) -> None:
        self._hint = hint
        self._emit = emit
        self._lost = False
        name = f"results-{os.getpid()}-{new_id()[-12:]}"
        self._listener: Any = store.dialect.hears_ends(store, name, self._heard, self._told)

    @property
    def hear(self) -> bool:
        return self._listener.alive and not self._lost

    async def serve(self) -> None:
        await self._listener.serve()

    def _heard(self, payload: str | None) -> None:
        self._hint(None if payload is None else read_told(payload))

    def _told(self, event: Event) -> None:
        """Pass on what the listener says of itself; without it everything is looked at again, as it would be anyway."""
        if isinstance(event, ListenerLost):
            self._lost = True
            self._hint(None)
        elif isinstance(event, ListenerRegained):
            self._lost = False
        self._emit(event)


def can_hear(store: Store) -> bool:
    """Tell whether the database tells of ends."""
    return store.dialect.notifies and store.options.notify


class TaskEars:
    """Ears on the running event loop."""

    def __init__(self, ears: Ears) -> None:
        self.ears = ears
        self._task = asyncio.get_running_loop().create_task(
            ears.serve(), name="holdfast-results-listener", context=contextvars.Context()
        )

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class ThreadEars:
    """Ears on a thread with an event loop of its own, for callers that have none."""

    def __init__(self, ears: Ears) -> None:
        self.ears = ears
        self._lock = threading.Lock()
        self._over = False
        self._stop: Callable[[], object] | None = None
        # Without a thread to spare, those who wait go on looking.
        with suppress(RuntimeError, MemoryError):
            threading.Thread(target=self._run, name="holdfast-results-listener", daemon=True).start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(self.ears.serve())
        with self._lock:
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            if self._over:
                task.cancel()
        await asyncio.wait([task])

    def close(self) -> None:
        """Have the thread end; nobody waits for it."""
        with self._lock:
            self._over = True
            if self._stop is not None:
                # A loop that is closed has ended already.
                with suppress(RuntimeError):
                    self._stop()
