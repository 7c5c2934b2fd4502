"""Remote steps of runs, with our own worker on the other side: results, failures, time-outs, cancels."""

import asyncio
import time
from typing import Any

import pytest

from holdfast import Fatal, Holdfast, Job, Retry, Run, events
from holdfast.errors import ConfigError, JobDead, StepFailed
from holdfast.flow import Rows, Statement, Steps, flow
from holdfast.foreign import DurableSteps
from holdfast.testing.inline import run_due
from holdfast.workflows import resume

QUICK = Retry(max_attempts=3, first_delay=0.01, factor=1.0, max_delay=0.01, jitter=0.0)
ONCE = Retry(max_attempts=1)
PATIENCE = 30.0


@flow
def statement(sql: str) -> Steps[Rows]:
    return (yield Statement("test", {}, text=sql))


def left(app: Holdfast) -> list[int]:
    """Count tasks, results, dispatches and letters."""
    tables = ("durable_transport_tasks", "durable_transport_results", "holdfast_dispatches", "holdfast_signals")
    return [int(app.store.run(statement(f"select count(*) from {name}"))[0][0]) for name in tables]  # noqa: S608


def served(app: Holdfast, **engine: Any) -> DurableSteps:
    """Declare an engine, and serve its steps here."""
    app.remote_engine(**{"lost_after": 0.3, "poll": 0.05} | engine)
    steps = app.foreign.durable(lease=1)
    steps.create_schema()

    @steps.step("echo")
    async def echo(value: Any) -> Any:
        return {"got": value}

    @steps.step("nothing")
    def nothing() -> None:
        return None

    @steps.step("third")
    def third(value: Any, job: Job) -> int:
        if job.attempt < 3:
            raise ValueError(f"not yet: {job.attempt}")
        return job.attempt

    @steps.step("fatal")
    def fatal(value: Any) -> None:
        raise Fatal("never", code="E1")

    @steps.step("slow")
    async def slow(value: float) -> str:
        await asyncio.sleep(value)
        return "slow"

    return steps


def ended(app: Holdfast, *handles: Any) -> list[Any]:
    """Work until runs are over; return their results."""

    async def work() -> list[Any]:
        async with app.worker(poll=0.05):
            found = list(await asyncio.gather(*(handle.aresult(timeout=PATIENCE) for handle in handles)))
        await app.aclose()
        return found

    return asyncio.run(work())


def test_results_failures_and_retries_reach_the_body(everywhere: Holdfast) -> None:
    served(everywhere)
    seen: list[events.RemoteStepEnded] = []
    everywhere.on(events.RemoteStepEnded, seen.append)

    @everywhere.workflow
    async def all_of_it(run: Run) -> list[Any]:
        found: list[Any] = [await run.remote("echo", {"text": "Çağrı 🎈"}), await run.remote("nothing")]
        found += await asyncio.gather(*(run.remote("echo", n) for n in range(5)))
        found.append(await run.remote("third", 1, retry=QUICK))
        for step in ("fatal", "nobody"):
            try:
                found.append(await run.remote(step, 1, retry=QUICK, timeout=0.5 if step == "nobody" else None))
            except StepFailed as error:
                found.append([error.code, error.text])
        return found

    [found] = ended(everywhere, all_of_it.start(id="r"))
    assert found[:2] == [{"got": {"text": "Çağrı 🎈"}}, None]
    assert found[2:7] == [{"got": n} for n in range(5)]
    assert found[7:9] == [3, ["E1", "never"]]
    assert "time-out of 0.5 s" in found[9][1]
    assert left(everywhere) == [0, 0, 0, 0]
    assert [one.attempt for one in seen if one.step == "third"] == [1, 2, 3]
    assert all(one.took is not None for one in seen if one.outcome == "done")


def test_how_long_a_step_waited_and_took_is_told_by_the_times_of_its_worker(everywhere: Holdfast) -> None:
    served(everywhere)
    seen: list[events.RemoteStepEnded] = []
    everywhere.on(events.RemoteStepEnded, seen.append)

    @everywhere.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("slow", 0.05)

    handle = waits.start(id="r")
    # Nobody serves its step for a moment.
    run_due(everywhere)
    time.sleep(0.05)
    ended(everywhere, handle)
    [one], [sent, taken] = seen, handle.history()
    assert one.waited is not None
    assert one.took is not None
    # Times of workers are in whole milliseconds.
    assert one.waited >= 0.048
    assert one.took >= 0.048
    assert one.waited + one.took <= (taken.at - sent.at) / 1_000_000 + 0.004


def test_the_tables_are_made_at_their_first_use(everywhere: Holdfast) -> None:
    seen: list[events.DatabaseLost] = []
    everywhere.on(events.DatabaseLost, seen.append)
    everywhere.remote_engine("fresh", poll=0.05)

    @everywhere.workflow
    async def hasty(run: Run) -> str:
        try:
            await run.remote("nobody", timeout=0.3, retry=ONCE)
        except StepFailed as error:
            return error.text
        return "done by nobody"

    [found] = ended(everywhere, hasty.start(id="r"))
    assert "time-out" in found
    assert seen == []


def test_a_run_that_waits_for_a_remote_step_is_a_row(everywhere: Holdfast) -> None:
    """And is run on by `run_due` once the result is there."""
    served(everywhere)

    @everywhere.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("echo", 1)

    handle = waits.start(id="r")
    run_due(everywhere)
    assert handle.status() == "waiting"
    assert everywhere.run("r").get().waits_for == "remote"
    insert = (
        "insert into durable_transport_results (step_id, run_id, seq, status, output, created_at)"
        " select step_id, run_id, seq, 'completed', '7', 1 from durable_transport_tasks"
    )
    everywhere.store.run(statement(insert))
    run_due(everywhere)
    assert handle.result(timeout=0) == 7
    assert left(everywhere) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "status, output, error, said",
    [
        ("completed", "{broken", None, "is not JSON"),
        ("completed", "NaN", None, "NaN"),
        ("completed", '"text"', None, "does not fit"),
        ("weird", "1", None, "neither completed nor failed"),
        ("failed", None, "not json either", "not json either"),
        ("failed", None, None, "said nothing"),
        ("failed", None, '{"message": "why", "code": 7, "retryable": false, "stack": "at x"}', "why"),
    ],
)
def test_a_result_that_cannot_be_read_is_a_failed_step(
    hf: Holdfast, status: str, output: str | None, error: str | None, said: str
) -> None:
    served(hf)

    @hf.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("echo", 1, type=int, retry=ONCE)

    handle = waits.start(id="r")
    run_due(hf)
    hf.store.run(statement("update durable_transport_tasks set name = 'x'"))
    shown = [f"'{text}'" if text is not None else "null" for text in (output, error)]
    insert = (
        "insert into durable_transport_results (step_id, run_id, seq, status, output, error, created_at)"  # noqa: S608
        f" select step_id, run_id, seq, '{status}', {shown[0]}, {shown[1]}, 1 from durable_transport_tasks"
    )
    hf.store.run(statement(insert))
    run_due(hf, raise_errors=False)
    with pytest.raises(JobDead, match="StepFailed"):
        handle.result(timeout=0)
    [row] = [row for row in handle.history() if row.kind == "remote"]
    assert said in (row.value or "")


def test_a_result_is_taken_at_once_also_by_a_run_that_stays_for_a_near_deadline(hf_file: Holdfast) -> None:
    served(hf_file)
    seen: list[events.RemoteStepEnded] = []
    hf_file.on(events.RemoteStepEnded, seen.append)

    @hf_file.workflow
    async def hasty(run: Run) -> list[Any]:
        return [await run.remote("echo", n, timeout=0.9) for n in range(8)]

    handle = hasty.start(id="r")
    assert ended(hf_file, handle) == [[{"got": n} for n in range(8)]]
    rows = handle.history()
    # Not only when the time was over, nor by the look that comes once a second.
    assert rows[-1].at - rows[0].at < 8 * 900_000


def test_a_step_longer_than_the_lease_of_its_worker_runs_once(hf_file: Holdfast) -> None:
    served(hf_file)

    @hf_file.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("slow", 1.5)

    handle = waits.start(id="r")
    assert ended(hf_file, handle) == ["slow"]
    assert [row.kind for row in handle.history()] == ["dispatch", "remote"]


def test_a_branch_that_is_cancelled_takes_its_step_back(everywhere: Holdfast) -> None:
    served(everywhere)

    @everywhere.workflow
    async def hasty(run: Run) -> str:
        try:
            async with asyncio.timeout(0.2):
                await run.remote("slow", 60)
        except TimeoutError:
            pass
        await run.sleep(0.05)
        return "went on"

    assert ended(everywhere, hasty.start(id="r")) == ["went on"]
    assert left(everywhere) == [0, 0, 0, 0]


def test_a_run_that_is_cancelled_takes_its_steps_back(hf_file: Holdfast) -> None:
    served(hf_file)

    @hf_file.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("slow", 60, name="long")

    handle = waits.start(id="r")

    async def work() -> None:
        async with hf_file.worker(poll=0.05):
            while await handle.astatus() != "waiting":  # noqa: ASYNC110 - another worker's doing
                await asyncio.sleep(0.01)
            await handle.acancel()
            while await handle.astatus() != "cancelled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await hf_file.aclose()

    asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert left(hf_file) == [0, 0, 0, 0]


def test_a_clean_up_may_wait_for_remote_steps_with_time_outs(hf_file: Holdfast) -> None:
    """After a cancel nothing else is asked for: neither signals nor another request to stop."""
    served(hf_file)

    @hf_file.workflow
    async def tidy(run: Run) -> list[Any]:
        found: list[Any] = []
        try:
            await run.sleep(60)
        except asyncio.CancelledError:
            for step, timeout in (("nobody", 0.2), ("echo", 5), ("nobody", 0.1)):
                try:
                    found.append(await run.remote(step, 1, timeout=timeout, retry=ONCE))
                except StepFailed:
                    found.append("late")
        return found

    handle = tidy.start(id="r")

    async def work() -> Any:
        async with hf_file.worker(poll=0.05):
            while await handle.astatus() != "waiting":  # noqa: ASYNC110 - another worker's doing
                await asyncio.sleep(0.01)
            await handle.acancel()
            found = await handle.aresult(timeout=PATIENCE)
        await hf_file.aclose()
        return found

    assert asyncio.run(work()) == ["late", {"got": 1}, "late"]


def test_many_steps_at_once_each_get_their_own_result(hf_file: Holdfast) -> None:
    served(hf_file)

    @hf_file.workflow
    async def fans_out(run: Run) -> list[Any]:
        return list(await asyncio.gather(*(run.remote("echo", n) for n in range(300))))

    assert ended(hf_file, fans_out.start(id="r")) == [[{"got": n} for n in range(300)]]
    assert left(hf_file) == [0, 0, 0, 0]


def test_a_body_that_ends_without_its_step_takes_it_back(hf_file: Holdfast) -> None:
    served(hf_file)

    @hf_file.workflow
    async def leaves(run: Run) -> str:
        run.remote("slow", 60)
        await run.sleep(0.3)
        return "left"

    assert ended(hf_file, leaves.start(id="r")) == ["left"]
    assert left(hf_file) == [0, 0, 0, 0]


def test_a_run_without_its_engine_is_stuck_and_says_what_to_do(hf: Holdfast) -> None:
    @hf.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("echo", 1)

    handle = waits.start(id="r")
    run_due(hf, raise_errors=False)
    assert handle.status() == "stuck"
    assert "hf.remote_engine(" in (hf.run("r").get().stuck or "")


def test_an_engine_is_declared_once_and_named_where_there_are_several(hf: Holdfast) -> None:
    hf.remote_engine("one")
    hf.remote_engine("two")
    with pytest.raises(ConfigError, match="declared once"):
        hf.remote_engine("one")

    @hf.workflow
    async def which(run: Run) -> Any:
        return await run.remote("echo", 1)

    handle = which.start(id="r")
    run_due(hf, raise_errors=False)
    assert handle.status() == "stuck"
    assert "here are one, two" in (hf.run("r").get().stuck or "")


def test_a_dead_run_that_is_resumed_has_its_step_done_again(hf_file: Holdfast) -> None:
    steps = served(hf_file)
    broken = True

    @steps.step("healed")
    def healed(value: Any) -> str:
        if broken:
            raise Fatal("broken")
        return "well"

    @hf_file.workflow
    async def waits(run: Run) -> Any:
        return await run.remote("healed", 1)

    handle = waits.start(id="r")
    with pytest.raises(JobDead):
        ended(hf_file, handle)
    broken = False
    hf_file.store.run(resume("r", None))
    assert ended(hf_file, handle) == ["well"]


def test_an_input_that_is_too_large_fails_the_step(hf: Holdfast) -> None:
    served(hf)

    @hf.workflow
    async def large(run: Run) -> Any:
        try:
            return await run.remote("echo", "x" * 2_000_000)
        except StepFailed as error:
            return error.text

    handle = large.start(id="r")
    run_due(hf)
    assert "more than the limit" in handle.result(timeout=0)
    assert left(hf) == [0, 0, 0, 0]
