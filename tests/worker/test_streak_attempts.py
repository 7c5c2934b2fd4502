"""Every promise about an attempt holds for a job that its thread took out of the buffer by itself."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Job, admin, events
from holdfast.errors import WorkerFailed
from holdfast.worker import Worker
from holdfast.worker.handler_executor import Executor
from tests.worker.quiet import HEARD, LATER, feed, quiet, wait_until, work
from tests.worker.stage import Stage
from tests.worker.test_odd_handlers import RAISED

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def test_a_time_out_gives_up_on_the_thread_and_another_takes_what_is_behind(stage: Stage, pace: str) -> None:
    hf, ran, release = quiet(stage), [], threading.Event()

    @hf.job(timeout=0.05, retry=LATER)
    def never(job: Job) -> None:
        ran.append(("never", threading.get_ident()))
        release.wait(60)
        ran.append(("lost", job.lost))

    @hf.job(timeout=60)
    def act(n: int) -> None:
        ran.append((n, threading.get_ident()))

    first, late, *others = hf.enqueue_many([act.bind(n=0), never.bind(), act.bind(n=1), act.bind(n=2)])
    work(stage, hf)
    release.set()
    wait_until(lambda: ("lost", True) in ran)
    wait_until(lambda: not any(one.name.startswith("holdfast-handler") for one in threading.enumerate()))
    assert [what for what, _ in ran] == [0, "never", 1, 2, "lost"]
    threads = dict(ran)
    assert threads["never"] not in (threads[1], threads[2])
    assert [error["type"] for error in stage.show(late).errors] == ["holdfast.errors.TimedOut"]
    assert stage.state(late) == "pending"
    assert {stage.state(job) for job in (first, *others)} == {"done"}


def test_each_job_of_a_streak_has_its_time_out_to_itself(sqlite_stage: Stage, pace: str) -> None:
    hf = quiet(sqlite_stage)

    @hf.job(timeout=0.5, retry=LATER)
    def act(n: int) -> None:
        time.sleep(0.05)

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(15)])
    work(sqlite_stage, hf)
    assert {sqlite_stage.state(job) for job in enqueued} == {"done"}


@pytest.mark.parametrize("what", ["lost", "cancelled"])
def test_news_of_a_lease_reaches_a_job_that_its_thread_took_by_itself(stage: Stage, pace: str, what: str) -> None:
    hf, seen = quiet(stage), []

    @hf.job(lease=1)
    def act(job: Job, n: int) -> None:
        if n == 1:
            seen.append("begun")
            deadline = time.monotonic() + 30
            while not (job.lost or job.cancel_requested) and time.monotonic() < deadline:
                time.sleep(0.005)
            seen.append((job.lost, job.cancel_requested))
            raise RuntimeError("stopped as told")

    first, second, third = hf.enqueue_many([act.bind(n=n) for n in range(3)])

    async def body(worker: Worker) -> None:
        await stage.until(lambda: seen)
        for held in worker.held.values():
            held.renewed = 0.0
        if what == "lost":
            stage.steal(second)
        else:
            await stage.arun(admin.cancel(second.id, "test"))
        await stage.until(lambda: not worker.held)

    work(stage, hf, body)
    assert seen == ["begun", (what == "lost", what == "cancelled")]
    assert [stage.state(job) for job in (first, third)] == ["done", "done"]
    assert stage.state(second) == ("leased" if what == "lost" else "cancelled")


def test_whatever_a_handler_raises_costs_its_own_attempt_alone(sqlite_stage: Stage, pace: str) -> None:
    stage, hf = sqlite_stage, quiet(sqlite_stage)

    @hf.job(retry=LATER)
    def act(what: str) -> str:
        if what in RAISED:
            raise RAISED[what]
        return what

    names = [name for raised in RAISED for name in (raised, f"after {raised}")]
    enqueued = hf.enqueue_many([act.bind(what=name) for name in names])
    broken = stage.put("act", '{"what": 1}')
    last = act.enqueue(what="last")
    work(stage, hf)
    shown = dict(zip(names, map(stage.show, enqueued), strict=True))
    for name, job in shown.items():
        if name in RAISED:
            assert (job.state, [error["type"].rpartition(".")[2] for error in job.errors]) == ("pending", [name])
        else:
            assert (job.state, job.result) == ("done", name)
    assert stage.state(broken) == "dead"
    assert stage.show(last).result == "last"


def test_a_hidden_coroutine_runs_on_the_loop_before_its_slot_takes_another_job(sqlite_stage: Stage, pace: str) -> None:
    stage, hf = sqlite_stage, quiet(sqlite_stage)
    seen: list[Any] = []

    async def rest(n: int) -> str:
        seen.append((n, "loop", threading.get_ident(), tenant.get()))
        await asyncio.sleep(0.001)
        seen.append((n, "over"))
        return f"awaited {n}"

    @hf.job
    def act(n: int) -> Any:
        seen.append((n, "thread"))
        tenant.set(f"of {n}")
        return rest(n) if n % 2 else f"plain {n}"

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(4)])
    work(stage, hf)
    here = threading.get_ident()
    assert seen == [
        *((0, "thread"), (1, "thread"), (1, "loop", here, "of 1"), (1, "over")),
        *((2, "thread"), (3, "thread"), (3, "loop", here, "of 3"), (3, "over")),
    ]
    assert [stage.show(job).result for job in enqueued] == ["plain 0", "awaited 1", "plain 2", "awaited 3"]


def test_a_hidden_coroutine_keeps_its_time_out_and_is_given_back_at_a_stop(sqlite_stage: Stage, pace: str) -> None:
    stage, hf, begun = sqlite_stage, quiet(sqlite_stage), []

    async def rest(n: int) -> None:
        begun.append(n)
        await asyncio.sleep(60)

    @hf.job(timeout=0.05, retry=LATER)
    def limited(n: int) -> Any:
        return rest(n)

    @hf.job
    def endless(n: int) -> Any:
        return rest(n)

    late, held = limited.enqueue(n=0), endless.enqueue(n=1)

    async def body(_: Worker) -> None:
        await stage.until(lambda: 1 in begun)

    work(stage, hf, body, drain=0)
    assert [error["type"] for error in stage.show(late).errors] == ["holdfast.errors.TimedOut"]
    shown = stage.show(held)
    assert (shown.state, shown.attempts, shown.errors) == ("pending", 0, [])


def test_each_attempt_of_a_streak_has_its_own_context_and_its_own_hooks_on_its_thread(
    sqlite_stage: Stage, pace: str
) -> None:
    stage, hf = sqlite_stage, quiet(sqlite_stage)
    seen: list[Any] = []

    @hf.around_handler
    @contextmanager
    def hook(job: Job) -> Iterator[None]:
        seen.append(("before", job.id, threading.get_ident(), tenant.get()))
        tenant.set(job.id)
        yield
        seen.append(("after", job.id, threading.get_ident(), tenant.get()))

    @hf.job
    def act(n: int) -> None:
        seen.append((n, tenant.get(), threading.get_ident()))

    token = tenant.set("the worker's")
    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(5)])
    work(stage, hf)
    tenant.reset(token)
    threads = [entry[2] for entry in seen]
    assert threading.get_ident() not in threads
    assert seen == [
        entry
        for n, job in enumerate(enqueued)
        for thread in threads[3 * n : 3 * n + 1]
        for entry in (
            ("before", job.id, thread, "the worker's"),
            (n, job.id, thread),
            ("after", job.id, thread, job.id),
        )
    ]


def test_subscribers_are_called_on_the_loop_whatever_thread_ran_the_handler(sqlite_stage: Stage, pace: str) -> None:
    stage, hf = sqlite_stage, quiet(sqlite_stage)
    threads: list[int] = []
    for kind in (*HEARD, events.ResultDropped):
        hf.on(kind, lambda _: threads.append(threading.get_ident()))

    @hf.job(retry=LATER)
    def act(n: int) -> Any:
        if n == 1:
            raise ValueError
        return object() if n == 2 else n or None

    hf.enqueue_many([act.bind(n=n) for n in range(4)])
    work(stage, hf)
    assert threads == [threading.get_ident()] * 5


def test_who_hears_of_each_start_hears_it_before_the_handler_is_called(sqlite_stage: Stage, pace: str) -> None:
    stage, ran, told = sqlite_stage, [], []
    hf = quiet(stage)
    hf.on(events.JobStarted, lambda event: told.append(event.id) or tenant.set(event.id))

    @hf.job
    def act(job: Job) -> None:
        assert tenant.get() == job.id
        ran.append(list(told))

    enqueued = hf.enqueue_many([act.bind()] * 5)
    work(stage, hf)
    ids = [job.id for job in enqueued]
    assert ran == [ids[: n + 1] for n in range(5)]


def test_a_job_that_no_thread_can_be_had_for_waits_without_using_an_attempt(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, hf, ran = sqlite_stage, quiet(sqlite_stage), []
    start = threading.Thread.start
    refused = ["holdfast-handler"]

    def maybe(thread: threading.Thread) -> None:
        if any(thread.name.startswith(name) for name in refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", maybe)

    @hf.job
    def act(n: int) -> None:
        ran.append(n)

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(3)])

    async def body(worker: Worker) -> None:
        await stage.until_said(events.JobSnoozed, 3)
        await stage.until(lambda: not worker.held)
        assert ({stage.show(job).attempts for job in enqueued}, ran) == ({0}, [])
        refused.clear()
        stage.sql("update holdfast_jobs set available_at = 0")
        feed(stage, worker)
        await stage.until_empty()

    work(stage, hf, body)
    assert sorted(ran) == [0, 1, 2]


def test_a_flaw_of_ours_on_a_thread_breaks_the_worker_instead_of_hanging_it(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, hf = sqlite_stage, quiet(sqlite_stage)

    def flawed(*_: Any) -> None:
        raise ZeroDivisionError("a flaw")

    monkeypatch.setattr(Executor, "call", flawed)

    @hf.job
    def act() -> None: ...

    act.enqueue()
    with pytest.raises(WorkerFailed) as caught:
        work(stage, hf)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert len(stage.heard(events.WorkerBroke)) == 1
