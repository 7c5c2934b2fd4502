"""What every set of foreign tables has, whatever its kind: its queries, and rows that somebody holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.errors import LeaseLost
from holdfast.flow import Rows, Steps
from holdfast.foreign.queries import Queries
from holdfast.life.source import Renewed, Settled
from holdfast.values.rows import End, Finish, Lease, PutBack

Row = TypeVar("Row")
# How a kind writes the time.
Time = TypeVar("Time")


@dataclass(frozen=True)
class ForeignTables:
    """One set of foreign tables: its queries, and in each kind the settings that its programs agree on."""

    queries: Queries

    def ask(self, name: str, **params: Any) -> Steps[Rows]:
        """Run a query and return its rows."""
        return self.queries.ask(name, **params)


class Holding(ABC, Generic[Row, Time]):
    """What a worker writes about rows that it holds, one by one: each is locked, looked at, and left alone if lost.

    A kind says how its rows are read, by what they show that they are ours, and what is written. Its query `held` locks
    a row by its id.
    """

    def __init__(self, tables: ForeignTables) -> None:
        self.tables = tables

    @abstractmethod
    def read(self, row: Sequence[Any]) -> Row:
        """Read a row of `held`."""

    @abstractmethod
    def is_ours(self, row: Row, lease: Lease | End) -> bool:
        """Tell whether the row still shows the claim of this lease."""

    @abstractmethod
    def is_free(self, row: Row) -> bool:
        """Tell whether nobody holds the row."""

    def held(self, lease: Lease) -> Steps[Row]:
        """Lock and read the row of a lease.

        Raises: LeaseLost, also for a row that is gone: the effect of its holder would be committed a second time.
        """
        row = yield from self._locked(lease.id)
        if row is None or not self.is_ours(row, lease):
            raise LeaseLost(lease.job_id, lease.fence)
        return row

    def renew(self, leases: Sequence[Lease], now: Time) -> Steps[Renewed]:
        """Put the end of leases off that are still ours."""
        kept: set[str] = set()
        for lease in leases:
            row = yield from self._locked(lease.id)
            if row is not None and self.is_ours(row, lease):
                yield from self.put_off(lease, now)
                kept.add(lease.job_id)
        return Renewed(kept, set())

    @abstractmethod
    def put_off(self, lease: Lease, now: Time) -> Steps[None]:
        """Write the time of a claim again."""

    def settle(self, ends: Sequence[Finish | PutBack], now: Time) -> Steps[Settled]:
        """Write how leases ended. A row that is gone, or free, was settled by a try whose answer was lost."""
        settled = Settled()
        for end in ends:
            row = yield from self._locked(end.id)
            if row is not None and self.is_ours(row, end):
                yield from self.end(row, end, now)
                settled.done.add(str(end.id))
            elif self._written_before(row, end):
                settled.done.add(str(end.id))
            else:
                settled.lost.add(str(end.id))
        return settled

    @abstractmethod
    def end(self, row: Row, end: Finish | PutBack, now: Time) -> Steps[None]:
        """Write how one lease ended."""

    def _written_before(self, row: Row | None, end: Finish | PutBack) -> bool:
        if isinstance(end, PutBack):
            return row is not None and self.is_free(row)
        return row is None

    def _locked(self, row_id: Any) -> Steps[Row | None]:
        rows = yield from self.tables.ask("held", id=row_id)
        return self.read(rows[0]) if rows else None
