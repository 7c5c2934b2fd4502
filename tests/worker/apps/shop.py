"""Handlers that worker processes run; what they do is seen in the database alone."""

import asyncio
import ctypes
import os
import signal
import time

from holdfast import Bulk, Holdfast, Job, Retry

hf = Holdfast()

SOON = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)


@hf.job(lease=2, retry=SOON)
async def quick(n: int) -> int:
    return n


@hf.job(lease=2, retry=SOON)
async def slow(job: Job, seconds: float) -> int:
    """Write who runs it and under which fence, then take its time if it is the first to hold the job."""
    await job.aprogress({"pid": os.getpid(), "fence": job.fence})
    await asyncio.sleep(seconds if job.fence == 1 else 0)
    return os.getpid()


@hf.job(lease=2, retry=SOON)
def slow_thread(job: Job, seconds: float) -> int:
    job.progress({"pid": os.getpid(), "fence": job.fence})
    deadline = time.monotonic() + (seconds if job.fence == 1 else 0)
    while time.monotonic() < deadline:
        time.sleep(0.02)
    return os.getpid()


@hf.job(lease=2, retry=SOON)
async def blocks(job: Job, until: str) -> int:
    """Keep the whole event loop to itself until there is a file."""
    await job.aprogress({"pid": os.getpid(), "fence": job.fence})
    while job.fence == 1 and not os.path.exists(until):  # noqa: ASYNC240 - that is the point
        time.sleep(0.02)  # noqa: ASYNC251
    return os.getpid()


@hf.job(lease=2, retry=SOON)
async def deaf(job: Job) -> None:
    """Never end, whatever one is told."""
    await job.aprogress({"pid": os.getpid(), "fence": job.fence})
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


@hf.job(lease=1, retry=SOON)
async def kills(how: str) -> None:
    """Take the process along."""
    if how == "exit":
        os._exit(9)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


@hf.job(lease=2, retry=Retry(max_attempts=50, first_delay=0.1, max_delay=1), queue="ledger")
async def effect(job: Job, n: int) -> None:
    async with job.transaction() as tx:
        await tx.execute(f"insert into effects (n) values ({int(n)})")  # noqa: S608 - a number


@hf.bulk(lease=1, retry=SOON)
async def bulk_effects(numbers: list[int], bulk: Bulk) -> None:
    """Write an effect for each item, and take the process along before the commit if this is the first call."""
    async with bulk.transaction() as tx:
        for n in numbers:
            await tx.execute(f"insert into effects (n) values ({int(n)})")  # noqa: S608 - a number
        if bulk.jobs[0].fence == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def convoy_step(n: int, kills: bool) -> None:
    """Note the start where a test can count it, and die of it if asked to."""
    with open(os.environ["CONVOY_LOG"], "a") as log:
        log.write(f"{n}\n")
    if kills:
        os._exit(9)


CONVOY = Retry(first_delay=0.1, max_delay=0.1, jitter=0)


@hf.job(lease=1, retry=CONVOY)
async def convoy(n: int, kills: bool) -> None:
    convoy_step(n, kills)


@hf.job(lease=1, retry=CONVOY)
def convoy_thread(n: int, kills: bool) -> None:
    convoy_step(n, kills)
