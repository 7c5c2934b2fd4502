"""Longer studies of Holdfast alone: how the cost grows with rows, time, processes and jobs. Each gives one table."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from holdfast.bench.counters import counters_for
from holdfast.bench.cpu import machine_seconds, server_seconds
from holdfast.bench.measure import quantile
from holdfast.bench.page_study import pages
from holdfast.bench.run import Said, opened
from holdfast.bench.side import Side
from holdfast.bench.statistics_study import counting
from holdfast.bench.study import (
    GROW_FINISHED,
    OURS,
    Finding,
    Scale,
    Study,
    connection,
    insist_on_postgres,
    middle,
    spread,
    vacuum,
)
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions

# Seconds of CPU that a handler takes which has something to do.
COMPUTING = 0.0002
# How often the parent looks whether the workers have handled all.
LOOK = 0.02

GROW_WAITING = """
insert into holdfast_jobs
select copy.* from (select * from holdfast_jobs limit 1000) seed cross join generate_series(1, %s) number
 cross join lateral jsonb_populate_record(
     seed::holdfast_jobs,
     jsonb_build_object(
        'id', overlay(md5(id::text || number) placing left(replace(id::text, '-', ''), 12) from 1 for 12)::uuid,
        'queue', 'waiting ' || number %% %s)) copy
"""
# Runs that wait for a signal, with the rows that they leave in both tables.
GROW_JOBS_OF_RUNS = """
insert into holdfast_jobs
select copy.* from (select * from holdfast_jobs where state = 'waiting' limit 1000) seed
 cross join generate_series(1, %s) number
 cross join lateral jsonb_populate_record(
     seed::holdfast_jobs,
     jsonb_build_object(
        'id', overlay(md5(id::text || number) placing left(replace(id::text, '-', ''), 12) from 1 for 12)::uuid)) copy
"""
GROW_RUNS = """
insert into holdfast_runs (id, workflow, run_key, created_at)
select j.id, 'suspended', j.id::text, j.created_at from holdfast_jobs j where j.state = 'waiting'
on conflict do nothing
"""
# Half of them have a deadline, too: a timer, or a time-out around their wait.
GIVE_DEADLINES = """
update holdfast_jobs set state = 'pending', available_at = now() + interval '1 year'
 where state = 'waiting' and get_byte(uuid_send(id), 15) < 128
"""
CLAIMS = """
select coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0) from pg_stat_statements
 where query ilike '%%skip locked%%' and dbid = (select oid from pg_database where datname = current_database())
"""
BYSTANDER = """
create table holdfast_bystander as select number as id, md5(number::text) as text from generate_series(1, 10000) number
"""
# What leaves a transaction open that still sees the database as it is now.
SNAPSHOT = {
    "postgres": ("begin isolation level repeatable read", "select txid_current_snapshot()"),
    "mysql": ("start transaction with consistent snapshot",),
    "sqlite": ("begin", "select count(*) from sqlite_schema"),
}
BYSTANDER_QUERY = "select count(*), max(text) from holdfast_bystander where id between %s and %s + 500"


async def big(url: str, scale: Scale, say: Said) -> Finding:
    """Drain beside millions of finished and waiting rows, and on empty tables; interleaved rounds."""
    insist_on_postgres(url)
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    async with opened(url, [OURS]) as [empty], opened(url, [OURS]) as [full]:
        await _fill(full, scale, say)
        # Many short rounds: from one second to the next the same drain differs by a third here.
        for number in range(6 * scale.rounds):
            for name, side in sorted({"empty": empty, "full": full}.items(), reverse=number % 2 == 1):
                say(f"big: round {number + 1}, {name}")
                if side is empty:
                    await side.do("clear")
                else:
                    vacuum(side, "holdfast_jobs")
                await side.do("enqueue_many", count=scale.drain, per_call=1_000)
                rates[name].append(scale.drain / await side.do("drain", count=scale.drain, keep=True))
    lines = [(name, statistics.median(told), min(told), max(told)) for name, told in rates.items()]
    # Round by round: what else the machine did in that half minute slowed both.
    ratios = [full / empty for empty, full in zip(*rates.values(), strict=True)]
    what = f"{scale.finished:,} finished rows, {scale.waiting:,} waiting rows in {scale.queues:,} other queues"
    summary = f"full by empty: {statistics.median(ratios):.2f}, {spread(ratios)} ({what})"
    return Finding("big", ("tables", "jobs/s", "lowest", "highest"), lines, summary)


async def _fill(side: Side, scale: Scale, say: Said) -> None:
    say("big: filling the tables")
    await side.do("enqueue_many", count=1_000, per_call=1_000)
    await side.do("drain", count=1_000, keep=True)
    await side.do("enqueue_many", count=1_000, per_call=1_000)
    with connection(side) as (raw, place):
        raw.execute(place(GROW_FINISHED), (scale.finished // 1_000,))
        raw.execute(place(GROW_WAITING), (scale.waiting // 1_000, scale.queues))
    say("big: vacuum and analyze, as autovacuum would")
    for table in ("holdfast_jobs", "holdfast_finished"):
        vacuum(side, table)
    # The seeds themselves wait in the queue that is drained.
    await side.do("drain", count=1_000, keep=True)


async def snapshot(url: str, scale: Scale, say: Said) -> Finding:
    """Keep a steady flow while an idle transaction holds its snapshot, and a bystander asks its own queries."""
    insist_on_postgres(url)
    # Makes the extension that counts claims, where the server has it loaded.
    counters_for(url).close()
    length = scale.seconds / scale.windows
    lines: list[tuple[Any, ...]] = []
    async with opened(url, [OURS]) as [side]:
        await side.do("work")
        await side.producer.do("produce", count=100, per_call=1, gap=(0.0, 0.0))
        with connection(side) as (holder, _), connection(side) as (asking, place), _bystander(asking, place):
            holder.execute("begin isolation level repeatable read")
            holder.execute("select txid_current_snapshot()")
            await side.do("window")
            side.producer.patience = scale.seconds * 4 + 60
            count = round(scale.rate * scale.seconds)
            pause = 0.01
            flow = asyncio.create_task(
                side.producer.do("produce", count=count, per_call=round(scale.rate * pause), gap=(pause, pause))
            )
            for number in range(scale.windows):
                say(f"snapshot: window {number + 1} of {scale.windows}, {length:g} s each")
                lines.append((number + 1, *await _window(side, asking, place, length)))
            holder.execute("rollback")
            await flow
        await side.do("rest")
    first, last = lines[0], lines[-1]
    columns = ("window", "jobs/s", "p50 ms", "p99 ms", "claim ms", "bystander p50 ms", "bystander p99 ms")
    return Finding("snapshot", columns, lines, f"last window by first: {last[1] / first[1]:.2f} of the jobs a second")


async def _window(side: Side, asking: Any, place: Callable[[str], str], length: float) -> tuple[Any, ...]:
    """Let the flow run for a while; ask the bystander's query all the time."""
    claims, began, asked = _claims(asking), time.monotonic(), []
    while time.monotonic() - began < length:
        sent = time.perf_counter()
        asking.execute(place(BYSTANDER_QUERY), (100, 100)).fetchone()
        asked.append((time.perf_counter() - sent) * 1000)
        await asyncio.sleep(0.02)
    came = (await side.do("window"))["latencies"]
    rate = len(came) / (time.monotonic() - began)
    calls, spent = (now - then for now, then in zip(_claims(asking), claims, strict=True))
    told = [quantile(came, share) if came else None for share in (0.5, 0.99)]
    return rate, *told, spent / calls if calls else None, quantile(asked, 0.5), quantile(asked, 0.99)


def _claims(raw: Any) -> tuple[float, float]:
    """Read how often claims ran and how long, where pg_stat_statements counts them."""
    if "pg_stat_statements" not in raw.execute("show shared_preload_libraries").fetchone()[0]:
        return 0.0, 0.0
    calls, spent = raw.execute(CLAIMS, ()).fetchone()
    return float(calls), float(spent)


@contextmanager
def _bystander(raw: Any, place: Callable[[str], str]) -> Iterator[None]:
    raw.execute(place(BYSTANDER))
    try:
        yield
    finally:
        raw.execute(place("drop table holdfast_bystander"))


async def processes(url: str, scale: Scale, say: Said) -> Finding:
    """Drain with one worker process, then with two, and tell whose CPU is used up; interleaved rounds."""
    handlers = {"does nothing": 0.0, f"computes for {COMPUTING * 1000:g} ms": COMPUTING}
    told: dict[tuple[str, int], list[tuple[float | None, ...]]] = {(name, n): [] for name in handlers for n in (1, 2)}
    async with opened(url, [OURS]) as [first]:
        second = Side(OURS, url, first.prefix)
        for number in range(scale.rounds):
            for name, computing in handlers.items():
                count = scale.drain // 4 if computing else scale.drain * 2
                for workers in (1, 2) if number % 2 == 0 else (2, 1):
                    say(f"processes: round {number + 1}, {workers}, the handler {name}")
                    drained = await _shared_drain([first, second][:workers], count, computing)
                    told[name, workers].append(drained)
        await second.stop()
    lines = [(*key, *map(middle, zip(*rounds, strict=True))) for key, rounds in told.items()]
    columns = ("handler", "worker processes", "jobs/s", "cores: workers", "cores: server", "cores: all on the machine")
    ratios = [
        f"{two[2] / one[2]:.2f} where the handler {one[0]}" for one, two in zip(lines[::2], lines[1::2], strict=True)
    ]
    return Finding("processes", columns, lines, f"two by one: {', '.join(ratios)}; on {os.cpu_count()} cores")


async def _shared_drain(sides: Sequence[Side], count: int, computing: float) -> tuple[float | None, ...]:
    """Return jobs per second, and how many cores the workers, the server and the whole machine used."""
    await sides[0].do("clear")
    await sides[0].producer.do("produce", count=count, per_call=1_000, gap=(0.0, 0.0))
    before = [await _cpu_seconds(sides), server_seconds(sides[0].url), machine_seconds()]
    began, left = time.perf_counter(), count
    await asyncio.gather(*(side.do("work", computing=computing) for side in sides))
    while left > 0 or await sides[0].producer.do("unfinished"):
        await asyncio.sleep(LOOK if left > 0 else LOOK / 4)
        left -= sum([len((await side.do("window"))["latencies"]) for side in sides])
    seconds = time.perf_counter() - began
    after = [await _cpu_seconds(sides), server_seconds(sides[0].url), machine_seconds()]
    await asyncio.gather(*(side.do("rest") for side in sides))
    pairs = zip(before, after, strict=True)
    return count / seconds, *(None if then is None or now is None else (now - then) / seconds for then, now in pairs)


async def _cpu_seconds(sides: Sequence[Side]) -> float:
    return sum([float((await side.do("window"))["cpu_seconds"]) for side in sides])


async def memory(url: str, scale: Scale, say: Said) -> Finding:
    """Run jobs for long through one worker and look at the memory of its process."""
    chunk, done = max(1_000, scale.jobs // 20), 0
    lines: list[tuple[Any, ...]] = []
    async with opened(url, [OURS]) as [side]:
        await side.do("work", keep=False)
        lines.append((0, (await side.do("window"))["rss_mb"]))
        while done < scale.jobs:
            side.producer.patience = 600.0
            came, rss = 0, 0.0
            sending = asyncio.create_task(
                side.producer.do("produce", count=chunk, per_call=1_000, gap=(0.0, 0.0)), name="producer"
            )
            while came < chunk:
                await asyncio.sleep(0.2)
                window = await side.do("window")
                came, rss = came + len(window["latencies"]), window["rss_mb"]
            await sending
            done += came
            say(f"memory: {done:,} jobs, {rss:.1f} MB")
            lines.append((done, rss))
        await side.do("rest")
    # The first part fills caches and buffers.
    settled = [rss for _, rss in lines[len(lines) // 4 :]]
    summary = f"{lines[0][1]:.1f} MB idle; {settled[0]:.1f} MB after a quarter, {settled[-1]:.1f} MB at the end"
    return Finding("memory", ("jobs done", "MB in RAM"), lines, summary)


async def ordered(url: str, scale: Scale, say: Said) -> Finding:
    """Drain ordered queues of three shapes: a tenth of a backlog, the whole, and the whole under a held snapshot."""
    # How many jobs of a key there are (0: all are of one), and how many of them in all.
    shapes = {"10 a key": (10, scale.ordered), "one key": (0, scale.ordered // 2), "a key each": (1, scale.ordered)}
    ways = {"a tenth": (10, False), "whole": (1, False), "whole, held snapshot": (1, True)}
    told: dict[tuple[str, str], list[tuple[float, float | None]]] = {(one, how): [] for one in shapes for how in ways}
    async with opened(url, [OURS]) as [side]:
        side.patience = 1_800.0
        for number in range(scale.rounds):
            for shape, (each, count) in shapes.items():
                for how, (part, held) in ways.items():
                    say(f"ordered: round {number + 1}, {shape}, {how}")
                    told[shape, how].append(await _ordered_drain(side, count // part, each, held))
    lines = [
        (shape, how, shapes[shape][1] // ways[how][0], *map(middle, zip(*rounds, strict=True)))
        for (shape, how), rounds in told.items()
    ]
    columns = ("keys", "backlog", "jobs", "jobs/s", "CPU µs a job")
    ratios = [
        f"{shape} {_by(whole[-1], tenth[-1])}, held snapshot {_by(held[-1], whole[-1])}"
        for shape, tenth, whole, held in zip(shapes, lines[::3], lines[1::3], lines[2::3], strict=True)
    ]
    return Finding("ordered", columns, lines, f"CPU of a job, whole by a tenth: {'; '.join(ratios)}")


def _by(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one and other else "unknown"


async def _ordered_drain(side: Side, count: int, each: int, held: bool) -> tuple[float, float | None]:
    """Return jobs per second, and the microseconds of CPU that worker and server used for a job."""
    await side.do("clear")
    said = {"special": "ordered", "keys": max(1, count // each) if each else 1}
    await side.do("enqueue_many", count=count, per_call=1_000, **said)
    dialect = dialect_for(side.url, StoreOptions()).name
    with connection(side) as (raw, _), _snapshot(raw, dialect) if held else nullcontext():
        before = side.cpu_seconds(), server_seconds(side.url)
        seconds = await side.do("drain", count=count, keep=True, **said)
        after = side.cpu_seconds(), server_seconds(side.url)
    used = [None if then is None or now is None else now - then for then, now in zip(before, after, strict=True)]
    # An embedded database is in the worker's process.
    known = [one for one in used if one is not None]
    return count / seconds, sum(known) * 1e6 / count if known else None


@contextmanager
def _snapshot(raw: Any, dialect: str) -> Iterator[None]:
    """Hold a snapshot, as a transaction does that was left open."""
    for statement in SNAPSHOT[dialect]:
        raw.execute(statement).fetchone() if statement.startswith("select") else raw.execute(statement)
    try:
        yield
    finally:
        raw.execute("rollback")


async def runs(url: str, scale: Scale, say: Said) -> Finding:
    """Drain jobs beside suspended runs and without them; make one long run, and one with many children."""
    insist_on_postgres(url)
    rates: dict[str, list[float]] = {"alone": [], "beside": []}
    memory: dict[str, float] = {}
    async with opened(url, [OURS]) as [alone], opened(url, [OURS]) as [beside]:
        beside.patience = 1_800.0
        await _suspend(beside, scale, say)
        for number in range(6 * scale.rounds):
            for name, side in sorted({"alone": alone, "beside": beside}.items(), reverse=number % 2 == 1):
                say(f"runs: round {number + 1}, {name}")
                vacuum(side, "holdfast_jobs")
                await side.do("enqueue_many", count=scale.drain, per_call=1_000)
                rates[name].append(scale.drain / await side.do("drain", count=scale.drain, keep=True, runs=True))
                memory[name] = (await side.do("window"))["rss_mb"]
        say("runs: one long run")
        tenths = await alone.do("long_run", steps=scale.steps)
        say("runs: many children")
        counts = (scale.children, scale.children // 10)
        per_child = [await alone.do("fan_out", children=count) / count for count in counts]
    ratios = [beside / alone for alone, beside in zip(*rates.values(), strict=True)]
    what = f"{scale.suspended:,} suspended runs"
    lines: list[tuple[Any, ...]] = [
        (f"jobs/s beside {what}", statistics.median(rates["beside"]), statistics.median(rates["alone"])),
        (f"worker's MB beside {what}", memory["beside"], memory["alone"]),
        (f"µs a step, last and first tenth of {scale.steps:,}", *(one * 1e7 / scale.steps for one in tenths[::-9])),
        (f"µs a child, of {scale.children:,} and a tenth of them", *(one * 1e6 for one in per_child)),
    ]
    ratios_told = [statistics.median(ratios), *(line[1] / line[2] for line in lines[1:])]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios_told)
    return Finding("runs", ("what", "this", "that"), lines, f"this by that: {told}")


async def _suspend(side: Side, scale: Scale, say: Said) -> None:
    """Fill the tables with runs that wait, half of them with a deadline."""
    say(f"runs: {scale.suspended:,} runs are suspended")
    seeds = min(1_000, scale.suspended)
    await side.do("wait_for_signals", count=seeds)
    await side.do("rest")
    with connection(side) as (raw, place):
        raw.execute(place(GROW_JOBS_OF_RUNS), (max(0, scale.suspended // seeds - 1),))
        raw.execute(place(GROW_RUNS))
        raw.execute(place(GIVE_DEADLINES))
    say("runs: vacuum and analyze, as autovacuum would")
    for table in ("holdfast_jobs", "holdfast_runs"):
        vacuum(side, table)


STUDIES: dict[str, Study] = {
    "big": big,
    "snapshot": snapshot,
    "processes": processes,
    "memory": memory,
    "ordered": ordered,
    "pages": pages,
    "runs": runs,
    "statistics": counting,
}
