"""Streaks: threads take `def` jobs out of the buffer by themselves, each once, and leave the others to the rest."""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Job
from holdfast.errors import TimedOut
from holdfast.worker import Worker, settler, streaks
from holdfast.worker.handler_threads import Threads
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.streaks import Streak
from holdfast.worker.work import Hidden
from tests.worker.quiet import feed, quiet, wait_until, work
from tests.worker.stage import Stage


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every time a thread was sent for."""
    sent: list[Any] = []
    run = Threads.run
    monkeypatch.setattr(Threads, "run", lambda self, errand: sent.append(errand) or run(self, errand))
    return sent


def test_a_thread_takes_job_after_job_in_their_order_and_each_outcome_is_written(
    stage: Stage, pace: str, hops: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaks, "TURN_SECONDS", 10.0)
    hf, ran = quiet(stage), []

    @hf.job
    def act(n: int) -> int | None:
        ran.append(n)
        return n if n % 2 else None

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(100)])
    work(stage, hf)
    assert (ran, len(hops)) == (list(range(100)), 1)
    shown = [stage.show(job) for job in enqueued]
    assert {(job.state, job.attempts) for job in shown} == {("done", 1)}
    assert [job.result for job in shown] == [n if n % 2 else None for n in range(100)]


def test_jobs_for_the_loop_keep_their_place_between_jobs_for_threads(sqlite_stage: Stage, pace: str) -> None:
    stage, ran = sqlite_stage, []
    hf = quiet(stage)

    @hf.job
    def threaded(n: int) -> None:
        ran.append(n)

    @hf.job
    async def looped(n: int) -> None:
        await asyncio.sleep(0)
        ran.append(n)

    for n in range(40):
        (threaded if n % 5 else looped).enqueue(n=n)
    work(stage, hf)
    assert ran == list(range(40))


def test_a_handler_that_blocks_holds_up_no_job_behind_it(stage: Stage, pace: str) -> None:
    hf, ran, release = quiet(stage), [], threading.Event()

    @hf.job
    def act(n: int) -> None:
        if n in (3, 7):
            release.wait(60)
        ran.append(n)

    hf.enqueue_many([act.bind(n=n) for n in range(30)])

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.live() == 2)
        assert (len(ran), {3, 7} & set(ran), len(worker.slots.running)) == (28, set(), 2)
        release.set()
        await stage.until_empty()

    work(stage, hf, body, concurrency=3)
    assert sorted(ran) == list(range(30))


def test_what_came_before_a_handler_that_blocks_is_written_while_it_blocks(stage: Stage, pace: str) -> None:
    """Also when no other slot is there to be let in."""
    hf, release = quiet(stage), threading.Event()

    @hf.job
    def act(n: int) -> None:
        if n == 3:
            release.wait(60)

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(6)])

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.live() == 3)
        assert [stage.state(job) for job in enqueued] == ["done"] * 3 + ["leased"] * 3
        release.set()
        await stage.until_empty()

    work(stage, hf, body)


def test_handlers_that_wait_for_each_other_are_all_begun(sqlite_stage: Stage, pace: str) -> None:
    hf, together = quiet(sqlite_stage), threading.Barrier(8)

    @hf.job
    def act(n: int) -> int:
        return together.wait(30)

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(8)])
    work(sqlite_stage, hf, concurrency=8)
    assert sorted(sqlite_stage.show(job).result for job in enqueued) == list(range(8))


def test_quick_handlers_have_one_thread_at_a_time_until_one_is_slow(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaks, "QUICK_SECONDS", 1e9)
    monkeypatch.setattr(streaks, "TURN_SECONDS", 10.0)
    hf, inside, most, lock = quiet(sqlite_stage), 0, 0, threading.Lock()

    @hf.job
    def act(n: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.0002)
        with lock:
            inside -= 1

    hf.enqueue_many([act.bind(n=n) for n in range(100)])
    work(sqlite_stage, hf, concurrency=8)
    assert most == 1


def test_how_quick_handlers_are_is_learned_from_those_that_follow_one_another(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaks, "QUICK_SECONDS", 0.01)
    monkeypatch.setattr(streaks, "LONGEST_PACE_SECONDS", 0.04)
    hf, seen = quiet(sqlite_stage), []

    @hf.job
    def act(seconds: float) -> None:
        time.sleep(seconds)

    hf.enqueue_many([act.bind(seconds=0.0)] * 40)

    async def body(worker: Worker) -> None:
        await sqlite_stage.until_empty()
        seen.append(worker.slots._streaks._pace < streaks.QUICK_SECONDS)
        hf.enqueue_many([act.bind(seconds=0.03)] * 10)
        feed(sqlite_stage, worker)
        await sqlite_stage.until_empty()
        seen.append(worker.slots._streaks._pace < streaks.QUICK_SECONDS)

    work(sqlite_stage, hf, body)
    assert seen == [True, False]


def test_a_stop_gives_back_what_no_thread_has_begun_and_the_thread_takes_no_more(stage: Stage, pace: str) -> None:
    hf, ran, release = quiet(stage), [], threading.Event()

    @hf.job
    def act(job: Job, n: int) -> None:
        ran.append(n)
        if n == 2:
            release.wait(60)
            ran.append("lost" if job.lost else "not told")

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(8)])

    async def body(_: Worker) -> None:
        await stage.until(lambda: 2 in ran)

    work(stage, hf, body, drain=0)
    release.set()
    wait_until(lambda: len(ran) > 3)
    wait_until(lambda: not any(one.name.startswith("holdfast-handler") for one in threading.enumerate()))
    assert ran == [0, 1, 2, "lost"]
    shown = [stage.show(job) for job in enqueued]
    assert [(job.state, job.attempts) for job in shown] == [("done", 1)] * 2 + [("pending", 0)] * 6
    assert not any(job.errors for job in shown)


def test_a_stop_lets_the_handler_finish_that_a_thread_is_at(stage: Stage, pace: str) -> None:
    hf, ran, release = quiet(stage), [], threading.Event()

    @hf.job
    def act(n: int) -> str:
        ran.append(n)
        if n == 2:
            release.wait(60)
        return "finished"

    enqueued = hf.enqueue_many([act.bind(n=n) for n in range(6)])

    async def body(worker: Worker) -> None:
        await stage.until(lambda: 2 in ran)
        worker.stop()
        asyncio.get_running_loop().call_later(0.05, release.set)

    work(stage, hf, body, drain=30)
    assert ran == [0, 1, 2]
    shown = [stage.show(job) for job in enqueued]
    assert [job.result for job in shown] == ["finished"] * 3 + [None] * 3
    assert {(job.state, job.attempts) for job in shown[3:]} == {("pending", 0)}


def test_a_job_is_begun_by_a_thread_or_taken_back_and_never_both(stage: Stage, pace: str) -> None:
    hf, ran = quiet(stage), []

    @hf.job
    def act(n: int) -> None:
        ran.append(n)

    hf.enqueue_many([act.bind(n=n) for n in range(400)])

    async def body(worker: Worker) -> None:
        while stage.live():
            for _ in range(20):
                worker.holdings.give_back(worker.holdings.take_back())
                await asyncio.sleep(0)
            await stage.until(lambda: not worker.held)
            feed(stage, worker)
            await asyncio.sleep(0.001)

    work(stage, hf, body, concurrency=4)
    assert sorted(ran) == list(range(400))


def test_threads_take_no_more_jobs_while_too_many_outcomes_are_unwritten(
    sqlite_stage: Stage, pace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, hf, ran = sqlite_stage, quiet(sqlite_stage), []
    monkeypatch.setattr(settler, "UNWRITTEN_LIMIT", 5)
    write, gate = Settler._write, asyncio.Event()

    async def hesitates(self: Settler, batch: Any) -> None:
        await gate.wait()
        await write(self, batch)

    monkeypatch.setattr(Settler, "_write", hesitates)

    @hf.job
    def act(n: int) -> None:
        time.sleep(0.001)
        ran.append(n)

    hf.enqueue_many([act.bind(n=n) for n in range(300)])

    async def body(worker: Worker) -> None:
        settlers = worker.branches[0].settler
        await stage.until(lambda: settlers.unsettled >= 5)
        await asyncio.sleep(0.05)
        assert len(ran) < 100
        at_rest = len(ran)
        await asyncio.sleep(0.05)
        assert len(ran) == at_rest
        gate.set()
        await stage.until_empty()

    work(stage, hf, body, concurrency=2)
    assert sorted(ran) == list(range(300))


def test_a_kind_with_a_limit_keeps_to_it(sqlite_stage: Stage, pace: str) -> None:
    stage, hf, inside, most, lock = sqlite_stage, quiet(sqlite_stage), 0, 0, threading.Lock()

    @hf.job(concurrency=2)
    def act(n: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.001)
        with lock:
            inside -= 1

    hf.enqueue_many([act.bind(n=n) for n in range(40)])
    stage.work(hf=hf, concurrency=8)
    assert most <= 2


@pytest.fixture
def made() -> tuple[Slots, Callable[..., Any]]:
    """Slots by themselves, and a way to make work that a thread may take."""
    executor = SimpleNamespace(
        takes_streak=lambda _: True,
        prepare=lambda _: None,
        threads=SimpleNamespace(abandon=lambda _: None, tell=lambda _: None),
    )

    def work(name: str) -> Any:
        lease, handler = SimpleNamespace(lapses=0), SimpleNamespace(options=SimpleNamespace(timeout=None))
        return Named(name, executor=executor, lease=lease, handler=handler, slot=None, job=None, next=None, ready=0.0)

    return Slots(1, lambda _: None, lambda: None), work


class Named(SimpleNamespace):
    def __init__(self, name: str, **fields: Any) -> None:
        super().__init__(name=name, **fields)

    __hash__ = object.__hash__


def test_a_job_that_a_thread_takes_while_the_loop_looks_is_not_taken_back(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, work = made
    first, second = work("first"), work("second")
    slots.buffer.extend([first, second])
    look = Slots.waiting

    def looks_away(self: Slots) -> list[Any]:
        found = look(self)
        assert self._draw("the task", 1.0) is first  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(Slots, "waiting", looks_away)
    assert slots.take_back() == [second]
    assert (slots.running, first.slot, first.started) == ({first}, "the task", 1.0)
    assert not slots.withdraw(first)


def test_a_time_out_that_comes_when_the_thread_has_moved_on_costs_nobody_anything(made: Any) -> None:
    async def scene() -> None:
        slots, work = made
        late, following = work("late"), work("following")
        streak = Streak(late, asyncio.current_task(), slots._streaks._exchange)  # type: ignore[arg-type]
        slots.buffer.append(following)
        assert slots._streaks._exchange(streak, ("in time", None), 0.0, 1.0) is following
        slots._streaks._give_up(streak, TimedOut(1.0), late)
        assert (streak.work, list(streak.outcomes)) == (following, [(late, ("in time", None), 1.0)])
        slots._streaks._give_up(streak, TimedOut(1.0), following)
        assert (streak.work, [one[0].name for one in streak.outcomes]) == (None, ["late", "following"])
        # The thread that was given up on comes back with its value: too late, and it gets nothing more to do.
        slots.buffer.append(work("another"))
        assert slots._streaks._exchange(streak, ("too late", None), 1.0, 2.0) is None
        assert (len(streak.outcomes), len(slots.buffer)) == (2, 1)

    asyncio.run(scene())


def test_a_cancellation_between_the_thread_and_its_hidden_coroutine_ends_that_job(made: Any) -> None:
    async def rest() -> None: ...

    async def scene() -> None:
        slots, work = made
        first = work("first")
        streak = Streak(first, asyncio.current_task(), slots._streaks._exchange)  # type: ignore[arg-type]
        hidden = Hidden(rest(), contextvars.copy_context())
        assert slots._streaks._exchange(streak, hidden, 0.0, 1.0) is None
        cut = asyncio.CancelledError()
        slots._streaks._give_up(streak, cut)
        assert inspect.getcoroutinestate(hidden.coroutine) == inspect.CORO_CLOSED
        assert (streak.hidden, [one[:2] for one in streak.outcomes]) == (None, [(first, (None, cut))])

    asyncio.run(scene())
