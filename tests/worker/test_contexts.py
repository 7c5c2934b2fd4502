"""Context variables: each attempt starts from the context that the worker started in, and keeps its own to its end."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import Holdfast, Job, Retry
from holdfast.events import JobStarted
from holdfast.testing.inline import run_due
from tests.worker.stage import Stage

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")


@pytest.fixture
def seen() -> list[tuple[str, str]]:
    return []


@pytest.fixture(autouse=True)
def of_the_application() -> Iterator[None]:
    token = trace.set("set before the worker started")
    yield
    trace.reset(token)


def test_what_a_job_sets_is_gone_for_the_next_one_in_its_slot(stage: Stage, seen: list[Any]) -> None:
    @stage.hf.job
    async def plain(name: str) -> None:
        seen.append((tenant.get(), trace.get()))
        tenant.set(name)
        trace.set(name)

    @stage.hf.job
    async def waits(name: str) -> None:
        seen.append((tenant.get(), trace.get()))
        tenant.set(name)
        await asyncio.sleep(0)
        trace.set(name)

    @stage.hf.job
    async def asks(job: Job, name: str) -> None:
        seen.append((tenant.get(), trace.get()))
        tenant.set(name)
        raise ValueError

    @stage.hf.job(timeout=10)
    async def limited(name: str) -> None:
        seen.append((tenant.get(), trace.get()))
        tenant.set(name)

    @stage.hf.job
    def on_a_thread(name: str) -> None:
        seen.append((tenant.get(), trace.get()))
        tenant.set(name)

    handlers = (plain, waits, asks, limited, on_a_thread)
    for n in range(3):
        for handler in handlers:
            handler.using(max_attempts=1).enqueue(name=f"acme {n}")
    stage.work(concurrency=1)
    assert seen == [("nobody", "set before the worker started")] * 15


def test_a_handler_keeps_what_it_set_while_it_waits_and_its_tasks_see_it(sqlite_stage: Stage) -> None:
    stage = sqlite_stage

    async def child() -> str:
        before = tenant.get()
        tenant.set("the child's own")
        return before

    @stage.hf.job
    async def act(name: str) -> list[str]:
        tenant.set(name)
        await asyncio.sleep(0.001)
        told = [tenant.get()]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(child())
        told += [task.result(), await asyncio.to_thread(tenant.get)]
        token = tenant.set("for a while")
        await asyncio.sleep(0.001)
        tenant.reset(token)
        return [*told, tenant.get()]

    jobs = {name: act.enqueue(name=name) for name in ("acme", "umbrella", "initech")}
    stage.work(concurrency=3)
    assert {name: stage.show(job).result for name, job in jobs.items()} == {name: [name] * 4 for name in jobs}


def test_a_middleware_and_a_subscriber_set_what_their_own_attempt_sees(sqlite_stage: Stage, seen: list[Any]) -> None:
    stage = sqlite_stage

    @stage.hf.middleware
    async def outer(job: Job, call_next: Callable[[Job], Awaitable[Any]]) -> Any:
        seen.append(("middleware", tenant.get()))
        tenant.set(str(job.headers.get("tenant", tenant.get())))
        return await call_next(job)

    @stage.hf.job
    async def act(job: Job) -> None:
        seen.append(("async", tenant.get()))
        assert trace.get() == job.id

    @stage.hf.job
    def threaded(job: Job) -> None:
        seen.append(("def", tenant.get()))
        tenant.set("left behind")
        assert trace.get() == job.id

    for handler in (act, threaded):
        handler.using(headers={"tenant": "acme"}).enqueue()
        handler.enqueue()
    stage.hf.on(JobStarted, lambda event: trace.set(event.id) and None)
    stage.work(concurrency=1)
    assert sorted(seen) == sorted(
        [("middleware", "nobody")] * 4 + [("async", "acme"), ("async", "nobody"), ("def", "acme"), ("def", "nobody")]
    )


def test_time_outs_cancellation_and_the_task_itself_are_the_handlers(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    stopped: list[str] = []

    @stage.hf.job
    async def times_out() -> str:
        tenant.set("acme")
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return f"timed out as {tenant.get()}"
        return "never"

    @stage.hf.job
    async def cancels_its_wait() -> str:
        tenant.set("acme")
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task.uncancel()
        await asyncio.sleep(0)
        return f"went on as {tenant.get()}"

    @stage.hf.job
    async def is_stopped() -> None:
        tenant.set("acme")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            stopped.append(tenant.get())

    @stage.hf.job(timeout=0.01, retry=Retry(max_attempts=1))
    async def is_too_slow() -> None:
        tenant.set("acme")
        await asyncio.Event().wait()

    late, cancelled, slow, held = (one.enqueue() for one in (times_out, cancels_its_wait, is_too_slow, is_stopped))

    async def body(_: Any) -> None:
        await stage.until(lambda: stage.live() == 1)

    stage.work(body, drain=0)
    assert stage.show(late).result == "timed out as acme"
    assert stage.show(cancelled).result == "went on as acme"
    assert stage.show(slow).errors[0]["type"].endswith("TimedOut")
    assert (stopped, stage.state(held)) == (["acme"], "pending")


def test_a_library_that_switches_stacks_keeps_the_context(pg_stage: Stage) -> None:
    """SQLAlchemy runs async drivers on greenlets, which have contexts of their own."""
    stage = pg_stage

    @stage.hf.job
    async def act(name: str) -> str:
        tenant.set(name)
        engine = create_async_engine(stage.url.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.begin() as connection:
            await connection.execute(sqlalchemy.text("select pg_sleep(0.01)"))
            inside = await connection.run_sync(lambda _: tenant.get())
        await engine.dispose()
        return f"{inside} {tenant.get()}"

    jobs = {name: act.enqueue(name=name) for name in ("acme", "umbrella")}
    stage.work(concurrency=2)
    assert [stage.show(job).result for job in jobs.values()] == ["acme acme", "umbrella umbrella"]


def test_run_due_runs_in_the_context_of_the_test() -> None:
    with Holdfast("sqlite:///:memory:") as hf:

        @hf.job
        async def act() -> str:
            return tenant.get()

        act.enqueue()
        token = tenant.set("the test's")
        assert run_due(hf)[0].result == "the test's"
        tenant.reset(token)
