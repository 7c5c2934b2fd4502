"""What tests of results share: callers of either colour, and ways to see that somebody waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import (
    Enqueued,
    Holdfast,
    jobs,
)
from holdfast.testing.inline import run_due
from holdfast.values.rows import Lease
from tests.worker.stage import DEADLINE, Stage


class Asker:
    """Asks for results in one colour; sync calls are made on a thread, so that the scene goes on meanwhile."""

    def __init__(self, colour: str) -> None:
        self.is_async = colour == "async"

    async def result(self, hf: Holdfast, job: str | Enqueued, timeout: Any = DEADLINE, **said: Any) -> Any:
        if self.is_async:
            return await hf.aresult(job, timeout, **said)
        return await asyncio.to_thread(hf.result, job, timeout, **said)

    async def get(self, hf: Holdfast, job: str | Enqueued) -> Any:
        return await hf.aget(job) if self.is_async else await asyncio.to_thread(hf.get, job)

    def asking(self, hf: Holdfast, job: str | Enqueued, timeout: Any = DEADLINE, **said: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.result(hf, job, timeout, **said))


def scene(stage: Stage, body: Callable[[], Awaitable[None]], hf: Holdfast | None = None) -> None:
    """Run a body on an event loop, without a worker, and close the application."""

    async def played() -> None:
        try:
            await body()
        finally:
            await (hf or stage.hf).aclose()

    asyncio.run(played())


def claimed(stage: Stage, queue: str = "default") -> Lease:
    """Claim the next job by hand, as another process would."""
    [lease] = stage.run(jobs.claim(queue, limit=1))
    return lease


async def waited_for(hf: Holdfast, job: Any, *, marked: bool = False) -> None:
    """Let the scene go on until somebody waits for a job and has looked at it, or has seen its mark."""
    waits = hf.context.waits

    def is_looked_at() -> bool:
        boards = [waits._threads.board, *(one.board for one in list(waits._loops.values()))]
        found = [one.jobs[job.id] for one in boards if job.id in one.jobs]
        return any(one.marked if marked else one.queue is not None for one in found)

    deadline = time.monotonic() + DEADLINE
    while not is_looked_at():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def run_soon(hf: Holdfast) -> None:
    """Run what is due on a thread, beside somebody who waits; a claim steps over a row whose mark is being written."""
    deadline = time.monotonic() + DEADLINE
    while not await asyncio.to_thread(run_due, hf):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def is_at_rest(hf: Holdfast) -> bool:
    """Tell whether nobody waits any more, and nothing of those who did is left."""
    waits = hf.context.waits
    tasks = [task.get_name() for task in asyncio.all_tasks() if "holdfast-results" in task.get_name()]
    return not (waits.any or waits._threads._leader or waits._threads._ears or tasks)
