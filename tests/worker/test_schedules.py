"""Workers and schedules: stored at the start, ticked by any worker, also those of other applications."""

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job, events, schedules
from holdfast.worker import Worker
from holdfast.worker.rounds import schedules as module
from holdfast.worker.rounds.schedules import Schedules
from tests.worker.stage import Stage

YESTERDAY = timedelta(days=1)


@contextmanager
def past(hf: Holdfast, ago: timedelta = YESTERDAY) -> Any:
    """Let the application act as if it were earlier."""
    hf.store.now = datetime.now(UTC) - ago
    try:
        yield
    finally:
        hf.store.now = None


def reporting(stage: Stage) -> Holdfast:
    """Make an application with a handler to schedule, and nothing declared."""
    hf = stage.app()

    @hf.job
    async def report() -> None: ...

    return hf


def owed(stage: Stage, *names: str, ago: timedelta = YESTERDAY, **said: Any) -> None:
    """Store schedules that owe ticks, declared by an application that is gone."""
    hf = reporting(stage)
    for name in names:
        hf.schedule(name, hf.handlers["report"].bind(), **said)
    with past(hf, ago):
        hf.sync_schedules()
    hf.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Schedules]:
    """The rounds that workers make."""
    found: list[Schedules] = []
    init = Schedules.__init__
    monkeypatch.setattr(Schedules, "__init__", lambda self, context: (init(self, context), found.append(self))[0])
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look often."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.03)
    monkeypatch.setattr(module, "IDLE_LOOK_SECONDS", 0.03)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.03)
    monkeypatch.setattr(module, "SOON_SECONDS", 0.0)


def test_a_worker_stores_what_its_application_declares_and_runs_what_is_owed(stage: Stage) -> None:
    seen: list[dict[str, str]] = []
    hf = stage.app()

    @hf.job
    async def report(job: Job, day: str) -> None:
        seen.append(dict(job.headers))

    hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *", timezone="Europe/Berlin")
    with past(hf):
        hf.sync_schedules()

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobDone)

    stage.work(body, hf=hf)
    [ticked] = stage.heard(events.ScheduleTicked)
    assert (ticked.schedule, ticked.kind, ticked.created) == ("nightly", "report", True)
    assert 0 <= ticked.late < 86_400
    assert [one["holdfast-tick"] for one in seen] == [ticked.tick]
    # The next worker finds it done.
    again = stage.app()

    @again.job(kind="report")
    async def report_again(day: str) -> None: ...

    async def look(_: Worker) -> None:
        await stage.until(lambda: [e for e in stage.heard(events.ScheduleStored) if e.schedule == "other"])

    again.schedule("other", report_again.bind(day="x"), every=timedelta(days=30))
    stage.work(look, hf=again)
    assert len(stage.heard(events.ScheduleTicked)) == 1
    assert [one.name for one in stage.run(schedules.listed())] == ["nightly", "other"]


def test_a_short_interval_ticks_about_on_time(stage: Stage) -> None:
    hf = stage.app()

    @hf.job
    async def beat() -> None: ...

    hf.schedule("often", beat.bind(), every=1)

    async def body(_: Worker) -> None:
        await stage.until_said(events.ScheduleTicked, 2)
        await stage.until_said(events.JobDone, 2)

    stage.work(body, hf=hf)
    said = stage.heard(events.ScheduleTicked)
    assert len({one.tick for one in said}) == len({one.id for one in said}) == len(said)


def test_a_worker_ticks_what_it_neither_declared_nor_handles(stage: Stage) -> None:
    theirs, ours = stage.app(), reporting(stage)

    @theirs.job(queue="far", kind="unknown-here")
    async def unknown() -> None: ...

    theirs.schedule("theirs", unknown.bind(), every=60)
    with past(theirs):
        theirs.sync_schedules()
    theirs.close()

    async def body(_: Worker) -> None:
        await stage.until_said(events.ScheduleTicked)

    stage.work(body, hf=ours)
    assert stage.sql("select queue, kind, state from holdfast_jobs")[0][:3] == ("far", "unknown-here", "pending")


@pytest.mark.usefixtures("quick")
def test_several_workers_tick_each_schedule_once(stage: Stage) -> None:
    names = [f"s{n:02}" for n in range(12)]
    owed(stage, *names, ago=timedelta(days=3), every=timedelta(days=1), catch_up="all")
    apps = [reporting(stage) for _ in range(3)]

    async def scene() -> None:
        workers = [app.worker(concurrency=5) for app in apps]
        for worker in workers:
            await worker.start()
        await stage.until_said(events.JobDone, 36)
        for worker in workers:
            worker.stop()
            await worker._end()
        for app in apps:
            await app.aclose()

    asyncio.run(scene())
    ticked = stage.heard(events.ScheduleTicked)
    assert len(ticked) == len({one.id for one in ticked}) == 36
    assert stage.sql("select count(*) from holdfast_finished")[0][0] == 36


@pytest.mark.usefixtures("quick")
def test_full_slots_do_not_hold_up_a_tick(stage: Stage) -> None:
    hf, held = reporting(stage), asyncio.Event()

    @hf.job
    async def long() -> None:
        await held.wait()

    long.enqueue()

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobStarted)
        await asyncio.to_thread(owed, stage, "nightly", every=60)
        await stage.until_said(events.ScheduleTicked)
        assert not stage.heard(events.JobDone)
        held.set()
        await stage.until_said(events.JobDone, 2)

    stage.work(body, hf=hf, concurrency=1)


@pytest.mark.usefixtures("quick")
def test_trouble_with_one_schedule_is_told_once_and_holds_up_no_other(stage: Stage, made: list[Schedules]) -> None:
    owed(stage, "bad", "good", cron="* * * * *")
    stage.sql("update holdfast_schedules set timezone = 'Mars/Olympus' where name = 'bad'")

    async def body(worker: Worker) -> None:
        await stage.until_said(events.JobDone)
        for _ in range(3):
            await made[0].run()
        assert worker.failure is None

    stage.work(body, hf=reporting(stage))
    assert {one.schedule for one in stage.heard(events.ScheduleTicked)} == {"good"}
    [failed] = stage.heard(events.ScheduleFailed)
    assert failed.schedule == "bad"
    assert "Mars/Olympus" in failed.error


def test_ticks_that_are_left_out_are_told(stage: Stage) -> None:
    owed(stage, "nightly", ago=timedelta(days=5), every=timedelta(days=1), catch_up="one")

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobDone)

    stage.work(body, hf=reporting(stage))
    [skipped] = stage.heard(events.TicksSkipped)
    [ticked] = stage.heard(events.ScheduleTicked)
    assert (skipped.schedule, skipped.count, skipped.catch_up) == ("nightly", 4, "one")
    assert skipped.first < skipped.last < ticked.tick


@pytest.mark.usefixtures("quick")
def test_an_old_version_beside_a_new_one_keeps_its_hands_off_and_says_so_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARE_SECONDS", 0.03)
    old, new = reporting(stage), reporting(stage)
    for app, cron in ((old, "0 2 * * *"), (new, "0 3 * * *")):
        app.schedule("nightly", app.handlers["report"].bind(), cron=cron)

    def cron() -> str | None:
        return stage.run(schedules.listed("nightly"))[0].cron

    async def scene() -> None:
        first, second, third = old.worker(name="old"), new.worker(name="new"), old.worker(name="old")
        await first.start()
        await stage.until_said(events.ScheduleStored)
        await second.start()
        await stage.until_said(events.ScheduleStored, 2)
        # One of the old version starts again in the middle of the deployment.
        await third.start()
        await stage.until_said(events.ScheduleKept, 2)
        assert cron() == "0 3 * * *"
        # The deployment is rolled back: once the new version is gone, the old one counts again.
        second.stop()
        await second._end()
        await stage.until(lambda: cron() == "0 2 * * *")
        for worker in (first, third):
            worker.stop()
            await worker._end()
        for app in (old, new):
            await app.aclose()

    asyncio.run(scene())
    kept = stage.heard(events.ScheduleKept)
    assert len(kept) == len({one.worker for one in kept}) == 2
    assert [(one.what, one.when) for one in stage.heard(events.ScheduleStored)] == [
        ("created", "0 2 * * * UTC"),
        ("changed", "0 3 * * * UTC"),
        ("changed", "0 2 * * * UTC"),
    ]


def test_a_worker_without_schedules_looks_rarely(sqlite_stage: Stage, made: list[Schedules]) -> None:
    async def body(_: Worker) -> None:
        await sqlite_stage.until(lambda: made[0].next_in > module.LOOK_SECONDS)
        # With one that ticks in the far future it looks more often, to see changes in time.
        await asyncio.to_thread(owed, sqlite_stage, "yearly", ago=timedelta(0), cron="@yearly")
        await made[0].run()
        assert 0 < made[0].next_in <= module.LOOK_SECONDS

    sqlite_stage.work(body, hf=reporting(sqlite_stage))


def test_a_tick_that_comes_soon_is_waited_for(sqlite_stage: Stage, made: list[Schedules]) -> None:
    async def body(_: Worker) -> None:
        await sqlite_stage.until(lambda: made[0].next_in > module.LOOK_SECONDS)
        await asyncio.to_thread(owed, sqlite_stage, "often", ago=timedelta(0), every=1)
        await made[0].run()
        assert made[0].next_in <= 1 + module.SPREAD_SECONDS

    sqlite_stage.work(body, hf=reporting(sqlite_stage))
