"""The other process: enqueues one job at a time on an idle queue, each with the time at which it set out."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# Jittered, so that no polling interval falls in step with it.
GAP = (0.02, 0.04)


@asynccontextmanager
async def process(url: str, prefix: str, side: str, samples: int) -> AsyncIterator[None]:
    """Run a producer while the block waits for its jobs."""
    arguments = (prefix, side, str(samples))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.bench.producer", *arguments, stdin=asyncio.subprocess.PIPE
    )
    try:
        # The URL may hold a password, and everybody can read the arguments of a process.
        await child.communicate(url.encode())
        if child.returncode:
            raise RuntimeError(f"the producer process ended with {child.returncode}")
        yield
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def main(prefix: str, side: str, samples: int) -> None:
    url = sys.stdin.read()
    send = _sender(url, prefix, side)
    for _ in range(samples):
        time.sleep(random.uniform(*GAP))
        send(time.monotonic_ns())


def _sender(url: str, prefix: str, side: str) -> Callable[[int], object]:
    from holdfast.bench import ours, raw_postgres, raw_sqlite

    if side == ours.Holdfasts.name:
        return ours.one_by_one(url, prefix)
    if url.startswith("sqlite"):
        return raw_sqlite.one_by_one(url, prefix)
    return raw_postgres.one_by_one(url, prefix)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
