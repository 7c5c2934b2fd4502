"""A job as the result of a task: its status, who ran it, what went wrong."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string

from holdfast import errors
from holdfast.django.tasks.compat import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from holdfast.values.views import JobView, decoded

STATUS = {
    "pending": "READY",
    "waiting": "READY",
    "leased": "RUNNING",
    "done": "SUCCESSFUL",
    "dead": "FAILED",
    "cancelled": "FAILED",
}
# What names the class of an end that nobody raised, such as a cancel by hand.
NOBODYS = "holdfast.errors.Fatal"


def task_at(path: str) -> Any:
    """Import a task. Raises: ImportError; SuspiciousOperation for what is anything but a task."""
    found = import_string(path)
    if not isinstance(found, Task):
        raise SuspiciousOperation(f"{path!r} is not a task, and nothing else is run or shown as one.")
    return found


def as_enqueued(task: Any, backend: str, queue: str, priority: int, run_after: str | None) -> Any:
    """Return a task with what its job was enqueued with, as far as today's settings let it have that."""
    at = None if run_after is None else datetime.fromisoformat(run_after)
    try:
        return task.using(backend=backend, queue_name=queue, priority=priority, run_after=at)
    except (InvalidTask, InvalidTaskBackend):
        return task


def result_of(view: JobView) -> Any:
    """Make the result of a job. Raises: ImportError, SuspiciousOperation, for a task that is no more."""
    payload: dict[str, Any] = decoded(view.payload)
    task = as_enqueued(
        task_at(payload["task"]), payload["backend"], view.queue, view.priority, payload.get("run_after")
    )
    result = TaskResult(
        task=task,
        id=view.id,
        status=TaskResultStatus[STATUS[view.state]],
        enqueued_at=view.created_at,
        started_at=_first_start(view),
        finished_at=view.finished_at,
        last_attempted_at=_last_start(view),
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=payload["backend"],
        errors=[error_of(record) for record in view.errors],
        worker_ids=workers_of(view),
    )
    if view.state == "done":
        # Its class is frozen, and takes no return value when it is made.
        object.__setattr__(result, "_return_value", view.result)
    return result


def workers_of(view: JobView) -> list[str]:
    """List who has run the job, once for each attempt."""
    failed = [str(record["worker"]) for record in view.errors if record["attempt"] and record["worker"]]
    return [*failed, str(view.leased_by)] if view.state in ("leased", "done") and view.leased_by else failed


def error_of(record: dict[str, Any]) -> Any:
    """Make a task's error of an error record."""
    return TaskError(exception_class_path=_class_path(str(record["type"])), traceback=str(record["traceback"]))


def _class_path(name: str) -> str:
    if "." in name:
        return name
    if isinstance(getattr(builtins, name, None), type):
        return f"builtins.{name}"
    return f"holdfast.errors.{name}" if isinstance(getattr(errors, name, None), type) else NOBODYS


def _first_start(view: JobView) -> datetime | None:
    starts = _failed_starts(view)
    return starts[0] if starts else _held_since(view)


def _last_start(view: JobView) -> datetime | None:
    starts = _failed_starts(view)
    return _held_since(view) or (starts[-1] if starts else None)


def _held_since(view: JobView) -> datetime | None:
    return view.leased_at if view.state in ("leased", "done") else None


def _failed_starts(view: JobView) -> list[datetime]:
    return [
        datetime.fromisoformat(record["started_at"]).astimezone(UTC)
        for record in view.errors
        if record["attempt"] and record["started_at"]
    ]
