"""The handlers that run tasks: one for plain functions, on threads, and one for coroutine functions, on the loop.

A job says by its path which task it is; nothing but a task is ever run.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.utils import timezone

from holdfast import admin
from holdfast.app import Holdfast
from holdfast.django.tasks.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.django.tasks.results import as_enqueued, error_of, result_of, task_at
from holdfast.errors import Fatal
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.values.failure import ErrorRecord
from holdfast.values.retry import Retry

# The first delay, the factor, the longest delay and the jitter of a policy.
Delays = tuple[float, float, float, float]
KIND, ASYNC_KIND = "django.task", "django.task.async"
KINDS = (KIND, ASYNC_KIND)


def register(app: Holdfast, queues: Iterable[str]) -> None:
    """Have an application's workers run tasks, and serve these queues; a second call adds queues."""
    for kind, fn in ((KIND, run_task), (ASYNC_KIND, arun_task)):
        handler = app.handlers.get(kind) or app.job(kind=kind)(fn)
        handler.serves = tuple(dict.fromkeys((*handler.serves, *queues)))


def handler_for(app: Holdfast, task: Any) -> Handler[..., Any]:
    """Return the handler that runs a task."""
    return app.handlers[ASYNC_KIND if iscoroutinefunction(task.func) else KIND]


def run_task(
    job: Job,
    task: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    run_after: str | None = None,
    delays: Delays | None = None,
) -> Any:
    """Run one attempt of a task that is a plain function."""
    from holdfast.django import hf

    attempt = Attempt(job, _found(task), args, kwargs, backend, run_after, delays)
    if job.attempt > 1:
        attempt.recall(hf.store.run(admin.read([job.id])))
    task_started.send(sender=attempt.sender, task_result=attempt.result)
    try:
        value = normalize_json(attempt.task.call(*attempt.arguments(), **attempt.result.kwargs))
    except BaseException as error:
        if attempt.failed(error):
            # Inside the handler of the exception, where receivers find it in sys.exc_info().
            task_finished.send(sender=attempt.sender, task_result=attempt.result)
        raise
    attempt.succeeded(value)
    task_finished.send(sender=attempt.sender, task_result=attempt.result)
    return value


async def arun_task(
    job: Job,
    task: str,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    run_after: str | None = None,
    delays: Delays | None = None,
) -> Any:
    """Run one attempt of a task that is a coroutine function."""
    from holdfast.django import hf

    attempt = Attempt(job, _found(task), args, kwargs, backend, run_after, delays)
    if job.attempt > 1:
        attempt.recall(await hf.store.arun(admin.read([job.id])))
    await task_started.asend(sender=attempt.sender, task_result=attempt.result)
    try:
        value = normalize_json(await attempt.task.acall(*attempt.arguments(), **attempt.result.kwargs))
    except BaseException as error:
        if attempt.failed(error):
            await task_finished.asend(sender=attempt.sender, task_result=attempt.result)
        raise
    attempt.succeeded(value)
    await task_finished.asend(sender=attempt.sender, task_result=attempt.result)
    return value


def _found(path: str) -> Any:
    """Import the task of a job. Raises: Fatal for anything else; ImportError, since a newer worker may have it."""
    try:
        return task_at(path)
    except SuspiciousOperation as error:
        raise Fatal(str(error)) from error


class Attempt:
    """One attempt of a task, and its result as the task's context and the receivers of signals see it."""

    def __init__(
        self,
        job: Job,
        task: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        backend: str,
        run_after: str | None,
        delays: Delays | None,
    ) -> None:
        self.job = job
        self.sender = type(_backend(task, backend))
        self.task = as_enqueued(task, backend, job.queue, job.lease.priority, run_after)
        job.retry = policy_of(self.task) if delays is None else Retry(job.max_attempts, *delays)
        self._began = timezone.now()
        self.result = TaskResult(
            task=self.task,
            id=job.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=job.created_at,
            started_at=self._began,
            finished_at=None,
            last_attempted_at=self._began,
            args=args,
            kwargs=kwargs,
            backend=backend,
            errors=[],
            worker_ids=[job.worker],
        )

    def recall(self, found: dict[str, admin.JobView]) -> None:
        """Take in what earlier attempts came to."""
        if view := found.get(self.job.id):
            self.result = result_of(view)

    def arguments(self) -> list[Any]:
        """List what the function is called with by position."""
        context = [TaskContext(task_result=self.result)] if self.task.takes_context else []
        return [*context, *self.result.args]

    def succeeded(self, value: Any) -> None:
        """Note that the task returned."""
        self._note(status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)

    def failed(self, error: BaseException) -> bool:
        """Note what was raised, and tell whether the job ends with it."""
        job, now = self.job, timezone.now()
        # A worker that stops, or has lost the lease, cancels a coroutine: the job goes on elsewhere.
        goes_on = job.lost or (isinstance(error, CancelledError) and not job.cancel_requested)
        goes_again = (job.retry or Retry()).retries(error) and job.attempt < job.max_attempts
        if goes_on or (goes_again and not job.cancel_requested):
            return False
        record = ErrorRecord.of(error, attempt=job.attempt, worker=job.worker, started_at=self._began, failed_at=now)
        noted = error_of({"type": record.type, "traceback": record.traceback})
        self._note(status=TaskResultStatus.FAILED, finished_at=now, errors=[*self.result.errors, noted])
        return True

    def _note(self, **changes: Any) -> None:
        for name, value in changes.items():
            # Its class is frozen; Django's own backends write it in the same way.
            object.__setattr__(self.result, name, value)


def policy_of(task: Any) -> Retry:
    """Return how a task is tried again: as it says itself, else as its backend says of all tasks."""
    own: Retry | None = getattr(task, "retry", None)
    return own or getattr(task.get_backend(), "retry", None) or Retry()


def delays_of(task: Any) -> Delays | None:
    """Return the delays that were said by `using(retry=…)`, which a worker does not find in the code.

    Raises: InvalidTask, for exceptions that were said so: classes are not stored.
    """
    said: Retry | None = getattr(task, "retry", None)
    if said is None or said == getattr(task_at(task.module_path), "retry", None):
        return None
    if said.chooses:
        rule = "on= and never= cannot be said by using(): give them to @task, or to all tasks by OPTIONS"
        raise InvalidTask(f"retry: {rule}.")
    return said.first_delay, said.factor, said.max_delay, said.jitter


def _backend(task: Any, alias: str) -> Any:
    """Return the backend that a job was enqueued by, or that of its task where the settings have it no more."""
    try:
        return task_backends[alias]
    except InvalidTaskBackend:
        return task.get_backend()
