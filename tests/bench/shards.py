"""`make bench ARGS="--study shards"`: the same application on one shard and on several, in turn.

Four processes enqueue one job after the other, each in its own commit, with keys of all shards; then a worker drains
them. On SQLite a shard is a file, on PostgreSQL a server of its own. Beside it stands how busy the cores were, how much
of that the measured processes took (the rest is the servers'), and what was used up first.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.bench.cpu import machine_seconds, process_seconds
from tests.servers import Postgres

PROCESSES = 4
# What SQLite should reach with four files when four processes enqueue.
TARGET = 2.0
# From this part on, a core or a process counts as used up.
FULL = 0.9


class Measured(NamedTuple):
    """How it went: jobs a second; what part of all cores was busy; how many of them the measured processes had."""

    rate: float
    busy: float
    own: float
    processes: int

    @property
    def saturated(self) -> str:
        """Say what was used up first."""
        if self.busy >= FULL:
            return "all cores"
        if self.own >= FULL * self.processes:
            return "the process" if self.processes == 1 else "the processes"
        return "waits for locks and commits"


def opened(urls: list[str]) -> Holdfast:
    """Make the application: on one database without any shards."""
    return Holdfast(shards=urls) if len(urls) > 1 else Holdfast(urls[0])


def enqueue(urls: list[str], count: int, part: int) -> None:
    """Enqueue in this process, once the parent says so."""
    with opened(urls) as hf:

        @hf.job
        async def send(n: int) -> None: ...

        send.using(key="warm").enqueue(n=-1)
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(count):
            send.using(key=f"key:{part}:{n}").enqueue(n=n)


def drain(urls: list[str], count: int) -> None:
    """Run all jobs in this process."""
    import asyncio

    hf, done, over = opened(urls), 0, asyncio.Event()

    @hf.job
    async def send(n: int) -> None:
        nonlocal done
        done += 1
        if done == count:
            over.set()

    async def main() -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        async with hf.worker():
            await over.wait()
        await hf.aclose()

    asyncio.run(main())


def together(calls: list[list[str]], jobs: int) -> Measured:
    """Start processes, let them go at once, and measure them until all have ended."""
    with ExitStack() as stack:
        started = [stack.enter_context(_started(call)) for call in calls]
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        # What those that have ended used is counted there; the start is not measured.
        before = _of_children() + sum(process_seconds(one.pid) or 0.0 for one in started)
        began, busy = time.perf_counter(), machine_seconds() or 0.0
        for one in started:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in started:
            assert one.wait() == 0
        took = time.perf_counter() - began
        cores = ((machine_seconds() or 0.0) - busy) / took / (os.cpu_count() or 1)
        return Measured(jobs / took, cores, (_of_children() - before) / took, len(calls))


def _started(call: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.shards", *call]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(urls: list[str], count: int) -> dict[str, Measured]:
    """Measure both on empty shards."""
    with opened(urls) as hf:
        hf.migrate()
    said, each = json.dumps(urls), count // PROCESSES
    return {
        "enqueue": together([["enqueue", said, str(each), str(part)] for part in range(PROCESSES)], count),
        "drain": together([["drain", said, str(each * PROCESSES + PROCESSES)]], count),
    }


def places(database: str, shards: int, stack: ExitStack, made: list[Postgres]) -> list[str]:
    if database == "sqlite":
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-shards-"))
        return [f"sqlite:///{folder}/{number}.db" for number in range(shards)]
    return [server.fresh_database() for server in made[:shards]]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS='--study shards …'", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    for row in study(said.on or ["sqlite", "postgres"], said.jobs, said.rounds):
        print(json.dumps(row) if said.json else told(row), flush=True)


def study(databases: list[str], jobs: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure one shard and several in turn, and give a row for each thing that was measured."""
    for database in databases:
        with ExitStack() as stack:
            servers = [stack.enter_context(Postgres(durable=True)) for _ in range(2)] if database == "postgres" else []
            sides: dict[int, list[dict[str, Measured]]] = {1: [], 4 if database == "sqlite" else 2: []}
            for turn in range(rounds):
                for shards in list(sides)[:: -1 if turn % 2 else 1]:
                    sides[shards].append(measured(places(database, shards, stack, servers), jobs))
            for what in ("enqueue", "drain"):
                yield row_of(database, what, max(sides), *([each[what] for each in sides[one]] for one in sides))


def row_of(database: str, what: str, shards: int, one: list[Measured], more: list[Measured]) -> dict[str, Any]:
    """Put the rounds of both sides together."""
    typical, spread = (sorted(side, key=lambda each: each.rate)[len(side) // 2] for side in (one, more))
    return {
        "database": database,
        "what": what,
        "shards": shards,
        "jobs_a_second_1": round(statistics.median(each.rate for each in one)),
        "jobs_a_second": round(statistics.median(each.rate for each in more)),
        "ratio": round(statistics.median(b.rate / a.rate for a, b in zip(one, more, strict=True)), 2),
        "target": TARGET if (database, what) == ("sqlite", "enqueue") else None,
        "cores_busy_1": round(typical.busy, 2),
        "cores_busy": round(spread.busy, 2),
        "cores_of_processes_1": round(typical.own, 2),
        "cores_of_processes": round(spread.own, 2),
        "saturated_1": typical.saturated,
        "saturated": spread.saturated,
    }


def told(row: dict[str, Any]) -> str:
    target = f" (should be {row['target']:g})" if row["target"] else ""
    sides = [
        f"{shards} shard{'s' if shards > 1 else ''} {row[f'jobs_a_second{side}']:,}/s (cores busy "
        f"{row[f'cores_busy{side}']:.0%}, {row[f'cores_of_processes{side}']:.1f} of {os.cpu_count()} by the processes; "
        f"used up: {row[f'saturated{side}']})"
        for shards, side in ((1, "_1"), (row["shards"], ""))
    ]
    return f"{row['database']} {row['what']}: ratio {row['ratio']}{target}; {', '.join(sides)}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["enqueue", urls, count, part]:
            enqueue(json.loads(urls), int(count), int(part))
        case ["drain", urls, count]:
            drain(json.loads(urls), int(count))
        case arguments:
            main(arguments)
