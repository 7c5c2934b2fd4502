"""An application with remote steps on both sides, for worker processes that are killed."""

import asyncio
import os
from typing import Any

from holdfast import Holdfast, Job, Retry, Run
from holdfast.errors import StepFailed

hf = Holdfast(os.environ.get("FAULTS_URL", "sqlite:///:memory:"))
hf.remote_engine("durable", lost_after=1.0, poll=0.1)
# Long enough for a busy machine: a claim that is not renewed in time is done again.
steps = hf.foreign.durable("durable", lease=4, max_losses=1000)
QUICK = Retry(max_attempts=50, first_delay=0.02, factor=1.0, max_delay=0.02, jitter=0.0)


@steps.step("double")
async def double(value: int) -> int:
    await asyncio.sleep(0.01 * (value % 5))
    return value * 2


@steps.step("flaky")
def flaky(value: int, job: Job) -> int:
    if job.attempt < 2:
        raise ConnectionError("not yet")
    return value + 1


@hf.workflow(lease=4, retry=Retry(max_attempts=1000, first_delay=0.05, factor=1.0, max_delay=0.05))
async def compute(run: Run, n: int) -> list[Any]:
    first = await run.remote("double", n, retry=QUICK)
    rest = await asyncio.gather(*(run.remote("double", first + k, retry=QUICK) for k in range(3)))
    last = await run.remote("flaky", sum(rest), retry=QUICK)
    try:
        # Nobody serves it.
        await run.remote("nobody", n, retry=Retry(max_attempts=1), timeout=0.2)
    except StepFailed as error:
        return [first, rest, last, "time-out" in error.text]
    return []


def expected(n: int) -> list[Any]:
    rest = [2 * (2 * n + k) for k in range(3)]
    return [2 * n, rest, sum(rest) + 1, True]
