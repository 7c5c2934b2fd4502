"""A source names the executor that runs its jobs; one that takes several at once gets them in order."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from holdfast import Job, Retry, events, jobs
from holdfast.errors import ConfigError
from holdfast.jobs.source import JobsSource
from holdfast.values.payload import decode_value
from holdfast.worker import Worker, executors
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.work import BaseExecutor, Ended, Work
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0)


class Batches(BaseExecutor):
    """Ends every job by what its payload says, several in one call, as a relay would."""

    batch_limit = 4
    calls: ClassVar[list[list[Any]]] = []
    interrupts: ClassVar[list[Any]] = []
    go: asyncio.Event

    def __init__(self, context: Any, worker: str, *_: Any) -> None:
        self._outcomes = Outcomes(worker, context.events)

    async def attempt_batch(self, works: Sequence[Work]) -> list[Ended]:
        values = [decode_value(work.lease.payload)["n"] for work in works]
        self.calls.append(values)
        try:
            await self.go.wait()
        except asyncio.CancelledError as cut:
            return [self._outcomes.raised(work, cut) for work in works]
        self.interrupts.extend(work.interrupt for work in works)
        return [self._end(work, n) for work, n in zip(works, values, strict=True)]

    def _end(self, work: Work, n: int) -> Ended:
        if work.interrupt is not None:
            return self._outcomes.raised(work, asyncio.CancelledError())
        return self._outcomes.raised(work, ValueError(n)) if n < 0 else self._outcomes.done(work, n)


@pytest.fixture
def batched(sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setitem(executors.EXECUTORS, "batches", Batches)
    monkeypatch.setattr(JobsSource, "executor", lambda _, kind: "handler" if kind == "single" else "batches")
    monkeypatch.setattr(Batches, "calls", [])
    monkeypatch.setattr(Batches, "interrupts", [])

    @sqlite_stage.hf.job(retry=AT_ONCE, lease=1)
    async def act(n: int) -> None:
        raise AssertionError("the executor does not call it")

    @sqlite_stage.hf.job
    async def single(job: Job, n: int) -> int:
        return n

    return sqlite_stage


def work(stage: Stage, body: Any, **options: Any) -> None:
    async def scene() -> None:
        Batches.go = asyncio.Event()
        async with stage.hf.worker(poll=0.05, **options) as worker:
            await body(worker)
        await stage.hf.aclose()

    asyncio.run(scene())


def test_an_executor_takes_several_jobs_at_once_in_their_order(batched: Stage) -> None:
    act, single = batched.hf.handlers["act"], batched.hf.handlers["single"]
    many = [act.enqueue(n=n) for n in range(10)]
    one = single.enqueue(n=99)

    async def body(worker: Worker) -> None:
        Batches.go.set()
        await batched.until_empty()
        await batched.until(lambda: not worker.held)

    work(batched, body, concurrency=20)
    assert max(map(len, Batches.calls)) == Batches.batch_limit
    assert [n for call in Batches.calls for n in call] == list(range(10))
    assert [batched.show(job).result for job in (*many, one)] == [*range(10), 99]


def test_each_job_of_a_batch_has_an_end_of_its_own(batched: Stage) -> None:
    good = batched.hf.handlers["act"].enqueue(n=1)
    bad = batched.hf.handlers["act"].using(max_attempts=1).enqueue(n=-1)

    async def body(_: Worker) -> None:
        Batches.go.set()
        await batched.until_empty()

    work(batched, body)
    assert (batched.state(good), batched.state(bad)) == ("done", "dead")
    assert "ValueError" in batched.show(bad).errors[0]["type"]


def test_a_job_of_a_batch_that_is_lost_does_not_stop_the_others(batched: Stage) -> None:
    kept, stolen = (batched.hf.handlers["act"].enqueue(n=n) for n in (1, 2))

    async def body(worker: Worker) -> None:
        await batched.until(lambda: Batches.calls)
        batched.steal(stolen)
        batched.sql("update holdfast_jobs set lease_expires_at = lease_expires_at + 3600000000 where id = ?", stolen.id)
        await batched.until(lambda: any(one.interrupt == "lost" for one in worker.slots.running))
        Batches.go.set()
        await batched.until_said(events.LeaseWasLost)
        await batched.until(lambda: not worker.held)

    work(batched, body, drain=0)
    assert Batches.calls == [[1, 2]]
    assert Batches.interrupts == [None, "lost"]
    assert (batched.state(kept), batched.state(stolen)) == ("done", "leased")


def test_a_stop_cancels_a_batch_and_gives_its_jobs_back(batched: Stage) -> None:
    some = [batched.hf.handlers["act"].enqueue(n=n) for n in range(3)]

    async def body(_: Worker) -> None:
        await batched.until(lambda: Batches.calls)

    work(batched, body, drain=0)
    assert {(batched.show(job).state, batched.show(job).attempts) for job in some} == {("pending", 0)}
    assert len(batched.run(jobs.claim("default", limit=9))) == 3


def test_an_executor_that_is_not_in_the_list_is_refused_at_the_start(
    batched: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobsSource, "executor", lambda *_: "guesswork")

    async def body(_: Worker) -> None: ...

    with pytest.raises(ConfigError, match=r"executor: must be one of handler, bulk, relay, run, batches.*guesswork"):
        work(batched, body)
