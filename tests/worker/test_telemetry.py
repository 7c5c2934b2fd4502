"""What events say for metrics and traces: source, queue, how long a job waited and ran, and the size of batches."""

import asyncio
import logging
import math
import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Cancel, Fatal, Holdfast, Retry, Run, Snooze, events, observe
from holdfast.observe import Tallies
from holdfast.values.rows import Lease
from holdfast.worker import Worker
from holdfast.worker.db_clock import DbClock
from holdfast.worker.rounds.clocks import Clocks
from holdfast.worker.work import Work
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=2, first_delay=0, max_delay=0, jitter=0)


def measured(event: events.JobEvent) -> tuple[str, str, bool, bool]:
    """Tell the labels of an event, and whether it says how long the job waited and ran."""
    return (event.source, event.queue, event.waited is not None, event.duration is not None)


def test_job_events_say_source_queue_waiting_time_and_duration(stage: Stage) -> None:
    @stage.hf.job(queue="mail", retry=AT_ONCE)
    async def act(what: str) -> Any:
        await asyncio.sleep(0.02)
        if what == "raise":
            raise ValueError(what)
        return {"snooze": Snooze(1000), "cancel": Cancel(), "die": Fatal("no hope"), "return": None}[what]

    for what in ("return", "raise", "snooze", "cancel", "die"):
        act.enqueue(what=what)

    async def body(_: Any) -> None:
        for kind in (events.JobDone, events.JobRetried, events.JobSnoozed, events.JobCancelled):
            await stage.until_said(kind)
        await stage.until_said(events.JobDead, 2)

    stage.work(body, poll=0.05)
    for kind in (events.JobDone, events.JobRetried, events.JobSnoozed, events.JobCancelled, events.JobDead):
        assert {measured(event) for event in stage.heard(kind)} == {("jobs", "mail", True, True)}, kind
        assert min(event.duration for event in stage.heard(kind)) > 0.01
    assert {measured(event) for event in stage.heard(events.JobStarted)} == {("jobs", "mail", True, False)}
    [done] = stage.heard(events.JobDone)
    assert done.duration == done.seconds


def test_a_log_line_tells_seconds_to_the_microsecond_and_the_event_all_that_was_measured() -> None:
    done = events.JobDone("w1", "1", "act", "mail", 1, 0.0062800419, waited=0.25, duration=0.0062800419)
    assert "seconds=0.00628," in str(done)
    assert "duration=0.00628" in str(done)
    assert "attempt=1," in str(done)
    assert done.fields()["duration"] == 0.0062800419


def test_waiting_time_counts_from_the_moment_a_job_is_due(sqlite_stage: Stage) -> None:
    stage = sqlite_stage

    @stage.hf.job
    async def act() -> None: ...

    old, late = act.enqueue(), act.using(run_after=timedelta(seconds=0.2)).enqueue()
    stage.sql("update holdfast_jobs set available_at = available_at - 60000000 where id = ?", old.id)
    stage.work(poll=0.02)
    waited = {event.id: event.waited for event in stage.heard(events.JobStarted)}
    assert 60 <= waited[old.id] < 120
    assert 0 <= waited[late.id] < 60


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
def test_waiting_time_goes_by_the_clock_of_the_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    wrong = time.time
    monkeypatch.setattr("time.time", lambda: wrong() + 3600 * hours)

    @stage.hf.job
    async def act() -> None: ...

    @stage.hf.job
    def on_a_thread() -> None: ...

    @stage.hf.workflow
    async def flow(run: Run) -> None: ...

    act.enqueue()
    on_a_thread.enqueue()
    flow.start(id="a")
    time.sleep(0.05)
    stage.work(poll=0.02)
    waited = [event.waited for event in stage.heard(events.JobDone)]
    assert len(waited) == 3
    assert all(0.04 < seconds < 60 for seconds in waited), waited
    counted = stage.run(observe.history(600)).figures()
    assert counted.waits.count == 3
    assert 0.03 < counted.waits.total < 180


def test_the_clocks_are_compared_again_and_again(sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clocks, "every_seconds", 0.01)

    @sqlite_stage.hf.job
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        [branch] = worker.branches
        for _ in range(2):
            branch.clock.learn_offset(0.0)
            await sqlite_stage.until(lambda: abs(branch.clock.at(time.monotonic()) - time.time()) < 5)

    sqlite_stage.work(body)


def test_without_the_databases_time_the_hosts_is_taken() -> None:
    clock = DbClock()
    assert not clock.known
    assert abs(clock.at(time.monotonic() - 7) - (time.time() - 7)) < 5
    clock.learn(5_000_000.0)
    assert abs(clock.at(time.monotonic() - 7) - (5_000_000 - 7)) < 5


def test_a_job_that_never_started_has_neither_waited_nor_run(sqlite_stage: Stage) -> None:
    stage = sqlite_stage

    @stage.hf.job
    async def act() -> None: ...

    act.enqueue()
    stage.sql("update holdfast_jobs set cancel_requested = 1")
    stage.work()
    assert [measured(event) for event in stage.heard(events.JobCancelled)] == [("jobs", "default", False, False)]


def test_claims_and_settles_say_how_many_jobs_and_how_long(stage: Stage) -> None:
    @stage.hf.job
    async def act(n: int) -> None: ...

    stage.hf.enqueue_many([act.bind(n=n) for n in range(50)])

    async def body(_: Any) -> None:
        await stage.until(lambda: sum(event.count for event in stage.heard(events.JobsSettled)) == 50)

    stage.work(body)
    assert sum(event.count for event in stage.heard(events.JobsClaimed)) == 50
    batches = [*stage.heard(events.JobsClaimed), *stage.heard(events.JobsSettled)]
    assert {event.source for event in batches} == {"jobs"}
    assert min(event.seconds for event in batches) > 0
    assert [event.lost for event in stage.heard(events.JobsSettled) if event.lost] == []


def test_nothing_is_measured_for_jobs_that_are_done_when_nobody_listens(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Work] = []
    monkeypatch.setattr(Work, "waited", lambda work: measured.append(work))
    # Statistics time a share of all attempts.
    monkeypatch.setattr(Tallies, "count", lambda *_: None)
    quiet = Holdfast(sqlite_stage.url)

    @quiet.job
    async def act() -> None: ...

    job = act.enqueue()
    sqlite_stage.work(hf=quiet)
    assert (sqlite_stage.state(job), measured) == ("done", [])


def test_nothing_is_measured_for_jobs_that_fail_when_nobody_listens(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured: list[Work] = []
    monkeypatch.setattr(Work, "waited", lambda work: measured.append(work))
    # Statistics time a share of all attempts.
    monkeypatch.setattr(Tallies, "count", lambda *_: None)
    caplog.set_level(logging.CRITICAL, "holdfast")
    quiet = Holdfast(sqlite_stage.url)

    @quiet.job(retry=AT_ONCE)
    async def act() -> None:
        raise ValueError("again and again")

    job = act.enqueue()
    sqlite_stage.work(hf=quiet, poll=0.02)
    assert (sqlite_stage.state(job), len(sqlite_stage.show(job).errors), measured) == ("dead", 2, [])


def test_failures_are_logged_for_people(sqlite_stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    quiet = Holdfast(sqlite_stage.url)

    @quiet.job(retry=AT_ONCE)
    async def act() -> None:
        raise ValueError("again and again")

    job = act.enqueue()
    sqlite_stage.work(hf=quiet, poll=0.02)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "holdfast"]
    [retried] = [line for level, line in lines if level == "WARNING"]
    [dead] = [line for level, line in lines if level == "ERROR"]
    about = f"id={job.id}, kind=act, queue=default, attempt"
    said = "error=ValueError: again and again, source=jobs, waited="
    assert (retried[:20], dead[:17]) == ("job retried: worker=", "job dead: worker=")
    assert f"{about}=1, delay=0.0, {said}" in retried
    assert f"{about}=2, {said}" in dead


@pytest.mark.parametrize("due", [math.inf, -math.inf, math.nan, 2**63 - 1, -(2**63), "noon", None])
def test_a_due_time_that_is_in_no_calendar_is_no_trouble(due: Any) -> None:
    lease = Lease("1", "default", "act", "{}", None, None, 0, 1, 5, 1, 1000, due, 0)
    work = Work(lease, None, True, 1.0)  # type: ignore[arg-type]
    work.started = 1.0
    waited = work.waited()
    assert waited is not None
    assert 0 <= waited < 1e12
