"""Jobs whose process died before: they start one at a time, and their start is on record before it happens."""

import asyncio
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Job, Retry, admin, events, jobs
from holdfast.values.rows import Enqueued
from holdfast.worker import Worker, begins, suspects
from holdfast.worker.begins import Begins
from holdfast.worker.rounds import give_back
from holdfast.worker.suspects import Line
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0)


@pytest.fixture(autouse=True)
def no_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "CALM_SECONDS", 0.0)


def make_suspect(stage: Stage, job: Any, lapses: int = 1) -> None:
    stage.sql("update holdfast_jobs set lapses = ? where id = ?", lapses, job.id)


def began(stage: Stage, job: Any) -> bool:
    [[value]] = stage.sql("select began from holdfast_jobs where id = ?", job.id)
    return bool(value)


# In a worker


@pytest.mark.parametrize("colour", ["async", "def"])
def test_the_begin_of_a_suspect_is_recorded_before_its_handler_is_called(stage: Stage, colour: str) -> None:
    seen: list[tuple[str, bool]] = []

    if colour == "async":

        @stage.hf.job
        async def act(name: str, job: Job) -> None:
            seen.append((name, began(stage, job)))
    else:

        @stage.hf.job
        def act(name: str, job: Job) -> None:
            seen.append((name, began(stage, job)))

    act.enqueue(name="plain")
    act.using(max_attempts=1).enqueue(name="once")
    make_suspect(stage, act.enqueue(name="suspect"))
    stage.work(poll=0.05)
    assert sorted(seen) == [("once", True), ("plain", False), ("suspect", True)]


def test_suspects_run_one_at_a_time_and_ordinary_jobs_beside_them(stage: Stage) -> None:
    running: set[str] = set()
    together: list[set[str]] = []
    done: list[str] = []

    @stage.hf.job
    async def act(name: str) -> None:
        running.add(name)
        together.append({other for other in running if other.startswith("suspect")})
        await asyncio.sleep(0.1 if name.startswith("suspect") else 0.0)
        running.discard(name)
        done.append(name)

    for n in range(4):
        make_suspect(stage, act.enqueue(name=f"suspect {n}"), 1 + n % 2)
    ordinary = [act.enqueue(name=f"ordinary {n}") for n in range(20)]
    stage.work(poll=0.05)
    assert max(map(len, together)) == 1
    assert len(done) == 4 + len(ordinary)
    assert done.index("ordinary 19") < done.index("suspect 3"), "the line keeps no ordinary job waiting"


def test_a_suspect_that_runs_long_blocks_neither_ordinary_jobs_nor_claims(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with a line so long that claims would find suspects only."""
    monkeypatch.setattr(suspects, "LINE_LIMIT", 2)
    release = asyncio.Event()
    done: list[str] = []

    @stage.hf.job
    async def act(name: str) -> None:
        if name == "long":
            await release.wait()
        done.append(name)

    make_suspect(stage, act.enqueue(name="long"), 2)
    for _ in range(30):
        make_suspect(stage, act.enqueue(name="waiting"))

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobStarted)
        for _ in range(5):
            await act.aenqueue(name="ordinary")
        await stage.until(lambda: done.count("ordinary") == 5)
        assert set(done) == {"ordinary"}
        release.set()
        await stage.until_empty()

    stage.work(body, poll=0.05, concurrency=2)
    assert done.count("waiting") == 30


def test_a_suspect_of_one_death_blocks_the_next_for_its_probation(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "PROBATION_SECONDS", 0.1)
    release = asyncio.Event()
    started: dict[str, float] = {}

    @stage.hf.job
    async def act(name: str) -> None:
        started[name] = time.monotonic()
        await release.wait()

    for name in ("first", "second"):
        make_suspect(stage, act.enqueue(name=name))
    for name in ("of two deaths", "last"):
        make_suspect(stage, act.enqueue(name=name), 2)

    async def body(_: Worker) -> None:
        await stage.until(lambda: len(started) == 4)
        release.set()
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert list(started) == ["first", "second", "of two deaths", "last"]
    moments = list(started.values())
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    # From one handler's first line to the next one's: one that began late leaves less of the wait than was waited.
    assert pauses[0] >= 0.05
    assert pauses[1] >= 0.25, "one of two deaths waits four times as long"
    assert pauses[2] >= 0.25


def test_a_suspect_in_line_leaves_room_for_ordinary_jobs_of_its_kind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 0.2)
    release = asyncio.Event()
    ran: list[int] = []

    @stage.hf.job
    async def long() -> None:
        await release.wait()

    @stage.hf.job(concurrency=1)
    async def mail(n: int) -> None:
        ran.append(n)

    make_suspect(stage, long.enqueue(), 4)
    make_suspect(stage, mail.enqueue(n=0))
    for n in range(1, 6):
        mail.enqueue(n=n)

    async def body(_: Worker) -> None:
        await stage.until(lambda: len(ran) == 5)
        release.set()

    stage.work(body, poll=0.05)
    assert ran == [1, 2, 3, 4, 5]


def waiting_line(stage: Stage, act: Any) -> list[Enqueued]:
    """Put a suspect that blocks the line in front, and two more behind it."""
    line = [act.enqueue(n=n) for n in range(3)]
    for job in line:
        make_suspect(stage, job, 2)
    return line


def test_suspects_in_line_can_be_lost_cancelled_and_given_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 60.0)
    started: list[int] = []

    @stage.hf.job(lease=1)
    async def act(n: int) -> None:
        started.append(n)
        await asyncio.sleep(30)

    _, stolen, unwanted = waiting_line(stage, act)
    left = act.enqueue(n=3)
    make_suspect(stage, left, 2)

    async def body(running: Worker) -> None:
        await stage.until(lambda: len(running.slots.line.waiting) == 3)
        stage.steal(stolen)
        await stage.arun(admin.cancel(unwanted.id, "test"))
        await stage.until_said(events.JobCancelled)
        await stage.until_said(events.LeaseWasLost)

    stage.work(body, poll=0.05, drain=0)
    shown = stage.show(left)
    assert (started, stage.state(stolen), stage.state(unwanted)) == ([0], "leased", "cancelled")
    assert (shown.state, shown.attempts) == ("pending", 0)


def test_suspects_that_wait_too_long_in_line_go_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 0.2)
    release = asyncio.Event()

    @stage.hf.job
    async def act(n: int) -> None:
        if n == 0:
            await release.wait()

    line = waiting_line(stage, act)

    async def body(_: Worker) -> None:
        await stage.until_said(events.JobReleased, 2)
        release.set()
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert {(job.state, job.attempts) for job in map(stage.show, line)} == {("done", 1)}


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_job_whose_lease_is_lost_before_it_begins_is_not_started(stage: Stage, colour: str) -> None:
    started: list[str] = []

    if colour == "async":

        @stage.hf.job(retry=Retry(max_attempts=1))
        async def act() -> None:
            started.append("act")
    else:

        @stage.hf.job(retry=Retry(max_attempts=1))
        def act() -> None:
            started.append("act")

    job = act.enqueue()

    async def body(running: Worker) -> None:
        [lease] = stage.run(jobs.claim("default", limit=1, worker=running.id))
        stage.steal(job)
        running.claims[0].take(running.sources[0], [lease], time.monotonic())
        await stage.until_said(events.LeaseWasLost)

    # It serves another queue, so that the claim by hand is the only one.
    stage.work(body, queues=["elsewhere"])
    assert started == []
    assert not stage.heard(events.JobStarted)


def test_a_suspect_whose_attempt_fails_stays_a_suspect(stage: Stage) -> None:
    lapses: list[int] = []

    @stage.hf.job(retry=AT_ONCE)
    async def act(job: Job) -> None:
        lapses.append(job.lease.lapses)
        if job.attempt == 1:
            raise ValueError("an end of its own")

    make_suspect(stage, act.enqueue(), 3)
    stage.work(poll=0.05)
    assert lapses == [3, 3]


def test_a_renewal_records_that_a_long_job_has_begun(stage: Stage) -> None:
    release = asyncio.Event()

    @stage.hf.job(lease=1)
    async def act() -> None:
        await release.wait()

    job = act.enqueue()

    async def body(_: Worker) -> None:
        await stage.until(lambda: began(stage, job))
        release.set()
        await stage.until_empty()

    stage.work(body, poll=0.05)


# By themselves


def work(lapses: int = 1, started: float = 0.0) -> Any:
    return SimpleNamespace(lease=SimpleNamespace(lapses=lapses), started=started, taken=0.0)


def test_no_suspect_starts_before_a_worker_has_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "CALM_SECONDS", 0.1)

    async def scene() -> None:
        opened = asyncio.Event()
        line = Line(lambda _: opened.set(), lambda: None)
        line.add([work()])
        assert not opened.is_set()
        await asyncio.wait_for(opened.wait(), 20)

    asyncio.run(scene())


def test_a_suspect_of_many_deaths_is_kept_apart_for_hours_but_not_for_ever() -> None:
    assert [suspects.apart(work(n)) for n in (1, 2, 3, 99)] == [5.0, 20.0, 80.0, suspects.LONGEST_PROBATION_SECONDS]


def test_a_line_does_not_spin_while_it_waits_for_a_start() -> None:
    async def scene() -> float:
        line = Line(lambda _: None, lambda: None)
        line._opens_at = 0.0
        line.add([work(), work(2)])
        return line._wait(time.monotonic())

    assert asyncio.run(scene()) >= 1.0


def test_a_line_asks_for_more_when_it_is_half_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "LINE_LIMIT", 4)
    inside: list[Any] = []
    asked: list[int] = []

    async def scene() -> None:
        line = Line(inside.append, lambda: asked.append(len(line.waiting)))
        line.add([work() for _ in range(5)])
        assert (line.full, len(line.waiting)) == (True, 4)
        while line.waiting:
            line.ended(inside[-1])
        assert not line.full

    asyncio.run(scene())
    assert asked == [2]


def no_flow() -> Any:
    return None


async def nothing(_: Any) -> None:
    await asyncio.sleep(0)


def test_a_record_waits_until_the_handler_before_has_been_entered() -> None:
    told: list[str] = []

    async def scene() -> None:
        async def record(_: Any) -> None:
            told.append("recorded")

        door = Begins(record)

        async def attempt(one: Any) -> None:
            await door.record(one, no_flow())
            door.entered(one)
            told.append("entered")
            await asyncio.sleep(0)

        await asyncio.gather(*(attempt(work()) for _ in range(3)))

    asyncio.run(scene())
    assert told == ["recorded", "entered"] * 3


def test_a_handler_that_its_middleware_holds_up_does_not_stop_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begins, "LONGEST_ENTRY_SECONDS", 0.05)

    async def scene() -> None:
        door = Begins(nothing)
        await door.record(work(), no_flow())
        await door.record(work(), no_flow())

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_record_that_fails_lets_the_next_one_be_made() -> None:
    async def scene() -> None:
        async def refuse(_: Any) -> None:
            raise ValueError("refused")

        door = Begins(refuse)
        for _ in range(2):
            with pytest.raises(ValueError, match="refused"):
                await door.record(work(), no_flow())

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_thread_that_never_comes_does_not_stop_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begins, "LONGEST_ENTRY_SECONDS", 0.05)

    async def scene() -> None:
        door, one = Begins(nothing), work()
        await door.record(one, no_flow())
        call: Any = SimpleNamespace(entered=False, future=asyncio.get_running_loop().create_future())
        await door.entered_on_thread(one, call)
        await door.record(work(), no_flow())

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_middlewares_and_threads_are_entered_before_the_next_record(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killer that dies at its start leaves no neighbour behind that is recorded as begun."""
    monkeypatch.setattr(begins, "THREAD_ENTERS_IN_SECONDS", 30.0)
    begun: list[int] = []
    lock = threading.Lock()

    @stage.hf.middleware
    async def slow(job: Job, call_next: Any) -> Any:
        await asyncio.sleep(0.02)
        return await call_next(job)

    @stage.hf.job(retry=Retry(max_attempts=1))
    def act(n: int) -> None:
        with lock:
            [[recorded]] = stage.sql("select count(*) from holdfast_jobs where began = true")
            begun.append(recorded)

    for n in range(6):
        act.enqueue(n=n)
    stage.work(poll=0.05)
    assert (len(begun), begun[0]) == (6, 1)
