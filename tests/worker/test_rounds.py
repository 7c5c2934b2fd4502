"""Rounds: one that is added to the list runs on its stores, and what the database refuses is told once."""

import asyncio
from typing import ClassVar

import pytest

from holdfast import events
from holdfast.errors import QueryFailed
from holdfast.worker import Worker, rounds
from holdfast.worker.rounds.base import Round, RoundContext
from tests.worker.stage import Stage


class Count(Round):
    """A round as a later surface would write it."""

    name = "count"
    every_seconds = 0.01
    made: ClassVar[list["Count"]] = []
    refuses: ClassVar[list[str]] = []

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self.turns = 0
        self.made.append(self)

    async def run(self) -> None:
        self.turns += 1
        if self.refuses:
            raise QueryFailed(self.refuses[0])


@pytest.fixture
def counting(sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(rounds, "ROUNDS", (*rounds.ROUNDS, Count))
    monkeypatch.setattr(Count, "made", [])
    monkeypatch.setattr(Count, "refuses", [])

    @sqlite_stage.hf.job
    async def act() -> None: ...

    return sqlite_stage


def test_a_round_that_is_added_to_the_list_takes_its_turns(counting: Stage) -> None:
    async def body(_: Worker) -> None:
        await counting.until(lambda: Count.made and Count.made[0].turns > 3)

    counting.work(body)
    assert len(Count.made) == 1


def test_a_refused_round_is_told_once_and_tried_again_at_its_next_turn(counting: Stage) -> None:
    async def body(worker: Worker) -> None:
        await counting.until(lambda: Count.made)
        for why in ("no rights", "no rights", "disk full"):
            Count.refuses.append(why)
            turns = Count.made[0].turns
            await counting.until(lambda turns=turns: Count.made[0].turns > turns + 3)
            Count.refuses.clear()
            turns = Count.made[0].turns
            await counting.until(lambda turns=turns: Count.made[0].turns > turns + 1)
        assert worker.failure is None

    counting.work(body)
    said = [(event.what, event.error) for event in counting.heard(events.UpkeepFailed)]
    assert [what for what, _ in said] == ["count"] * 3
    assert ["no rights" in said[0][1], "no rights" in said[1][1], "disk full" in said[2][1]] == [True] * 3


def test_a_round_runs_only_on_the_stores_that_it_is_for(counting: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "runs_on", classmethod(lambda _, context: not context.has_our_tables))

    async def body(_: Worker) -> None:
        await asyncio.sleep(0)

    counting.work(body)
    assert Count.made == []


def test_a_round_that_has_a_defect_breaks_the_worker(counting: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "run", lambda _: 1 / 0)

    async def scene() -> BaseException | None:
        worker = counting.hf.worker()
        await worker.start()
        await counting.until(lambda: worker.stopping)
        await worker._end()
        await counting.hf.aclose()
        return worker.failure

    assert isinstance(asyncio.run(scene()), ZeroDivisionError)
    assert [event.part for event in counting.heard(events.WorkerBroke)] == ["holdfast-count"]
