"""What a claim of our jobs asks for, and the order of what it gets; with order and limits, and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_BY_AGE, _BY_PRIORITY = attrgetter("available_at", "id"), attrgetter("priority")


class Question(NamedTuple):
    """Which kinds and buckets a claim asks for, and for how long: parameters of its queries."""

    kinds: list[str] | None
    leases: list[int] | None
    lease_ms: int
    buckets: list[int] | None
    overdue_ms: int | None

    @classmethod
    def of(
        cls, leases: Mapping[str, int] | None, lease_ms: int, buckets: Sequence[int] | None, overdue_ms: int
    ) -> Question:
        """Put what `jobs.claim` was asked as its queries take it."""
        # One lease for all kinds, as is usual, spares the database a search for each job.
        lengths = set((leases or {}).values())
        return cls(
            None if leases is None else list(leases),
            list(leases.values()) if leases and len(lengths) > 1 else None,
            lengths.pop() if len(lengths) == 1 else lease_ms,
            # A list in SQL needs an element: there is no bucket -1.
            None if buckets is None else list(buckets) or [-1],
            None if buckets is None else overdue_ms,
        )


def by_urgency(found: list[T]) -> list[T]:
    """Sort leases or tickets, the most urgent first: the database gives them in no promised order."""
    # Two stable sorts by C functions cost half of one with a key of ours.
    found.sort(key=_BY_AGE)
    found.sort(key=_BY_PRIORITY, reverse=True)
    return found
