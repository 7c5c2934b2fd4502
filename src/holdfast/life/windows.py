"""Looks at rows that may be very many: each at a bounded number of them, and each says where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.flow import Row, Rows

T = TypeVar("T")

# Reading this many rows by primary key and sifting them takes a few dozen milliseconds.
WINDOW = 20_000


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """The rows that were found, the id behind which the next look begins, and whether this one ended at its horizon.

    more: None at the end. at_horizon: `more` stands where the look stopped, not behind a full page.
    """

    rows: list[T]
    more: str | None = None
    at_horizon: bool = False

    @classmethod
    def merged(cls, id_of: Callable[[T], str], limit: int, newest: bool, looks: Sequence[Look[T]]) -> Look[T]:
        """Make one look of those at several shards: it ends where the first of them does."""
        ended = {look.more: look for look in looks if look.more is not None}
        end = (max if newest else min)(ended, default=None)
        rows = sorted((row for look in looks for row in look.rows), key=id_of, reverse=newest)
        found = [row for row in rows if end is None or (id_of(row) >= end if newest else id_of(row) <= end)]
        if len(found) >= limit:
            return cls(found[:limit], id_of(found[limit - 1]))
        return cls(found) if end is None else cls(found, end, ended[end].at_horizon)


def last_looked_at(rows: Rows) -> Row | None:
    """Read what a query for a horizon found: the last row of a look, and the one behind it; None without the latter."""
    return rows[0] if len(rows) == 2 else None
