"""`make bench ARGS="--study shards"`: the same application on one shard and on several, in turn.

Four processes enqueue one job after the other, each in its own commit, with keys of all shards; then a worker drains
them. On SQLite a shard is a file, on PostgreSQL a server of its own. What the cores were busy with stands beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

from holdfast import Holdfast
from holdfast.bench.cpu import machine_seconds
from tests.servers import Postgres

PROCESSES = 4
# What SQLite should reach with four files.
TARGET = 2.0


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


def together(calls: list[list[str]]) -> tuple[float, float]:
    """Start processes, let them go at once, and return how long they took, and what part of all cores was busy."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.shards", *call],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for call in calls
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    began, busy = time.perf_counter(), machine_seconds()
    for one in started:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in started:
        assert one.wait() == 0
    took = time.perf_counter() - began
    return took, (machine_seconds() - busy) / took / (os.cpu_count() or 1)


def measured(urls: list[str], count: int) -> dict[str, tuple[float, float]]:
    """Measure both on empty shards: jobs a second, and how busy the machine was."""
    with opened(urls) as hf:
        hf.migrate()
    said, each = json.dumps(urls), count // PROCESSES
    added, busy_adding = together([["enqueue", said, str(each), str(part)] for part in range(PROCESSES)])
    drained, busy_draining = together([["drain", said, str(each * PROCESSES + PROCESSES)]])
    return {"enqueue": (count / added, busy_adding), "drain": (count / drained, busy_draining)}


def places(database: str, shards: int, stack: ExitStack, made: list[Postgres]) -> list[str]:
    if database == "sqlite":
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-shards-"))
        return [f"sqlite:///{folder}/{number}.db" for number in range(shards)]
    return [server.fresh_database() for server in made[:shards]]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS='--study shards", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    rows = []
    with ExitStack() as stack:
        for database in said.on or ["sqlite", "postgres"]:
            servers = [stack.enter_context(Postgres()) for _ in range(2)] if database == "postgres" else []
            sides = {1: [], 4 if database == "sqlite" else 2: []}  # type: dict[int, list[dict[str, tuple[float, float]]]]
            for turn in range(said.rounds):
                for shards in list(sides)[:: -1 if turn % 2 else 1]:
                    sides[shards].append(measured(places(database, shards, stack, servers), said.jobs))
            few, many = sides
            for what in ("enqueue", "drain"):
                one, more = ([each[what] for each in sides[shards]] for shards in sides)
                rows.append(
                    {
                        "database": database,
                        "what": what,
                        "shards": many,
                        f"jobs_a_second_{few}": round(statistics.median(rate for rate, _ in one)),
                        "jobs_a_second": round(statistics.median(rate for rate, _ in more)),
                        "ratio": round(statistics.median(b[0] / a[0] for a, b in zip(one, more, strict=True)), 2),
                        "cores_busy_1": round(statistics.median(busy for _, busy in one), 2),
                        "cores_busy": round(statistics.median(busy for _, busy in more), 2),
                    }
                )
    for row in rows:
        print(json.dumps(row) if said.json else told(row))


def told(row: dict[str, object]) -> str:
    return (
        f"{row['database']:<9} {row['what']:<8} 1 shard {row['jobs_a_second_1']:>7,}/s, {row['shards']} shards "
        f"{row['jobs_a_second']:>7,}/s, ratio {row['ratio']}, cores busy {row['cores_busy_1']:.0%} and "
        f"{row['cores_busy']:.0%}"
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["enqueue", urls, count, part]:
            enqueue(json.loads(urls), int(count), int(part))
        case ["drain", urls, count]:
            drain(json.loads(urls), int(count))
        case arguments:
            main(arguments)
