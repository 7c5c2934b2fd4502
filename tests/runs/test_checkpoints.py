"""Checkpoints of many runs in one batch: each owner hears of its own rows."""

import asyncio
from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, Retry, Run, jobs, runs
from holdfast.errors import StoreError
from holdfast.flow import Flow
from holdfast.runs import Entry, Recorded
from holdfast.testing.inline import run_due
from holdfast.worker.checkpoint_writer import CheckpointWriter
from holdfast.worker.db_clock import DbClock
from holdfast.worker.run_executor import RunExecutor


class Owner:
    def __init__(self, heard: list[str], name: str) -> None:
        self.heard, self.name = heard, name

    def committed(self, row: Recorded) -> None:
        self.heard.append(f"{self.name} committed {row.value}")

    def lost_lease(self) -> None:
        self.heard.append(f"{self.name} lost")

    def refused(self, row: Recorded, error: BaseException) -> None:
        self.heard.append(f"{self.name} refused")


def test_a_batch_with_rows_of_two_claims_of_a_run_has_those_of_the_later_one(hf: Holdfast) -> None:
    """A worker that lost a run in an outage, and has claimed it again, may have rows of both in hand."""
    heard: list[str] = []

    @hf.workflow
    async def work(run: Run) -> None: ...

    work.start(id="r")
    [lease] = hf.store.run(jobs.claim("runs", limit=1))

    async def main() -> None:
        writer = CheckpointWriter(hf.store.arun, "w", DbClock(hf.store).learn)
        for name, fence in (("new", lease.fence), ("old", lease.fence - 1)):
            writer.add(Owner(heard, name), Entry(lease.job_id, fence, Recorded(1, "charge", "step", value=name)))
        async with asyncio.timeout(10):
            while len(heard) < 2:  # noqa: ASYNC110 - what adds to it has no event to set
                await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(heard) == ["new committed new", "old lost"]
    assert [row.value for row in hf.store.run(runs.journal(lease.job_id))] == ["new"]


class GoingOn(Owner):
    """A run that makes step after step: told of one, it adds the next, after as many turns of the loop as a run's."""

    def __init__(self, heard: list[str], name: str, writer: CheckpointWriter, held: Entry, steps: int) -> None:
        super().__init__(heard, name)
        self.writer, self.held, self.steps = writer, held, steps
        self.tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.Event()

    def committed(self, row: Recorded) -> None:
        super().committed(row)
        asyncio.get_running_loop().call_soon(self.go_on, row.seq + 1)

    def go_on(self, seq: int) -> None:
        if seq > self.steps:
            self.over.set()
        else:
            self.tasks.append(asyncio.get_running_loop().create_task(self.step(seq)))

    async def step(self, seq: int) -> None:
        self.writer.add(self, self.held._replace(row=Recorded(seq, f"charge#{seq}", "step", value=str(seq))))


def test_runs_that_add_while_another_writes_come_to_share_their_commits(hf: Holdfast) -> None:
    """Else two runs would wait for each other's commits in turn, for ever."""
    steps, batches = 5, list[int]()

    @hf.workflow
    async def work(run: Run) -> None: ...

    work.start_many({"a": work.bind(), "b": work.bind()})
    leases = hf.store.run(jobs.claim("runs", limit=2))

    async def main() -> None:
        async def run(work: Flow[Any]) -> Any:
            if not batches:
                await late.step(1)
            written = await hf.store.arun(work)
            batches.append(len(written))
            return written

        writer = CheckpointWriter(run, "w", DbClock(hf.store).learn)
        held = [Entry(lease.job_id, lease.fence, Recorded(0, "", "step")) for lease in leases]
        early, late = GoingOn([], "early", writer, held[0], steps), GoingOn([], "late", writer, held[1], steps)
        async with asyncio.timeout(10):
            await early.step(1)
            await asyncio.gather(early.over.wait(), late.over.wait())

    asyncio.run(main())
    # The first one's first step has a commit of its own, and so has the last step of the one behind it.
    assert batches == [1, *[2] * (steps - 1), 1]


def test_an_attribute_that_is_set_twice_in_one_batch_is_written_once() -> None:
    """PostgreSQL refuses a statement that writes one row twice."""
    said = [Recorded(1, "set:stage", "set", value='"a"'), Recorded(2, "set:stage#2", "set", value='"b"')]
    writing = runs.checkpoint([Entry("r", 1, row) for row in said], "w").start()
    next(writing)
    setting = writing.send([("r", 1, 5), ("r", 2, 5)])
    assert (setting.name, setting.batch) == ("attributes_set", {"run_id": ["r"], "name": ["stage"], "value": ['"b"']})


def test_names_that_would_be_taken_for_a_second_call_are_refused(hf: Holdfast) -> None:
    refused: list[str] = []

    @hf.workflow
    async def work(run: Run) -> None:
        for call in (lambda: run.set("stage#2", 1), lambda: run.signal("go#2")):
            try:
                call()
            except ConfigError as error:
                refused.append(error.field)

    work.start(id="r")
    run_due(hf)
    assert refused == ["name", "signal"]
    with pytest.raises(ConfigError, match="#"):
        hf.signal("r", "go#2")


def test_a_run_whose_rows_the_database_refuses_whatever_they_say_is_a_failed_attempt(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    insist = RunExecutor.insist

    async def refusing(self: RunExecutor, work: Flow[Any]) -> Any:
        if work.name == "checkpoint":
            asked.append(work.name)
            raise StoreError("value too long")
        return await insist(self, work)

    monkeypatch.setattr(RunExecutor, "insist", refusing)

    @hf.workflow(retry=Retry(1))
    async def work(run: Run) -> None:
        await run.step(len, "ab")

    work.start(id="r")
    [ended] = run_due(hf, raise_errors=False)
    assert (ended.outcome, "value too long" in str(ended.error), len(asked)) == ("dead", True, 2)
