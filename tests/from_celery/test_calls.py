"""Calls of tasks: what job each one makes, how it runs, what it may ask about itself, and what comes of it."""

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import ConfigError, Fatal, Holdfast, InvalidPayload, JobCancelled, JobDead, LeaseLost, admin
from holdfast.celery import (
    AsyncResult,
    Celery,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Task,
    current_task,
    install,
    shared_task,
)
from holdfast.testing.inline import enqueued, run_due
from holdfast.values.views import JobView


def the_job(hf: Holdfast) -> JobView:
    [job] = enqueued(hf)
    return job


def test_a_call_is_a_job_and_its_result_can_be_waited_for(app: Celery, hf: Holdfast) -> None:
    @app.task(name="add")
    def add(x: int, y: int = 1) -> int:
        return x + y

    result = add.delay(2, y=3)
    assert (the_job(hf).kind, the_job(hf).payload) == ("add", '{"x":2,"y":3}')
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    run_due(hf)
    assert (result.get(timeout=0), result.state, result.successful()) == (5, "SUCCESS", True)
    assert AsyncResult(result.id).get(timeout=0) == app.AsyncResult(result.id).get(timeout=0) == 5


def test_the_options_of_a_call_are_those_of_its_job(app: Celery, hf: Holdfast) -> None:
    @app.task(expires=3600)
    def add(x: int) -> None: ...

    eta = datetime(2090, 1, 1, tzinfo=UTC)
    add.apply_async((1,), eta=eta, queue="mail", priority=9, headers={"tenant": "7"}, key="order:1")
    job = the_job(hf)
    assert (job.available_at, job.queue, job.priority, job.key) == (eta, "mail", 9, "order:1")
    assert job.headers is not None
    assert job.headers["tenant"] == "7"
    assert job.expires_at == job.created_at + timedelta(hours=1)
    late = add.apply_async(kwargs={"x": 1}, countdown=60, expires=120)
    assert isinstance(late, AsyncResult)
    assert late.job.available_at > job.created_at + timedelta(seconds=50)
    assert late.job.expires_at == late.job.created_at + timedelta(minutes=2)


CANNOT_BE_SAID: dict[str, tuple[Any, str]] = {
    "task_id": ("mine", "idempotency_key="),
    "link_error": (1, "JobDead"),
    "routing_key": ("a", "say queue="),
    "time_limit": (3, "in the decorator"),
    "retry": (True, "repeated by itself"),
    "serializer": ("pickle", "arguments are JSON"),
    "countdwn": (3, "did you mean countdown"),
    "priority": (1000, "priority"),
    "countdown": ("3", "^countdown: "),
    "eta": (datetime(2030, 1, 1), "^eta: must have a time zone"),
    "expires": ("soon", "^expires: "),
}


@pytest.mark.parametrize("name", CANNOT_BE_SAID)
def test_what_a_call_cannot_say_is_refused_with_what_to_do(name: str, app: Celery, hf: Holdfast) -> None:
    @app.task
    def add() -> None: ...

    value, advice = CANNOT_BE_SAID[name]
    with pytest.raises(ConfigError, match=advice):
        add.apply_async(**{name: value})  # type: ignore[arg-type]
    assert enqueued(hf) == []


def test_a_call_in_a_transaction_is_there_if_and_only_if_it_commits(app: Celery, hf: Holdfast) -> None:
    @app.task
    def add(x: int) -> None: ...

    connection = sqlite3.connect(hf.url.removeprefix("sqlite:///"))
    connection.execute("begin")
    add.using(tx=connection).delay(1)
    assert enqueued(hf) == []
    connection.rollback()
    assert enqueued(hf) == []
    connection.execute("begin")
    add.using(tx=connection, queue="mail").apply_async((1,), priority=3)
    add.s(2).apply_async(tx=connection)
    connection.commit()
    connection.close()
    assert [(job.queue, job.priority, job.payload) for job in enqueued(hf)] == [
        ("mail", 3, '{"x":1}'),
        ("default", 0, '{"x":2}'),
    ]


def test_arguments_are_checked_when_the_call_is_made(app: Celery) -> None:
    @app.task
    def add(x: int, y: int) -> None: ...

    for args in ((1,), (1, 2, 3), ("one", 2), (1, object())):
        with pytest.raises(InvalidPayload):
            add.delay(*args)  # type: ignore[call-arg]


def test_every_kind_of_parameter_reaches_the_function(app: Celery, hf: Holdfast) -> None:
    seen: list[Any] = []

    @app.task
    def take(first: int, /, second: int, *rest: str, only: int = 4, **others: float) -> None:
        seen.append((first, second, rest, only, others))

    take.delay(1, 2, "a", "b", only=5, z=1.5)
    take.delay(1, second=2)
    run_due(hf)
    assert seen == [(1, 2, ("a", "b"), 5, {"z": 1.5}), (1, 2, (), 4, {})]


def test_a_bound_task_knows_its_job(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True)
    def who(self: Task[[int], Any], n: int) -> list[Any]:
        request = self.request
        assert request.job is not None
        assert current_task.name == self.name
        return [request.id, request.retries, list(request.args), request.headers, request.delivery_info["routing_key"]]

    result = who.apply_async((7,), queue="mail", headers={"tenant": "a"})
    run_due(hf)
    assert result.get(0) == [result.id, 0, [7], {"tenant": "a"}, "mail"]


def test_what_a_task_says_of_its_state_is_seen_while_it_runs(app: Celery, hf: Holdfast) -> None:
    seen: list[Any] = []

    @app.task(bind=True)
    def walk(self: Task[[], None]) -> None:
        me = AsyncResult(str(self.request.id))
        seen.append(me.state)
        self.update_state(state="HALFWAY", meta={"at": 1})
        seen.append((me.state, me.info))

    walk.delay()
    run_due(hf)
    assert seen == ["STARTED", ("HALFWAY", {"at": 1})]


def test_a_task_of_async_def_runs_and_is_called_by_async_code(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True, max_retries=1)
    async def add(self: Task[[int], Any], x: int) -> int:
        await asyncio.sleep(0)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return x + 1

    async def scene() -> Any:
        async with hf.worker():
            result = await add.adelay(1)
            return await result.aget(timeout=30)

    assert asyncio.run(scene()) == 2


# How attempts end


def test_an_error_that_nobody_named_is_not_tried_again(app: Celery, hf: Holdfast) -> None:
    @app.task
    def broken() -> None:
        raise ValueError("no such customer")

    result = broken.delay()
    run_due(hf, raise_errors=False)
    assert (result.state, result.failed(), result.ready()) == ("FAILURE", True, True)
    with pytest.raises(JobDead, match="ValueError: no such customer"):
        result.get(timeout=0)
    assert isinstance(result.get(timeout=0, propagate=False), JobDead)
    assert isinstance(result, AsyncResult)
    assert 'raise ValueError("no such customer")' in (result.traceback or "")


def test_an_error_that_was_named_is_tried_again_as_often_as_was_said(app: Celery, hf: Holdfast) -> None:
    @app.task(autoretry_for=(OSError,), dont_autoretry_for=(FileNotFoundError,), max_retries=2, default_retry_delay=5)
    def fetch(missing: bool) -> None:
        raise FileNotFoundError("gone") if missing else ConnectionError("down")

    result, gone = fetch.delay(False), fetch.delay(True)
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried", "dead"]
    assert (result.state, gone.state) == ("RETRY", "FAILURE")
    assert [one.outcome for one in run_due(hf, ahead=6, raise_errors=False)] == ["retried"]
    assert [one.outcome for one in run_due(hf, ahead=12, raise_errors=False)] == ["dead"]
    assert isinstance(result, AsyncResult)
    assert [error["type"] for error in result.job.errors] == ["ConnectionError"] * 3


def test_a_task_that_asks_for_a_retry_gets_it_until_none_is_left(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True, max_retries=2)
    def fetch(self: Task[[], None]) -> None:
        try:
            raise ConnectionError("down")
        except ConnectionError as error:
            raise self.retry(exc=error, countdown=10 * (self.request.retries + 1)) from error

    result = fetch.delay()
    assert isinstance(result, AsyncResult)
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried"]
    assert run_due(hf, ahead=9) == []
    assert [one.outcome for one in run_due(hf, ahead=11, raise_errors=False)] == ["retried"]
    [last] = run_due(hf, ahead=40, raise_errors=False)
    assert (last.outcome, last.error) == ("dead", "down")
    assert [(error["type"], error["message"]) for error in result.job.errors] == [("ConnectionError", "down")] * 3


def test_a_retry_inside_an_except_is_recorded_as_the_error_there(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True, max_retries=1)
    def fetch(self: Task[[], None]) -> None:
        try:
            raise ConnectionError("down")
        except ConnectionError:
            self.retry(countdown=10)

    @app.task(bind=True, max_retries=1)
    async def afetch(self: Task[[], None]) -> None:
        try:
            raise ConnectionError("down")
        except ConnectionError:
            self.retry(countdown=10)

    results = [fetch.delay(), afetch.delay()]
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried", "retried"]
    for result in results:
        assert isinstance(result, AsyncResult)
        [error] = result.job.errors
        assert (error["type"], error["message"]) == ("ConnectionError", "down")
        assert 'raise ConnectionError("down")' in str(error["traceback"])
        assert "During handling" not in str(error["traceback"])
    assert [one.outcome for one in run_due(hf, ahead=9, raise_errors=False)] == []
    assert [one.outcome for one in run_due(hf, ahead=11, raise_errors=False)] == ["dead", "dead"]


def test_an_error_that_was_made_for_a_retry_is_told_with_what_led_to_it(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True)
    def fetch(self: Task[[], None]) -> None:
        try:
            raise ConnectionError("down")
        except ConnectionError:
            raise self.retry(exc=LookupError("no answer"))  # noqa: B904 - which is what people write

    fetch.delay()
    [ran] = run_due(hf, raise_errors=False)
    assert (ran.outcome, ran.error) == ("retried", "no answer")
    trace = str((the_job(hf).last_error or {})["traceback"])
    assert 'raise ConnectionError("down")' in trace
    assert 'self.retry(exc=LookupError("no answer"))' in trace


def test_a_retry_for_what_is_fatal_is_a_retry(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True)
    def fetch(self: Task[[], None]) -> None:
        self.retry(exc=Fatal("gone"), countdown=10)

    fetch.delay()
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried"]


def test_a_retry_may_allow_fewer_tries_than_the_task_but_not_more(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True, max_retries=3)
    def fetch(self: Task[[int], None], most: int) -> None:
        self.retry(countdown=0, max_retries=most)

    fewer, more = fetch.delay(1), fetch.delay(10)
    run_due(hf, raise_errors=False)
    with pytest.raises(JobDead, match="has no retry left: it may have 1") as caught:
        fewer.get(timeout=0)
    assert caught.value.job.attempts == 2
    with pytest.raises(JobDead, match="say max_retries= in the decorator"):
        more.get(timeout=0)


def test_a_time_limit_fails_the_task_unless_it_is_to_be_tried_again(app: Celery, hf: Holdfast) -> None:
    @app.task(time_limit=0.01)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(time_limit=0.01, autoretry_for=(TimeoutError,), default_retry_delay=5)
    async def again() -> None:
        await asyncio.sleep(60)

    slow.delay()
    again.delay()
    assert sorted(one.outcome for one in run_due(hf, raise_errors=False)) == ["dead", "retried"]


def test_a_retry_is_the_same_job(app: Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Task[[], None]) -> None:
        self.retry(args=(1,))

    with pytest.raises(ConfigError, match="the same job again"):
        fetch()


def test_a_task_that_is_called_as_a_function_cannot_be_tried_again(app: Celery) -> None:
    @app.task(bind=True)
    def fetch(self: Task[[], None]) -> None:
        raise self.retry(exc=KeyError("x"))

    with pytest.raises(KeyError):
        fetch()


def test_a_task_may_ignore_or_reject_its_job(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True)
    def choose(self: Task[[str], None], way: str) -> None:
        if way == "ignore":
            raise Ignore("withdrawn")
        if way == "again" and self.request.job is not None and self.request.job.fence == 1:
            raise Reject("not me", requeue=True)
        if way == "reject":
            raise Reject("broken")

    results = {way: choose.delay(way) for way in ("ignore", "again", "reject")}
    run_due(hf, raise_errors=False)
    assert {way: one.state for way, one in results.items()} == {
        "ignore": "REVOKED",
        "again": "SUCCESS",
        "reject": "FAILURE",
    }


def test_a_lost_lease_is_not_taken_for_an_error_of_the_task(app: Celery, hf: Holdfast) -> None:
    @app.task(bind=True)
    def lose(self: Task[[], None]) -> None:
        job = self.request.job
        assert job is not None
        raise LeaseLost(job.id, job.fence)

    lose.delay()
    assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["lost"]


def test_a_revoked_job_does_not_run(app: Celery, hf: Holdfast) -> None:
    @app.task
    def never() -> None:
        raise AssertionError

    result = never.apply_async(countdown=0)
    result.revoke()
    assert run_due(hf) == []
    assert result.state == "REVOKED"
    with pytest.raises(JobCancelled):
        result.get(timeout=0)


def test_a_result_that_is_not_wanted_is_not_kept(app: Celery, hf: Holdfast) -> None:
    @app.task(ignore_result=True)
    def add() -> int:
        return 3

    result = add.delay()
    run_due(hf)
    assert (result.state, result.get(timeout=0)) == ("SUCCESS", None)


def test_a_job_that_nobody_knows_is_pending(app: Celery) -> None:
    assert AsyncResult("01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f").state == "PENDING"


def test_a_task_is_called_by_its_name_also_where_it_is_not_known(app: Celery, hf: Holdfast) -> None:
    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    result = app.send_task("add", (1, 2))
    app.send_task("elsewhere", kwargs={"n": 1}, queue="other", countdown=5)
    with pytest.raises(ConfigError, match="by name"):
        app.send_task("elsewhere", (1,))
    run_due(hf)
    assert result.get(timeout=0) == 3
    [other] = hf.store.run(admin.list_jobs(admin.Filter(kind="elsewhere")))
    assert (other.queue, other.payload) == ("other", '{"n":1}')


def test_none_for_arguments_is_none_at_all(app: Celery, hf: Holdfast) -> None:
    @app.task(name="add")
    def add(x: int = 1, y: int = 2) -> int:
        return x + y

    by_name = {"x": 3, "y": 4}
    calls = [add.apply_async(None), add.apply_async(args=None, kwargs=by_name), add.signature(None, by_name).delay()]
    calls += [app.send_task("add", None, by_name), add.s(1).apply_async(None, None)]
    assert add.apply(None, by_name).get() == 7
    run_due(hf)
    assert [call.get(timeout=0) for call in calls] == [3, 7, 7, 7, 3]


# Without a database


def test_eager_calls_run_at_once_with_their_retries(eager: Celery) -> None:
    calls: list[int] = []

    @shared_task(bind=True, autoretry_for=(OSError,), max_retries=2)
    def fetch(self: Task[[int], Any], succeeds_at: int) -> int:
        calls.append(self.request.retries)
        if self.request.retries < succeeds_at:
            raise OSError("down")
        return self.request.retries

    result = fetch.delay(1)
    assert (result.get(), result.state, calls) == (1, "SUCCESS", [0, 1])
    failed = fetch.delay(3)
    assert failed.failed()
    with pytest.raises(OSError, match="down"):
        failed.get()


def test_eager_calls_go_through_json_and_may_raise_at_once(eager: Celery) -> None:
    @eager.task
    def take(value: Any) -> Any:
        return value

    @eager.task(bind=True, max_retries=None)
    def for_ever(self: Task[[], None]) -> None:
        self.retry(countdown=0)

    assert take.delay((1, 2)).get() == [1, 2]
    with pytest.raises(InvalidPayload):
        take.delay({1, 2})
    assert isinstance(for_ever.delay().result, MaxRetriesExceededError)
    eager.conf.task_eager_propagates = True
    with pytest.raises(MaxRetriesExceededError):
        for_ever.delay()


def test_an_application_leaves_the_eager_mode_as_it_entered_it(hf: Holdfast) -> None:
    app = install(hf, task_always_eager=True)

    @shared_task
    def add() -> int:
        return 1

    assert add.delay().get() == 1
    app.conf.task_always_eager = False
    add.delay()
    assert len(enqueued(hf)) == 1
