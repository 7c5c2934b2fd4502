"""Runs with real workers: news for runs that are at work, cancels, deaths, many runs at once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobCancelled, JobDead, Retry, Run
from holdfast.events import RunParked

PATIENCE = 60.0


async def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_an_order_is_charged_waits_for_approval_and_is_shipped(everywhere: Holdfast) -> None:
    """Timers, signals, children, steps of both colours and a race of timer and signal, by a worker."""
    hf, made = everywhere, []

    def charge(n: int) -> int:
        made.append(("charge", n))
        return n * 100

    async def pack(n: int) -> str:
        made.append(("pack", n))
        return f"parcel {n}"

    @hf.workflow
    async def ship(run: Run, n: int) -> str:
        await run.sleep(0.05)
        return await run.step(pack, n)

    @hf.workflow
    async def fulfil(run: Run, n: int) -> list[Any]:
        amount = await run.step(charge, n)
        run.set("stage", "charged")
        async with asyncio.timeout(3600):
            by = await run.signal("approved")
        parcels = await asyncio.gather(run.child(ship, 1), run.child(ship, 2))
        return [amount, by, *parcels]

    async def main() -> None:
        parked: list[RunParked] = []
        hf.on(RunParked, parked.append)
        async with hf.worker(concurrency=4, poll=0.2):
            handles = await fulfil.astart_many({f"order-{n}": fulfil.bind(n=n) for n in range(5)})
            await until(lambda: len({one.id for one in parked if one.waits_for == "signal:approved"}) == 5)
            for handle in handles:
                await handle.asignal("approved", "ada")
            found = [await handle.aresult(PATIENCE) for handle in handles]
        assert found == [[n * 100, "ada", "parcel 1", "parcel 2"] for n in range(5)]
        assert sorted(one for one in made if one[0] == "charge") == [("charge", n) for n in range(5)]
        assert len(made) == 15
        assert (await handles[0].aattributes()) == {"stage": "charged"}

    asyncio.run(main())


def test_a_run_at_work_hears_of_signals_and_of_its_cancel(hf_file: Holdfast) -> None:
    hf = hf_file

    async def slow() -> None:
        await asyncio.sleep(PATIENCE)

    @hf.workflow
    async def work(run: Run) -> str:
        step = run.step(slow)
        got = await run.signal("go")
        run.set("got", got)
        await step
        return "never"

    async def main() -> None:
        async with hf.worker(poll=0.1):
            handle = await work.astart(id="r")
            deadline = time.monotonic() + PATIENCE
            while (await handle.astatus()) != "running":
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            await handle.asignal("go", 7)
            while not (await handle.aattributes()):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            await handle.acancel()
            with pytest.raises(JobCancelled):
                await handle.aresult(PATIENCE)

    asyncio.run(main())


def test_a_worker_that_stops_gives_its_runs_back_without_an_attempt(hf_file: Holdfast) -> None:
    hf = hf_file
    begun: list[int] = []

    async def slow() -> None:
        begun.append(1)
        await asyncio.sleep(PATIENCE if len(begun) == 1 else 0)

    @hf.workflow
    async def work(run: Run) -> str:
        await run.step(slow)
        return "done"

    async def main() -> None:
        handle = await work.astart(id="r")
        async with hf.worker(poll=0.1, drain=0.05):
            await until(lambda: begun)
        view = await handle.aget()
        assert (view.status, view.attempts) == ("pending", 0)
        async with hf.worker(poll=0.1):
            assert await handle.aresult(PATIENCE) == "done"

    asyncio.run(main())


APP = """
import os
from holdfast import Holdfast, Retry, Run
hf = Holdfast(os.environ["HOLDFAST_URL"])

def book(tx, n):
    tx.execute("insert into booked (n) values (?)", (n,))

async def pay(n: int) -> int:
    return n

@hf.workflow(lease=1, retry=Retry(max_attempts=1000, first_delay=0.05, max_delay=0.05))
async def work(run: Run, n: int) -> int:
    total = 0
    for k in range(6):
        total += await run.step(pay, n)
        await run.transaction(book, n * 10 + k)
        await run.sleep(0.02)
    return total
"""


def test_every_run_ends_and_each_effect_is_there_once_however_workers_are_killed(
    tmp_path: Any, sqlite_url: str
) -> None:
    """SIGKILL, in a short form; leases end, journals are replayed, fences hold."""
    (tmp_path / "killed_app.py").write_text(APP)
    hf = Holdfast(sqlite_url)
    hf.migrate()
    with hf.store.transaction() as link:
        link.raw.execute("create table booked (n integer)")

    @hf.workflow
    async def work(run: Run, n: int) -> int:
        raise NotImplementedError

    handles = work.start_many({f"r{n}": work.bind(n) for n in range(20)})
    env = {**os.environ, "HOLDFAST_URL": sqlite_url, "PYTHONPATH": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("holdfast")), "worker", "killed_app:hf", "--poll", "0.1"]

    def crew() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def over() -> int:
        with hf.store.link() as link:
            [(count,)] = link.raw.execute("select count(*) from holdfast_runs where outcome = 'done'").fetchall()
            return int(count)

    def rows() -> int:
        with hf.store.link() as link:
            [(count,)] = link.raw.execute("select count(*) from holdfast_steps").fetchall()
            return int(count)

    members = [crew(), crew()]
    try:
        deadline = time.monotonic() + 3 * PATIENCE
        kills, seen = 0, 0
        while over() < 20:
            assert time.monotonic() < deadline, f"{over()} of 20 after {kills} kills"
            time.sleep(0.05)
            if kills < 4 and rows() > seen + 20:
                seen = rows()
                victim = members.pop(0)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                members.append(crew())
                kills += 1
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.wait()
    assert kills >= 2
    assert [handle.result(0) for handle in handles] == [n * 6 for n in range(20)]
    with hf.store.link() as link:
        booked = [n for (n,) in link.raw.execute("select n from booked order by n").fetchall()]
    hf.close()
    assert booked == sorted(n * 10 + k for n in range(20) for k in range(6))


def test_a_policy_of_retries_is_for_deaths_and_not_for_steps(hf_file: Holdfast) -> None:
    @hf_file.workflow(retry=Retry(max_attempts=7))
    async def work(run: Run) -> None: ...

    assert hf_file.get(work.start(id="r").get().job_id).max_attempts == 7


def test_a_transaction_that_goes_on_after_its_time_commits_nothing_and_holds_up_nobody(hf_file: Holdfast) -> None:
    hf, calls = hf_file, []

    def book(tx: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.2)
        return len(calls)

    @hf.workflow
    async def work(run: Run) -> list[int]:
        booked = await run.transaction(book, timeout=0.02, retry=Retry.after(0.3))
        return [booked, await run.step(len, [1, 2, 3], name="after")]

    async def main() -> None:
        async with hf.worker(poll=0.1):
            handle = await work.astart(id="r")
            assert await handle.aresult(PATIENCE) == [2, 3]
            assert [row.key for row in await handle.ahistory() if row.ok] == ["book", "after"]

    asyncio.run(main())


def test_a_step_that_cancels_the_task_it_is_in_fails_the_attempt_of_its_run(hf_file: Holdfast) -> None:
    hf = hf_file

    async def selfish() -> None:
        task: Any = asyncio.current_task()
        task.cancel()
        await asyncio.sleep(0)

    @hf.workflow(retry=Retry(max_attempts=1))
    async def work(run: Run) -> None:
        await run.step(selfish)

    async def main() -> None:
        async with hf.worker(poll=0.1):
            handle = await work.astart(id="r")
            with pytest.raises(JobDead, match="selfish was cancelled, and not by its run"):
                await handle.aresult(PATIENCE)

    asyncio.run(main())
