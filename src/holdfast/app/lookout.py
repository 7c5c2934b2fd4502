"""Whether the one database of an application is all of it, or one of several shards that others know of."""

from __future__ import annotations

import math
import time
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.events import log
from holdfast.store import Store, shard_map

# How often an application with one URL looks: `holdfast shards add` may come at any time.
EVERY_SECONDS = 60.0


class Lookout:
    """Warns once that an application enqueues to one shard alone, because its code names one URL.

    It looks after an enqueue, where that went: after the first of a process, and once a minute from then on. So an
    enqueue pays for a look at the clock. Whatever goes wrong in it is no matter of the enqueue.
    """

    def __init__(self, store: Store, *, alone: bool) -> None:
        """`alone`: whether this is the only store that the application names."""
        self._store = store
        self._next = -math.inf if alone and not store.in_memory else math.inf

    def is_due(self, tx: Any) -> bool:
        """Tell whether to look now; the next one who asks is told no."""
        now = time.monotonic()
        if now < self._next or not self._store.looks_aside(tx):
            return False
        self._next = now + EVERY_SECONDS
        return True

    def look(self, tx: Any) -> None:
        """Look in the caller's transaction, or without one, and warn."""
        work = shard_map.alone()
        try:
            self._warn(self._store.run_once(work) if tx is None else self._store.run_in(tx, work, work.name))
        except HoldfastError as error:
            log.debug("could not look whether this database is one of several shards: %s", error)

    async def alook(self, tx: Any) -> None:
        """The async twin of `look`."""
        work = shard_map.alone()
        try:
            self._warn(await (self._store.arun_once(work) if tx is None else self._store.arun_in(tx, work, work.name)))
        except HoldfastError as error:
            log.debug("could not look whether this database is one of several shards: %s", error)

    def _warn(self, why: str | None) -> None:
        if why is not None and self._next != math.inf:
            self._next = math.inf
            log.warning("%s; what this process enqueues all goes to that shard, also keys of other shards", why)
