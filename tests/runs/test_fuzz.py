"""Random bodies, a crash after any row, other latencies on resume: the same way every time.

The body alone, without a database: a journal in memory, and an engine that ends what is under way in any order.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runs import Recorded
from holdfast.workflows.body import Body
from holdfast.workflows.run import Run

Journal = list[Recorded]


# For those who call them: another value each time, after another while.
chance = random.Random()
numbers = itertools.count(1)


async def fresh() -> int:
    await asyncio.sleep(chance.choice((0, 0, 0.001, 0.003)))
    return next(numbers)


async def use(value: Any) -> int:
    await asyncio.sleep(chance.choice((0, 0, 0.001, 0.003)))
    return next(numbers)


class Engine:
    """Makes operations end in an order by chance, records each, and tells the body; dies after some rows."""

    def __init__(self, journal: Journal, seed: int, dies_after: int | None = None) -> None:
        self.journal = journal
        self.chance = random.Random(seed)
        self.dies_after = dies_after

    def run(self, workflow: Callable[[Run], Coroutine[Any, Any, Any]]) -> Any:
        """Run to the end; None if it died before."""
        body = Body("run", lambda: float(self.chance.randrange(5)))
        run = Run(body, "key", "run", "workflow", 1)
        body.replay(list(self.journal), lambda: workflow(run))
        if body.began is not None and not self.journal:
            self.journal.append(Recorded(1, "begin", "begin", value=str(body.began)))
        under_way = list(body.fresh)
        body.fresh = []
        while not body.over:
            if self.dies_after is not None and len(self.journal) >= self.dies_after:
                body.close()
                return None
            self._next(body, under_way)
            under_way += body.fresh
            body.fresh = []
            under_way = [op for op in under_way if not op.done]
        value, error = body.outcome()
        body.close()
        return repr(value) if error is None else repr(error)

    def _next(self, body: Body, under_way: list[Any]) -> None:
        timer = body.loop.next_timer()
        choices: list[Any] = [*under_way, *([timer] if timer else [])]
        if self.chance.random() < 0.05 and not body.cancelled:
            choices = ["cancel"]
        chosen = self.chance.choice(choices)
        seq = len(self.journal) + 1
        at = (self.journal[-1].at if self.journal else 0) + self.chance.randrange(1, 5) * 100_000
        if chosen == "cancel":
            row = Recorded(seq, "cancel", "cancel", at=at)
        elif chosen is timer:
            row = Recorded(seq, f"timer:{timer[1]}", "timer", at=max(at, round(timer[0] * 1e6)))
        else:
            # Another value each time it is made: a branch that got a neighbour's would show it.
            row = Recorded(
                seq, chosen.key, chosen.kind, value=str(self.chance.randrange(10**6)), digest=chosen.digest, at=at
            )
        self.journal.append(row)
        body.deliver(row)


# Workflows out of parts

Part = Callable[[Run], Coroutine[Any, Any, Any]]


def steps_of(n: int) -> Part:
    async def part(run: Run) -> Any:
        return [await run.step(use, await run.step(fresh)) for _ in range(n)]

    return part


def gathered(parts: list[Part]) -> Part:
    async def part(run: Run) -> Any:
        return await asyncio.gather(*(one(run) for one in parts))

    return part


def grouped(parts: list[Part]) -> Part:
    async def part(run: Run) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(run)) for one in parts]
        return [task.result() for task in tasks]

    return part


def raced(parts: list[Part]) -> Part:
    async def part(run: Run) -> Any:
        tasks = [asyncio.ensure_future(one(run)) for one in parts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [n for n, task in enumerate(tasks) if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return first, await run.step(use, first)

    return part


def timed(inner: Part, seconds: float) -> Part:
    async def part(run: Run) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await inner(run)
        except TimeoutError:
            return "late", await run.step(use, "late")

    return part


def cleaned(inner: Part) -> Part:
    async def part(run: Run) -> Any:
        try:
            return await inner(run)
        except asyncio.CancelledError:
            await run.step(use, "cleanup")
            raise

    return part


def signalled(name: str) -> Part:
    async def part(run: Run) -> Any:
        return await run.signal(name), run.random(), run.now().timestamp()

    return part


def slept(seconds: float) -> Part:
    async def part(run: Run) -> Any:
        await run.sleep(seconds)
        return run.now().timestamp(), await run.step(fresh)

    return part


def completed(parts: list[Part]) -> Part:
    async def part(run: Run) -> Any:
        found = []
        async for one in run.as_completed([part(run) for part in parts]):
            found.append(await one)
            await run.step(use, len(found))
        return found

    return part


leaves = st.one_of(
    st.integers(1, 3).map(steps_of),
    st.sampled_from(["a", "b"]).map(signalled),
    st.sampled_from([0.2, 0.5, 2.0]).map(slept),
)


def branches(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    several = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(
        several.map(gathered),
        several.map(grouped),
        several.map(raced),
        several.map(completed),
        st.builds(timed, parts, st.sampled_from([0.3, 1.0])),
        parts.map(cleaned),
    )


workflows = st.recursive(leaves, branches, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(workflow=workflows, seed=st.integers(0, 10**6), deaths=st.lists(st.integers(1, 12), max_size=3))
def test_a_run_takes_the_same_way_however_often_it_dies(workflow: Part, seed: int, deaths: list[int]) -> None:
    journal: Journal = []
    for n, dies_after in enumerate(sorted(deaths)):
        before = list(journal)
        Engine(journal, seed + n, dies_after).run(workflow)
        assert journal[: len(before)] == before
    outcome = Engine(journal, seed + 1000).run(workflow)
    rows = list(journal)
    assert len({row.key for row in rows}) == len(rows)
    # Everything once more from the journal alone: nothing new is done, and the outcome is the same.
    assert Engine(journal, seed + 2000, dies_after=0).run(workflow) == outcome
    assert journal == rows


def test_the_engine_itself_finds_a_body_that_is_not_deterministic() -> None:
    """Else the test above could not fail."""
    ways = iter([True, False])

    async def workflow(run: Run) -> Any:
        await run.step(fresh)
        return await run.step(use if next(ways) else fresh, 1)

    journal: Journal = []
    Engine(journal, 1).run(workflow)
    with pytest.raises(Exception, match="recorded next: use"):
        Engine(journal, 2).run(workflow)
