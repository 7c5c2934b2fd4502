"""What has gone wrong elsewhere with durable workflows, each as a promise here.

The numbers are those of issues: DBOS, Temporal, Inngest, Vercel and others. `docs/decisions/0037-…` lists which test
stands for which rule.
"""

import asyncio
import gc
import itertools
import random
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from holdfast import Conflict, Holdfast, JobDead, Retry, Run, RunFinished, jobs, runs
from holdfast.errors import LeaseLost, PayloadTooLarge
from holdfast.events import RunParked
from holdfast.testing.inline import run_due, skip
from holdfast.worker.work import Work
from holdfast.workflows import start
from tests.runs.noting import calls, note
from tests.runs.test_fuzz_databases import MortalExecutor, one_life, run_to_the_end

PATIENCE = 60.0


async def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


numbers = itertools.count(1)


async def fresh(what: str) -> str:
    """Another value each time that it is called: a branch that got a neighbour's would show it."""
    calls.append(what)
    await asyncio.sleep(0.001 * (hash(what) % 3))
    return f"{what} {next(numbers)}"


def die_again_and_again(hf: Holdfast, name: str, deaths: int) -> Any:
    """Run a workflow to its end; its process dies after every commit at first."""
    hf.store.now = datetime(2031, 1, 1, tzinfo=UTC)

    async def main() -> None:
        try:
            await run_to_the_end(hf, name, itertools.chain([1] * deaths, itertools.repeat(None)), random.Random(1))
        finally:
            hf.store.forget_loop()

    asyncio.run(main())
    return hf.run(name).result(0)


def test_distinct_steps_under_gather_keep_their_values_when_resumed_elsewhere(hf_file: Holdfast) -> None:
    """DBOS 688."""

    @hf_file.workflow(name="fuzz")
    async def work(run: Run) -> list[str]:
        return await asyncio.gather(*(run.step(fresh, what) for what in ("a", "b", "c")))

    work.start(id="r")
    found = die_again_and_again(hf_file, "r", 2)
    assert [one.split()[0] for one in found] == ["a", "b", "c"]


def test_two_step_branches_keep_their_values(hf_file: Holdfast) -> None:
    """Temporal 1578."""

    @hf_file.workflow(name="fuzz")
    async def work(run: Run) -> list[list[str]]:
        async def branch(n: int) -> list[str]:
            first = await run.step(fresh, f"first{n}")
            return [first, await run.step(fresh, f"second of {first}")]

        return await asyncio.gather(*(branch(n) for n in range(4)))

    work.start(id="r")
    for n, (first, second) in enumerate(die_again_and_again(hf_file, "r", 5)):
        assert first.startswith(f"first{n} ")
        assert second.startswith(f"second of {first} ")


def test_the_winner_of_a_race_stays_the_winner_through_deaths(hf_file: Holdfast) -> None:
    """DBOS 551, 609."""

    @hf_file.workflow(name="fuzz")
    async def work(run: Run) -> Any:
        tasks = [asyncio.ensure_future(run.step(fresh, what)) for what in ("a", "b")]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [tasks.index(task) for task in done]
        told = await run.step(fresh, f"{first} won")
        await asyncio.wait(tasks)
        return [first, told]

    work.start(id="r")
    first, told = die_again_and_again(hf_file, "r", 2)
    assert told.startswith(f"{first} won")


def test_parallel_steps_are_made_once_when_a_sibling_ends(hf: Holdfast) -> None:
    """Inngest 4897."""

    @hf.workflow
    async def work(run: Run) -> None:
        await asyncio.gather(*(run.step(note, n) for n in range(20)))

    work.start(id="r")
    run_due(hf)
    assert sorted(calls) == list(range(20))


def test_a_database_that_restarts_during_recovery_strands_nothing(postgres: Any) -> None:
    """DBOS 716, 453: and a peer heals what a dead node has left, alone."""
    with type(postgres)() as server, Holdfast(server.fresh_database()) as hf:
        hf.migrate()
        begun: list[str] = []

        async def slow(name: str) -> str:
            begun.append(name)
            await asyncio.sleep(0.05)
            return name

        @hf.workflow(lease=2, retry=Retry(max_attempts=1000, first_delay=0.05, max_delay=0.05))
        async def work(run: Run) -> str:
            for _ in range(4):
                await run.step(slow, run.id)
            return run.id

        names = [f"r{n}" for n in range(10)]

        async def main() -> None:
            handles = await work.astart_many({name: work.bind() for name in names})
            # A node that dies with some of them: nobody gives its leases back.
            await hf.store.arun(jobs.claim("runs", limit=4, worker="dead", leases={"work@1": 500}))
            async with hf.worker(poll=0.1):
                await until(lambda: begun)
                await asyncio.to_thread(server.restart)
                assert [await handle.aresult(PATIENCE) for handle in handles] == names

        asyncio.run(main())
        assert set(begun) == set(names)


def test_a_draining_worker_cannot_strand_a_recovered_run(hf_file: Holdfast) -> None:
    """DBOS 804, 742, 805."""
    hf, begun = hf_file, []

    async def slow() -> str:
        begun.append(1)
        await asyncio.sleep(PATIENCE if len(begun) == 1 else 0)
        return "made"

    @hf.workflow
    async def work(run: Run) -> str:
        await run.step(note, "before")
        return await run.step(slow)

    async def main() -> None:
        handle = await work.astart(id="r")
        # A node that died with it: this worker recovers it, and is told to go while it is at it.
        await hf.store.arun(jobs.claim("runs", limit=1, worker="dead", leases={"work@1": 1}))
        async with hf.worker(poll=0.05, drain=0.05) as worker:
            await until(lambda: begun)
            await hf.adrain(worker.id)
            worker.stop("drained")
        async with hf.worker(poll=0.05):
            assert await handle.aresult(PATIENCE) == "made"

    asyncio.run(main())
    assert calls == ["before"]


def test_an_id_that_is_used_again_after_an_interrupted_prune_replays_nothing_old(everywhere: Holdfast) -> None:
    """DBOS 769."""
    hf = everywhere

    @hf.workflow
    async def work(run: Run) -> Any:
        return await run.step(note, len(calls))

    first = work.start(id="r")
    run_due(hf)
    pruning = runs.prune("done", "runs", 0)
    # Cut after any of its statements: all of it is undone.
    for statements in (1, 2, 3):
        with suppress(ZeroDivisionError), hf.store.transaction() as link:
            _some_of(link, pruning, statements)
        assert (first.result(0), [row.key for row in first.history()]) == (0, ["note"])
        with pytest.raises(Conflict):
            hf.store.run(_other_arguments(work))
    skip(hf, seconds=1)
    hf.store.run(runs.prune("done", "runs", 0))
    hf.store.now = None
    second = work.start(id="r")
    assert second.created
    run_due(hf)
    assert (second.result(0), len(second.history())) == (1, 1)


def _some_of(link: Any, work: Any, statements: int) -> None:
    """Run the first statements of a flow, and then fail."""
    steps, answer = work.start(), None
    with suppress(StopIteration):
        for _ in range(statements):
            answer = link.session.run(steps.send(answer))
    raise ZeroDivisionError


def _other_arguments(work: Any) -> Any:
    new = work.new_run("r", work.bind())
    return start([new._replace(digest=(new.digest or 0) + 1)])


def test_two_holders_take_one_signal_once(everywhere: Holdfast) -> None:
    """DBOS-TS 1206: of a holder that was reaped and the next one only the second takes it."""
    hf = everywhere

    @hf.workflow
    async def work(run: Run) -> Any:
        return await run.signal("go")

    handle = work.start(id="r")
    hf.signal("r", "go", 1)
    wanted = [runs.Wanted("go", "signal:go", "signal")]
    [old] = hf.store.run(jobs.claim("runs", limit=1, leases={"work@1": 1}))
    while not hf.store.run(jobs.reap(backoff=lambda kind, attempt: 0.0)):
        pass
    [new] = hf.store.run(jobs.claim("runs", limit=1, leases={"work@1": 60_000}))
    with pytest.raises(LeaseLost):
        hf.store.run(runs.take(old.job_id, old.fence, wanted, 1, "old"))
    [row] = hf.store.run(runs.take(new.job_id, new.fence, wanted, 1, "new"))
    assert row.value == "1"
    assert [one.worker for one in handle.history()] == ["new"]
    assert hf.store.run(runs.news({new.job_id: ["go"]})) == {}


def test_a_waiter_that_goes_away_leaves_the_run_alone(hf_file: Holdfast) -> None:
    """DBOS 425: a closed HTTP request cancels the one who waits for a result, not the run."""
    hf = hf_file

    @hf.workflow
    async def work(run: Run) -> Any:
        return await run.signal("go")

    async def main() -> None:
        parked: list[RunParked] = []
        hf.on(RunParked, parked.append)
        async with hf.worker(poll=0.05):
            handle = await work.astart(id="r")
            request = asyncio.ensure_future(handle.aresult(PATIENCE))
            await until(lambda: parked)
            request.cancel()
            with suppress(asyncio.CancelledError):
                await request
            await handle.asignal("go", "on")
            assert await handle.aresult(PATIENCE) == "on"

    asyncio.run(main())


def test_a_suspended_run_survives_the_garbage_collector(hf_file: Holdfast) -> None:
    """DBOS 710: what the body holds is let go of when it parks, and nothing of it is run by the collector."""
    hf, let_go = hf_file, []

    class Held:
        pass

    @hf.workflow
    async def work(run: Run) -> Any:
        held = Held()
        weakref.finalize(held, let_go.append, "gone")
        try:
            await asyncio.gather(run.signal("a"), run.signal("b"))
        finally:
            calls.append("left")
            await run.step(note, "cleaned")
        return "done"

    async def main() -> None:
        parked: list[RunParked] = []
        hf.on(RunParked, parked.append)
        async with hf.worker(poll=0.05):
            handle = await work.astart(id="r")
            await until(lambda: parked)
            await asyncio.sleep(0.05)
            left = len(calls)
            gc.collect()
            assert (let_go, len(calls)) == (["gone"], left)
            assert "cleaned" not in calls
            await handle.asignal("a")
            await handle.asignal("b")
            assert await handle.aresult(PATIENCE) == "done"
        assert calls.count("cleaned") == 1

    asyncio.run(main())


async def _awaiting_finally(run: Run) -> None:
    try:
        await run.signal("never")
    finally:
        await run.sleep(3600)
        await run.step(note, "finally")


async def _bare_except(run: Run) -> None:
    while True:
        try:
            await run.signal("never")
        except:  # noqa: E722 - the worst there is
            calls.append("caught")


async def _anyio_scopes(run: Run) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            group.start_soon(_waits, run)
            await run.signal("never")


async def _waits(run: Run) -> None:
    with anyio.move_on_after(3600):
        await run.signal("other")


# A body that catches everything for ever cannot be closed, and the collector says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("body", [_awaiting_finally, _bare_except, _anyio_scopes])
def test_park_and_shutdown_free_the_slot_whatever_the_body_does(hf_file: Holdfast, body: Any) -> None:
    """Temporal 784, 1849; pydantic-ai 6883."""
    hf = hf_file

    @hf.workflow
    async def work(run: Run) -> None:
        await body(run)

    @hf.job(queue="runs")
    async def job() -> None: ...

    async def main() -> None:
        parked: list[RunParked] = []
        hf.on(RunParked, parked.append)
        async with hf.worker(poll=0.05, concurrency=1, drain=0.2):
            handle = await work.astart(id="r")
            await until(lambda: parked)
            # The only slot is free.
            await hf.aresult(await job.aenqueue(), PATIENCE)
        assert (await handle.aget()).status == "waiting"

    asyncio.run(main())
    # Left a few times at the most, and not for ever.
    assert calls.count("caught") == len(calls) <= 3


def test_anyio_groups_and_scopes_work_in_a_body(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> Any:
        async def one(n: int) -> None:
            await run.step(note, n)

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(one, n)
        with anyio.move_on_after(3600) as scope:
            await run.signal("never")
        return scope.cancelled_caught

    work.start(id="r")
    run_due(hf)
    skip(hf, hours=2)
    assert (hf.run("r").result(0), len(calls)) == (True, 3)


def test_a_cancel_that_races_the_end_is_quiet(everywhere: Holdfast) -> None:
    """absurd 95; Temporal 620: one that was swallowed shows, see test_rules."""
    hf = everywhere

    @hf.workflow
    async def work(run: Run) -> str:
        return "done"

    handle = work.start(id="r")
    [lease] = hf.store.run(jobs.claim("runs", limit=1, leases={"work@1": 60_000}))
    handle.cancel()

    async def main() -> None:
        try:
            assert not await one_life(hf, lease, None)
        finally:
            hf.store.forget_loop()

    asyncio.run(main())
    assert (handle.status(), handle.result(0)) == ("done", "done")
    with pytest.raises(RunFinished):
        handle.cancel()
    assert hf.cancel("r").left == {"r": "done"}
    assert run_due(hf) == []


def test_signals_during_continue_as_new_all_arrive(hf_file: Holdfast) -> None:
    """Temporal 1289."""
    hf = hf_file

    @hf.workflow
    async def work(run: Run, seen: list[int]) -> Any:
        seen = [*seen, await run.signal("item")]
        return seen if len(seen) == 40 else run.continue_as_new(seen)

    async def main() -> None:
        async with hf.worker(poll=0.02):
            handle = await work.astart([], id="r")
            for n in range(40):
                await hf.asignal("r", "item", n)
                await asyncio.sleep(0.001 * (n % 4))
            assert await hf.run("r").aresult(PATIENCE) == list(range(40))
            assert await handle.aresult(PATIENCE) == list(range(40))

    asyncio.run(main())


def test_a_step_that_is_longer_than_the_lease_is_made_once(hf_file: Holdfast) -> None:
    """absurd, pydantic-ai-harness 399: the lease is renewed."""
    hf = hf_file

    async def slow() -> str:
        calls.append("made")
        await asyncio.sleep(2.5)
        return "slow"

    @hf.workflow(lease=1)
    async def work(run: Run) -> str:
        return await run.step(slow)

    async def main() -> None:
        async with hf.worker(poll=0.05), hf.worker(poll=0.05):
            handle = await work.astart(id="r")
            assert await handle.aresult(PATIENCE) == "slow"

    asyncio.run(main())
    assert calls == ["made"]


def _counted(hf: Holdfast) -> list[str]:
    """Run the next run with an executor that writes down its commits."""
    made: list[str] = []

    class Counting(MortalExecutor):
        async def insist(self, work: Any) -> Any:
            made.append(work.name)
            return await super().insist(work)

    async def main() -> None:
        [lease] = await hf.store.arun(jobs.claim("runs", limit=1, leases={"work@1": 60_000}))
        executor = Counting(hf)
        work = Work(lease, hf.handlers[lease.kind], True, time.monotonic(), executor=executor)
        ended = await executor.attempt(work)
        assert ended.write is not None
        await hf.store.arun(jobs.settle([ended.write]))
        hf.store.forget_loop()

    asyncio.run(main())
    return made


@pytest.mark.parametrize("steps", [100, 1000])
def test_a_step_costs_the_same_however_long_the_journal_is(hf: Holdfast, steps: int) -> None:
    """Vercel 1315: one commit for each step that depends on the last, and one read of the journal for each claim."""

    @hf.workflow
    async def work(run: Run) -> int:
        for n in range(steps):
            await run.step(_same, n)
        await run.signal("go")
        return steps

    work.start(id="r")
    first = _counted(hf)
    assert first.count("checkpoint") == steps
    assert len(first) <= steps + 3
    hf.signal("r", "go")
    again = _counted(hf)
    assert again.count("checkpoint") == 0
    assert len(again) <= 4
    assert (hf.run("r").result(0), len(hf.run("r").history())) == (steps, steps + 1)


async def _same(n: int) -> int:
    return n


def test_independent_steps_share_their_commits(hf: Holdfast) -> None:
    @hf.workflow
    async def work(run: Run) -> int:
        return sum(await asyncio.gather(*(run.step(_same, n) for n in range(1000))))

    work.start(id="r")
    made = _counted(hf)
    assert made.count("checkpoint") < 50
    assert (hf.run("r").result(0), len(hf.run("r").history())) == (499_500, 1000)


def test_a_fan_out_of_children_costs_few_statements(hf: Holdfast) -> None:
    """1,000 children: one start for all, their ends by the hundred."""

    @hf.workflow
    async def leaf(run: Run, n: int) -> int:
        return n

    @hf.workflow
    async def work(run: Run) -> int:
        return sum(await asyncio.gather(*(run.child(leaf, n) for n in range(1000))))

    work.start(id="r")
    made = _counted(hf)
    assert made.count("start_children") == 1
    assert len(made) < 10
    run_due(hf)
    assert hf.run("r").result(0) == 499_500
    assert [row.kind for row in hf.run("r").history()] == ["child"] * 1000


def test_a_run_that_kills_its_worker_at_the_same_place_ends_dead(hf: Holdfast) -> None:
    """llama-agents 607: an out-of-memory loop is not for ever."""

    @hf.workflow(retry=Retry(max_attempts=3, first_delay=0.0, jitter=0.0))
    async def work(run: Run) -> None:
        await run.step(note, "made")
        await run.step(note, "kills")

    handle = work.start(id="r")
    outcomes = _die(hf, 10, at=2)
    assert outcomes[-1] == "dead"
    assert handle.status() == "dead"
    with pytest.raises(JobDead):
        handle.result(0)


def test_fifty_deploys_of_a_run_that_gets_on_do_not_end_it(hf: Holdfast) -> None:
    """llama-agents 607."""

    @hf.workflow(retry=Retry(max_attempts=3, first_delay=0.0, jitter=0.0))
    async def work(run: Run) -> str:
        for n in range(60):
            await run.step(note, n)
        return "done"

    handle = work.start(id="r")
    assert set(_die(hf, 50, at=1)) == {"released"}
    run_due(hf)
    assert (handle.result(0), handle.get().attempts) == ("done", 1)
    assert sorted(set(calls)) == list(range(60))


def _die(hf: Holdfast, times: int, at: int) -> list[str]:
    """Let the process of the only run die after its next record, or, with `at` 2, before it; as reapers see it."""
    hf.store.now = datetime(2031, 1, 1, tzinfo=UTC)
    outcomes: list[str] = []

    async def main() -> None:
        for n in range(times):
            claimed = await hf.store.arun(jobs.claim("runs", limit=1, worker="mortal", leases={"work@1": 1000}))
            if not claimed:
                break
            if claimed[0].lapses:
                await hf.store.arun(jobs.begin(claimed[0]))
            if at == 1 or n == 0:
                assert hf.store.now is not None
                hf.store.now += timedelta(milliseconds=10)
                await one_life(hf, claimed[0], 1)
            assert hf.store.now is not None
            hf.store.now += timedelta(seconds=10)
            reaped = await hf.store.arun(jobs.reap(backoff=lambda kind, attempt: 0.0))
            outcomes.extend(one.outcome for one in reaped)
            hf.store.now += timedelta(seconds=10)
        hf.store.forget_loop()

    asyncio.run(main())
    return outcomes


def test_payloads_that_are_too_large_are_refused_in_words_that_say_where(hf: Holdfast) -> None:
    limit = hf.options.payload_limit
    large = "x" * (limit + 1)

    @hf.workflow
    async def work(run: Run, text: str = "") -> Any:
        return await run.signal("go")

    with pytest.raises(PayloadTooLarge, match="work"):
        work.start(large, id="a")
    handle = work.start(id="r")
    with pytest.raises(PayloadTooLarge, match="signal go"):
        hf.signal("r", "go", large)
    with pytest.raises(PayloadTooLarge, match="signal go"):
        asyncio.run(handle.asignal("go", large))
    hf.signal("r", "go", "x" * (limit - 10))
    run_due(hf)
    assert len(handle.result(0)) == limit - 10
