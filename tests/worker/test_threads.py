"""Threads of `def` handlers: those that cannot be had, and what runs on them around a handler."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Job, Retry, events
from holdfast.errors import ConfigError
from holdfast.store.wakers import Watcher
from holdfast.worker import Worker
from tests.worker.stage import Stage


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Refuse to start threads whose names begin with one of these, as a container at its limit does."""
    refused: set[str] = set()
    start = threading.Thread.start

    def maybe(thread: threading.Thread) -> None:
        if any(thread.name.startswith(name) for name in refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", maybe)
    yield refused
    refused.clear()


def test_a_job_that_no_thread_can_be_had_for_waits_without_using_an_attempt(stage: Stage, scarce: set[str]) -> None:
    ran: list[int] = []

    @stage.hf.job(retry=Retry(max_attempts=1))
    def act(n: int) -> None:
        ran.append(n)

    @stage.hf.job
    async def other() -> None: ...

    scarce.add("holdfast-handler")
    early = [act.enqueue(n=n) for n in range(3)]

    async def body(worker: Worker) -> None:
        await stage.until_said(events.JobSnoozed, 3)
        scarce.clear()
        late = [await act.aenqueue(n=n) for n in range(3, 7)]
        await stage.until_empty()
        assert {stage.state(job) for job in (*early, *late)} == {"done"}
        assert (worker.failure, worker.threads._started <= 3) == (None, True)

    stage.work(body, concurrency=3, poll=0.05)
    # Each exactly once: a call that was refused must not run later from the line.
    assert sorted(ran) == list(range(7))
    assert "can't start new thread" in stage.heard(events.JobSnoozed)[0].reason
    assert {stage.show(job).attempts for job in early} == {1}


def test_a_thread_that_cannot_be_had_beside_a_busy_one_is_tried_again(sqlite_stage: Stage, scarce: set[str]) -> None:
    stage = sqlite_stage
    release, ran = threading.Event(), []

    @stage.hf.job
    def slow() -> None:
        release.wait(60)

    @stage.hf.job
    def quick() -> None:
        ran.append(1)

    async def body(worker: Worker) -> None:
        await slow.aenqueue()
        await stage.until(lambda: worker.slots.running)
        scarce.add("holdfast-handler")
        await quick.aenqueue()
        await stage.until_said(events.JobSnoozed)
        scarce.clear()
        await stage.until(lambda: ran)
        release.set()
        await stage.until_empty()

    stage.work(body, concurrency=2, poll=0.05)


@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_a_watcher_that_gets_no_thread_is_tried_again(
    database: str, scarce: set[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage: Stage = request.getfixturevalue(f"{database}_stage")
    watching = threading.Event()
    serve = Watcher._serve
    monkeypatch.setattr(Watcher, "_serve", lambda self: watching.set() or serve(self))

    @stage.hf.job
    async def act() -> None: ...

    scarce.add("holdfast-watcher")

    async def body(worker: Worker) -> None:
        await stage.until_said(events.ListenerLost)
        act.enqueue()
        await stage.until_empty()
        scarce.clear()
        await stage.until(watching.is_set)
        await stage.until_said(events.ListenerRegained)
        assert worker.failure is None

    stage.work(body)


Around = Callable[[Job], Any]


@pytest.fixture
def around() -> tuple[list[tuple[str, str, int]], Callable[[str], Around]]:
    """What hooks saw, and a way to make one: each notes its name, the phase and its thread."""
    seen: list[tuple[str, str, int]] = []

    def named(name: str) -> Around:
        @contextmanager
        def hook(job: Job) -> Iterator[None]:
            seen.append((name, f"before {job.kind}", threading.get_ident()))
            try:
                yield
            finally:
                seen.append((name, f"after {job.kind}", threading.get_ident()))

        return hook

    return seen, named


def test_a_hook_runs_around_the_handler_on_the_handlers_own_thread(sqlite_stage: Stage, around: Any) -> None:
    stage, (seen, named) = sqlite_stage, around
    threads: dict[str, int] = {}
    for name in ("outer", "inner"):
        stage.hf.around_handler(named(name))

    @stage.hf.job
    def threaded() -> str:
        threads["threaded"] = threading.get_ident()
        return "kept"

    @stage.hf.job
    async def plain() -> str:
        await asyncio.sleep(0)
        threads["plain"] = threading.get_ident()
        return "kept"

    @stage.hf.job(retry=Retry(max_attempts=1))
    def failing() -> None:
        threads["failing"] = threading.get_ident()
        raise ValueError("of the handler")

    jobs = {kind: stage.hf.enqueue(kind) for kind in ("threaded", "plain", "failing")}
    stage.work(concurrency=1)
    for kind in jobs:
        assert [(name, phase) for name, phase, _ in seen if phase.endswith(kind)] == [
            *(("outer", f"before {kind}"), ("inner", f"before {kind}")),
            *(("inner", f"after {kind}"), ("outer", f"after {kind}")),
        ]
        assert {thread for _, phase, thread in seen if phase.endswith(kind)} == {threads[kind]}
    assert threads["plain"] == threading.get_ident() != threads["threaded"]
    assert [stage.show(jobs[kind]).result for kind in ("threaded", "plain")] == ["kept", "kept"]
    assert stage.show(jobs["failing"]).errors[0]["message"] == "of the handler"


def test_a_hook_that_cannot_be_called_is_refused_when_it_is_registered(sqlite_stage: Stage) -> None:
    hook: Any = "close_old_connections"
    with pytest.raises(ConfigError, match="around_handler: must be a function that takes a job"):
        sqlite_stage.hf.around_handler(hook)
    assert sqlite_stage.hf.context.around_handlers == []


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_hook_that_returns_no_with_block_fails_the_attempt_and_says_how_to_write_it(
    sqlite_stage: Stage, colour: str
) -> None:
    stage, ran = sqlite_stage, []

    def forgotten(job: Job) -> Iterator[None]:
        yield

    hook: Any = forgotten
    stage.hf.around_handler(hook)

    async def act() -> None:
        ran.append("async")

    def threaded() -> None:
        ran.append("def")

    chosen: Any = act if colour == "async" else threaded
    job = stage.hf.job(kind="act", retry=Retry(max_attempts=1))(chosen).enqueue()
    stage.work(poll=0.05)
    [error] = stage.show(job).errors
    assert "needs a function that returns a `with` block; add @contextmanager" in error["message"]
    assert "forgotten" in error["message"]
    assert ran == []


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_hook_that_fails_is_a_failed_attempt(sqlite_stage: Stage, colour: str) -> None:
    stage, ran = sqlite_stage, []

    @stage.hf.around_handler
    @contextmanager
    def hook(job: Job) -> Iterator[None]:
        if job.attempt == 1:
            raise ConnectionError("not now")
        yield
        if job.attempt == 2:
            raise ConnectionError("not afterwards")

    async def act(job: Job) -> int:
        ran.append(job.attempt)
        return job.attempt

    def threaded(job: Job) -> int:
        ran.append(job.attempt)
        return job.attempt

    chosen: Any = act if colour == "async" else threaded
    job = stage.hf.job(kind="act", retry=Retry(first_delay=0, max_delay=0))(chosen).enqueue()
    stage.work(poll=0.05)
    assert [error["message"] for error in stage.show(job).errors] == ["not now", "not afterwards"]
    assert (ran, stage.show(job).result) == ([2, 3], 3)


def django_shop(stage: Stage, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.worker.apps.django_shop", stage.url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    states: list[str] = json.loads(done.stdout)
    return states


def test_def_handlers_of_a_django_application_reconnect_after_their_sessions_were_cut(pg_stage: Stage) -> None:
    assert django_shop(pg_stage, "4") == ["done"] * 4


def test_without_the_hook_a_thread_keeps_djangos_dead_connection(pg_stage: Stage) -> None:
    """What the hook is for; the day this fails, the guide can be shorter."""
    assert django_shop(pg_stage, "3", "without the hook") == ["done", "dead", "dead"]
