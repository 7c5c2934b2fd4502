"""What pages need of an application: its tables, what is hidden of them, and what was read a moment ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.admin import JobsDesk
from holdfast.context import Context
from holdfast.dashboard.redaction import Redaction
from holdfast.dashboard.talk import Talk
from holdfast.foreign import ForeignSource
from holdfast.life.desk import Desk
from holdfast.store import Shards, Store

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A set of tables that people look at: its desk, and the store that it is in. name: "" for our own jobs."""

    name: str
    desk: Desk
    store: Store


class Shared:
    """What all pages of a process have read, for a moment: however many look, the database is asked once."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def read(self, key: object, for_seconds: float, talk: Callable[[], Talk[T]]) -> Talk[T]:
        """Return what was read not long ago, or read it."""
        now = time.monotonic()
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
        if now < until:
            return value  # type: ignore[no-any-return]
        value = yield from talk()
        with self._lock:
            # Reading may take long on a busy database: then it is done more seldom.
            self._kept[key] = (time.monotonic() + max(for_seconds, 10 * (time.monotonic() - now)), value)
        return value

    def forget(self) -> None:
        """Let the next page read anew, after somebody has acted."""
        with self._lock:
            self._kept.clear()


class Away:
    """Which shards did not answer of late: what is in them is missing on the pages."""

    KEPT_SECONDS = 10.0

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def listen(self, store: Store) -> None:
        """Hear of shards that do not answer, beside those who hear of it already."""
        if isinstance(store, Shards):
            before = store.missing

            def note(number: int, error: Exception) -> None:
                self._seen[number] = time.monotonic()
                before(number, error)

            store.missing = note

    def now(self) -> list[int]:
        since = time.monotonic() - self.KEPT_SECONDS
        return sorted(number for number, at in list(self._seen.items()) if at > since)


@dataclass(frozen=True)
class Setting:
    """What a dashboard was given, for its pages."""

    context: Context
    foreign: Callable[[], Iterable[ForeignSource]] = tuple
    redaction: Redaction = field(default_factory=Redaction)
    title: str = "Holdfast"
    refresh: float = 2.0
    shared: Shared = field(default_factory=Shared)
    away: Away = field(default_factory=Away)

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def places(self) -> dict[str, Place]:
        """Our own jobs, and the foreign tables of the application as they are now."""
        ours = Place("", JobsDesk(), self.store)
        return {"": ours} | {one.name: Place(one.name, one.desk, one.store) for one in self.foreign()}
