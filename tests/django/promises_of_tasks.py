"""What the backend of Django's Tasks promises, on every database; run by `test_tasks_and_admin.py`."""

import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import SuspiciousOperation
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from inner import promise
from taskshop import tasks

from holdfast import Retry, admin
from holdfast.django import hf
from holdfast.django.tasks import compat
from holdfast.testing.inline import run_due

NAMES = {getattr(compat, name): name for name in ("task_enqueued", "task_started", "task_finished")}
READY, RUNNING, FAILED, SUCCESSFUL = compat.TaskResultStatus


def ran(**options: Any) -> list[str]:
    """Run what is due, and return how each attempt ended."""
    return [one.outcome for one in run_due(hf, raise_errors=False, own_database=True, **options)]


def row(result: Any) -> admin.JobView:
    return hf.store.run(admin.show(result.id))


@contextmanager
def raises(kind: type[BaseException], part: str = ""):
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"{kind.__name__} was not raised"
    assert part in said, said


@contextmanager
def heard(*signals: Any):
    """Collect what signals say, and the exception that was being handled."""
    said: list[tuple[str, Any, Any]] = []

    def receive(signal: Any, task_result: Any, **_: Any) -> None:
        said.append((NAMES[signal], task_result.status, sys.exc_info()[0]))

    for signal in signals:
        signal.connect(receive)
    try:
        yield said
    finally:
        for signal in signals:
            signal.disconnect(receive)


@promise
def a_result_tells_the_life_of_its_task():
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs) == (READY, [1], {"b": 2})
    assert len(result.id) <= 64
    assert result.enqueued_at
    assert result.started_at is None
    assert result.attempts == 0
    assert tasks.add.get_result(result.id) == result
    assert ran() == ["done"]
    result.refresh()
    assert (result.status, result.return_value, result.attempts, result.errors) == (SUCCESSFUL, 3, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


@promise
def an_async_task_uses_the_orm_and_sees_its_context():
    result = tasks.told.enqueue("ahoy", times=2)
    assert row(result).kind == "django.task.async"
    assert ran() == ["done"]
    result.refresh()
    assert result.return_value == {"word": "ahoyahoy", "attempt": 1, "id": result.id}


@promise
def a_rollback_takes_the_task_with_it():
    with raises(ZeroDivisionError), transaction.atomic():
        result = tasks.found_group.enqueue("never")
        assert tasks.found_group.get_result(result.id).status == READY
        raise ZeroDivisionError
    with raises(compat.TaskResultDoesNotExist):
        tasks.found_group.get_result(result.id)
    assert ran() == []
    assert not Group.objects.exists()


@promise
def an_async_enqueue_is_part_of_the_transaction_of_its_thread():
    with raises(ZeroDivisionError), transaction.atomic():
        result = async_to_sync(tasks.found_group.aenqueue)("never")
        raise ZeroDivisionError
    with raises(compat.TaskResultDoesNotExist):
        async_to_sync(tasks.found_group.aget_result)(result.id)


@promise
def a_task_waits_until_it_is_to_run():
    at = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=at).enqueue(1, 1)
    assert ran() == []
    assert tasks.add.get_result(result.id).task.run_after == at
    assert ran(ahead=3700) == ["done"]


@promise
def priority_and_queue_are_those_of_the_task():
    low, high = (tasks.add.using(priority=number, queue_name="mail").enqueue(number, 0) for number in (-100, 100))
    assert [one.result for one in run_due(hf, own_database=True)] == [100, -100]
    assert (row(low).priority, row(high).queue) == (-100, "mail")
    assert tasks.add.get_result(low.id).task == tasks.add.using(priority=-100, queue_name="mail")


@promise
def a_worker_that_is_told_of_no_queues_serves_those_of_the_settings():
    assert {"default", "mail"} <= set(hf.worker().queues)


@promise
def what_no_job_can_be_is_refused():
    for changes, part in (
        ({"priority": 101}, "priority"),
        ({"queue_name": "unheard-of"}, "Queue"),
        ({"run_after": timezone.now().replace(tzinfo=None)}, "aware"),
        ({"retry": 5}, "must be a Retry"),
        ({"lease": 0}, "lease"),
        ({"unique": "{nobody}"}, "names parameters of the task"),
    ):
        with raises(compat.InvalidTask, part):
            tasks.add.using(**changes)
    with raises(compat.InvalidTask, "module level"):
        tasks.task(lambda: None)
    with raises(TypeError, "Unsupported type"):
        tasks.add.enqueue(object(), 1)


@promise
def a_task_is_tried_again_as_it_says_itself():
    result = tasks.fails_twice.enqueue()
    assert row(result).max_attempts == 3
    assert ran() == ["retried", "retried", "done"]
    result.refresh()
    assert result.return_value == ["builtins.ValueError"] * 2
    assert (result.attempts, len(result.worker_ids), len(result.errors)) == (3, 3, 2)
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: not yet: 1\n")
    assert result.started_at < result.last_attempted_at <= result.finished_at


@promise
def the_delay_of_a_retry_is_the_tasks_own():
    result = tasks.fails_slowly.enqueue()
    assert ran() == ["retried"]
    waits = row(result).available_at - timezone.now()
    assert timedelta(minutes=50) < waits <= timedelta(hours=1)
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (READY, 1, False)
    assert ran(ahead=3700) == ["dead"]
    result.refresh()
    assert result.status == FAILED
    assert [error.exception_class for error in result.errors] == [LookupError] * 2


@promise
def the_settings_say_how_tasks_without_a_word_of_their_own_are_tried():
    result = tasks.fails_once.enqueue()
    assert (row(result).max_attempts, ran()) == (1, ["dead"])
    with raises(ValueError, "Task failed"):
        _ = tasks.fails_once.get_result(result.id).return_value
    assert row(tasks.add.enqueue(1, 1)).max_attempts == 5


@promise
def a_return_value_that_is_not_json_is_a_failure():
    result = tasks.gives_what_json_has_no_form_for.enqueue()
    assert ran() == ["dead"]
    result.refresh()
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


@promise
def a_unique_task_is_found_while_it_lives():
    first, other = tasks.report.enqueue("north"), tasks.another_report.enqueue("north")
    with heard(compat.task_enqueued) as said:
        again = tasks.report.enqueue("north", day="tomorrow")
    assert (again.id, again.kwargs, said) == (first.id, {}, [])
    assert other.id != first.id
    assert row(first).key == "shop:north"
    assert ran() == ["done", "done"]
    assert tasks.report.enqueue("north").id != first.id


@promise
def the_lease_of_a_job_is_that_of_its_task_or_of_the_settings():
    said = [tasks.report, tasks.report.using(lease=timedelta(minutes=2)), tasks.fails_once, tasks.add]
    jobs = [task.enqueue(*args) for task, args in zip(said, [["north"], ["south"], [], [1, 1]], strict=True)]
    with connection.cursor() as cursor:
        cursor.execute("select id, lease_ms from holdfast_jobs")
        leases = {str(job): lease for job, lease in cursor.fetchall()}
    assert [leases[one.id] for one in jobs] == [45_000, 120_000, 90_000, None]


@promise
def what_is_said_of_retries_by_using_counts():
    late = tasks.fails_slowly.using(retry=Retry(4, first_delay=7200, max_delay=7200, jitter=0)).enqueue()
    ran()
    ran(ahead=3700)
    assert (row(late).max_attempts, row(late).attempts) == (4, 1)
    with raises(compat.InvalidTask, "cannot be said by using"):
        tasks.fails_slowly.using(retry=Retry(never=LookupError)).enqueue()


@promise
def signals_are_sent_once_for_each_thing_that_happens():
    every = (compat.task_enqueued, compat.task_started, compat.task_finished)
    with heard(*every) as said:
        tasks.add.enqueue(1, 1)
        assert said == [("task_enqueued", READY, None)]
        ran()
        assert said[1:] == [("task_started", RUNNING, None), ("task_finished", SUCCESSFUL, None)]
    with heard(*every) as said:
        tasks.told.enqueue("ahoy")
        ran()
        assert [name for name, *_ in said] == ["task_enqueued", "task_started", "task_finished"]
    with heard(compat.task_started, compat.task_finished) as said:
        tasks.fails_slowly.enqueue()
        ran()
        assert said == [("task_started", RUNNING, None)]
        ran(ahead=3700)
        assert said[1:] == [("task_started", RUNNING, None), ("task_finished", FAILED, LookupError)]
    with heard(compat.task_started, compat.task_finished) as said:
        tasks.fails_for_good.enqueue()
        ran()
        assert said == [("task_started", RUNNING, None), ("task_finished", FAILED, LookupError)]


@promise
def nothing_but_a_task_is_ever_run():
    for path in ("taskshop.tasks.no_task", "os.getcwd"):
        said = {"task": path, "args": [], "kwargs": {}, "backend": "default"}
        job = hf.enqueue("django.task", said)
        assert ran() == ["dead"]
        found = hf.store.run(admin.show(job.id))
        assert "is not a task" in found.errors[-1]["message"], found.errors
        with raises(SuspiciousOperation):
            tasks.add.get_backend().get_result(job.id)


@promise
def a_cancelled_task_has_failed():
    result = tasks.add.enqueue(1, 1)
    hf.cancel(result.id)
    result.refresh()
    assert result.status == FAILED
    assert result.is_finished


@promise
def only_what_a_backend_enqueued_is_a_result_of_it():
    other = tasks.fails_once.enqueue()
    for strange in ("123", "01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f", other.id):
        with raises(compat.TaskResultDoesNotExist):
            tasks.add.get_backend().get_result(strange)
    assert tasks.fails_once.get_backend().get_result(other.id).backend == "once"


@promise
def wrong_settings_are_named():
    backend = tasks.add.get_backend()
    assert list(backend.check()) == []
    with override_settings(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"]):
        assert [one.id for one in backend.check()] == ["holdfast.E010"]
    strange = type(backend)("x", {"OPTIONS": {"database": "elsewhere"}})
    assert [one.id for one in strange.check()] == ["holdfast.E011"]
    for options, part in (({"retries": 3}, "retries"), ({"retry": 3}, "must be a Retry"), ({"lease": -1}, "lease")):
        with raises(compat.InvalidTaskBackend, part):
            type(backend)("x", {"OPTIONS": options})


@promise
def a_task_that_left_the_settings_or_the_code_does_not_keep_others_from_running():
    result = tasks.add.using(queue_name="mail").enqueue(1, 1)
    gone = {"task": "taskshop.tasks.gone", "args": [], "kwargs": {}, "backend": "default"}
    hf.enqueue("django.task", gone)
    with override_settings(TASKS={"default": {"BACKEND": "holdfast.django.tasks.HoldfastBackend"}}):
        assert sorted(ran()) == ["done", "retried"]
    assert tasks.add.get_result(result.id).return_value == 2


@promise
def a_worker_process_runs_tasks_of_every_queue():
    command = [sys.executable, "-m", "django", "holdfast", "worker", "--poll", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as worker:
        try:
            with transaction.atomic():
                results = [tasks.add.enqueue(1, 2), tasks.told.enqueue("ahoy"), tasks.found_group.enqueue("crew")]
                results.append(tasks.fails_twice.enqueue())
            patience = time.monotonic() + 150
            while not all(one.is_finished for one in results) and time.monotonic() < patience:
                time.sleep(0.02)
                for one in results:
                    one.refresh()
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=60)
    assert [one.status for one in results] == [SUCCESSFUL] * 4, said
    assert [one.attempts for one in results] == [1, 1, 1, 3], said
    assert results[3].return_value == ["builtins.ValueError"] * 2
    assert Group.objects.filter(name__in=["ahoy", "crew"]).count() == 2
    assert worker.returncode == 0, said
