"""Times in fixed buckets: the same for pages, Prometheus and OpenTelemetry, so that they can be added up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Self

import msgspec

# Upper ends in seconds, each inclusive: OpenTelemetry's up to ten seconds, then for work that waits or runs long.
BOUNDS: tuple[float, ...] = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0),
)
_SIZE = len(BOUNDS) + 1


class Histogram(msgspec.Struct, array_like=True):
    """How many values are in each bucket, the last of which has no end, and their sum in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * _SIZE)
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def add(self, other: Histogram) -> None:
        # One that another version wrote may have other buckets: what is beyond ours is in the last.
        counts = other.counts
        if len(counts) > _SIZE:
            counts = [*counts[: _SIZE - 1], sum(counts[_SIZE - 1 :])]
        for index, number in enumerate(counts):
            self.counts[index] += number
        self.total += other.total

    def quantile(self, share: float) -> float | None:
        """Estimate below which time this share of the values is, as Prometheus does; None where there are none.

        Within a bucket values count as evenly spread. Beyond the last bound nothing is known: that bound is given.
        """
        count = self.count
        if not count:
            return None
        rank = share * count
        before = 0
        for index, number in enumerate(self.counts):
            if number and before + number >= rank:
                if index == len(BOUNDS):
                    break
                low = BOUNDS[index - 1] if index else 0.0
                return low + (BOUNDS[index] - low) * max(0.0, rank - before) / number
            before += number
        return BOUNDS[-1]

    def upto(self) -> list[int]:
        """Return for each bound how many values are at most that, and all of them at the end."""
        return list(accumulate(self.counts))

    @classmethod
    def of(cls, values: Sequence[float], standing_for: int | None = None) -> Self:
        """Fold values into buckets; they may stand for more than there are, and are scaled up then."""
        there = len(values)
        if not there:
            return cls()
        ordered = sorted(values)
        upto = [bisect_right(ordered, bound) for bound in BOUNDS]
        upto.append(there)
        many = there if standing_for is None else standing_for
        if many != there:
            # Rounded as they add up, so that the whole is exact.
            upto = [round(number * many / there) for number in upto]
        counts = [upto[0], *(after - before for before, after in pairwise(upto))]
        return cls(counts, sum(ordered) * many / there)
