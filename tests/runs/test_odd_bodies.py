"""Bodies, journals and callers that nobody would write on purpose: told of clearly, nothing lost, no worker hung."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Retry, Run, events
from holdfast.testing.inline import run_due, skip
from holdfast.workflows import loop
from tests.runs.noting import calls, note


def stuck(hf: Holdfast) -> str:
    """Run what is due, and say why the run is stuck; it has used no attempt by it."""
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["stuck"]
    view = hf.run("r").get()
    assert view.attempts == 0
    return str(view.stuck)


@pytest.mark.parametrize(
    "does",
    [
        lambda hf, job: hf.signal("other", "go"),
        lambda hf, job: hf.run("other").status(),
        lambda hf, job: job.enqueue(),
        lambda hf, job: hf.cancel("other"),
        lambda hf, job: hf.publish("order.created", {}),
    ],
)
def test_the_applications_own_calls_are_refused_in_a_body(hf: Holdfast, does: Callable[[Any, Any], Any]) -> None:
    """A replay would enqueue and signal again."""

    @hf.job
    def job() -> None: ...

    @hf.workflow
    async def work(run: Run) -> None:
        does(hf, job)

    work.start(id="r")
    assert "goes to the database" in stuck(hf)
    assert hf.store.run(_count(hf)) == 1


def _count(hf: Holdfast) -> Any:
    from holdfast import admin

    return admin.count_jobs()


def test_they_are_not_refused_in_steps(hf: Holdfast) -> None:
    @hf.job
    def job() -> None: ...

    async def astep() -> None:
        job.enqueue()

    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(job.enqueue, name="enqueue")
        await run.step(astep)

    work.start(id="r")
    assert [one.outcome for one in run_due(hf)] == ["done"] * 3


@pytest.mark.parametrize("recorded_before", [0, 1])
def test_a_last_step_that_nobody_waits_for_is_told_of(hf: Holdfast, recorded_before: int) -> None:
    heard: list[events.StepsUnawaited] = []
    hf.on(events.StepsUnawaited, heard.append)

    @hf.workflow
    async def work(run: Run) -> None:
        for _ in range(recorded_before):
            await run.step(note, "awaited")
        run.step(note, "forgotten", name="last")

    work.start(id="r")
    assert [one.outcome for one in run_due(hf)] == ["done"]
    assert [(one.kind, one.steps) for one in heard] == [("work@1", "last")]


def test_steps_that_a_body_raised_past_or_waited_for_are_not_told_of(hf: Holdfast) -> None:
    heard: list[events.StepsUnawaited] = []
    hf.on(events.StepsUnawaited, heard.append)

    @hf.workflow
    async def raises(run: Run) -> None:
        run.step(note, "too late")
        raise ValueError("before it")

    @hf.workflow
    async def races(run: Run) -> None:
        tasks = [asyncio.ensure_future(run.step(note, text)) for text in ("a", "b")]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    raises.start()
    races.start()
    assert sorted(one.outcome for one in run_due(hf, raise_errors=False)) == ["dead", "done"]
    assert not heard


def test_a_body_that_goes_round_and_waits_for_nothing_does_not_keep_its_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_TURNS", 1000)

    @hf.workflow
    async def work(run: Run) -> None:
        while True:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    work.start(id="r")
    assert "waits for nothing" in stuck(hf)


@pytest.mark.parametrize(
    "change",
    [
        "update holdfast_steps set key = 'timer:abc' where kind = 'timer'",
        "update holdfast_steps set value = '{nonsense' where kind = 'attempt'",
        "update holdfast_steps set value = 'nonsense' where kind = 'begin'",
        "update holdfast_steps set kind = 'nonsense' where kind = 'step'",
        "delete from holdfast_steps where kind = 'timer'",
    ],
)
def test_a_journal_that_somebody_spoilt_makes_its_run_stuck(hf: Holdfast, change: str) -> None:
    def fails() -> None:
        raise ValueError("again")

    @hf.workflow
    async def work(run: Run) -> None:
        run.now()
        await run.step(note, 1)
        await run.sleep(100)
        first = run.step(fails, retry=Retry(max_attempts=9, first_delay=250))
        await run.signal("go")
        await first

    work.start(id="r")
    run_due(hf)
    skip(hf, seconds=200)
    with hf.store.transaction() as link:
        link.raw.execute(change)
    hf.signal("r", "go")
    assert stuck(hf)


def test_a_child_whose_id_would_be_too_long_fails_its_parent_at_once(hf: Holdfast) -> None:
    @hf.workflow
    async def ship(run: Run) -> None: ...

    @hf.workflow
    async def work(run: Run) -> None:
        run.undo(note, "undone")
        await run.child(ship)

    work.start(id="r" * 198)
    [ran] = run_due(hf, raise_errors=False)
    assert ran.outcome == "dead"
    assert "at most 200 characters" in str(ran.error)
    assert calls == ["undone"]


def test_a_body_that_exits_ends_its_run_and_undoes_what_it_did(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        run.undo(note, "undone")
        raise SystemExit(3)

    work.start(id="r")
    [ran] = run_due(hf, raise_errors=False)
    assert (ran.outcome, calls) == ("dead", ["undone"])
    assert "SystemExit: 3" in str(ran.error)
