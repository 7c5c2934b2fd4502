"""The rules of runs, each as a promise; what is about the body and its worker, and not about the database."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    ChildFailed,
    Conflict,
    Fatal,
    Holdfast,
    InvalidPayload,
    JobCancelled,
    JobDead,
    NoIO,
    NonDeterminism,
    Retry,
    Run,
    RunFinished,
    StepFailed,
)
from holdfast.errors import ConfigError
from holdfast.testing.inline import run_due, skip
from holdfast.workflows import Workflow
from tests.runs.noting import anote, calls, note, outcomes

QUICK = Retry(max_attempts=3, first_delay=0.0, jitter=0.0)


def keys(hf: Holdfast, run: str = "r") -> list[str]:
    return [row.key for row in hf.run(run).history()]


def swapped(hf: Holdfast, old: Workflow[..., Any], new: Any) -> None:
    """Deploy other code for the same version of a workflow."""
    del hf.handlers[old.kind]
    hf.workflow(name=old.workflow, version=old.number)(new)


# 1 identity


def test_1_a_key_belongs_to_the_call_and_counts_by_name(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> Any:
        late = run.step(note, "first called")
        await run.step(anote, "second called", name="other")
        return [await run.step(note, "third called"), await late]

    work.start(id="r")
    assert outcomes(hf) == ["done"]
    assert set(keys(hf)) == {"note", "other", "note#2"}
    assert hf.run("r").result(0) == ["third called", "first called"]


def test_1_arguments_of_today_that_differ_from_those_recorded_are_told_of(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(note, 1)
        await run.signal("go")

    async def other(run: Run) -> None:
        await run.step(note, 2)
        await run.signal("go")

    work.start(id="r")
    run_due(hf)
    swapped(hf, work, other)
    hf.signal("r", "go")
    with pytest.raises(NonDeterminism, match=r"note was recorded with other arguments.*\(2,\)"):
        run_due(hf)


# 2 replay


def test_2_a_run_is_told_the_same_again_and_makes_no_step_twice(hf: Holdfast) -> None:
    bodies = []

    @hf.workflow
    async def work(run: Run) -> Any:
        bodies.append(run.id)
        found = await asyncio.gather(run.step(note, 1), run.step(anote, 2))
        await run.signal("go")
        return [*found, await run.step(note, 3)]

    work.start(id="r")
    assert outcomes(hf) == ["waiting"]
    hf.signal("r", "go")
    assert outcomes(hf) == ["done"]
    assert hf.run("r").result(0) == [1, 2, 3]
    assert (bodies, sorted(calls)) == (["r", "r"], [1, 2, 3])


def test_2_the_winner_of_a_race_stays_the_winner(hf: Holdfast) -> None:
    told = False

    async def slow() -> str:
        while not told:  # noqa: ASYNC110 (what is told runs on another loop)
            await asyncio.sleep(0.005)
        return "slow"

    @hf.workflow
    async def work(run: Run) -> Any:
        nonlocal told
        tasks = [run.step(slow), run.step(note, "quick")]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        told = True
        won = [task.result() for task in done]
        await asyncio.wait(tasks)
        await run.signal("go")
        return won

    work.start(id="r")
    run_due(hf)
    hf.signal("r", "go")
    run_due(hf)
    assert hf.run("r").result(0) == ["quick"]


# 3 mismatch


def test_3_a_run_whose_code_has_changed_is_stuck_and_goes_on_when_it_fits_again(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> str:
        await run.step(note, 1)
        await run.signal("go")
        return "done"

    async def removed(run: Run) -> str:
        await run.signal("go")
        return "done"

    work.start(id="r")
    run_due(hf)
    swapped(hf, work, removed)
    hf.signal("r", "go")
    assert outcomes(hf) == ["stuck"]
    view = hf.run("r").get()
    assert (view.status, view.attempts) == ("stuck", 0)
    assert view.stuck == "recorded next: note; the code waits for: signal:go"
    assert outcomes(hf) == []
    assert outcomes(hf, ahead=61) == ["stuck"]
    swapped(hf, work, work.fn)
    assert outcomes(hf, ahead=122) == ["done"]
    assert (hf.run("r").status(), calls) == ("done", [1])


def test_3_a_stuck_run_can_be_ended_by_force(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        await asyncio.to_thread(print)

    handle = work.start(id="r")
    with pytest.raises(NoIO, match=r"await run\.step\(fn"):
        run_due(hf)
    assert handle.status() == "stuck"
    assert handle.cancel(force=True)
    assert handle.status() == "cancelled"


def test_3_a_body_that_waits_for_nothing_is_stuck_and_says_so(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        await asyncio.Event().wait()

    work.start(id="r")
    assert outcomes(hf) == ["stuck"]
    assert "waits for nothing" in str(hf.run("r").get().stuck)


# 4 versions


def test_4_a_run_keeps_the_version_that_it_was_started_with(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> str:
        await run.signal("go")
        return "one"

    work.start(id="old")
    run_due(hf)
    first: Any = work.fn
    del hf.handlers["work@1"]

    @hf.workflow(name="work", version=2)
    async def newer(run: Run) -> str:
        return "two"

    newer.start(id="new")
    hf.signal("old", "go")
    assert outcomes(hf) == ["done"]
    # Nobody serves version 1: it waits, and no attempt is used.
    assert (hf.run("old").status(), hf.run("old").get().kind, hf.run("new").result(0)) == ("pending", "work@1", "two")
    newer.version(1)(first)
    assert outcomes(hf) == ["done"]
    assert hf.run("old").result(0) == "one"


def test_4_a_patch_is_for_runs_that_had_not_come_that_far(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> Any:
        await run.step(note, "before")
        await run.signal("go")
        return await run.step(note, "after")

    async def patched(run: Run) -> Any:
        await run.step(note, "before")
        if run.patched("audit"):
            await run.step(note, "audit", name="audit")
        await run.signal("go")
        return await run.step(note, "after")

    work.start(id="past")
    run_due(hf)
    hf.signal("past", "go")
    work.start(id="r")
    swapped(hf, work, patched)
    hf.signal("r", "go")
    assert outcomes(hf) == ["done", "done"]
    # What was recorded of it ended just there.
    assert keys(hf, "past").count("audit") == 1
    assert "audit" in keys(hf)
    assert hf.run("past").result(0) == "after"


def test_4_a_run_that_was_past_the_point_of_a_patch_never_takes_it_and_one_that_took_it_always_does(
    hf: Holdfast,
) -> None:
    told: list[tuple[str, bool]] = []
    signals = ("go", "more", "end")

    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(note, "before")
        for name in signals:
            await run.signal(name)

    async def patched(run: Run) -> None:
        await run.step(note, "before")
        told.append((run.id, run.patched("audit")))
        if told[-1][1]:
            await run.step(note, "audit", name="audit")
        for name in signals:
            await run.signal(name)

    work.start(id="past")
    run_due(hf)
    hf.signal("past", "go")
    run_due(hf)
    swapped(hf, work, patched)
    work.start(id="new")
    run_due(hf)
    for name in signals:
        hf.signal("new", name)
        if name != "go":
            hf.signal("past", name)
        run_due(hf)
    # Each attempt of a run asks once: one for each time that it parked, and the last.
    assert [taken for run, taken in told if run == "past"] == [False] * 2
    assert [taken for run, taken in told if run == "new"] == [True] * 4
    assert keys(hf, "past") == ["note", "signal:go", "signal:more", "signal:end"]
    assert keys(hf, "new") == ["note", "patch:audit", "audit", "signal:go", "signal:more", "signal:end"]
    assert (hf.run("past").status(), hf.run("new").status()) == ("done", "done")


# 5 durable before visible


@dataclass
class Charge:
    id: str
    amount: float


def test_5_the_body_gets_what_was_stored_read_back_by_the_annotation(hf: Holdfast) -> None:
    seen = []

    def charge() -> Charge:
        return Charge("ch_1", 12.5)

    @hf.workflow
    async def work(run: Run) -> str:
        got = await run.step(charge)
        seen.append(got)
        await run.signal("go")
        return got.id

    work.start(id="r")
    run_due(hf)
    hf.signal("r", "go")
    run_due(hf)
    assert seen == [Charge("ch_1", 12.5)] * 2
    assert hf.run("r").result(0) == "ch_1"


# 6 free operations


def test_6_time_chance_and_timers_that_never_ring_cost_no_rows(hf: Holdfast) -> None:
    seen = []

    @hf.workflow
    async def work(run: Run) -> None:
        async with asyncio.timeout(3600):
            await run.step(note, 1)
        seen.append((run.now(), run.uuid(), run.random()))
        await run.signal("go")

    work.start(id="r")
    run_due(hf)
    hf.signal("r", "go")
    run_due(hf)
    assert seen[0] == seen[1]
    # `begin` rode along with the first: the body had asked for the time before that.
    assert keys(hf) == ["begin", "note", "signal:go"]


def test_6_a_sleep_that_comes_first_counts_from_the_start_of_the_run(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> list[datetime]:
        before = run.now()
        await run.sleep(timedelta(days=2))
        await run.sleep_until(run.now() + timedelta(days=1))
        return [before, run.now()]

    work.start(id="r")
    assert outcomes(hf) == ["waiting"]
    assert outcomes(hf, ahead=86_400 * 2 - 60) == []
    assert outcomes(hf, ahead=86_400 * 2 + 1) == ["waiting"]
    assert outcomes(hf, ahead=86_400 * 3 + 1) == ["done"]
    before, after = (datetime.fromisoformat(one) for one in hf.run("r", "work").result(0))
    assert timedelta(days=3) <= after - before < timedelta(days=3, seconds=5)


# 7 steps


@pytest.mark.parametrize("hours", [-1, 1], ids=["behind", "ahead"])
def test_6_waits_are_timed_by_the_databases_clock_however_wrong_the_hosts_is(
    everywhere: Holdfast, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    @everywhere.workflow
    async def wait(run: Run) -> None:
        await run.step(note, "begun")
        run.set("now", run.now().timestamp())
        await run.sleep(1800)

    handle = wait.start()
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600 * hours)
    run_due(everywhere)
    monkeypatch.undo()
    view = handle.get()
    assert (view.status, view.due_at is not None) == ("waiting", True)
    assert abs(view.attributes["now"] - right()) < 600
    assert view.due_at is not None
    assert abs(view.due_at.timestamp() - right() - 1800) < 600


def test_7_a_step_is_tried_again_and_its_attempts_survive(hf: Holdfast) -> None:
    def flaky() -> int:
        if note(1) and len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    @hf.workflow
    async def work(run: Run) -> int:
        return await run.step(flaky, retry=Retry(max_attempts=5, first_delay=60, jitter=0, factor=1))

    work.start(id="r")
    assert outcomes(hf) == ["waiting"]
    assert outcomes(hf) == []
    assert outcomes(hf, ahead=61) == ["waiting"]
    assert outcomes(hf, ahead=122) == ["done"]
    history = hf.run("r").history()
    assert [(row.kind, row.attempt) for row in history] == [("attempt", 1), ("attempt", 2), ("step", 3)]


@pytest.mark.parametrize("error", [ValueError("broken"), Fatal("broken", code=7)])
def test_7_a_step_that_fails_for_good_raises_in_the_body(hf: Holdfast, error: Exception) -> None:
    def fails() -> None:
        note(1)
        raise error

    @hf.workflow
    async def work(run: Run) -> Any:
        try:
            await run.step(fails, retry=QUICK)
        except StepFailed as failed:
            return [failed.key, failed.text, failed.code]

    work.start(id="r")
    assert outcomes(hf) == ["done"]
    code = getattr(error, "code", None)
    assert hf.run("r").result(0) == ["fails", "broken", code]
    assert len(calls) == (1 if code else 3)


def test_7_a_body_that_raises_ends_its_run_as_dead(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(note, 1)
        raise ValueError("no such order")

    handle = work.start(id="r")
    assert outcomes(hf) == ["dead"]
    with pytest.raises(JobDead, match="no such order"):
        handle.result(0)


@pytest.mark.parametrize("value", [object(), {1: 2}, "x" * 2_000_000])
def test_7_a_result_that_cannot_be_stored_fails_its_step_for_good(hf: Holdfast, value: Any) -> None:
    def gives() -> Any:
        note(1)
        return value

    @hf.workflow
    async def work(run: Run) -> Any:
        with pytest.raises(StepFailed):
            await run.step(gives)
        return "went on"

    work.start(id="r")
    assert outcomes(hf) == ["done"]
    assert calls == [1]


def test_7_a_step_that_takes_too_long_is_a_failed_attempt(hf: Holdfast) -> None:
    async def hangs() -> None:
        await asyncio.sleep(30)

    def blocks() -> None:
        time.sleep(0.05)

    @hf.workflow
    async def work(run: Run) -> list[str]:
        failed = await asyncio.gather(
            run.step(hangs, timeout=0.01, retry=Retry(1)),
            run.step(blocks, timeout=0.01, retry=Retry(1)),
            return_exceptions=True,
        )
        return [one.type for one in failed if isinstance(one, StepFailed)]

    work.start(id="r")
    assert outcomes(hf) == ["done"]
    assert hf.run("r").result(0) == ["holdfast.errors.TimedOut"] * 2


def test_7_run_is_for_the_body_alone(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> str:
        async def inner() -> None:
            await run.step(note, 1)

        with pytest.raises(StepFailed, match="for the body"):
            await run.step(inner, retry=Retry(1))
        return "ok"

    work.start(id="r")
    assert outcomes(hf) == ["done"]


# 8 transactions


def test_8_an_effect_and_its_record_are_one_commit(everywhere: Holdfast) -> None:
    hf, tries = everywhere, []
    with hf.store.transaction() as link:
        link.raw.cursor().execute("create table booked (n integer)")

    def book(tx: Any, n: int) -> int:
        tx.cursor().execute(f"insert into booked (n) values ({n})")  # noqa: S608 - a number of ours
        tries.append(n)
        if len(tries) == 1:
            raise ValueError("after the effect")
        return n

    async def abook(tx: Any, n: int) -> int:
        await tx.execute(f"insert into booked (n) values ({n})")  # noqa: S608 - a number of ours
        return n

    @hf.workflow
    async def work(run: Run) -> list[int]:
        found = [await run.transaction(book, 1, retry=QUICK), await run.transaction(abook, 2)]
        await run.signal("go")
        return found

    if hf.store.dialect.name == "mysql":

        async def abook(tx: Any, n: int) -> int:  # type: ignore[no-redef]
            async with tx.cursor() as cursor:
                await cursor.execute(f"insert into booked (n) values ({n})")  # noqa: S608 - a number of ours
            return n

    work.start(id="r")
    assert outcomes(hf) == ["waiting"]
    hf.signal("r", "go")
    assert outcomes(hf) == ["done"]
    assert hf.run("r").result(0) == [1, 2]
    with hf.store.link() as link:
        cursor = link.raw.cursor()
        cursor.execute("select n from booked order by n")
        assert [row[0] for row in cursor.fetchall()] == [1, 2]


# 9 park


def test_9_a_run_that_waits_holds_nothing_and_has_used_no_attempt(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        async with asyncio.timeout(3600):
            await run.signal("go")

    work.start(id="r")
    run_due(hf)
    job = hf.get(hf.run("r").get().job_id)
    assert (job.state, job.waits_for, job.attempts, job.leased_by) == ("pending", "signal:go", 0, None)
    assert timedelta(seconds=3500) < job.available_at - datetime.now(UTC) < timedelta(seconds=3601)


def test_9_a_deadline_that_comes_before_the_signal_is_a_timeout(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> str:
        try:
            async with asyncio.timeout(3600):
                return str(await run.signal("go"))
        except TimeoutError:
            return "nobody came"

    work.start(id="r")
    run_due(hf)
    assert outcomes(hf, ahead=3601) == ["done"]
    assert hf.run("r").result(0) == "nobody came"


# 11 cancel


def test_11_a_cancel_is_told_where_the_body_waits_and_it_may_clean_up(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        try:
            await run.signal("go")
        except asyncio.CancelledError:
            await run.step(note, "cleaned up")
            raise

    handle = work.start(id="r")
    run_due(hf)
    handle.cancel()
    assert outcomes(hf) == ["cancelled"]
    assert (handle.status(), calls) == ("cancelled", ["cleaned up"])
    assert keys(hf) == ["cancel", "note"]
    with pytest.raises(JobCancelled):
        handle.result(0)
    with pytest.raises(RunFinished):
        handle.cancel()


def test_11_a_body_that_swallows_its_cancel_is_done_and_the_cancel_shows(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> str:
        try:
            await run.signal("go")
        except asyncio.CancelledError:
            return "went on"
        return "never"

    work.start(id="r")
    run_due(hf)
    hf.run("r").cancel()
    assert outcomes(hf) == ["done"]
    assert (hf.run("r").result(0), keys(hf)) == ("went on", ["cancel"])


def test_11_what_was_done_is_undone_last_first_when_the_body_fails(hf: Holdfast) -> None:
    def fails(what: str) -> None:
        note(what)
        raise Fatal(f"no {what}")

    @hf.workflow
    async def work(run: Run) -> None:
        for n in (1, 2, 3):
            await run.step(note, n)
            run.undo(fails if n == 2 else note, f"undo {n}", retry=QUICK)
        await run.step(fails, "ship")

    work.start(id="r")
    assert outcomes(hf) == ["dead"]
    assert calls == [1, 2, 3, "ship", "undo 3", "undo 2", "undo 1"]
    assert keys(hf)[-3:] == ["undo:note", "undo:fails", "undo:note#2"]
    with pytest.raises(JobDead, match="no ship"):
        hf.run("r").result(0)


def test_11_what_was_done_is_undone_when_the_run_is_cancelled(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(note, "charge")
        run.undo(note, "refund")
        await run.signal("go")

    work.start(id="r")
    run_due(hf)
    hf.run("r").cancel()
    assert outcomes(hf) == ["cancelled"]
    assert calls == ["charge", "refund"]


def test_11_a_run_that_takes_too_long_is_dead_and_undoes_what_it_did(hf: Holdfast) -> None:
    @hf.workflow(timeout=3600)
    async def work(run: Run) -> None:
        run.undo(note, "undone")
        await run.signal("go")

    work.start(id="r")
    run_due(hf)
    assert outcomes(hf, ahead=3601) == ["dead"]
    assert calls == ["undone"]


# 12 signals


def test_12_signals_are_typed_and_one_that_does_not_fit_is_told_of(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> Any:
        with pytest.raises(InvalidPayload):
            await run.signal("paid", type=Charge)
        return (await run.signal("paid", type=Charge)).amount

    work.start(id="r")
    hf.signal("r", "paid", {"id": 1})
    hf.signal("r", "paid", {"id": "ch_1", "amount": 3})
    assert outcomes(hf) == ["done"]
    assert hf.run("r").result(0) == 3.0


def test_12_a_run_that_continues_as_new_begins_afresh_and_loses_no_signal(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run, seen: list[str]) -> Any:
        if len(seen) == 3:
            return seen
        got = await run.signal("item")
        return run.continue_as_new([*seen, got])

    handle = work.start([], id="r")
    for item in ("a", "b", "c"):
        hf.signal("r", "item", item)
    assert outcomes(hf) == ["done"] * 4
    assert handle.result(0) == ["a", "b", "c"]
    assert hf.run("r").status() == "done"
    assert keys(hf) == []


# 13 children


def test_13_a_parent_gets_the_results_of_its_children(hf: Holdfast) -> None:
    @hf.workflow
    async def ship(run: Run, n: int) -> Charge:
        await run.step(note, n)
        if n < 0:
            raise ValueError("no")
        return Charge(run.id, n)

    @hf.workflow
    async def work(run: Run) -> Any:
        found = await asyncio.gather(*(run.child(ship, n) for n in range(30)))
        assert all(isinstance(one, Charge) for one in found)
        with pytest.raises(ChildFailed, match="dead"):
            await run.child(ship, -1)
        return [found[0].id, sum(one.amount for one in found)]

    work.start(id="r")
    run_due(hf, raise_errors=False)
    assert hf.run("r").result(0) == ["r/ship", 435.0]
    assert sorted(calls) == [-1, *range(30)]
    assert hf.run("r/ship#7").status() == "done"


def test_13_a_cancel_reaches_the_children(hf: Holdfast) -> None:
    @hf.workflow
    async def ship(run: Run) -> None:
        try:
            await run.signal("never")
        finally:
            await run.step(note, "child stopped")

    @hf.workflow
    async def work(run: Run) -> None:
        await run.child(ship)

    work.start(id="r")
    run_due(hf)
    hf.run("r").cancel()
    run_due(hf, raise_errors=False)
    assert (hf.run("r").status(), hf.run("r/ship").status(), calls) == ("cancelled", "cancelled", ["child stopped"])


def test_13_the_ends_of_children_are_heard_however_many_others_are_waited_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are taken at once, and the first of them wait for long."""
    monkeypatch.setattr("holdfast.runs.TAKEN_AT_ONCE", 5)
    monkeypatch.setattr("holdfast.runs.inbox.TAKEN_AT_ONCE", 5)

    @hf.workflow
    async def ship(run: Run, n: int) -> int:
        if n < 10:
            await run.signal("go")
        return n

    @hf.workflow
    async def order(run: Run) -> list[int]:
        tasks = [run.child(ship, n) for n in range(30)]
        found = await asyncio.gather(*tasks[10:])
        await run.signal("go")
        return list(found)

    order.start(id="r")
    run_due(hf, limit=200)
    assert hf.run("r").get().waits_for != "children"
    hf.signal("r", "go")
    run_due(hf, limit=200)
    assert hf.run("r").result(0) == list(range(10, 30))


# 14 start, and what a run is


def test_14_what_is_said_by_using_is_true_of_the_run(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run, n: int) -> int:
        return n

    handle = work.using(priority=7, queue="elsewhere", headers={"tenant": "a"}).start(1, id="r")
    job = hf.get(handle.get().job_id)
    assert (job.priority, job.queue, job.headers["tenant"]) == (7, "elsewhere", "a")
    assert work.using(priority=7).start(1, id="r").created is False
    assert asyncio.run(work.using(run_after=60).astart(2, id="s")).created
    assert outcomes(hf) == ["done"]
    assert (handle.result(0), hf.run("s").status()) == (1, "pending")


def test_14_a_run_is_there_if_and_only_if_the_transaction_commits(everywhere: Holdfast) -> None:
    hf = everywhere

    @hf.workflow
    async def work(run: Run, n: int) -> int:
        return n + int(await run.signal("go"))

    with suppress(ZeroDivisionError), hf.store.transaction() as link:
        work.start(1, id="gone", tx=link.raw)
        raise ZeroDivisionError
    with hf.store.transaction() as link:
        handle = work.start(n=1, id="r", tx=link.raw)
    assert outcomes(hf) == ["waiting"]
    with hf.store.transaction() as link:
        hf.signal("r", "go", 2, tx=link.raw)
    assert outcomes(hf) == ["done"]
    assert (handle.result(0), handle.created) == (3, True)
    assert [view.id for view in hf.store.run(_all_runs())] == ["r"]


def _all_runs() -> Any:
    from holdfast import runs

    return runs.runs(runs.RunFilter())


def test_14_another_start_finds_the_run_and_other_arguments_are_a_conflict(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run, n: int) -> int:
        return n

    first, again = work.start(1, id="r"), work.start(n=1, id="r")
    assert (first.created, again.created) == (True, False)
    with pytest.raises(Conflict):
        work.start(2, id="r")
    handles = work.start_many({"a": work.bind(5), "r": work.bind(1)})
    assert [(one.id, one.created) for one in handles] == [("a", True), ("r", False)]
    run_due(hf)
    assert work.start(2, id="r", reuse="finished").created


def test_14_a_workflow_that_is_enqueued_or_scheduled_is_a_run_all_the_same(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run, n: int) -> int:
        return int(await run.signal("go")) + n

    job = work.enqueue(n=1).id
    assert outcomes(hf) == ["waiting"]
    hf.signal(job, "go", 1)
    assert outcomes(hf) == ["done"]
    assert hf.run(job).result(0) == 2


@pytest.mark.parametrize("bad", ["sync", "no run", "takes id"])
def test_14_what_cannot_be_a_workflow_is_refused(hf: Holdfast, bad: str) -> None:
    def sync(run: Run) -> None: ...
    async def no_run(n: int) -> None: ...
    async def takes_id(run: Run, id: int) -> None: ...

    bodies: dict[str, Any] = {"sync": sync, "no run": no_run, "takes id": takes_id}
    with pytest.raises(ConfigError, match="workflow"):
        hf.workflow(bodies[bad])


def test_14_what_a_run_says_of_itself_can_be_read_and_looked_for(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        run.set("stage", "charged")
        await run.step(note, 1)
        run.set("stage", "shipped")

    work.start(id="r")
    run_due(hf)
    assert hf.run("r").attributes() == {"stage": "shipped"}


# 15 testing


def test_15_time_is_skipped_for_runs_that_sleep(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> int:
        for _ in range(3):
            await run.sleep(timedelta(days=1))
        return 3

    work.start(id="r")
    run_due(hf)
    assert [one.outcome for _ in range(3) for one in skip(hf, days=1)] == ["waiting", "waiting", "done"]
    assert hf.run("r").result(0) == 3
