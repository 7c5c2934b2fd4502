"""Which exceptions are retried, and what subscribers get of them."""

import logging
import pickle
from typing import Any

import pytest

from holdfast import Bulk, Fatal, Holdfast, Job, Retry, Run, StepFailed, errors, events
from holdfast.errors import ConfigError
from holdfast.sinks import Function
from holdfast.testing.inline import run_due
from tests.worker.stage import Stage

AT_ONCE: dict[str, Any] = {"max_attempts": 3, "first_delay": 0, "max_delay": 0, "jitter": 0}


class Declined(ValueError):
    pass


@pytest.fixture
def hf(sqlite_url: str) -> Any:
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_worker_retries_only_what_the_policy_names(stage: Stage, colour: str) -> None:
    policy = Retry(**AT_ONCE, on=(OSError, ValueError), never=Declined)
    raised = {"away": ConnectionError, "wrong": KeyError, "declined": Declined}

    def fail(what: str) -> None:
        raise raised[what]

    if colour == "async":

        @stage.hf.job(retry=policy)
        async def pay(what: str) -> None:
            fail(what)
    else:

        @stage.hf.job(retry=policy)
        def pay(what: str) -> None:
            fail(what)

    jobs = [pay.enqueue(what=what) for what in raised]
    stage.work(poll=0.05)
    assert [(stage.show(job).state, stage.show(job).attempts) for job in jobs] == [
        ("dead", 3),
        ("dead", 1),
        ("dead", 1),
    ]


def test_an_answer_and_a_lost_lease_are_no_exceptions_of_the_handler(stage: Stage) -> None:
    @stage.hf.job(retry=Retry(**AT_ONCE, on=OSError))
    async def later(job: Job) -> Retry | None:
        return Retry.after(0) if job.attempt == 1 else None

    @stage.hf.job(retry=Retry(**AT_ONCE, on=OSError))
    async def loses(job: Job) -> None:
        raise errors.LeaseLost(job.id, job.fence)

    first, second = later.enqueue(), loses.enqueue()

    async def both(_: Any) -> None:
        await stage.until(lambda: stage.heard(events.LeaseWasLost) and stage.heard(events.JobDone))

    stage.work(both, poll=0.05)
    assert stage.show(first).state == "done"
    assert stage.show(second).state == "leased"


def test_what_no_job_of_a_call_can_be_blamed_for_is_judged_once_each_runs_alone(hf: Holdfast) -> None:
    @hf.bulk(size=10, retry=Retry(**AT_ONCE, never=Declined))
    def pay(cards: list[int], bulk: Bulk) -> None:
        if 2 in cards:
            raise Declined

    hf.enqueue_many([pay.bind(1), pay.bind(2)])
    ran = [one.outcome for one in run_due(hf, raise_errors=False)]
    assert sorted(ran) == ["dead", "done", "retried", "retried"]


def test_steps_of_a_run_go_by_their_own_policy(hf: Holdfast) -> None:
    calls: list[str] = []

    def decline() -> None:
        calls.append("decline")
        raise Declined("no")

    def break_down() -> None:
        calls.append("break")
        raise ConnectionError("away")

    @hf.workflow
    async def order(run: Run) -> int:
        policy = Retry(**AT_ONCE, on=OSError)
        failed = 0
        for step in (decline, break_down):
            try:
                await run.step(step, retry=policy)
            except StepFailed:
                failed += 1
        return failed

    order.start(id="o")
    run_due(hf)
    assert hf.run("o").result(0) == 2
    assert calls == ["decline", "break", "break", "break"]


def test_where_no_exception_reaches_a_policy_it_may_not_name_any(hf: Holdfast) -> None:
    named = Retry(never=Declined)
    with pytest.raises(ConfigError, match=r"retry: must not have on= or never= here: a sink says"):
        hf.route("order.*", to=Function(print), retry=named)
    with pytest.raises(ConfigError, match=r"give them to its steps"):
        hf.workflow(retry=named)


def test_subscribers_get_the_exception_of_a_retry_and_of_a_dead_letter(stage: Stage) -> None:
    raised: list[BaseException] = []

    @stage.hf.job(retry=Retry(**{**AT_ONCE, "max_attempts": 2}))
    async def fails() -> None:
        raised.append(ConnectionError("away"))
        raise raised[-1]

    fails.enqueue()
    stage.work(poll=0.05)
    [retried], [dead] = stage.heard(events.JobRetried), stage.heard(events.JobDead)
    assert retried.exception is raised[0]
    assert dead.exception is raised[1]
    assert dead.exception.__traceback__ is not None


def test_what_nobody_raised_has_no_exception(stage: Stage) -> None:
    @stage.hf.job
    async def asks(job: Job) -> Retry | Fatal:
        return Retry.after(0, "not yet") if job.attempt == 1 else Fatal("enough")

    asks.enqueue()
    stage.work(poll=0.05)
    [retried], [dead] = stage.heard(events.JobRetried), stage.heard(events.JobDead)
    assert (retried.exception, retried.error) == (None, "Retry: not yet")
    # An exception that was returned instead of raised is the handler's own all the same.
    assert isinstance(dead.exception, Fatal)


def test_a_log_record_of_an_event_can_go_to_another_process(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    class Local(Exception):
        """Not to be pickled: no module has it."""

    @stage.hf.job
    async def fails() -> None:
        raise Fatal("no hope") from Local()

    fails.enqueue()
    with caplog.at_level(logging.ERROR, "holdfast"):
        stage.work(poll=0.05)
    [record] = [record for record in caplog.records if "no hope" in record.getMessage()]
    assert "exception" not in pickle.loads(pickle.dumps(record.holdfast))  # type: ignore[attr-defined]


def test_on_decorates_and_tells_the_event_from_the_exception_of_its_name(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.on(events.JobDead)
    def report(event: events.JobDead) -> None:
        seen.append(event.error)

    @hf.job
    def fails() -> None:
        raise Fatal("no hope")

    fails.enqueue()
    run_due(hf, raise_errors=False)
    assert seen == ["Fatal: no hope"]
    with pytest.raises(ConfigError, match=r"JobDead of holdfast is an exception; events are in holdfast.events"):
        hf.on(errors.JobDead)  # type: ignore[type-var]
