"""What `jobs tail` tells: each change of a row once, from looks at the rows of a desk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from holdfast.admin.health import clock
from holdfast.cli.stores import Opened
from holdfast.life.listing import Wanted
from holdfast.values.rows import OUTCOMES
from holdfast.values.views import JobView

# How far back each look reaches: a transaction may commit a moment after a later one.
OVERLAP = timedelta(seconds=5)
WINDOW_ROWS = 500
REMEMBERED_ROWS = 20_000


def looks(interval: timedelta, duration: timedelta | None) -> Iterator[None]:
    """Yield once for each look at the database, and sleep for `interval` in between, until `duration` is over."""
    deadline = None if duration is None else time.monotonic() + duration.total_seconds()
    while True:
        yield
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return
        pause = max(interval.total_seconds(), 0.02)
        time.sleep(pause if left is None else min(pause, left))


class Change(NamedTuple):
    """A row, and what it is now; one that left its table is told as gone."""

    row: JobView
    state: str


class Follower:
    """Remembers in which state each row was seen last."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._seen: dict[str, tuple[tuple[Any, ...], JobView | None]] = {}
        # By the database's clock, as the ends are.
        self._looked_at: datetime | None = None

    def look(self, at: Opened) -> list[Change]:
        """Read what changed since the last look, oldest first."""
        keeps_finished = any(state in OUTCOMES for state in at.desk.states)
        live = [self._newest(at, state) for state in at.desk.states if state not in OUTCOMES]
        finished = self._finished(at) if keeps_finished else []
        gone = [] if keeps_finished else self._gone(live)
        rows = [row for found in (finished, *live) for row in reversed(found)]
        changed = [row for row in sorted(rows, key=changed_at) if self._is_new(row, keeps_finished)]
        while len(self._seen) > REMEMBERED_ROWS:
            del self._seen[next(iter(self._seen))]
        return [*(Change(row, "gone") for row in gone), *(Change(row, row.state) for row in changed)]

    def _newest(self, at: Opened, state: str) -> list[JobView]:
        return at.found(at.desk.rows, replace(self._wanted, states=(state,)), WINDOW_ROWS)

    def _finished(self, at: Opened) -> list[JobView]:
        """Read what ended since the last look; at the first one, what ended last."""
        since = None if self._looked_at is None else self._looked_at - OVERLAP
        reading = at.desk.latest(at.whole(replace(self._wanted, finished_after=since)), WINDOW_ROWS)
        if reading is None:
            return []
        self._looked_at = at.run(clock())
        return at.run(reading)

    def _gone(self, live: Iterable[list[JobView]]) -> list[JobView]:
        """Name the rows that were there and are not; where finished rows are deleted, that is how they end."""
        lists = list(live)
        there = {row.id for rows in lists for row in rows}
        # Beyond a full window nothing is known: what fell out of it may still be there.
        edge = max((rows[-1].created_at for rows in lists if len(rows) == WINDOW_ROWS), default=None)
        absent = [row for _, row in self._seen.values() if row is not None and row.id not in there]
        gone = [row for row in absent if edge is None or row.created_at > edge]
        for row in gone:
            del self._seen[row.id]
        return gone

    def _is_new(self, row: JobView, keeps_finished: bool) -> bool:
        now = (row.state, row.attempts, row.leased_at if row.state == "leased" else None)
        before, _ = self._seen.pop(row.id, (None, None))
        # A row that is told when it is gone must be remembered whole.
        self._seen[row.id] = (now, None if keeps_finished else row)
        return before != now


def changed_at(row: JobView) -> datetime:
    return row.finished_at or row.leased_at or row.created_at
