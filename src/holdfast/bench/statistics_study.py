"""What statistics and metrics cost: a drain with them and one without, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.bench.run import Said, opened
from holdfast.bench.side import Side, child
from holdfast.bench.study import Finding, Scale, middle, spread

# By what stands in the table: the contestant in the child's process.
SIDES = {"counted": child("counted", apart="_counted"), "not counted": child("uncounted", apart="_bare")}
# Rounds for each one of the scale's: a difference of a hundredth needs many.
TIMES = 3


class Drained(NamedTuple):
    """Jobs a second, and the microseconds of CPU that the worker's process used for a job, its start and stop too."""

    rate: float
    cpu_us: float


async def counting(url: str, scale: Scale, say: Said) -> Finding:
    """Drain with statistics and metrics as they are, and with both taken out of the worker; interleaved rounds."""
    told: dict[str, list[Drained]] = {name: [] for name in SIDES}
    async with opened(url, SIDES.values()) as sides:
        named = dict(zip(SIDES, sides, strict=True))
        for side in sides:
            # The first drain of a process imports, connects and prepares.
            await _drain(side, max(100, scale.counted // 20))
        for number in range(TIMES * scale.rounds):
            for name in sorted(named, reverse=number % 2 == 1):
                say(f"statistics: round {number + 1}, {name}")
                told[name].append(await _drain(named[name], scale.counted))
    return _found(told)


async def _drain(side: Side, count: int) -> Drained:
    await side.do("clear")
    await side.do("enqueue_many", count=count, per_call=1_000)
    before = float((await side.do("window"))["cpu_seconds"])
    seconds = await side.do("drain", count=count, keep=True)
    used = float((await side.do("window"))["cpu_seconds"]) - before
    return Drained(count / seconds, used * 1e6 / count)


def _found(told: dict[str, list[Drained]]) -> Finding:
    lines = [
        (
            name,
            middle([one.rate for one in rounds]),
            min(one.rate for one in rounds),
            max(one.rate for one in rounds),
            middle([one.cpu_us for one in rounds]),
        )
        for name, rounds in told.items()
    ]
    pairs = list(zip(*told.values(), strict=True))
    rates = [counted.rate / bare.rate for counted, bare in pairs]
    summary = f"jobs a second, counted by not counted: {_told(rates)}"
    if all(bare.cpu_us for _, bare in pairs):
        summary += f"; the worker's CPU of a job: {_told([counted.cpu_us / bare.cpu_us for counted, bare in pairs])}"
    return Finding("statistics", ("side", "jobs/s", "lowest", "highest", "worker's CPU µs a job"), lines, summary)


def _told(ratios: Sequence[float]) -> str:
    return f"{middle(ratios):.3f}, {spread(ratios, 3)}"
