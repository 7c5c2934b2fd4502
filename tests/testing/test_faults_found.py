"""The history checker against real faults: each breaks the tables under a worker that runs, and the rule for it speaks.

A trigger does to the rows what a fault in the code would do, so that the code itself need not be broken by hand.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast import Continue, Holdfast, admin
from holdfast.jobs.source import JobsSource
from holdfast.testing.history import History, Recorder
from holdfast.testing.rules import Promises, by_rule
from holdfast.values.queues import QueueSettings
from tests.worker.conftest import migrated_file, sqlite_stage  # noqa: F401
from tests.worker.stage import Stage

PROMISES: Promises = {"ordered": ["orders"], "concurrency": {"stripe": 2}, "chains": ["begin"], "once": True}
AGAIN = """
    create trigger fault after delete on holdfast_jobs when old.kind = 'charge' and old.fence = 1 begin
        insert into holdfast_jobs (id, queue, kind, payload, available_at, created_at, max_attempts, fence)
        values (old.id, old.queue, old.kind, old.payload, 0, 0, 5, 1);
    end"""
TWICE = """
    create trigger fault after insert on holdfast_jobs when new.kind = 'go_on' begin
        insert into holdfast_jobs (id, queue, kind, payload, headers, available_at, created_at, max_attempts)
        values (substr(new.id, 1, 32) || 'ffff', new.queue, new.kind, new.payload, new.headers, 0, 0, 5);
    end"""
# By what is wrong: the fault, and the rule that must name it.
FAULTS = {
    "a limit gives back too much": (
        "create trigger fault after update on holdfast_queues begin update holdfast_queues set held = 0; end",
        "a queue ran more jobs at once than its limit",
    ),
    "a continuation is added twice": (TWICE, "a completion has not one continuation"),
    "a job that has ended is not taken away": (AGAIN, "a job ran twice"),
    "an end is not written": (
        "create trigger fault after insert on holdfast_finished when new.kind = 'ship' begin"
        " delete from holdfast_finished where id = new.id; end",
        "an acknowledged job is lost",
    ),
}


def lock_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worker take an ordered queue for a plain one, so that it locks no line."""
    learn = JobsSource.learn_settings

    def forgetful(source: JobsSource, settings: Mapping[str, QueueSettings]) -> None:
        learn(source, {queue: said for queue, said in settings.items() if queue != "orders"})

    monkeypatch.setattr(JobsSource, "learn_settings", forgetful)


def shop(hf: Holdfast, recorder: Recorder) -> None:
    """Declare the jobs, and enqueue some of each."""
    hf.queue("orders", ordered=True)
    hf.queue("stripe", concurrency=2)

    @hf.job(queue="orders", key="{key}")
    async def ship(key: str) -> None:
        await asyncio.sleep(0.02)

    @hf.job(queue="stripe")
    async def charge() -> None:
        await asyncio.sleep(0.02)

    @hf.job
    async def go_on() -> None: ...

    @hf.job
    async def begin() -> Continue:
        return Continue(go_on.bind())

    for queue, key, job in (("orders", "a", ship.bind("a")), ("stripe", None, charge.bind())):
        for _ in range(8):
            with recorder.enqueue(queue, key) as note:
                note(hf.enqueue_many([job]))
    begin.enqueue()


def rules_broken(stage: Stage, folder: Path, trigger: str = "select 1") -> set[str]:
    """Let a worker run through the shop's jobs with a fault, and return the rules that its history breaks."""
    recorder = Recorder(folder / "history.jsonl")
    recorder.attach(stage.hf)
    shop(stage.hf, recorder)
    stage.sql(trigger)
    stage.work(poll=0.02)
    recorder.close()
    history = History.read([folder / "history.jsonl"])
    history.learn(stage.run(admin.list_jobs(admin.ALL, 100, None, newest=False)))
    return {rule for rule, found in by_rule(history, **PROMISES).items() if list(found)}


def test_without_a_fault_no_rule_is_broken(sqlite_stage: Stage, tmp_path: Path) -> None:  # noqa: F811
    assert rules_broken(sqlite_stage, tmp_path) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_rule(sqlite_stage: Stage, tmp_path: Path, name: str) -> None:  # noqa: F811
    trigger, rule = FAULTS[name]
    assert rule in rules_broken(sqlite_stage, tmp_path, trigger)


def test_lines_that_are_not_locked_are_found(
    sqlite_stage: Stage,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock_no_line(monkeypatch)
    assert "jobs of one key ran at once" in rules_broken(sqlite_stage, tmp_path)
