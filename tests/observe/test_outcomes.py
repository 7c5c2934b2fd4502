"""Outcomes that no handler chooses: parked runs, jobs that were given back, leases that were taken back, deliveries."""

import asyncio
import re
from typing import Any

from holdfast import Fatal, Retry, Run, jobs, observe
from holdfast.events import JobReaped
from holdfast.observe.exposition import Slots, of_fleet, of_process
from holdfast.sinks import Function
from holdfast.worker import Worker
from tests.worker.stage import Stage


def told(stage: Stage, **which: str) -> observe.Figures:
    found: observe.Figures = stage.run(observe.history(600)).figures(**which)
    return found


def value(page: str, name: str) -> float:
    [line] = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(line)


def test_a_run_that_waits_is_parked_and_then_done(stage: Stage) -> None:
    @stage.hf.workflow
    async def ask(run: Run) -> Any:
        return await run.signal("go")

    ask.start(id="first")

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.sql("select 1 from holdfast_jobs where state = 'waiting'"))
        await stage.hf.asignal("first", "go", 1)
        await stage.until_empty()

    stage.work(body, poll=0.02)
    seen = told(stage, kind="ask@1")
    assert seen.ended == {"parked": 1, "done": 1}
    assert seen.attempts == seen.runs.count == 2


def test_a_job_that_a_worker_gives_back_is_released_and_was_no_attempt(stage: Stage) -> None:
    going = asyncio.Event()

    @stage.hf.job
    async def hold() -> None:
        going.set()
        await asyncio.sleep(30)

    job = hold.enqueue()

    async def body(worker: Worker) -> None:
        await going.wait()

    stage.work(body, poll=0.02, drain=0)
    assert (stage.state(job), stage.show(job).attempts) == ("pending", 0)
    seen = told(stage, kind="hold")
    assert seen.ended == {"released": 1}
    assert seen.attempts == 0


def test_a_lease_that_ran_out_is_counted_by_the_worker_that_took_it_back(stage: Stage) -> None:
    pages: list[str] = []

    @stage.hf.job(queue="mail", retry=Retry.after(0))
    async def work() -> None: ...

    first = work.enqueue()
    # Somebody has claimed it, and died.
    [lease] = stage.run(jobs.claim("mail", limit=1))
    assert lease.job_id == first.id
    stage.sql("update holdfast_jobs set lease_expires_at = created_at where id = ?", first.id)

    async def body(worker: Worker) -> None:
        reader = worker.tallies.reader()
        await stage.until_said(JobReaped)
        await stage.until_empty()
        pages.append(of_process(reader.take(), Slots(0, 1), 1))

    stage.work(body, poll=0.02, queues=["mail"])
    assert told(stage, queue="mail", kind="work").ended == {"reaped": 1, "done": 1}
    assert told(stage, queue="mail", kind="work").attempts == 1
    assert value(pages[0], "holdfast_leases_reaped_total") == 1
    assert 'outcome="reaped"' not in pages[0]


def test_a_relay_counts_its_deliveries_by_route(stage: Stage) -> None:
    async def take(message: Any) -> None:
        if message.event.data["n"] == 2:
            raise Fatal("never")

    stage.hf.route("order.*", to=Function(take), name="orders")
    for n in range(3):
        stage.hf.publish("order.placed", {"n": n})

    async def scene() -> None:
        async with stage.hf.relay():
            await stage.until_empty()
        await stage.hf.aclose()

    asyncio.run(scene())
    assert told(stage, queue="route:orders").ended == {"done": 2, "dead": 1}


def test_dead_letters_are_told_by_their_queue(stage: Stage) -> None:
    @stage.hf.job(queue="mail")
    async def die() -> None:
        raise Fatal("never")

    for _ in range(3):
        die.enqueue()
    stage.work(poll=0.02)
    page = of_fleet(stage.run(observe.sample()), {"alive": 1})
    assert value(page, 'holdfast_dead_letters{queue="mail"}') == 3
    assert value(page, 'holdfast_queue_due{queue="mail"}') == 0
