"""Every way to cancel a run asks it to stop and lets it clean up, except by force; replayed dead runs go on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Fatal, Holdfast, JobCancelled, Run, RunNotFound, admin, events, jobs
from holdfast.admin import Filter
from holdfast.errors import ChildFailed
from holdfast.flow import Flow
from holdfast.testing.inline import run_due, skip
from holdfast.values.rows import Finish
from holdfast.worker.demand import Demand
from holdfast.worker.rounds import give_back
from holdfast.worker.run_executor import RunExecutor
from holdfast.workflows import Workflow
from tests.runs.noting import calls, note, outcomes


def orders(hf: Holdfast) -> Workflow[[], None]:
    """A workflow that charges, waits, and refunds when it is cancelled; its child notes that it stopped."""

    @hf.workflow
    async def ship(run: Run) -> None:
        try:
            await run.signal("never")
        finally:
            await run.step(note, "child stopped")

    @hf.workflow
    async def order(run: Run) -> None:
        await run.step(note, "charge")
        run.undo(note, "refund")
        await asyncio.gather(run.child(ship), run.signal("go"))

    return order


def by_run_id(hf: Holdfast) -> Any:
    return hf.cancel("order-1")


def by_job_id(hf: Holdfast) -> Any:
    return hf.cancel(hf.run("order-1").get().job_id)


def by_handle(hf: Holdfast) -> Any:
    return hf.cancel(hf.run("order-1"))


def by_filter(hf: Holdfast) -> Any:
    return hf.cancel(kind="order@1")


def by_the_desk(hf: Holdfast) -> Any:
    return hf.store.run(admin.JobsDesk().cancel(hf.run("order-1").get().job_id, "ada"))


def by_the_handle_itself(hf: Holdfast) -> Any:
    return hf.run("order-1").cancel()


WAYS = [by_run_id, by_job_id, by_handle, by_filter, by_the_desk, by_the_handle_itself]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_cancel_a_run_that_waits_lets_it_clean_up(hf: Holdfast, way: Any) -> None:
    orders(hf).start(id="order-1")
    run_due(hf)
    assert hf.run("order-1").status() == "waiting"
    way(hf)
    outcomes(hf)
    assert (hf.run("order-1").status(), hf.run("order-1/ship").status()) == ("cancelled", "cancelled")
    assert sorted(calls) == ["charge", "child stopped", "refund"]


def test_a_run_is_cancelled_by_its_id_on_every_database(everywhere: Holdfast) -> None:
    hf = everywhere
    order = orders(hf)
    order.start(id="order-1")
    run_due(hf)
    done = hf.cancel(["order-1", "nobody"])
    assert (done.cancelled, done.requested, done.left) == ([], ["order-1"], {"nobody": "unknown"})
    assert hf.cancel("order-1", dry_run=True).requested == ["order-1"]
    outcomes(hf)
    assert calls[0] == "charge"
    assert sorted(calls) == ["charge", "child stopped", "refund"]
    assert hf.cancel("order-1").left == {"order-1": "cancelled"}
    with pytest.raises(JobCancelled):
        hf.run("order-1").result(0)


def test_a_run_that_has_not_begun_ends_at_once(everywhere: Holdfast) -> None:
    hf = everywhere
    order = orders(hf)
    order.start(id="order-1")
    assert hf.cancel("order-1").cancelled == ["order-1"]
    assert hf.run("order-1").status() == "cancelled"
    order.start(id="order-2").cancel()
    assert (outcomes(hf), calls) == ([], [])


def test_force_ends_a_run_and_its_children_and_runs_no_code(everywhere: Holdfast) -> None:
    hf = everywhere
    orders(hf).start(id="order-1")
    run_due(hf)
    assert hf.cancel("order-1", force=True, dry_run=True).cancelled == ["order-1"]
    ended = hf.cancel("order-1", force=True, actor="ada").cancelled
    assert (len(ended), "order-1" in ended) == (2, True)
    assert (outcomes(hf), calls) == ([], ["charge"])
    assert (hf.run("order-1").status(), hf.run("order-1/ship").status()) == ("cancelled", "cancelled")
    [line] = [one for one in hf.store.run(admin.audit(hf.run("order-1").get().job_id)) if one.action == "cancel"]
    assert line.actor == "ada"


def test_force_takes_a_plain_job_from_its_worker(hf: Holdfast) -> None:
    @hf.job
    async def send() -> None: ...

    job = send.enqueue()
    [lease] = hf.store.run(jobs.claim("default", limit=1))
    assert hf.cancel(job, force=True).cancelled == [job.id]
    assert hf.store.run(jobs.settle([Finish(lease.id, lease.fence, "done")])).lost == {job.id}
    assert hf.get(job).state == "cancelled"


def test_a_second_cancel_neither_interrupts_the_clean_up_nor_keeps_the_run_awake(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> None:
        try:
            await run.signal("never")
        finally:
            await run.sleep(3600)
            await run.step(note, "cleaned up")

    work.start(id="r")
    run_due(hf)
    hf.cancel("r")
    hf.cancel("r")
    assert outcomes(hf) == ["waiting"]
    hf.cancel("r")
    # Woken once, and not again and again by a request that nobody takes.
    assert outcomes(hf) == ["waiting"]
    run_due(hf, ahead=3601, raise_errors=False)
    assert (hf.run("r").status(), calls) == ("cancelled", ["cleaned up"])
    assert [row.kind for row in hf.run("r").history()].count("cancel") == 1


def test_a_run_that_was_asked_to_stop_begins_no_step_more(hf: Holdfast) -> None:
    """Claimed for the first time, as the successor of another: nothing says yet that it has begun."""

    @hf.workflow
    async def work(run: Run, round: int) -> Any:
        if round == 1:
            return run.continue_as_new(2)
        try:
            await run.step(note, "begun")
        except asyncio.CancelledError:
            await run.step(note, "cleaned up")
            raise
        return None

    work.start(1, id="r")
    _one(hf)
    assert hf.cancel("r").requested == ["r"]
    outcomes(hf)
    assert (hf.run("r").status(), calls) == ("cancelled", ["cleaned up"])


def _one(hf: Holdfast) -> None:
    with pytest.raises(RuntimeError, match="limit"):
        run_due(hf, limit=1)


def test_a_run_whose_worker_dies_after_it_was_asked_to_stop_cleans_up_elsewhere(everywhere: Holdfast) -> None:
    hf = everywhere
    orders(hf).start(id="order-1")
    run_due(hf)
    hf.signal("order-1", "go")
    [lease] = hf.store.run(jobs.claim("runs", limit=1, leases={"order@1": 1}))
    assert hf.cancel("order-1").requested == ["order-1"]
    # The one who holds it is gone, and the lease runs out.
    [reaped] = _reaped(hf, lease.job_id)
    assert reaped.outcome in ("retry", "released")
    run_due(hf, ahead=3600, raise_errors=False)
    assert (hf.run("order-1").status(), sorted(calls)) == ("cancelled", ["charge", "child stopped", "refund"])


def _reaped(hf: Holdfast, job_id: str) -> list[Any]:
    while not (found := hf.store.run(jobs.reap())):
        pass
    return [one for one in found if one.id == job_id]


def test_a_job_cancelled_by_a_name_that_two_workflows_use_is_not_guessed(hf: Holdfast) -> None:
    @hf.workflow
    async def one(run: Run) -> None: ...

    @hf.workflow
    async def two(run: Run) -> None: ...

    one.start(id="r")
    two.start(id="r")
    with pytest.raises(RunNotFound, match="one and two"):
        hf.cancel("r")
    hf.cancel(hf.run("r", "two").get().job_id)
    assert (hf.run("r", "one").status(), hf.run("r", "two").status()) == ("pending", "cancelled")


def test_a_dead_run_that_is_replayed_as_a_job_goes_on_at_the_step_that_failed(everywhere: Holdfast) -> None:
    hf = everywhere
    wrong = [True]

    def pay() -> str:
        if wrong:
            raise Fatal("no money")
        return "paid"

    @hf.workflow
    async def order(run: Run) -> str:
        await run.step(note, "packed")
        return await run.step(pay)

    order.start(id="order-1")
    assert outcomes(hf) == ["dead"]
    wrong.clear()
    assert len(hf.store.run(admin.replay(Filter(states=("dead",)), 10, "ada")).ids) == 1
    assert outcomes(hf) == ["done"]
    assert (hf.run("order-1").result(0), calls) == ("paid", ["packed"])


def test_a_dead_run_that_goes_on_hears_of_children_that_ended_meanwhile(everywhere: Holdfast) -> None:
    hf = everywhere
    wrong = [True]

    def pay() -> None:
        if wrong:
            raise Fatal("no money")

    @hf.workflow
    async def quick(run: Run) -> int:
        return 7

    @hf.workflow
    async def slow(run: Run) -> None:
        await run.signal("never")

    @hf.workflow
    async def order(run: Run) -> Any:
        one, two = run.child(quick), run.child(slow)
        await run.signal("go")
        await run.step(pay)
        with pytest.raises(ChildFailed, match="cancelled"):
            await two
        return await one

    order.start(id="order-1")
    run_due(hf)
    hf.signal("order-1", "go")
    outcomes(hf)
    assert hf.run("order-1").status() == "dead"
    assert hf.run("order-1/slow").status() == "cancelled"
    wrong.clear()
    hf.store.run(admin.retry(hf.run("order-1").get().job_id, "ada"))
    outcomes(hf)
    assert hf.run("order-1").result(0) == 7


PATIENCE = 30.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - what it waits for is in the database
            await asyncio.sleep(0.02)


def quick_order(hf: Holdfast) -> Workflow[[], None]:
    """A workflow whose lease is renewed often, so that its worker soon hears of a cancel."""

    @hf.workflow(lease=1)
    async def order(run: Run) -> None:
        await run.step(note, "charge")
        run.undo(note, "refund")
        await run.signal("go")
        await run.signal("never")

    return order


async def refunded(hf: Holdfast) -> None:
    with pytest.raises(JobCancelled):
        await hf.run("order-1").aresult(PATIENCE)
    assert calls == ["charge", "refund"]


def test_a_run_that_a_middleware_holds_up_cleans_up_when_it_is_cancelled(hf_file: Holdfast) -> None:
    hf, entered = hf_file, list[int]()

    @hf.middleware
    async def slow(job: Any, call_next: Any) -> Any:
        entered.append(1)
        if len(entered) == 2:
            await asyncio.sleep(PATIENCE)
        return await call_next(job)

    workflow = quick_order(hf)

    async def main() -> None:
        async with hf.worker(poll=0.1):
            order = await workflow.astart(id="order-1")
            await until(lambda: order.status() == "waiting")
            await order.asignal("go")
            await until(lambda: len(entered) == 2)
            await order.acancel()
            await refunded(hf)

    asyncio.run(main())


def test_a_claimed_run_that_waits_for_a_slot_cleans_up_when_it_is_cancelled(
    hf_file: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, order = hf_file, quick_order(hf_file)
    # Otherwise a worker claims nothing ahead where a busy machine made its jobs slow, or gives it back.
    monkeypatch.setattr(Demand, "_finishing_rate", lambda _: 1000.0)
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 3600.0)

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @hf.job
        async def long() -> None:
            begun.set()
            await go_on.wait()

        handle = await order.astart(id="order-1")
        async with hf.worker(poll=0.1, concurrency=1, buffer=4):
            await until(lambda: handle.status() == "waiting")
            await long.aenqueue()
            await begun.wait()
            await handle.asignal("go")
            await until(lambda: handle.status() == "running")
            await handle.acancel()
            # The next renewals say so, each after a sixth of the lease.
            for _ in range(12):
                await asyncio.sleep(0.04)
            go_on.set()
            await refunded(hf)

    asyncio.run(main())


def test_a_run_that_has_begun_does_not_expire(hf: Holdfast) -> None:
    @hf.workflow
    async def order(run: Run) -> str:
        await run.step(note, "charge")
        return str(await run.signal("go"))

    bound = order.using(expires=60).bind()
    [begun] = order.start_many({"begun": bound})
    run_due(hf)
    order.start_many({"late": bound})
    hf.signal("begun", "go", "yes")
    skip(hf, seconds=120)
    assert (begun.result(0), hf.run("late").status()) == ("yes", "cancelled")
    assert calls == ["charge"]


def test_a_child_whose_branch_is_cancelled_while_it_is_being_started_is_stopped(
    hf_file: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf, insist = hf_file, RunExecutor.insist

    async def slow(self: RunExecutor, work: Flow[Any]) -> Any:
        if work.name == "start_children":
            await until(lambda: "cancelled" in calls)
            await asyncio.sleep(0.05)
        return await insist(self, work)

    monkeypatch.setattr(RunExecutor, "insist", slow)

    @hf.workflow
    async def ship(run: Run) -> None:
        await run.signal("never")

    @hf.workflow
    async def order(run: Run) -> None:
        child = run.child(ship)
        await run.step(note, "charge")
        child.cancel()
        await run.step(note, "cancelled")
        await run.signal("go")

    async def main() -> None:
        async with hf.worker(poll=0.1):
            handle = await order.astart(id="order-1")
            await until(lambda: handle.status() == "waiting")
            with pytest.raises(JobCancelled):
                await hf.run("order-1/ship").aresult(5)

    asyncio.run(main())
    # That there was no such run was an answer, and no fault of the database's.
    assert "trying again" not in caplog.text


def test_a_child_that_is_being_started_when_its_parent_returns_is_started(
    hf_file: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, insist = hf_file, RunExecutor.insist

    async def slow(self: RunExecutor, work: Flow[Any]) -> Any:
        if work.name == "start_children":
            await asyncio.sleep(0.05)
        return await insist(self, work)

    monkeypatch.setattr(RunExecutor, "insist", slow)

    @hf.workflow
    async def ship(run: Run) -> str:
        return "shipped"

    @hf.workflow
    async def order(run: Run) -> None:
        run.child(ship)

    async def main() -> None:
        async with hf.worker(poll=0.1):
            await (await order.astart(id="order-1")).aresult(30)
            assert await hf.run("order-1/ship").aresult(30) == "shipped"

    asyncio.run(main())


def test_the_end_of_a_child_that_nobody_waits_for_any_more_wakes_its_parent_once(everywhere: Holdfast) -> None:
    """It was left in the inbox, and a parent that waited for another child was claimed for it again and again."""
    parked: list[events.RunParked] = []
    everywhere.on(events.RunParked, parked.append)

    @everywhere.workflow
    async def child(run: Run, name: str) -> str:
        return f"{name} {await run.signal('go')}"

    @everywhere.workflow
    async def parent(run: Run) -> str:
        first = asyncio.ensure_future(run.child(child, "first", name="first"))
        await run.signal("other")
        first.cancel()
        return await run.child(child, "second", name="second")

    handle = parent.start(id="p")
    run_due(everywhere)
    handle.signal("other")
    run_due(everywhere, limit=20)
    assert [one.id for one in everywhere.runs(workflow="child", status="cancelled")] == ["p/first"]
    assert len([one for one in parked if one.kind == "parent@1"]) <= 3
    assert handle.status() == "waiting"
    everywhere.signal("p/second", "go", "went")
    run_due(everywhere, limit=20)
    assert handle.result(0) == "second went"


@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_a_run_that_continues_as_new_has_children_of_its_own(everywhere: Holdfast, same: bool) -> None:
    """They have the ids of those of the run before, which give them away: it is over, and so are they."""

    @everywhere.workflow
    async def child(run: Run, n: int) -> int:
        await run.step(note, f"child {n}")
        return n

    @everywhere.workflow
    async def parent(run: Run, n: int) -> Any:
        got = await run.child(child, 1 if same else n)
        return got if n == 3 else run.continue_as_new(n + 1)

    handle = parent.start(n=1, id="p")
    run_due(everywhere)
    assert handle.result(0) == (1 if same else 3)
    assert calls == [f"child {n}" for n in ((1, 1, 1) if same else (1, 2, 3))]


def test_a_run_that_is_started_anew_under_its_id_has_children_of_its_own(hf: Holdfast) -> None:
    @hf.workflow
    async def child(run: Run, n: int) -> int:
        return n

    @hf.workflow
    async def parent(run: Run, n: int) -> int:
        return await run.child(child, n)

    for n in (1, 2):
        handle = parent.start(n=n, id="p", reuse="finished")
        run_due(hf)
        assert handle.result(0) == n


def test_a_child_of_the_run_before_that_is_still_at_work_keeps_its_id(hf: Holdfast) -> None:
    @hf.workflow
    async def child(run: Run, n: int) -> int:
        await run.signal("go")
        return n

    @hf.workflow
    async def parent(run: Run, n: int) -> Any:
        begun = run.child(child, n)
        return await begun if n == 2 else run.continue_as_new(2)

    handle = parent.start(n=1, id="p")
    outcomes(hf)
    stuck = handle.get()
    assert (stuck.status, "not over" in str(stuck.stuck)) == ("stuck", True)
    hf.signal("p/child", "go")
    run_due(hf)
    skip(hf, minutes=2)
    run_due(hf)
    hf.signal("p/child", "go")
    run_due(hf)
    assert handle.result(0) == 2


@pytest.mark.parametrize("first", [True, False], ids=["over", "waiting"])
def test_a_run_that_was_started_by_the_id_of_a_child_is_that_child(everywhere: Holdfast, first: bool) -> None:
    """Its parent waited for ever: nobody had told the run whose child it is."""

    @everywhere.workflow
    async def child(run: Run) -> str:
        return f"went {await run.signal('go')}"

    @everywhere.workflow
    async def parent(run: Run) -> str:
        return await run.child(child)

    child.start(id="p/child")
    if first:
        everywhere.signal("p/child", "go", 1)
    run_due(everywhere)
    handle = parent.start(id="p")
    run_due(everywhere)
    if not first:
        assert handle.status() == "waiting"
        everywhere.signal("p/child", "go", 1)
        run_due(everywhere)
    assert handle.result(0) == "went 1"
