"""Histories: exported, replayed against the code of today, forked in the middle, taken over by another version."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Conflict, Fatal, Holdfast, NonDeterminism, Run, admin
from holdfast.errors import ConfigError
from holdfast.testing.inline import replay, run_due, skip
from holdfast.workflows import History
from holdfast.workflows.forking import fork
from tests.runs.noting import calls, note, outcomes


def an_order(hf: Holdfast) -> None:
    """An order of everything: steps, time, chance, timers, signals, children, attributes, transactions, undos."""

    @hf.workflow
    async def ship(run: Run, n: int) -> int:
        return int(await run.step(note, n))

    def book(tx: Any) -> str:
        return "booked"

    @hf.workflow
    async def order(run: Run, n: int) -> list[Any]:
        drawn = [str(run.uuid()), run.random(), run.now().isoformat()]
        charge = await run.step(note, f"charge {n}")
        run.undo(note, "refund")
        run.set("stage", "charged")
        await run.sleep(3600)
        by = await run.signal("approved")
        shipped = await asyncio.gather(run.child(ship, 1), run.child(ship, 2))
        return [drawn, charge, by, shipped, await run.transaction(book), await run.step(note, "last")]

    order.start(7, id="order-1")
    run_due(hf)
    hf.signal("order-1", "approved", "ada")
    skip(hf, hours=2)
    assert hf.run("order-1").status() == "done"


def test_a_history_is_replayed_to_the_same_end_and_nothing_is_done(everywhere: Holdfast, tmp_path: Path) -> None:
    hf = everywhere
    an_order(hf)
    before = list(calls)
    text = hf.run("order-1").export().to_json()
    (tmp_path / "order.json").write_text(text)
    for given in (hf.run("order-1"), text, tmp_path / "order.json", str(tmp_path / "order.json"), json.loads(text)):
        found = replay(hf, given)
        assert (found.over, found.error) == (True, None)
        assert json.loads(json.dumps(found.result)) == hf.run("order-1").result(0)
    assert calls == before


def test_a_history_of_every_moment_fits_and_says_what_comes_next(hf: Holdfast) -> None:
    an_order(hf)
    whole = hf.run("order-1").export()
    waits = []
    for place in range(len(whole.rows)):
        part = History(**{**_fields(whole), "rows": whole.rows[:place], "status": "pending"})
        waits.append(replay(hf, part).waits_for)
    assert waits[0] == ["note"]
    assert waits[-1] == ["note#2"]
    assert ["ship", "ship#2"] in waits


def _fields(history: History) -> dict[str, Any]:
    return {name: getattr(history, name) for name in History.__struct_fields__}


def test_code_that_does_something_else_is_told_of_as_a_stuck_run_would_tell(hf: Holdfast) -> None:
    @hf.workflow
    async def order(run: Run) -> None:
        await run.step(note, 1, name="charge")
        await run.step(note, 2, name="ship")

    order.start(id="r")
    run_due(hf)
    text = hf.run("r").export().to_json()

    async def other(run: Run) -> None:
        await run.step(note, 1, name="charge")
        await run.step(note, 2, name="pack")

    async def longer(run: Run) -> None:
        await order.fn(run)
        await run.step(note, 3, name="thank")

    async def raising(run: Run) -> None:
        await order.fn(run)
        raise ValueError("no")

    async def sleeping(run: Run) -> None:
        await asyncio.to_thread(print)

    for new, told in (
        (other, "recorded next: ship; the code waits for: pack"),
        (longer, "is done; the code goes on, and waits for: thank"),
        (raising, "the code raises ValueError: no"),
        (sleeping, "can only wait"),
    ):
        with Holdfast("sqlite:///:memory:") as changed:
            changed.workflow(name="order")(new)
            with pytest.raises(NonDeterminism, match=told):
                replay(changed, text)
    with Holdfast("sqlite:///:memory:") as none, pytest.raises(ConfigError, match="no order@1"):
        replay(none, text)
    with Holdfast("sqlite:///:memory:") as newer:
        newer.workflow(name="order", version=2)(other)
        with pytest.raises(ConfigError, match=r"no order@1; .*version= \(--version\) says which one"):
            replay(newer, text)
    with pytest.raises(ConfigError, match="runs export"):
        replay(hf, "{}")


def test_a_fork_keeps_what_came_before_its_key_and_does_the_rest_anew(everywhere: Holdfast) -> None:
    hf = everywhere
    an_order(hf)
    drawn, charge, *_ = hf.run("order-1").result(0)
    calls.clear()
    again = hf.run("order-1").fork("signal:approved", id="order-2")
    run_due(hf)
    assert (again.status(), again.attributes()) == ("waiting", {"stage": "charged"})
    hf.signal("order-2", "approved", "bob")
    run_due(hf)
    result = again.result(0)
    assert (result[0], result[1], result[2]) == (drawn, charge, "bob")
    assert sorted(calls, key=str) == [1, 2, "last"]
    assert hf.run("order-2/ship").status() == "done"
    # Once more, behind the children: their results are kept.
    calls.clear()
    third = again.fork("book")
    run_due(hf)
    assert (third.result(0), calls) == (result, ["last"])
    assert replay(hf, third).over


def test_a_fork_whose_reply_was_lost_is_found_by_its_repeat(everywhere: Holdfast) -> None:
    hf = everywhere
    an_order(hf)
    history = hf.run("order-1").export()
    new, _ = hf.forked(history, "note", "order-2", None)
    forking = fork(new, history, "note", "ada")
    assert [hf.store.run(forking).created for _ in range(2)] == [True, False]
    assert [one.action for one in hf.store.run(admin.audit(new.job.id))] == ["run_fork"]


def test_a_fork_of_what_is_not_there_or_does_not_fit_starts_nothing(hf: Holdfast) -> None:
    an_order(hf)
    handle = hf.run("order-1")
    with pytest.raises(Conflict, match="nothing recorded as charge; there is: begin, note"):
        handle.fork("charge")
    with pytest.raises(Conflict, match="already"):
        handle.fork("note", id="order-1")

    @hf.workflow(name="order", version=2)
    async def newer(run: Run, n: int) -> None:
        await run.step(note, "other", name="other")

    with pytest.raises(NonDeterminism):
        handle.fork("signal:approved", version=2)
    forked = handle.fork("note", version=2)
    run_due(hf)
    assert (forked.status(), forked.get().kind) == ("done", "order@2")
    assert len(hf.runs(workflow="order")) == 2


def test_a_run_goes_on_as_another_version_once_that_fits(everywhere: Holdfast) -> None:
    hf = everywhere

    @hf.workflow(name="order", version=3)
    async def order(run: Run) -> str:
        await run.step(note, 1, name="charge")
        await run.signal("go")
        return str(await run.step(note, "new"))

    @order.version(2)
    async def wrong(run: Run) -> str:
        return str(await run.step(note, 1, name="pay"))

    @order.version(1)
    async def old(run: Run) -> str:
        await run.step(note, 1, name="charge")
        await run.signal("go")
        raise Fatal("old")

    old.start(id="r")
    run_due(hf)
    handle = hf.run("r")
    with pytest.raises(NonDeterminism, match="recorded next: charge"):
        handle.migrate(2)
    assert handle.get().kind == "order@1"
    handle.migrate(3, actor="ada")
    assert outcomes(hf) == ["waiting"]
    hf.signal("r", "go")
    run_due(hf)
    assert (handle.result(0), handle.get().kind, calls) == ("new", "order@3", [1, "new"])
    with pytest.raises(Conflict, match="is done"):
        handle.migrate(1)


def test_a_stuck_run_goes_on_at_once_as_a_version_that_fits(hf: Holdfast) -> None:
    @hf.workflow(name="order")
    async def order(run: Run) -> None:
        await run.step(note, 1, name="charge")
        await run.signal("go")

    order.start(id="r")
    run_due(hf)
    del hf.handlers["order@1"]

    @hf.workflow(name="order", version=1)
    async def broken(run: Run) -> None:
        await run.step(note, 1, name="pay")

    @broken.version(2)
    async def fixed(run: Run) -> str:
        await run.step(note, 1, name="charge")
        await run.signal("go")
        return "fixed"

    hf.signal("r", "go")
    assert outcomes(hf) == ["stuck"]
    hf.run("r").migrate(2)
    assert hf.run("r").status() != "stuck"
    assert outcomes(hf) == ["done"]
    assert hf.run("r").result(0) == "fixed"


def test_runs_are_listed_by_the_application(hf: Holdfast) -> None:
    an_order(hf)
    assert [one.id for one in hf.runs(workflow="order")] == ["order-1"]
    assert [one.id for one in hf.runs(attribute=("stage", "charged"), status="done")] == ["order-1"]
    assert asyncio.run(hf.aruns(status="stuck")) == []
    with pytest.raises(ConfigError, match="one of pending"):
        hf.runs(status="sleeping")


def test_a_dead_run_is_resumed_by_its_handle(hf: Holdfast) -> None:
    wrong = [True]

    def pay() -> str:
        if wrong:
            raise Fatal("no money")
        return "paid"

    @hf.workflow
    async def order(run: Run) -> str:
        return await run.step(pay)

    handle = order.start(id="r")
    assert outcomes(hf) == ["dead"]
    wrong.clear()
    handle.resume(actor="ada")
    assert outcomes(hf) == ["done"]
    with pytest.raises(Conflict, match="only one that is dead"):
        handle.resume()
