"""The rows of the report, one function each."""

from __future__ import annotations

import time
from functools import partial

from holdfast.bench.measure import Handler, Row, Side, Size

# Enough for connections to open and for psycopg to prepare its statement, which it does at the sixth.
WARM_UP = 10


def rows(size: Size, *, embedded: bool) -> list[Row]:
    """List what is measured; an embedded database has no async driver."""
    apart = [] if embedded else [Row("enqueue one, async", "jobs/s", partial(aenqueue_one, size=size))]
    return [
        Row("enqueue one", "jobs/s", partial(enqueue_one, size=size)),
        *apart,
        Row(f"enqueue {size.per_call:,} a call", "jobs/s", partial(enqueue_many, size=size)),
        Row("drain, async def, kept", "jobs/s", partial(drain, size=size, handler="async def", keep=True)),
        Row("drain, async def, deleted", "jobs/s", partial(drain, size=size, handler="async def", keep=False)),
        Row("drain, def, kept", "jobs/s", partial(drain, size=size, handler="def", keep=True)),
        Row("drain, def, deleted", "jobs/s", partial(drain, size=size, handler="def", keep=False)),
        Row("idle latency", "ms", partial(latency, size=size), quantiles=(0.5, 0.99)),
    ]


async def enqueue_one(side: Side, size: Size) -> list[float]:
    await side.clear()
    await side.enqueue_one(WARM_UP)
    began = time.perf_counter()
    await side.enqueue_one(size.one)
    return [size.one / (time.perf_counter() - began)]


async def aenqueue_one(side: Side, size: Size) -> list[float]:
    await side.clear()
    await side.aenqueue_one(WARM_UP)
    began = time.perf_counter()
    await side.aenqueue_one(size.one)
    return [size.one / (time.perf_counter() - began)]


async def enqueue_many(side: Side, size: Size) -> list[float]:
    await side.clear()
    began = time.perf_counter()
    await side.enqueue_many(size.many, size.per_call)
    return [size.many / (time.perf_counter() - began)]


async def drain(side: Side, size: Size, handler: Handler, keep: bool) -> list[float]:
    await side.clear()
    await side.enqueue_many(size.drain, size.per_call, handler, keep=keep)
    seconds = await side.drain(size.drain, keep=keep)
    left = await side.unfinished()
    if left:
        raise AssertionError(f"{side.name} says that it drained the queue, and {left} jobs are left")
    return [size.drain / seconds]


async def latency(side: Side, size: Size) -> list[float]:
    await side.clear()
    return await side.latencies(size.samples)
