"""An application in which threads may begin jobs by themselves, and a worker whose buffer holds all of them at once."""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from holdfast import Holdfast, Retry, events, jobs
from holdfast.worker import Worker
from holdfast.worker.rounds import give_back
from tests.worker.stage import Stage

LATER = Retry(max_attempts=2, first_delay=3600, max_delay=3600)
HEARD = (
    events.JobDone,
    events.JobRetried,
    events.JobDead,
    events.JobSnoozed,
    events.JobCancelled,
    events.JobReleased,
    events.LeaseWasLost,
    events.WorkerBroke,
)


def quiet(stage: Stage) -> Holdfast:
    """Make an application in which nobody asks to hear of an attempt before it begins, so that threads may begin it."""
    hf = Holdfast(stage.url)
    for kind in HEARD:
        hf.on(kind, stage.said.append)
    return hf


def work(stage: Stage, hf: Holdfast, body: Callable[[Worker], Any] | None = None, **options: Any) -> Worker:
    """Run a worker that claims nothing by itself: all jobs there are come into its buffer at once, in their order."""
    workers: list[Worker] = []
    # Jobs that go back because a busy machine was slow would stay there: nobody claims them.
    patient = mock.patch.object(give_back, "LONGEST_WAIT_SECONDS", 3600.0)

    async def fed(worker: Worker) -> None:
        workers.append(worker)
        feed(stage, worker)
        await (stage.until(lambda: not worker.held) if body is None else body(worker))

    with patient:
        stage.work(fed, hf=hf, **{"concurrency": 1, "queues": ["nothing"]} | options)
    return workers[0]


def feed(stage: Stage, worker: Worker) -> None:
    leases = stage.run(jobs.claim("default", limit=1_000, worker=worker.id, lease_ms=30_000))
    worker.claims[0].take(worker.sources[0], leases, time.monotonic())


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
