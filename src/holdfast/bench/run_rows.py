"""The rows of durable runs: steps and runs a second, and how soon a run goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.bench.counters import Counters
from holdfast.bench.measure import Reading, Row, Size
from holdfast.bench.side import Side

# How many runs at once, and the field of `Size` with the steps of each; with one run there is nobody to share a commit.
STEPS = {1: ("steps_of_1", "own commits"), 20: ("steps_of_20", "group commit"), 200: ("steps_of_200", "group commit")}
# Jittered pauses between two signals: longer than a run that was woken takes.
GAP = (0.02, 0.04)
# Between these seconds runs sleep whose timers are looked at: longer than a run stays with its worker.
SLEEPS = (1.2, 3.0)


def run_rows(size: Size, counters: Counters) -> list[Row]:
    """List what is measured of runs."""
    return [
        *(
            Row(
                f"steps, {at_once} run{'s' * (at_once > 1)} at once",
                "steps/s",
                "steps" if at_once > 1 else "one run",
                partial(steps, at_once, getattr(size, field), counters),
                reference=reference,
            )
            for at_once, (field, reference) in STEPS.items()
        ),
        Row("runs of one step", "runs/s", "one step", partial(one_step, size, counters), reference="plain"),
        Row("signal to resume", "ms", "signals", partial(signals, size), quantiles=(0.5, 0.99)),
        Row("timer late", "ms", "timers", partial(timers, size), quantiles=(0.5, 0.99)),
    ]


async def steps(at_once: int, each: int, counters: Counters, side: Side) -> Reading:
    """Let runs make one step after the other; a step begins when the one before is committed."""
    each = max(5, round(each * side.spec.share_of("steps")))
    await side.do("clear")
    await side.do("start_runs", count=at_once, steps=each)
    return await worked(side, counters, at_once * each, "run_all", count=at_once, steps=each, at_once=at_once)


async def one_step(size: Size, counters: Counters, side: Side) -> Reading:
    """Let many runs make one step each; the reference drains as many jobs."""
    count = max(5, round(size.one_step * side.spec.share_of("one step")))
    await side.do("clear")
    if side.name == "plain":
        await side.do("enqueue_many", count=count, per_call=size.per_call)
        return await worked(side, counters, count, "drain", count=count, keep=True)
    await side.do("start_runs", count=count, steps=1)
    return await worked(side, counters, count, "run_all", count=count, steps=1, at_once=size.one_step_at_once)


async def worked(side: Side, counters: Counters, total: int, call: str, **arguments: Any) -> Reading:
    """Have a side do `total` of something, and return how many a second, with what each of them cost."""
    before, used = await counters.read(), side.cpu_seconds()
    seconds = await side.do(call, **arguments)
    now = side.cpu_seconds()
    left = await side.do("unfinished")
    if left:
        raise AssertionError(f"{side.name} says that it is through, and {left} are left")
    if counters.late:
        await side.stop()
    costs = (await counters.read()).since(before)
    costs.pop("statements", None)
    if used is not None and now is not None:
        costs["worker_us"] = (now - used) * 1e6
    return Reading([total / seconds], {name: value / total for name, value in costs.items()})


async def signals(size: Size, side: Side) -> Reading:
    """Send signals to runs that wait, one at a time: from before the call to the first line of the step behind it."""
    await side.do("clear")
    # The first one pays for connections and plans.
    count = size.samples + 1
    await side.do("wait_for_signals", count=count)
    await side.producer.do("signal_runs", count=count, gap=GAP)
    return Reading((await side.do("received", count=count))[1:])


async def timers(size: Size, side: Side) -> Reading:
    """Let runs sleep, each for another time: from the moment they wanted to the first line of the step behind it."""
    await side.do("clear")
    await side.do("sleep_runs", count=size.samples, between=SLEEPS)
    return Reading(await side.do("received", count=size.samples))
