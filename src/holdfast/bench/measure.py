"""Measuring: sides do the same work, rows say what is measured, rounds are interleaved so that noise hits all alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Unit = Literal["jobs/s", "ms"]
Handler = Literal["async def", "def"]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything one round does."""

    one: int = 1_000
    many: int = 20_000
    per_call: int = 1_000
    drain: int = 15_000
    samples: int = 70
    rounds: int = 3

    @classmethod
    def quick(cls) -> Size:
        """A smoke run: every row, no figures worth reading."""
        return cls(one=20, many=200, per_call=100, drain=200, samples=5, rounds=1)


class Side(Protocol):
    """Something that can do the work: Holdfast, a raw-SQL loop, later a peer. Names go into the report."""

    name: str

    async def clear(self) -> None:
        """Delete every job, live and finished."""

    async def enqueue_one(self, count: int) -> None:
        """Add so many jobs on a sync connection, each in a transaction of its own."""

    async def aenqueue_one(self, count: int) -> None:
        """Add so many jobs on an async connection, each in a transaction of its own."""

    async def enqueue_many(
        self, count: int, per_call: int, handler: Handler = "async def", *, keep: bool = True
    ) -> None:
        """Add jobs for a handler, so many per call; `keep` says whether they shall be kept once they are done."""

    async def drain(self, count: int, *, keep: bool) -> float:
        """Finish that many waiting jobs and return the seconds until the last outcome was committed."""

    async def unfinished(self) -> int:
        """Count the live jobs."""

    async def latencies(self, samples: int) -> list[float]:
        """Return milliseconds from before the enqueue, in another process, to the handler, on an idle queue."""


Measure = Callable[[Side], Awaitable[list[float]]]


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured; a latency gives many readings a round, told by the quantiles named."""

    name: str
    unit: Unit
    measure: Measure
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Figure:
        return cls(statistics.median(rounds), min(rounds), max(rounds))


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report: a figure for each side."""

    database: str
    name: str
    unit: Unit
    figures: dict[str, Figure] = field(default_factory=dict)

    def ratio(self, side: str, reference: str = "raw") -> float:
        """Return a side's median by that of the reference."""
        return self.figures[side].median / self.figures[reference].median


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least this share of all does not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measured(database: str, row: Row, sides: Sequence[Side], rounds: int) -> list[Result]:
    """Measure a row round by round, each time beginning with another side."""
    readings: dict[str, list[list[float]]] = {side.name: [] for side in sides}
    for number in range(rounds):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            readings[side.name].append(await row.measure(side))
    return list(_results(database, row, readings))


def _results(database: str, row: Row, readings: dict[str, list[list[float]]]) -> Iterator[Result]:
    if not row.quantiles:
        rates = {side: Figure.of([one for [one] in rounds]) for side, rounds in readings.items()}
        yield Result(database, row.name, row.unit, rates)
    for share in row.quantiles:
        figures = {side: _quantile_figure(rounds, share) for side, rounds in readings.items()}
        yield Result(database, f"{row.name} p{share * 100:.0f}", row.unit, figures)


def _quantile_figure(rounds: list[list[float]], share: float) -> Figure:
    """Take the quantile of all samples together: a round alone has too few for a p99."""
    each = [quantile(samples, share) for samples in rounds]
    return Figure(quantile([one for samples in rounds for one in samples], share), min(each), max(each))
