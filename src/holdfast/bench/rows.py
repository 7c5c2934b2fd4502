"""The rows of the report, one function each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from holdfast.bench.counters import Counters
from holdfast.bench.measure import Reading, Row, Size, Unit
from holdfast.bench.run_rows import run_rows, worked
from holdfast.bench.serve import CALM
from holdfast.bench.side import Side

# Enough for connections to open and for psycopg to prepare its statement, which it does at the sixth.
WARM_UP = 10
# Jittered pauses between two jobs on an idle queue.
GAP = (0.02, 0.04)
# Calls a second of a steady flow.
TICKS = 100
# Rows and their handlers: jobs that write, and jobs that fail at their first attempt and are due again at once.
EFFECTS = {
    "effect and completion, async def": "effect, async def",
    "effect and completion, def": "effect, def",
    "effect and completion, together, async def": "effect together, async def",
    "effect and completion, together, def": "effect together, def",
    "effect and completion, bulk": "effect bulk, def",
}
FAILING = {
    "handler returns Retry once": "returns Retry",
    "handler raises once": "raises",
    "handler raises once, own words": "raises, own words",
}


class Shape(NamedTuple):
    """Jobs of a queue with order or limits: what is said of it (`ours.SPECIAL`), what a side must be able to do for it,
    how many jobs by the field of `Size`, and how many of them have the same key (0: all, None: they have none).
    """

    said: str
    needs: str
    jobs: str
    each: int | None


SPECIAL = {
    "drain, ordered, 10 a key": Shape("ordered", "ordered", "lined", 10),
    "drain, ordered, one key": Shape("ordered", "one key", "one_key", 0),
    "drain, ordered, a key each": Shape("ordered", "ordered", "lined", 1),
    "drain, limited": Shape("limited", "limited", "drain", None),
    "drain, fair": Shape("fair", "fair", "lined", 10),
}

# Rows and their handlers: jobs that add others, or wait for others, when they end.
CHAINS = {"drain, chain of two": "chain of two", "drain, batch of 10,000": "batch of 10,000"}

Draining = Callable[..., Awaitable[Reading]]


def rows(size: Size, counters: Counters, *, embedded: bool) -> list[Row]:
    """List what is measured; an embedded database has no async driver."""
    # Where the disk sets the pace, it changes within seconds: more rounds, and shorter ones.
    alone = [
        Row("enqueue one", "jobs/s", "one", _one("enqueue_one", size), often=7),
        Row("enqueue one, caller's transaction", "jobs/s", "one in tx", _one("enqueue_in", size), often=7),
    ]
    if not embedded:
        alone += [Row("enqueue one, async", "jobs/s", "one async", _one("aenqueue_one", size), often=7)]
    draining = partial(drain, size=size, counters=counters)
    idling: tuple[tuple[str, Unit], ...] = (("CPU", "%"), ("memory", "MB"), ("statements", "1/s"))
    return [
        *alone,
        Row(f"enqueue {size.per_call:,} a call", "jobs/s", "many", partial(enqueue_many, size=size)),
        *enqueues_in_order(size),
        Row("drain, async def, kept", "jobs/s", "kept", partial(draining, handler="async def", keep=True)),
        Row("drain, async def, deleted", "jobs/s", "deleted", partial(draining, handler="async def", keep=False)),
        Row("drain, def, kept", "jobs/s", "def", partial(draining, handler="def", keep=True)),
        Row("drain, many queues", "jobs/s", "queues", partial(many_queues, draining, size), reference="one queue"),
        *(
            Row(name, "jobs/s", shape.needs, partial(special, draining, size, shape), reference="plain")
            for name, shape in SPECIAL.items()
        ),
        *(
            Row(name, "jobs/s", "chains", partial(chained, draining, handler), reference="plain")
            for name, handler in CHAINS.items()
        ),
        *events(size, draining),
        *(Row(name, "jobs/s", "effect", partial(effect, draining, size, handler)) for name, handler in EFFECTS.items()),
        *(Row(name, "jobs/s", "failing", partial(fail, draining, size, handler)) for name, handler in FAILING.items()),
        *run_rows(size, counters),
        Row(f"flow of {size.rate:,}/s", "ms", "flow", partial(flow, size=size), quantiles=(0.5, 0.99)),
        Row("idle latency", "ms", "latency", partial(latency, size=size), quantiles=(0.5, 0.99), often=3),
        Row("idle", "%", "idle", partial(idle, size=size, counters=counters), parts=idling, often=1 / 3),
    ]


def _one(call: str, size: Size) -> Callable[..., Awaitable[Reading]]:
    return partial(enqueue_one, call=call, size=size)


async def enqueue_one(side: Side, call: str, size: Size, **more: Any) -> Reading:
    await side.do("clear")
    await side.do(call, count=WARM_UP, **more)
    return Reading([size.one / await side.timed(call, count=size.one, **more)])


async def enqueue_many(side: Side, size: Size, **more: Any) -> Reading:
    await side.do("clear")
    await side.do("enqueue_many", count=size.per_call, per_call=size.per_call, **more)
    return Reading([size.many / await side.timed("enqueue_many", count=size.many, per_call=size.per_call, **more)])


async def drain(
    side: Side, size: Size, counters: Counters, handler: str, keep: bool = True, count: int = 0, **more: Any
) -> Reading:
    """Drain once; where only then the server knows all that it did, its process ends afterwards."""
    count = count or max(1, round(size.drain * side.spec.share))
    await side.do("clear")
    await side.do("enqueue_many", count=count, per_call=size.per_call, handler=handler, keep=keep, **more)
    return await worked(side, counters, count, "drain", count=count, keep=keep, handler=handler, **more)


async def many_queues(draining: Draining, size: Size, side: Side) -> Reading:
    """Drain jobs of many queues by a worker that serves them all; the reference has them in one."""
    return await draining(side, handler="async def", queues=1 if side.name == "one queue" else size.queues)


async def special(draining: Draining, size: Size, shape: Shape, side: Side) -> Reading:
    """Drain a queue with order or limits; the reference has as many jobs without keys in a plain one."""
    count = max(1, round(getattr(size, shape.jobs) * side.spec.share_of(shape.needs)))
    if side.name == "plain":
        return await draining(side, handler="async def", count=count)
    keys = 0 if shape.each is None else max(1, count // shape.each) if shape.each else 1
    return await draining(side, handler="async def", count=count, keys=keys, special=shape.said)


async def chained(draining: Draining, handler: str, side: Side) -> Reading:
    """Drain jobs that are continued or waited for; the reference has as many that are neither."""
    return await draining(side, handler="async def" if side.name == "plain" else handler)


def events(size: Size, draining: Draining) -> list[Row]:
    """List publishing and relaying events; the reference has as many jobs."""
    return [
        Row(
            "publish one, caller's transaction", "jobs/s", "events", partial(publish, size), often=7, reference="plain"
        ),
        Row("drain, relay to a function", "jobs/s", "relay", partial(chained, draining, "relay"), reference="plain"),
    ]


async def publish(size: Size, side: Side) -> Reading:
    """Publish events in the caller's transaction; the reference enqueues as many jobs."""
    return await enqueue_one(side, "enqueue_in" if side.name == "plain" else "publish_in", size)


def enqueues_in_order(size: Size) -> list[Row]:
    """List the enqueues to an ordered queue, each with a key made of its arguments; the reference has neither."""
    one, many = _one("enqueue_one", size), partial(enqueue_many, size=size)
    name = f"enqueue {size.per_call:,} a call, ordered"
    return [
        Row("enqueue one, ordered", "jobs/s", "keyed", partial(keyed, one), often=7, reference="plain"),
        Row(name, "jobs/s", "keyed", partial(keyed, many), often=3, reference="plain"),
    ]


async def keyed(enqueue: Callable[..., Awaitable[Reading]], side: Side) -> Reading:
    return await (enqueue(side) if side.name == "plain" else enqueue(side, handler="keyed", special="ordered"))


async def effect(draining: Draining, size: Size, handler: str, side: Side) -> Reading:
    """Drain jobs that write, each in one transaction with its completion; every write must be there once."""
    count = size.effects
    before = await side.do("effects")
    reading = await draining(side, handler=handler, count=count)
    made = await side.do("effects") - before
    if made != count:
        raise AssertionError(f"{side.name} did {count} jobs, and their effect is there {made} times")
    return reading


async def fail(draining: Draining, size: Size, handler: str, side: Side) -> Reading:
    """Drain jobs that take two attempts each."""
    return await draining(side, handler=handler, count=size.failing)


async def latency(side: Side, size: Size) -> Reading:
    return await _stamped(side, size.samples, busy=False, per_call=1, gap=GAP)


async def flow(side: Side, size: Size) -> Reading:
    """Send at a steady rate; what cannot keep up shows it in its latency."""
    per_call = max(1, size.rate // TICKS)
    calls = max(1, round(size.rate * size.flow_seconds / per_call))
    pause = per_call / size.rate
    return await _stamped(side, calls * per_call, busy=True, per_call=per_call, gap=(pause, pause))


async def _stamped(side: Side, count: int, busy: bool, **sending: Any) -> Reading:
    await side.do("clear")
    await side.do("work", busy=busy)
    # The first jobs pay for connections and plans, on both ends.
    await side.producer.do("produce", count=WARM_UP, per_call=1, gap=(0.0, 0.0))
    await side.producer.do("produce", count=count, **sending)
    return Reading((await side.do("received", count=WARM_UP + count))[WARM_UP:])


async def idle(side: Side, size: Size, counters: Counters) -> Reading:
    """Let a worker in a fresh process wait for nothing."""
    await side.stop()
    await side.do("clear")
    await side.do("work")
    await side.do("pause", seconds=min(CALM, size.idle_seconds))
    before = await counters.read()
    told = await side.do("idle", seconds=size.idle_seconds)
    done = (await counters.read()).since(before).get("statements")
    await side.do("rest")
    # The reading itself is a statement or two.
    asked = [] if done is None else [max(0.0, done - 2) / size.idle_seconds]
    return Reading([told["cpu_percent"], told["rss_mb"], *asked])
