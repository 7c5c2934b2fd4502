"""Random bodies through a worker's own executor and a real database: they die after any commit, and go on elsewhere.

`make fuzz EXAMPLES=500` is the long form.
"""

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Run, jobs
from holdfast.errors import RunFinished
from holdfast.flow import Flow
from holdfast.runs import Recorded
from holdfast.testing.inline import replay
from holdfast.values.ids import new_id
from holdfast.values.rows import Lease
from holdfast.worker.handler_threads import Threads
from holdfast.worker.run_executor import RunExecutor
from holdfast.worker.work import Work
from tests.runs import test_fuzz as parts
from tests.runs.test_fuzz import Part, fresh, use, workflows

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES") or 6)
MOST_ATTEMPTS = 200
names = itertools.count(1)
# By run: its body.
bodies: dict[str, Part] = {}


class Died(BaseException):
    """The process is gone."""


class MortalExecutor(RunExecutor):
    """An executor whose process dies right after a commit: what it has written is there, and its body never told."""

    dies_after: int | None = None

    def __init__(self, app: Holdfast) -> None:
        super().__init__(app.context, "mortal", Threads(1, "fuzz"))
        self.dead = asyncio.get_running_loop().create_future()
        self.commits = 0

    async def insist(self, work: Flow[Any]) -> Any:
        found = await self._store.arun(work)
        self.commits += work.name in ("checkpoint", "take")
        if self.dies_after is not None and self.commits >= self.dies_after:
            if not self.dead.done():
                self.dead.set_result(None)
            await asyncio.get_running_loop().create_future()
        return found


@pytest.fixture
def fuzzed(everywhere: Holdfast) -> Iterator[Holdfast]:
    hf = everywhere

    def book(tx: Any) -> None: ...

    @hf.workflow(name="fuzz")
    async def fuzz(run: Run) -> Any:
        if run.random() < 0.5:
            await run.transaction(book)
        return await bodies[run.id](run)

    hf.store.now = datetime(2031, 1, 1, tzinfo=UTC)
    yield hf
    hf.store.now = None


async def one_life(hf: Holdfast, lease: Lease, dies_after: int | None) -> bool:
    """Drive a claimed run until it parks, ends or dies; tell whether it died."""
    executor = MortalExecutor(hf)
    executor.dies_after = dies_after
    work = Work(lease, hf.handlers[lease.kind], True, time.monotonic(), executor=executor)
    attempt = asyncio.ensure_future(executor.attempt(work))
    await asyncio.wait([attempt, executor.dead], return_when=asyncio.FIRST_COMPLETED)
    died = executor.dead.done()
    if died:
        attempt.cancel()
        await asyncio.wait([attempt])
    else:
        ended = attempt.result()
        assert ended.write is not None
        await hf.store.arun(jobs.settle([ended.write]))
    return died


async def run_to_the_end(hf: Holdfast, name: str, lives: Iterator[int | None], luck: random.Random) -> None:
    """Let a run live, die and be taken up again until it is over; what it waits for comes sooner or later."""
    handle = hf.run(name)
    before: list[Recorded] = []
    for _ in range(MOST_ATTEMPTS):
        claimed = await hf.store.arun(jobs.claim("runs", limit=1, worker="mortal", leases={"fuzz@1": 1}))
        if claimed:
            died = await one_life(hf, claimed[0], next(lives))
            rows = await handle.ahistory()
            # Nothing that was written is written otherwise.
            assert rows[: len(before)] == before
            before = rows
            assert hf.store.now is not None
            hf.store.now += timedelta(seconds=1)
            if died:
                assert await hf.store.arun(jobs.reap(backoff=lambda kind, attempt: 0.0))
            continue
        view = await handle.aget()
        assert view.stuck is None, view.stuck
        if view.ended_at is not None:
            return
        for signal in ("a", "b"):
            if luck.random() < 0.7:
                await handle.asignal(signal, luck.randrange(100))
        if luck.random() < 0.15:
            try:
                await handle.acancel()
            except RunFinished:
                return
        assert hf.store.now is not None
        hf.store.now += timedelta(seconds=luck.choice((1, 3)))
    raise AssertionError(f"{name} does not end: {await handle.aget()}")


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    workflow=workflows, seed=st.integers(0, 10**6), deaths=st.lists(st.integers(1, 6), max_size=4), early=st.booleans()
)
def test_a_run_comes_to_the_same_end_however_often_it_dies(
    fuzzed: Holdfast, workflow: Part, seed: int, deaths: list[int], early: bool
) -> None:
    hf, name = fuzzed, f"fuzz-{next(names)}-{new_id()}"
    bodies[name] = workflow
    luck = random.Random(seed)
    parts.chance.seed(seed)

    async def main() -> None:
        handle = await hf.handlers["fuzz@1"].astart(id=name)  # type: ignore[attr-defined]
        if early:
            await handle.asignal("a", 1)
        try:
            await run_to_the_end(hf, name, itertools.chain(deaths, itertools.repeat(None)), luck)
        finally:
            hf.store.forget_loop()

    asyncio.run(main())
    history = hf.run(name).export()
    keys = [row.key for row in history.rows if row.kind != "attempt"]
    assert len(keys) == len(set(keys))
    # Everything once more, from the journal alone: the same end.
    again = replay(hf, history)
    assert again.over
    if history.status == "done":
        stored = hf.get(history.job_id).result
        assert repr(_plain(again.result)) == repr(stored)
    else:
        assert (history.status, again.error is not None) == ("cancelled", True)


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def test_the_fuzz_itself_finds_a_body_that_is_not_deterministic(fuzzed: Holdfast) -> None:
    """Else the test above could not fail."""
    ways = itertools.cycle([fresh, use])

    async def workflow(run: Run) -> Any:
        await run.signal("a")
        way: Any = next(ways)
        return await run.step(way, *([] if way is fresh else [1]))

    bodies["odd"] = workflow

    async def main() -> None:
        await fuzzed.handlers["fuzz@1"].astart(id="odd")  # type: ignore[attr-defined]
        try:
            await run_to_the_end(fuzzed, "odd", iter([None, 2, None, None]), random.Random(1))
        finally:
            fuzzed.store.forget_loop()

    with pytest.raises(AssertionError, match="recorded next: "):
        asyncio.run(main())
