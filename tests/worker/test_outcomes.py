"""What becomes of a job: results, outcomes as values, retries, dead letters, time-outs, middlewares, events."""

import asyncio
import contextvars
import time
from typing import Any

import pytest

from holdfast import Cancel, Fatal, Job, Retry, Snooze, events
from holdfast.errors import ConfigError
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)


def test_an_async_handler_runs_and_its_result_is_kept(stage: Stage) -> None:
    @stage.hf.job
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    job = add.enqueue(a=1, b=2)
    stage.work()
    shown = stage.show(job)
    assert (shown.state, shown.result, shown.attempts, shown.errors) == ("done", 3, 1, [])


def test_a_def_handler_runs_on_a_thread_and_its_result_is_kept(stage: Stage) -> None:
    import threading

    @stage.hf.job
    def where(job: Job, n: int) -> dict[str, Any]:
        return {"main": threading.current_thread() is threading.main_thread(), "n": n, "id": job.id}

    job = where.enqueue(n=7)
    stage.work()
    assert stage.show(job).result == {"main": False, "n": 7, "id": job.id}


def test_a_def_function_that_gives_a_coroutine_is_awaited(stage: Stage) -> None:
    async def inner() -> str:
        return "awaited"

    @stage.hf.job
    def outer() -> Any:
        return inner()

    job = outer.enqueue()
    stage.work()
    assert stage.show(job).result == "awaited"


def test_many_jobs_of_both_colours_all_finish_once(stage: Stage) -> None:
    ran: list[int] = []

    @stage.hf.job
    async def one(n: int) -> None:
        ran.append(n)

    @stage.hf.job(queue="threads")
    def two(n: int) -> None:
        ran.append(n)

    stage.hf.enqueue_many([*(one.bind(n=n) for n in range(300)), *(two.bind(n=n) for n in range(300, 600))])
    stage.work()
    assert sorted(ran) == list(range(600))
    assert len(stage.heard(events.JobDone)) == 600
    assert stage.sql("select outcome, count(*) from holdfast_finished group by outcome") == [("done", 600)]


def test_retention_zero_leaves_no_row(stage: Stage) -> None:
    stage.hf.queue("default", retention=0)

    @stage.hf.job
    async def noop() -> str:
        return "not kept"

    noop.enqueue()
    stage.work()
    assert stage.sql("select count(*) from holdfast_finished") == [(0,)]
    assert len(stage.heard(events.JobDone)) == 1


def test_retries_back_off_and_then_the_job_is_dead_with_every_error(stage: Stage) -> None:
    @stage.hf.job(retry=Retry(max_attempts=3, first_delay=0.01, factor=2, max_delay=1, jitter=0))
    async def fails(job: Job) -> None:
        raise ValueError(f"attempt {job.attempt}")

    job = fails.enqueue()
    stage.work(poll=0.05)
    shown = stage.show(job)
    assert (shown.state, shown.attempts) == ("dead", 3)
    assert [error["message"] for error in shown.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [round(event.delay, 3) for event in stage.heard(events.JobRetried)] == [0.01, 0.02]
    assert stage.heard(events.JobDead)[0].error == "ValueError: attempt 3"


@pytest.mark.parametrize("colour", ["async", "def"])
def test_outcomes_are_values(stage: Stage, colour: str) -> None:
    seen: list[tuple[str, int]] = []

    def outcome(what: str, job: Job) -> Any:
        seen.append((what, job.attempt))
        if len([one for one in seen if one[0] == what]) > 1:
            return "second"
        return {
            "retry": Retry.after(0, "once more"),
            "snooze": Snooze(0, "not yet"),
            "cancel": Cancel("no longer wanted"),
            "fatal": Fatal("never"),
        }[what]

    if colour == "async":

        @stage.hf.job
        async def act(job: Job, what: str) -> Any:
            return outcome(what, job)
    else:

        @stage.hf.job
        def act(job: Job, what: str) -> Any:
            return outcome(what, job)

    jobs = {what: act.enqueue(what=what) for what in ("retry", "snooze", "cancel", "fatal")}
    stage.work(poll=0.05)
    shown = {what: stage.show(job) for what, job in jobs.items()}
    assert {what: (job.state, job.attempts) for what, job in shown.items()} == {
        "retry": ("done", 2),
        "snooze": ("done", 1),
        "cancel": ("cancelled", 1),
        "fatal": ("dead", 1),
    }
    assert [(error["type"], error["message"]) for error in shown["retry"].errors] == [("Retry", "once more")]
    assert shown["cancel"].last_error is not None
    assert shown["cancel"].last_error["message"] == "no longer wanted"
    assert len(stage.heard(events.JobSnoozed)) == 1


def test_fatal_raised_is_not_retried(stage: Stage) -> None:
    @stage.hf.job(retry=AT_ONCE)
    async def hopeless() -> None:
        raise Fatal("bad address", code="E7")

    job = hopeless.enqueue()
    stage.work()
    assert (stage.state(job), stage.show(job).attempts) == ("dead", 1)


@pytest.mark.parametrize("colour", ["async", "def"])
def test_an_attempt_past_its_timeout_fails(stage: Stage, colour: str) -> None:
    if colour == "async":

        @stage.hf.job(timeout=0.05, retry=AT_ONCE)
        async def slow(job: Job) -> str:
            if job.attempt == 1:
                await asyncio.sleep(60)
            return "second"
    else:
        # Longer: on a busy machine a thread may wait for its turn.
        @stage.hf.job(timeout=0.5, retry=AT_ONCE)
        def slow(job: Job) -> str:
            deadline = time.monotonic() + 20
            while job.attempt == 1 and not job.lost and time.monotonic() < deadline:
                time.sleep(0.01)
            return "second"

    job = slow.enqueue()
    stage.work(poll=0.05)
    shown = stage.show(job)
    assert (shown.state, shown.result) == ("done", "second")
    assert [error["type"] for error in shown.errors] == ["holdfast.errors.TimedOut"]


def test_a_kind_runs_no_more_at_once_than_it_may(stage: Stage) -> None:
    now: dict[str, int] = {"narrow": 0, "wide": 0}
    most: dict[str, int] = {"narrow": 0, "wide": 0}

    async def body(name: str) -> None:
        now[name] += 1
        most[name] = max(most[name], now[name])
        await asyncio.sleep(0.005)
        now[name] -= 1

    @stage.hf.job(concurrency=2)
    async def narrow(n: int) -> None:
        await body("narrow")

    @stage.hf.job
    async def wide(n: int) -> None:
        await body("wide")

    stage.hf.enqueue_many([narrow.bind(n=n) for n in range(20)] + [wide.bind(n=n) for n in range(40)])
    stage.work(concurrency=10, poll=30)
    assert most["narrow"] == 2
    assert most["wide"] > 2


def test_limited_kinds_alone_neither_spin_nor_stall(stage: Stage) -> None:
    """Once a round of claims found no room for any kind, it tried again without ever yielding to the event loop."""

    @stage.hf.job(concurrency=1)
    async def single(n: int) -> None:
        await asyncio.sleep(0.002)

    stage.hf.enqueue_many([single.bind(n=n) for n in range(10)])
    stage.work(poll=30)
    assert len(stage.heard(events.JobsClaimed)) == 10


def test_a_payload_that_cannot_be_read_is_dead_at_once_and_nothing_else_stops(stage: Stage) -> None:
    @stage.hf.job
    async def wants(n: int) -> int:
        return n

    bad = [stage.put("wants", text) for text in ('{"n": "seven"}', "{}", '{"n": 1, "m": 2}', "[1]")]
    if stage.is_sqlite:
        bad.append(stage.put("wants", "not json"))
    good = [wants.enqueue(n=n) for n in range(5)]
    stage.work()
    assert {stage.state(job) for job in bad} == {"dead"}
    assert {stage.show(job).attempts for job in bad} == {1}
    assert [stage.show(job).result for job in good] == [0, 1, 2, 3, 4]


def test_an_invalid_payload_raised_inside_a_handler_is_an_ordinary_failure(stage: Stage) -> None:
    @stage.hf.job
    async def target(n: int) -> None: ...

    @stage.hf.job(retry=AT_ONCE)
    async def source(job: Job) -> None:
        if job.attempt < 3:
            await target.aenqueue(n="wrong")  # type: ignore[arg-type]

    job = source.enqueue()
    stage.work(poll=0.05)
    assert (stage.state(job), stage.show(job).attempts) == ("done", 3)


def test_kinds_without_a_handler_are_never_claimed(stage: Stage) -> None:
    @stage.hf.job
    async def known() -> None: ...

    stranger = stage.hf.enqueue("stranger", {}, check=False)
    mine = known.enqueue()

    async def body(_: Any) -> None:
        await stage.until(lambda: stage.state(mine) == "done")

    stage.work(body, poll=0.05)
    shown = stage.show(stranger)
    assert (shown.state, shown.attempts, shown.fence) == ("pending", 0, 0)


def test_a_result_that_is_not_json_is_dropped_and_the_job_is_done(stage: Stage) -> None:
    @stage.hf.job
    async def odd() -> object:
        return object()

    job = odd.enqueue()
    stage.work()
    shown = stage.show(job)
    assert (shown.state, shown.result) == ("done", None)
    assert [error["type"] for error in shown.errors] == ["ResultDropped"]
    names = [event.name for event in stage.said]
    assert names.index("ResultDropped") < names.index("JobDone")


def test_middlewares_wrap_each_attempt_in_order_and_share_its_context(stage: Stage) -> None:
    trace: list[str] = []
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    @stage.hf.middleware
    async def outer(job: Job, call_next: Any) -> Any:
        trace.append("outer in")
        job.context["who"] = "outer"
        request.set("from the middleware")
        value = await call_next(job)
        trace.append("outer out")
        return value

    @stage.hf.middleware
    async def inner(job: Job, call_next: Any) -> Any:
        trace.append(f"inner in, {job.context['who']}")
        value = await call_next(job)
        trace.append("inner out")
        return [value, "seen"]

    @stage.hf.job
    def handler() -> str:
        trace.append("handler")
        return request.get()

    job = handler.enqueue()
    stage.work()
    assert trace == ["outer in", "inner in, outer", "handler", "inner out", "outer out"]
    assert stage.show(job).result == ["from the middleware", "seen"]


def test_a_middleware_that_raises_fails_the_attempt(stage: Stage) -> None:
    def refuses(job: Job, call_next: Any) -> Any:
        if job.attempt == 1:
            raise RuntimeError("before any await")
        return call_next(job)

    stage.hf.middleware(refuses)

    @stage.hf.job(retry=AT_ONCE)
    async def handler() -> str:
        return "ran"

    job = handler.enqueue()
    stage.work(poll=0.05)
    shown = stage.show(job)
    assert (shown.result, [error["message"] for error in shown.errors]) == ("ran", ["before any await"])


def test_events_come_in_order_and_done_only_after_its_commit(stage: Stage) -> None:
    states: list[str] = []

    @stage.hf.job
    async def handler() -> None: ...

    job = handler.enqueue()
    stage.hf.on(events.JobDone, lambda event: states.append(stage.state(event.id)))
    stage.work(lambda _: stage.until_said(events.JobDone))
    told = [event.name for event in stage.said]
    order = ["JobsEnqueued", "WorkerStarted", "JobsClaimed", "JobStarted", "JobDone", "WorkerStopping", "WorkerStopped"]
    assert [name for name in told if name in order] == order
    assert states == ["done"]
    assert stage.heard(events.JobDone)[0].id == job.id


def test_a_subscriber_that_raises_stops_nothing(stage: Stage) -> None:
    def hostile(event: events.Event) -> None:
        raise asyncio.CancelledError if isinstance(event, events.JobEvent) else ValueError("no")

    stage.hf.on(events.Event, hostile)

    @stage.hf.job
    async def handler(n: int) -> None: ...

    jobs = [handler.enqueue(n=n) for n in range(5)]
    stage.work()
    assert {stage.state(job) for job in jobs} == {"done"}


def test_an_async_subscriber_is_refused(sqlite_stage: Stage) -> None:
    async def later(event: events.Event) -> None: ...

    with pytest.raises(ConfigError, match="plain function"):
        sqlite_stage.hf.on(events.Event, later)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind, subscriber, rule",
    [
        ("JobDone", print, r"event: must be a class of holdfast.events, as in hf.on\(events.JobDone, subscriber\)"),
        (int, print, "event: must be a class of holdfast.events"),
        (events.JobDone, "print", "subscriber: must be a function that takes the event"),
    ],
)
def test_a_subscription_that_can_never_work_is_refused_at_once(
    sqlite_stage: Stage, kind: Any, subscriber: Any, rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        sqlite_stage.hf.on(kind, subscriber)

    @sqlite_stage.hf.job
    async def handler() -> None: ...

    handler.enqueue()


@pytest.mark.parametrize("colour", ["async", "def"])
def test_progress_is_seen_while_the_job_runs(stage: Stage, colour: str) -> None:
    seen: list[Any] = []

    if colour == "async":

        @stage.hf.job
        async def long(job: Job) -> None:
            await job.aprogress({"done": 1, "of": 2})
            seen.append(stage.show(job).progress)
    else:

        @stage.hf.job
        def long(job: Job) -> None:
            job.progress({"done": 1, "of": 2})
            seen.append(stage.show(job).progress)

    job = long.enqueue()
    stage.work()
    assert seen == [{"done": 1, "of": 2}]
    assert stage.show(job).progress == {"done": 1, "of": 2}


def test_a_worker_without_handlers_is_refused(sqlite_stage: Stage) -> None:
    with pytest.raises(ConfigError, match="needs handlers"):
        sqlite_stage.hf.worker(queues=["mail"])


def test_a_worker_serves_the_queues_it_was_given(stage: Stage) -> None:
    @stage.hf.job(queue="mail")
    async def send(n: int) -> None: ...

    there = send.using(queue="other").enqueue(n=1)
    elsewhere = send.enqueue(n=2)
    stage.work(lambda _: stage.until(lambda: stage.state(there) == "done"), queues=["other"])
    assert stage.state(elsewhere) == "pending"
