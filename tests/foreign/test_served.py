"""The ordinary worker serves foreign tables beside ordinary jobs."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Job, events
from holdfast.foreign import DurableSteps, PdoQueue
from tests.foreign.conftest import Sql
from tests.foreign.rows import URN
from tests.worker.test_broken_outcomes import FATAL, RAISED, RETURNED

PATIENCE = 15.0


def serve(hf: Holdfast, until: Callable[[], bool], workers: int = 1) -> None:
    """Run workers until something is so."""

    async def run() -> None:
        crew = [hf.worker(poll=0.05, concurrency=5) for _ in range(workers)]
        for worker in crew:
            await worker.start()
        deadline = time.monotonic() + PATIENCE
        try:
            while not await asyncio.to_thread(until):
                assert time.monotonic() < deadline, "it did not come to that"
                await asyncio.sleep(0.02)
        finally:
            for worker in crew:
                worker.stop()
            await asyncio.gather(*(worker._end() for worker in crew))
            await hf.aclose()

    hf.migrate()
    asyncio.run(run())


def test_one_worker_serves_php_messages_beside_ordinary_jobs(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    calls: list[Any] = []
    told: set[tuple[str, str]] = set()
    hf.on(events.JobEvent, lambda event: told.add((event.source, event.kind)))

    @hf.job
    def ordinary(number: int) -> None:
        calls.append(("ordinary", number))

    @jobs.handler(URN)
    async def created(order_id: int, job: Job) -> None:
        calls.append(("php", order_id))

    @jobs.handler("urn:babel:fails")
    def fails() -> None:
        raise ValueError("boom")

    hf.migrate()
    for number in range(5):
        ordinary.enqueue(number)
        jobs.publish(URN, {"order_id": number})
    jobs.publish("urn:babel:fails", {})
    serve(
        hf,
        lambda: (
            len(calls) == 10 and sql.one("select count(*) from jobs where reserved_at is null and attempts > 0") == (1,)
        ),
    )
    assert sorted(calls) == [(name, number) for name in ("ordinary", "php") for number in range(5)]
    assert sql.one("select count(*), min(urn) from jobs") == (1, "urn:babel:fails")
    assert told == {("jobs", "ordinary"), ("pdo:jobs", URN), ("pdo:jobs", "urn:babel:fails")}


def test_an_effect_and_the_ack_commit_together(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    sql("create table if not exists effects (n integer)")
    insert = "insert into effects values (1)"

    @jobs.handler(URN)
    def created(job: Job) -> None:
        with job.transaction() as tx:
            tx.cursor().execute(insert)

    jobs.publish(URN, {})
    serve(hf, lambda: sql("select id from jobs") == [])
    assert sql("select n from effects") == [(1,)]


@pytest.mark.slow
def test_a_message_that_takes_longer_than_retry_after_runs_once(pdo_url: str, hf: Holdfast, sql: Sql) -> None:
    jobs = hf.foreign.pdo(retry_after=2)
    jobs.create_schema()
    began: list[float] = []

    @jobs.handler(URN)
    def slow() -> None:
        began.append(time.monotonic())
        time.sleep(4.5)

    jobs.publish(URN, {})
    serve(hf, lambda: sql("select id from jobs") == [], workers=2)
    assert len(began) == 1
    assert sql("select id from jobs_failed") == []


def test_one_worker_serves_remote_steps(hf: Holdfast, steps: DurableSteps, sql: Sql) -> None:
    @steps.step("add")
    async def add(value: int) -> int:
        return value + 1

    sql(
        "insert into durable_transport_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at) "
        "values ('r:0', 'r', 0, 'add', 'add', '41', 1, 'pending', 1)"
    )
    serve(hf, lambda: bool(sql("select step_id from durable_transport_results")))
    assert sql("select status, output from durable_transport_results") == [("completed", "42")]


@pytest.mark.parametrize("async_handler", [False, True])
def test_an_effect_and_a_steps_result_commit_together(
    hf: Holdfast, steps: DurableSteps, sql: Sql, async_handler: bool
) -> None:
    sql("create table if not exists effects (n integer)")

    @steps.step("sync")
    def work(job: Job) -> None:
        with job.transaction() as tx:
            job.result = {"pages": 3}
            tx.cursor().execute("insert into effects values (1)")

    @steps.step("async")
    async def awork(job: Job) -> None:
        async with job.transaction() as tx:
            job.result = {"pages": 3}
            if hasattr(tx, "fetch"):
                await tx.execute("insert into effects values (1)")
            else:
                async with tx.cursor() as cursor:
                    await cursor.execute("insert into effects values (1)")

    name = "async" if async_handler else "sync"
    sql(
        "insert into durable_transport_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at) "
        "values ('r:0', 'r', 0, :name, :name, 'null', 1, 'pending', 1)",
        name=name,
    )
    serve(hf, lambda: bool(sql("select step_id from durable_transport_results")))
    [[output]] = sql("select output from durable_transport_results")
    assert json.loads(output) == {"pages": 3}
    assert sql("select n from effects") == [(1,)]


def give(what: str) -> Any:
    """Give what a handler must not be able to break its worker with."""
    if what in RETURNED:
        return RETURNED[what][0]()
    raise (FATAL[what] if what in FATAL else RAISED[what])()


BROKEN = [*FATAL, *RAISED, *(what for what, (_, end) in RETURNED.items() if "snooze" not in what)]


def test_broken_outcomes_of_messages_cost_themselves_alone(hf: Holdfast, sql: Sql, pdo_url: str) -> None:
    jobs = hf.foreign.pdo(max_attempts=1)
    jobs.create_schema()

    @jobs.handler(URN)
    async def created(what: str) -> Any:
        return give(what) if what else None

    for what in BROKEN:
        jobs.publish(URN, {"what": what})
    jobs.publish(URN, {"what": ""})
    serve(hf, lambda: sql("select id from jobs") == [])
    assert sql.one("select count(*) from jobs_failed")[0] >= len(FATAL) + len(RAISED)


def test_broken_outcomes_of_steps_cost_themselves_alone(hf: Holdfast, steps: DurableSteps, sql: Sql) -> None:
    @steps.step("act")
    async def act(what: str) -> Any:
        return give(what) if what else "fine"

    for n, what in enumerate([*BROKEN, ""]):
        sql(
            "insert into durable_transport_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at)"
            " values (:id, 'r', :n, 'act', 'act', :input, 1, 'pending', 1)",
            id=f"r:{n}",
            n=n,
            input=json.dumps(what),
        )
    serve(hf, lambda: sql.one("select count(*) from durable_transport_results") == (len(BROKEN) + 1,))
    ends = dict(sql("select step_id, status from durable_transport_results"))
    assert {ends[f"r:{n}"] for n in range(len(FATAL) + len(RAISED))} == {"failed"}
    assert ends[f"r:{len(BROKEN)}"] == "completed"
    errors = dict(sql("select step_id, error from durable_transport_results"))
    assert all(json.loads(errors[f"r:{n}"])["retryable"] is False for n in range(len(FATAL)))
    assert all("retryable" not in json.loads(errors[f"r:{n}"]) for n in range(len(FATAL), len(FATAL) + len(RAISED)))
