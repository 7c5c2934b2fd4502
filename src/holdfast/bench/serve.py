"""The child's end: one contestant in a process of its own, driven by JSON lines.

A request is `{"do": "drain", "count": 1000, …}`, its answer `{"value": …, "seconds": …}` or `{"error": "…"}`. Whatever
speaks so can take part, in any language; tests/bench/peers has others. Only the standard library is imported here.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

# How long a worker comes to rest before its idling is measured.
CALM = 1.5


class Contestant(Protocol):
    """One way to do the work."""

    stamps: list[float]
    """Milliseconds from before the enqueue to the handler, for each stamped job that came."""

    async def install(self) -> None:
        """Make the tables."""

    async def uninstall(self) -> None:
        """Drop the tables."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    async def clear(self) -> None:
        """Delete every job, live and finished."""

    async def enqueue_one(self, count: int) -> None:
        """Add that many jobs on a sync connection, each in a transaction of its own."""

    async def enqueue_in(self, count: int) -> None:
        """Add that many jobs in one transaction of a sync connection that is the application's own."""

    async def aenqueue_one(self, count: int) -> None:
        """Add that many jobs on an async connection, each in a transaction of its own."""

    async def enqueue_many(self, count: int, per_call: int, handler: str, keep: bool) -> None:
        """Add jobs for a handler, `per_call` in each call; `keep` says whether they are kept once they are done.

        Who can do "queues" takes their number as `queues`, here and in `drain`.
        """

    async def drain(self, count: int, keep: bool, handler: str) -> float:
        """Finish that many waiting jobs and return the seconds until the last outcome was committed."""

    async def unfinished(self) -> int:
        """Count the live jobs."""

    async def work(self, busy: bool = False) -> None:
        """Start a worker whose handler notes how old each stamped job is; set for a flow where that differs."""

    async def rest(self) -> None:
        """Stop that worker."""

    async def send(self, sent: Sequence[int]) -> None:
        """Add jobs that carry the time at which they set out: one alone, or several in one transaction."""


class Served:
    """The calls that every contestant answers, and those that are made of them."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.pop("do")
        call: Callable[..., Awaitable[Any]] = getattr(self, name, None) or getattr(self.contestant, name)
        began = time.perf_counter()
        try:
            value = await call(**request)
        except Exception as error:
            return {"error": f"{name}: {type(error).__name__}: {error}"}
        return {"value": value, "seconds": time.perf_counter() - began}

    async def produce(self, count: int, per_call: int, gap: tuple[float, float]) -> None:
        """Send stamped jobs, `per_call` in each call, with jittered pauses, so that no polling falls in step with them.

        A pause ends when it would have ended had every call taken no time, so that the rate is kept.
        """
        due = time.monotonic()
        for _ in range(0, count, per_call):
            due += random.uniform(*gap)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.contestant.send([time.monotonic_ns()] * per_call)

    async def received(self, count: int) -> list[float]:
        """Wait for that many stamped jobs, stop the worker and return their latencies."""
        while len(self.contestant.stamps) < count:  # noqa: ASYNC110 (the code that appends has no event to set)
            await asyncio.sleep(0.02)
        await self.contestant.rest()
        return self.contestant.stamps

    async def window(self) -> dict[str, Any]:
        """Tell what came since the last time this was asked, and forget it; and the CPU seconds used by now."""
        came, self.contestant.stamps[:] = list(self.contestant.stamps), []
        return {"latencies": came, "cpu_seconds": _cpu(), "rss_mb": rss_mb()}

    async def pause(self, seconds: float) -> None:
        """Let a worker that has just started come to rest."""
        await asyncio.sleep(seconds)

    async def idle(self, seconds: float) -> dict[str, float]:
        """Tell what the worker that was started costs while nothing comes."""
        cpu, began = _cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        return {"cpu_percent": 100 * (_cpu() - cpu) / (time.monotonic() - began), "rss_mb": rss_mb()}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss_mb() -> float:
    """Return the memory of this process that is in RAM; the largest it ever was where /proc is not there."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1e6


async def serve(contestant: Contestant) -> None:
    """Answer requests until there are no more."""
    served = Served(contestant)
    await contestant.open()
    print(json.dumps({"value": "ready", "seconds": 0}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await served.answer(json.loads(line))), flush=True)
    await contestant.close()


def run(make: Callable[[str, str], Contestant]) -> None:
    """Be the child process of one contestant; the first line names the database and the prefix of the tables.

    They come by the pipe because the URL may hold a password, and everybody can read the arguments of a process.
    """
    first = json.loads(sys.stdin.readline())
    # As `holdfast worker` has it; here every side written in Python gains from it.
    gc.set_threshold(5_000, 10, 10)

    async def whole() -> None:
        await serve(make(first["url"], first["prefix"]))

    try:
        import uvloop
    except ImportError:
        asyncio.run(whole())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())
