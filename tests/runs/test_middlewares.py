"""Middlewares around attempts of runs, blocks around their steps, and context variables that are each run's own."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Holdfast, Job, JobCancelled, JobDead, Run
from holdfast.testing.inline import run_due
from tests.runs.noting import calls, note

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def test_a_middleware_is_called_around_each_attempt_of_a_run_and_sees_how_it_came_out(hf: Holdfast) -> None:
    @hf.middleware
    async def tell(job: Job, call_next: Any) -> Any:
        try:
            value = await call_next(job)
        except BaseException as error:
            calls.append(type(error).__name__)
            raise
        calls.append((job.kind, value, job.context.get("waits_for")))
        return value

    @hf.workflow
    async def work(run: Run, fails: bool = False) -> int:
        got: int = await run.signal("go")
        if fails:
            raise ValueError("no")
        return got

    work.start(id="a")
    run_due(hf)
    hf.signal("a", "go", 7)
    run_due(hf)
    assert (hf.run("a").result(0), calls) == (7, [("work@1", None, "signal:go"), ("work@1", 7, None)])
    work.start(True, id="b")
    hf.signal("b", "go")
    work.start(id="c")
    run_due(hf, raise_errors=False)
    hf.cancel("c")
    run_due(hf, raise_errors=False)
    assert calls[-3:] == ["ValueError", ("work@1", None, "signal:go"), "CancelledError"]
    with pytest.raises(JobDead, match="no"):
        hf.run("b").result(0)
    with pytest.raises(JobCancelled):
        hf.run("c").result(0)


def test_what_a_middleware_raises_is_a_failed_attempt_and_the_run_goes_on_later(hf: Holdfast) -> None:
    wrong = [True]

    @hf.middleware
    async def breaks(job: Job, call_next: Any) -> Any:
        value = await call_next(job)
        if wrong:
            wrong.clear()
            raise OSError("no log")
        return f"{value}!"

    @hf.workflow
    async def work(run: Run) -> Any:
        return await run.step(note, "made")

    work.start(id="r")
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried"]
    run_due(hf, ahead=600)
    assert (hf.run("r").result(0), calls) == ("made!", ["made"])


def test_what_a_middleware_sets_is_there_for_the_body_and_its_steps(hf: Holdfast) -> None:
    @hf.middleware
    async def set_tenant(job: Job, call_next: Any) -> Any:
        tenant.set(job.headers["tenant"])
        return await call_next(job)

    @hf.enqueue_hook
    def name_tenant(bound: Any) -> dict[str, str]:
        return {"tenant": "acme"}

    async def seen() -> str:
        await asyncio.sleep(0)
        return tenant.get()

    @hf.workflow
    async def work(run: Run) -> list[str]:
        return [tenant.get(), await run.step(seen), await run.step(tenant.get, name="sync"), await run.step(seen)]

    handle = work.start(id="r")
    run_due(hf)
    assert handle.result(0) == ["acme"] * 4


def test_what_a_step_sets_is_for_itself_and_for_no_other_run(hf_file: Holdfast) -> None:
    hf = hf_file
    seen: list[str] = []

    async def set_it(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)
        await asyncio.sleep(0)

    @hf.workflow
    async def work(run: Run, name: str) -> None:
        for _ in range(3):
            await run.step(set_it, name)

    async def main() -> None:
        handles = [await work.astart(f"t{n}") for n in range(5)]
        async with hf.worker(poll=0.1):
            for handle in handles:
                await handle.aresult(60)

    asyncio.run(main())
    assert seen == ["nobody"] * 15


def test_blocks_around_handlers_are_entered_around_each_step_where_it_runs(hf: Holdfast) -> None:
    @hf.around_handler
    @contextmanager
    def around(job: Job) -> Iterator[None]:
        calls.append(("in", job.kind, threading.current_thread() is threading.main_thread()))
        yield
        calls.append("out")

    def on_thread() -> None:
        calls.append("thread")

    async def on_loop() -> None:
        calls.append("loop")

    def book(tx: Any) -> None:
        calls.append("tx")

    @hf.workflow
    async def work(run: Run) -> None:
        await run.step(on_thread)
        await run.step(on_loop)
        await run.transaction(book)

    work.start(id="r")
    run_due(hf)
    assert calls == [
        ("in", "work@1", False), "thread", "out",
        ("in", "work@1", True), "loop", "out",
        ("in", "work@1", False), "tx", "out",
    ]  # fmt: skip
