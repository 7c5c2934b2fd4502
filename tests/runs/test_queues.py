"""A run is a job: schedules start it, order keeps its place, and limits count it while a worker holds it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Run
from holdfast.events import RunParked
from holdfast.testing.inline import run_due, skip
from tests.runs.noting import calls, note, outcomes

HOUR = timedelta(hours=1)
PATIENCE = 60.0


@pytest.fixture
def half_past(everywhere: Holdfast) -> Holdfast:
    """An application on each database, at half past some hour: ticks come at full hours."""
    everywhere.store.now = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
    return everywhere


def test_a_tick_of_a_schedule_starts_a_run(half_past: Holdfast) -> None:
    @half_past.workflow
    async def report(run: Run, day: str) -> Any:
        return await run.step(note, day)

    half_past.schedule("hourly", report.bind(day="monday"), every=HOUR)
    assert run_due(half_past) == []
    assert [(one.kind, one.outcome) for one in run_due(half_past, ahead=HOUR)] == [("report@1", "done")]
    [view] = half_past.runs(workflow="report")
    assert (view.status, view.id, calls) == ("done", view.job_id, ["monday"])


def test_a_run_that_a_schedule_started_parks_and_goes_on_as_any_other(half_past: Holdfast) -> None:
    @half_past.workflow
    async def report(run: Run) -> Any:
        await run.step(note, (run.id, "made"))
        by = await run.signal("approved")
        await run.sleep(HOUR)
        await run.step(note, (run.id, "sent"))
        return by

    half_past.schedule("hourly", report.bind(), every=HOUR)
    run_due(half_past)
    skip(half_past, hours=1)
    [view] = half_past.runs(workflow="report")
    assert (view.status, view.waits_for) == ("waiting", "signal:approved")
    half_past.signal(view.id, "approved", "ada")
    assert outcomes(half_past) == ["waiting"]
    skip(half_past, hours=1)
    assert half_past.run(view.id).result(0) == "ada"
    assert [what for run, what in calls if run == view.id] == ["made", "sent"]
    # The hour that passed has brought a run of its own.
    assert [one.status for one in half_past.runs(workflow="report")] == ["waiting", "done"]


def test_a_run_in_an_ordered_queue_keeps_its_place_while_it_is_parked(half_past: Holdfast) -> None:
    """The next run of its key waits for its end, whatever it waits for; those of other keys do not."""
    half_past.queue("orders", ordered=True)

    @half_past.workflow(queue="orders")
    async def fulfil(run: Run, n: int) -> None:
        await run.step(note, f"{n} began")
        await run.signal("go")
        await run.sleep(HOUR)
        await run.step(note, f"{n} ended")

    for n, key in ((1, "a"), (2, "a"), (3, "b")):
        fulfil.using(key=key).start(n=n, id=f"r{n}")
    assert outcomes(half_past) == ["waiting", "waiting"]
    assert calls == ["1 began", "3 began"]
    for n in (1, 2):
        half_past.signal(f"r{n}", "go")
    # Past its signal the first waits for a timer, and is in front of the other still.
    assert outcomes(half_past) == ["waiting"]
    assert calls == ["1 began", "3 began"]
    skip(half_past, hours=1)
    assert calls[2:] == ["1 ended", "2 began"]
    skip(half_past, hours=1)
    assert calls[4:] == ["2 ended"]


def test_a_parked_run_is_passed_in_an_ordered_queue_that_says_so(everywhere: Holdfast) -> None:
    everywhere.queue("orders", ordered=True, on_retry="pass")

    @everywhere.workflow(queue="orders")
    async def fulfil(run: Run, n: int) -> None:
        await run.step(note, f"{n} began")
        await run.signal("go")

    for n in (1, 2):
        fulfil.using(key="a").start(n=n, id=f"r{n}")
    assert outcomes(everywhere) == ["waiting", "waiting"]
    assert calls == ["1 began", "2 began"]


def test_a_run_counts_towards_the_concurrency_of_its_queue_while_it_is_held_and_not_while_it_is_parked(
    everywhere: Holdfast,
) -> None:
    hf, at_work = everywhere, []
    hf.queue("narrow", concurrency=1)

    async def busy() -> int:
        at_work.append(1)
        await asyncio.sleep(0.02)
        now = len(at_work)
        at_work.pop()
        return now

    @hf.workflow(queue="narrow")
    async def fulfil(run: Run) -> int:
        others = await run.step(busy)
        await run.signal("go")
        return others

    async def main() -> list[int]:
        parked: set[str] = set()
        hf.on(RunParked, lambda one: parked.add(one.id))
        handles = await fulfil.astart_many({f"r{n}": fulfil.bind() for n in range(4)})
        async with hf.worker(concurrency=4, poll=0.05), asyncio.timeout(PATIENCE):
            while len(parked) < 4:  # noqa: ASYNC110 - events are told to a function
                await asyncio.sleep(0.01)
            for handle in handles:
                await handle.asignal("go")
            return [await handle.aresult(PATIENCE) for handle in handles]

    assert asyncio.run(main()) == [1] * 4
