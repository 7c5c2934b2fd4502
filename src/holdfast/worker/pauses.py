"""What is paused on one store, as a worker knows it: read about once a second, and never claimed without.

A pause gates claims. What a worker has claimed ahead and not begun is given back when it hears of the pause, with its
attempt; what runs goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from holdfast import events
from holdfast.jobs import pauses, said
from holdfast.jobs.pausing import Said
from holdfast.jobs.source import JobsSource
from holdfast.life.source import Source
from holdfast.values.pauses import Pause, Paused
from holdfast.values.views import iso
from holdfast.worker.holdings import Holdings
from holdfast.worker.patience import Patience

# What was read longer ago than this is read again before the next claim: the round that does so may be held up, as by
# an outage, after which claims could come first.
STALE_SECONDS = 2.0


class Pauses:
    """Has the sources of one store go by what is paused there, and tells of it."""

    def __init__(
        self,
        worker: str,
        sources: Sequence[Source],
        emit: Callable[[events.Event], None],
        holdings: Holdings,
        wake: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._sources = [source for source in sources if isinstance(source, JobsSource)]
        self._emit = emit
        self._holdings = holdings
        self._wake = wake
        # When what is known was asked for, by the monotonic clock. The tables were looked at just before this was made,
        # or will be before anything else is asked (`Branch.check`).
        self._asked_at = time.monotonic()
        # What was told.
        self._told: set[tuple[str, str]] = set()

    @property
    def stale(self) -> bool:
        """Tell whether what is known is too old to claim by."""
        return time.monotonic() - self._asked_at > STALE_SECONDS and bool(self._sources)

    async def look(self, patience: Patience) -> Said:
        """Read what is paused and go by it, however long the database is away; return it with what came beside it."""
        asked_at = time.monotonic()
        heard = await patience.outlive(said())
        self._learn(heard.pauses, asked_at)
        return heard

    async def refreshed(self, patience: Patience) -> bool:
        """Read what is paused before a claim, and try it once; tell whether that went well."""
        asked_at = time.monotonic()
        found = await patience.once(pauses())
        if found is not None:
            self._learn(found, asked_at)
        return found is not None

    def _learn(self, found: list[Pause], asked_at: float) -> None:
        if asked_at < self._asked_at:
            # A later question was answered before this one.
            return
        self._asked_at = asked_at
        paused = Paused.of(found)
        for source in self._sources:
            if source.pause(paused):
                self._holdings.give_back_paused(source)
        self._tell({(one.scope, one.name): one for one in found if self._is_ours(one)})

    def _is_ours(self, one: Pause) -> bool:
        return any(
            one.name in (source.paused.queues if one.scope == "queue" else source.paused.kinds)
            for source in self._sources
        )

    def _tell(self, now: dict[tuple[str, str], Pause]) -> None:
        for which, one in now.items():
            if which not in self._told:
                kind = events.QueuePaused if one.scope == "queue" else events.KindPaused
                self._emit(kind(self._worker, one.name, iso(one.since), one.by, one.reason))
        resumed = sorted(self._told - now.keys())
        for scope, name in resumed:
            self._emit((events.QueueResumed if scope == "queue" else events.KindResumed)(self._worker, name))
        self._told = set(now)
        if resumed:
            self._wake()
