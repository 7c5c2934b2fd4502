"""Measuring: sides do the same work, rows say what is measured, rounds are interleaved so that noise hits all alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from holdfast.bench.side import Side

Unit = Literal["jobs/s", "steps/s", "runs/s", "ms", "%", "1/s", "MB"]
# What is better the more of it there is.
RATES: tuple[Unit, ...] = ("jobs/s", "steps/s", "runs/s")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything one round does."""

    one: int = 300
    many: int = 20_000
    per_call: int = 1_000
    drain: int = 60_000
    effects: int = 8_000
    failing: int = 20_000
    lined: int = 100_000
    one_key: int = 50_000
    queues: int = 1_000
    # Steps of each run, by how many runs there are at once.
    steps_of_1: int = 1_000
    steps_of_20: int = 300
    steps_of_200: int = 100
    one_step: int = 10_000
    one_step_at_once: int = 500
    samples: int = 100
    rate: int = 1_000
    flow_seconds: float = 3.0
    idle_seconds: float = 10.0
    rounds: int = 3

    @classmethod
    def quick(cls) -> Size:
        """A smoke run: every row, no figures worth reading."""
        few = cls(one=20, many=200, per_call=100, drain=200, effects=200, failing=200, queues=10, samples=5, rounds=1)
        few = replace(few, steps_of_1=20, steps_of_20=5, steps_of_200=2, one_step=100, one_step_at_once=20)
        return replace(few, lined=200, one_key=200, rate=100, flow_seconds=0.2, idle_seconds=0.3)

    def part(self, share: float) -> Size:
        """Drain a part of the jobs only."""
        names = ("drain", "effects", "failing", "lined", "one_key", "one_step")
        return replace(self, **{name: max(10, round(getattr(self, name) * share)) for name in names})


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round of a row gave: one figure, or many samples; and what it cost the server, by name."""

    values: list[float]
    costs: dict[str, float] = field(default_factory=dict)


Measure = Callable[[Side], Awaitable[Reading]]


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured, and what a side must be able to do for it.

    Samples are told by the quantiles named; several figures of a round by the names of `parts` and their units.
    `often` says how many rounds it takes for each that is asked for, `reference` the side that ratios are made with.
    """

    name: str
    unit: Unit
    needs: str
    measure: Measure
    quantiles: tuple[float, ...] = ()
    parts: tuple[tuple[str, Unit], ...] = ()
    often: float = 1.0
    reference: str = "raw"


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float
    costs: dict[str, float] = field(default_factory=dict)
    rounds: tuple[float, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, rounds: Sequence[float], costs: Sequence[dict[str, float]] = ()) -> Figure:
        middle = {name: statistics.median(one[name] for one in costs) for name in (costs[0] if costs else ())}
        return cls(statistics.median(rounds), min(rounds), max(rounds), middle, tuple(rounds))


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report: a figure for each side."""

    database: str
    name: str
    unit: Unit
    figures: dict[str, Figure] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Guests that took part and failed, and how."""
    reference: str = "raw"

    def ratio(self, side: str, reference: str = "") -> float | None:
        """Return a side's figure by that of the reference, where there is one: the median of the rounds' own ratios.

        What slows the machine for seconds slows both sides of a round, so the ratio leaves it out.
        """
        reference = reference or self.reference
        if reference not in self.figures:
            return None
        pairs = zip(self.figures[side].rounds, self.figures[reference].rounds, strict=True)
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return statistics.median(ratios) if ratios else None


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least this share of all does not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measured(
    database: str, row: Row, sides: Sequence[Side], rounds: int, say: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Measure a row round by round, each time beginning with another side; a side that cannot do it stands aside."""
    asked = [side for side in sides if row.needs in side.can]
    missing = {side.name: side.broken for side in asked if side.broken}
    able = [side for side in asked if not side.broken]
    readings: dict[str, list[Reading]] = {side.name: [] for side in able}
    for number in range(max(1, round(rounds * row.often))):
        first = number % len(able)
        for side in (*able[first:], *able[:first]):
            if side.name not in missing:
                say(f"{database}: {row.name}, round {number + 1}, {side.name}")
                try:
                    readings[side.name].append(await row.measure(side))
                except RuntimeError as error:
                    await excused(side, error)
                    missing[side.name] = str(error)
                    del readings[side.name]
    return [replace(result, missing=missing, reference=row.reference) for result in _results(database, row, readings)]


async def excused(side: Side, error: RuntimeError) -> None:
    """Let a guest fail: its process ends, and the next row finds it afresh."""
    if not side.spec.guest:
        raise error
    await side.stop()


def _results(database: str, row: Row, readings: dict[str, list[Reading]]) -> Iterator[Result]:
    for share in row.quantiles:
        figures = {
            side: Figure.of([quantile(one.values, share) for one in rounds]) for side, rounds in readings.items()
        }
        yield Result(database, f"{row.name} p{share * 100:.0f}", row.unit, figures)
    for place, (name, unit) in enumerate(row.parts):
        figures = {
            side: Figure.of([one.values[place] for one in rounds])
            for side, rounds in readings.items()
            if all(len(one.values) > place for one in rounds)
        }
        yield Result(database, f"{row.name}, {name}", unit, figures)
    if not row.quantiles and not row.parts:
        figures = {
            side: Figure.of([one.values[0] for one in rounds], [one.costs for one in rounds])
            for side, rounds in readings.items()
        }
        yield Result(database, row.name, row.unit, figures)
