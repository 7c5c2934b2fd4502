"""How many rows an action by hand means: counted no further than to a limit, because all of them may be very many."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.admin.health import clock
from holdfast.cli.render import plural
from holdfast.observe import COUNTED
from holdfast.store import Store

# SQLite's clock has no finer steps.
_TICK = timedelta(milliseconds=1)


class Meant(NamedTuple):
    """At most how many rows to act on, in words too, and whether there may be fewer, because not all were counted."""

    most: int
    words: str
    is_counted: bool = True

    @property
    def foreseen(self) -> int:
        """How many a dry run looks at."""
        return self.most if self.is_counted else min(self.most, COUNTED)

    def told(self, found: int, *names: str) -> str:
        """Say how many a dry run has found."""
        words = plural(found, *names)
        return words if self.is_counted or found < self.foreseen else f"{words} or more"


def meant_of(count: int, limit: int | None, *names: str) -> Meant:
    """Read a count that goes no further than to one more than `COUNTED`; `limit` is what was asked for.

    names: what the rows are called, one of them and several.
    """
    if limit is not None and (limit <= COUNTED or count <= COUNTED):
        return _exactly(min(count, limit), *names)
    if count <= COUNTED:
        return _exactly(count, *names)
    if limit is not None:
        return Meant(limit, f"up to {plural(limit, *names)}", is_counted=False)
    return Meant(sys.maxsize, f"{plural(COUNTED, *names)} or more", is_counted=False)


def _exactly(count: int, *names: str) -> Meant:
    return Meant(count, plural(count, *names))


def until_now(store: Store, until: datetime | None) -> datetime:
    """Return the end of what is meant: not all of it is counted, so what comes meanwhile is known by its time."""
    now = store.run(clock()) + _TICK
    return now if until is None else min(until, now)
