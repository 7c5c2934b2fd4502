"""What a handler returns or raises may be broken in itself: it ends its own attempt, honestly recorded, and no more."""

import enum
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn

import pytest

from holdfast import Cancel, Fatal, Holdfast, Job, Retry, Snooze, events
from holdfast.events import Event, JobDone, JobStarted
from holdfast.values.retry import LONGEST
from holdfast.worker import Worker
from tests.worker.stage import Stage

ONCE = Retry(max_attempts=2, first_delay=0, max_delay=0, jitter=0)


class Unlikely(BaseException):
    """Not an Exception: most code that catches errors lets it through."""


def refuse(*_: object) -> NoReturn:
    raise Unlikely("not like this")


class NoSuper(Fatal):
    def __init__(self, card: int) -> None:
        self.card = card


class Masked(Exception):
    """Says nothing about itself, not even its class."""

    __class__ = property(refuse)  # type: ignore[assignment]
    __str__ = __repr__ = refuse  # type: ignore[assignment]


class MaskedFatal(Fatal):
    __str__ = __repr__ = refuse  # type: ignore[assignment]
    code = property(refuse)  # type: ignore[assignment]
    reason = property(refuse)  # type: ignore[assignment]

    def __init__(self) -> None: ...


class Lazy:
    """A proxy outside of what it stands for, as web frameworks have them."""

    __class__ = property(refuse)  # type: ignore[assignment]


class BadlyWritten(dict[str, Any]):
    items = refuse  # type: ignore[assignment]
    __iter__ = refuse  # type: ignore[assignment]


class Awaited:
    def __await__(self) -> Iterator[Any]:
        yield self


class NoDelay(Snooze):
    def __init__(self) -> None: ...


class EndlessSnooze(Snooze):
    def __init__(self) -> None:
        object.__setattr__(self, "delay", math.nan)
        object.__setattr__(self, "reason", "")


class NoFields(Retry):
    def __init__(self) -> None: ...


class NoCancel(Cancel):
    def __init__(self) -> None: ...


class LatePolicy(Retry):
    def delay(self, attempt: int, random: Callable[[], float] = lambda: 0.5) -> float:
        return 10.0**300


class Colour(enum.Enum):
    RED = "red"


def weird_traceback() -> Exception:
    error = ValueError("chained to itself and to the unspeakable")
    error.__cause__ = Masked()
    error.__context__ = error
    error.add_note("\ud800\0")
    return error


def renamed() -> BaseException:
    """An exception whose class has a name that is not text."""
    return type("Nameless", (Exception,), {"__module__": 7, "__qualname__": "a\0b\ud800"})("x")


RAISED: dict[str, Callable[[], BaseException]] = {
    "says nothing": Masked,
    "args that cannot be shown": lambda: ValueError(Lazy(), Masked(), "\ud800\0"),
    "weird traceback": weird_traceback,
    "named oddly": renamed,
    "not an Exception": Unlikely,
    "group": lambda: ExceptionGroup("several", [Masked(), ExceptionGroup("inner", [ValueError("\0")])]),
    "group of anything": lambda: BaseExceptionGroup("any", [Unlikely(), KeyboardInterrupt()]),
    "raised Stop": lambda: type("Stop", (StopIteration,), {})(Lazy()),
    "closing": lambda: type("Closing", (GeneratorExit,), {"__repr__": refuse})(),
    "exit": lambda: SystemExit(Lazy()),
}
FATAL: dict[str, Callable[[], BaseException]] = {
    "without super": lambda: NoSuper(7),
    "says only that it is fatal": MaskedFatal,
    "object as code": lambda: Fatal("no", code=Lazy()),  # type: ignore[arg-type]
    "surrogate as code": lambda: Fatal("no", code="\ud800"),
    "NUL as code": lambda: Fatal("no", code="a\0b"),
    "big code": lambda: Fatal("no", code=2**70),
    "code too big for text": lambda: Fatal("no", code=10**5000),
    "enum as code": lambda: Fatal("no", code=Colour.RED),  # type: ignore[arg-type]
    "in a group": lambda: ExceptionGroup("tasks", [ValueError("cut short"), Fatal("no", code=3)]),
    "object as reason": lambda: Fatal(Lazy()),  # type: ignore[arg-type]
}
RETURNED: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (Lazy, "done"),
    "badly written": (lambda: BadlyWritten(a=1), "done"),
    "awaitable": (Awaited, "done"),
    "an error": (Masked, "done"),
    "NUL": (lambda: "a\0b", "done"),
    "surrogate": (lambda: "\ud800", "done"),
    "fatal": (lambda: NoSuper(7), "dead"),
    "retry without fields": (NoFields, "dead"),
    "retry too late": (lambda: LatePolicy(first_delay=0, max_delay=0), "dead"),
    "retry with a strange reason": (lambda: Retry.after(0, reason=Lazy()), "dead"),  # type: ignore[arg-type]
    "snooze without delay": (NoDelay, "dead"),
    "snooze until never": (EndlessSnooze, "dead"),
    "cancel without a reason": (NoCancel, "cancelled"),
    "cancel with a strange reason": (lambda: Cancel(Lazy()), "cancelled"),  # type: ignore[arg-type]
    "cancel with a NUL": (lambda: Cancel("a\0b\ud800"), "cancelled"),
}


@pytest.fixture(params=["async", "def"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def register(hf: Holdfast, colour: str, act: Callable[[str], Any], **options: Any) -> Any:
    """Register a handler of either colour that does `act`, and one that does nothing wrong."""
    if colour == "def":

        @hf.job(kind="act", **options)
        def handler(what: str) -> Any:
            return act(what)
    else:

        @hf.job(kind="act", **options)
        async def handler(what: str) -> Any:
            return act(what)

    @hf.job
    async def good() -> str:
        return "fine"

    return handler


def play(stage: Stage, jobs: dict[str, Any], **options: Any) -> None:
    """Work through the jobs with one slot; then another one must still be done."""

    async def body(worker: Worker) -> None:
        await stage.until(lambda: stage.live() == 0 or worker.stopping, "the odd jobs have ended")
        assert worker.failure is None
        last = await stage.hf.handlers["good"].aenqueue()
        await stage.until(lambda: stage.state(last) == "done", "the worker works on")
        assert (worker.stopping, worker.failure) == (False, None)

    stage.work(body, concurrency=1, poll=0.05, **options)


def test_a_broken_exception_costs_its_attempt_alone(stage: Stage, colour: str) -> None:
    def act(what: str) -> Any:
        raise RAISED[what]()

    handler = register(stage.hf, colour, act, retry=ONCE)
    jobs = {what: handler.enqueue(what=what) for what in RAISED}
    play(stage, jobs)
    shown = {what: stage.show(job) for what, job in jobs.items()}
    assert {what: (job.state, len(job.errors)) for what, job in shown.items()} == dict.fromkeys(RAISED, ("dead", 2))
    assert all(error["type"] and "message" in error for job in shown.values() for error in job.errors)


def test_a_broken_fatal_is_a_dead_letter_at_once(stage: Stage, colour: str) -> None:
    def act(what: str) -> Any:
        raise FATAL[what]()

    handler = register(stage.hf, colour, act, retry=ONCE)
    jobs = {what: handler.enqueue(what=what) for what in FATAL}
    play(stage, jobs)
    shown = {what: stage.show(job) for what, job in jobs.items()}
    assert {what: (job.state, job.attempts) for what, job in shown.items()} == dict.fromkeys(FATAL, ("dead", 1))
    assert all(job.errors[0]["fatal"] is True for job in shown.values())
    codes = {what: job.errors[0].get("code") for what, job in shown.items()}
    assert codes["without super"] is None
    assert codes["big code"] == str(2**70)
    assert (codes["NUL as code"], codes["surrogate as code"]) == ("a\ufffdb", "\ufffd")
    assert (codes["enum as code"], codes["in a group"]) == ("red", 3)


def test_a_broken_value_ends_its_job_as_it_should(stage: Stage, colour: str) -> None:
    handler = register(stage.hf, colour, lambda what: RETURNED[what][0](), retry=ONCE)
    jobs = {what: handler.enqueue(what=what) for what in RETURNED}
    play(stage, jobs)
    shown = {what: stage.show(job) for what, job in jobs.items()}
    assert {what: job.state for what, job in shown.items()} == {what: end for what, (_, end) in RETURNED.items()}
    for what in ("lazy", "badly written", "awaitable", "an error"):
        assert [error["type"] for error in shown[what].errors] == ["ResultDropped"]
    for what in ("snooze without delay", "snooze until never"):
        assert shown[what].attempts == 2
        assert "Snooze" in shown[what].errors[0]["message"]


def test_a_middleware_may_give_anything_a_handler_may(stage: Stage) -> None:
    @stage.hf.middleware
    async def odd(job: Job, call_next: Callable[[Job], Awaitable[Any]]) -> Any:
        what = await call_next(job)
        if what in RETURNED:
            return RETURNED[what][0]()
        if isinstance(what, str) and what.startswith("raise "):
            raise RAISED[what.removeprefix("raise ")]()
        return what

    handler = register(stage.hf, "async", lambda what: what, retry=ONCE)
    jobs = {what: handler.enqueue(what=what) for what in [*RETURNED, *(f"raise {what}" for what in RAISED)]}
    play(stage, jobs)
    ends = {what: stage.state(job) for what, job in jobs.items()}
    assert ends == {what: RETURNED[what][1] if what in RETURNED else "dead" for what in jobs}


def test_a_subscriber_may_raise_anything_and_the_work_goes_on(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, told = sqlite_stage, []

    def subscriber(event: Event) -> None:
        told.append(event)
        raise Masked if isinstance(event, JobStarted) else Unlikely

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise Unlikely("the disk is full")

    stage.hf.on(JobStarted, subscriber)
    stage.hf.on(JobDone, subscriber)
    register(stage.hf, "async", lambda what: what)
    monkeypatch.setattr(logging.getLogger("holdfast"), "handlers", [Broken()])
    play(stage, {})
    assert [type(event) for event in told] == [JobStarted, JobDone]


def test_a_policy_that_fails_costs_neither_the_worker_nor_the_job(stage: Stage) -> None:
    """Also where the reaper asks it, for a job whose worker is gone."""

    class Broken(Retry):
        def delay(self, attempt: int, random: Any = None) -> float:
            raise Unlikely("no idea")

    def act(what: str) -> Any:
        raise ValueError("first")

    handler = register(stage.hf, "async", act, retry=Broken(max_attempts=2))
    failing, reaped = handler.enqueue(what=""), handler.using(run_after=3600).enqueue(what="")
    past = 1 if stage.is_sqlite else "2020-01-01 00:00:00"
    stage.sql(
        "update holdfast_jobs set state = 'leased', fence = 1, attempts = 1, leased_by = 'gone', leased_at = ?,"
        " lease_expires_at = ? where id = ?",
        *(past, past, reaped.id),
    )

    async def body(worker: Worker) -> None:
        await stage.until_said(events.JobRetried)
        await stage.until_said(events.JobReaped)
        assert worker.failure is None

    stage.work(body, poll=0.05)
    shown = stage.show(failing)
    assert (shown.state, stage.state(reaped)) == ("pending", "pending")
    assert "ValueError" in shown.errors[0]["type"]
    assert shown.errors[0]["message"].startswith("first\n")
    assert "no idea" in shown.errors[0]["message"]


def test_the_longest_snooze_and_retry_can_be_stored(stage: Stage) -> None:
    def act(what: str) -> Any:
        return Snooze(LONGEST) if what == "snooze" else Retry(first_delay=LONGEST, max_delay=LONGEST, jitter=1.0)

    handler = register(stage.hf, "async", act)
    jobs = [handler.enqueue(what=what) for what in ("snooze", "retry")]

    async def body(worker: Worker) -> None:
        await stage.until(lambda: [stage.state(job) for job in jobs] == ["pending", "pending"] and not worker.held)

    stage.work(body)
    assert not stage.heard(events.SettleRefused)


def test_an_outcome_that_the_driver_fails_at_costs_itself_alone(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    handler = register(stage.hf, "async", lambda what: what)
    jobs = [handler.enqueue(what="poison" if n == 3 else "fine") for n in range(10)]

    async def body(worker: Worker) -> None:
        [source] = worker.sources
        settle = source.settle

        def choosy(ends: Any, by: str, leases: Any = ()) -> Any:
            if any("poison" in (one.result or "") for one in ends):
                raise TypeError("a driver that cannot encode this")
            return settle(ends, by, leases)

        source.settle = choosy  # type: ignore[method-assign]
        await stage.until_empty()
        assert worker.failure is None

    stage.work(body)
    assert {stage.state(job) for job in jobs} == {"done"}
    assert [stage.show(job).result for job in jobs].count(None) == 1
    assert [event.id for event in stage.heard(events.ResultDropped)] == [jobs[3].id]
