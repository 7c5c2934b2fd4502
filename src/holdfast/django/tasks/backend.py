"""The backend of Django's Tasks: a task becomes a job in the transaction that is open, and a job its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.utils import timezone

from holdfast import admin
from holdfast.app import Holdfast
from holdfast.django.tasks.compat import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from holdfast.django.tasks.results import result_of
from holdfast.django.tasks.running import KINDS, delays_of, handler_for, policy_of, register
from holdfast.django.tasks.task import HoldfastTask, check_task, key_of, unique_of
from holdfast.errors import ConfigError
from holdfast.values.ids import parse_id
from holdfast.values.options import only_options
from holdfast.values.retry import LONGEST_LEASE, Duration, Retry, seconds
from holdfast.values.views import decoded


class HoldfastBackend(BaseTaskBackend):
    """Tasks as jobs of `holdfast.django`, run by `manage.py holdfast worker`.

    OPTIONS: `retry` and `lease` for tasks that say nothing of their own; `database`, which must be the alias that
    Holdfast's tables are in.
    """

    task_class = HoldfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self.retry, self.lease = _defaults(self.options)
        except ConfigError as error:
            raise InvalidTaskBackend(f'TASKS["{alias}"]: {error}') from error
        # Without the application there is nothing to register on, and the check below says so.
        if apps.is_installed("holdfast.django"):
            register(self.app, sorted(self.queues))

    @property
    def app(self) -> Holdfast:
        """The application whose jobs the tasks become."""
        from holdfast.django import hf

        return hf

    def validate_task(self, task: Any) -> None:
        """Refuse a task that no job can be made of. Raises: InvalidTask."""
        super().validate_task(task)
        try:
            check_task(task)
        except ConfigError as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Add a job for a task, in the transaction that is open on Django's connection.

        Where `unique` finds a live job, its result is returned, and nothing is added.
        """
        self.validate_task(task)
        # Made first: it refuses arguments that are not JSON.
        result = self._ready(task, args, kwargs)
        added = handler_for(self.app, task).using(**self._options(result)).enqueue(**_payload(result))
        view = self.app.store.run(admin.read([added.id])).get(added.id)
        if view is not None and not added.created:
            return result_of(view)
        object.__setattr__(result, "id", added.id)
        # The database's time; where the job has run and left no row by now, ours.
        object.__setattr__(result, "enqueued_at", timezone.now() if view is None else view.created_at)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read the result of a task that this backend enqueued. Raises: TaskResultDoesNotExist."""
        try:
            job = parse_id(str(result_id).lower())
        except ConfigError:
            raise TaskResultDoesNotExist(result_id) from None
        view = self.app.store.run(admin.read([job])).get(job)
        if view is None or view.kind not in KINDS or decoded(view.payload)["backend"] != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return result_of(view)

    def check(self, **kwargs: Any) -> Iterable[CheckMessage]:
        """Find what keeps tasks from being run."""
        yield from super().check(**kwargs)
        if not apps.is_installed("holdfast.django"):
            hint = 'INSTALLED_APPS += ["holdfast.django"]'
            yield Error("HoldfastBackend needs the application holdfast.django.", hint=hint, id="holdfast.E010")
            return
        named, used = self.options.get("database"), getattr(self.app, "alias", None)
        if named is not None and named != used:
            said = f'TASKS["{self.alias}"]["OPTIONS"]["database"] is {named!r}, and Holdfast\'s tables are in {used!r}.'
            hint = f'HOLDFAST = {{"database": {named!r}}} puts them there.'
            yield Error(said, hint=hint, id="holdfast.E011")

    def _ready(self, task: Any, args: Any, kwargs: Any) -> Any:
        return TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _options(self, result: Any) -> dict[str, Any]:
        task = result.task
        own_lease: Duration | None = getattr(task, "lease", None)
        return {
            "queue": task.queue_name,
            "priority": int(task.priority),
            "run_after": _aware(task.run_after),
            "max_attempts": policy_of(task).max_attempts,
            "lease": self.lease if own_lease is None else own_lease,
            "unique": unique_of(task, result.args, result.kwargs),
            "key": key_of(task, result.args, result.kwargs),
        }


def _payload(result: Any) -> dict[str, Any]:
    """Return what a job needs to know of its task."""
    at = _aware(result.task.run_after)
    said = {"task": result.task.module_path, "args": result.args, "kwargs": result.kwargs, "backend": result.backend}
    more = {"run_after": None if at is None else at.isoformat(), "delays": delays_of(result.task)}
    return said | {name: value for name, value in more.items() if value is not None}


def _aware(moment: Any) -> Any:
    """Read a moment without a time zone as Django does without USE_TZ: in the project's own."""
    return moment if moment is None or timezone.is_aware(moment) else timezone.make_aware(moment)


def _defaults(options: Mapping[str, Any]) -> tuple[Retry | None, float | None]:
    """Read what OPTIONS say of all tasks. Raises: ConfigError."""
    only_options("OPTIONS", options, ("database", "retry", "lease"))
    retry, lease = options.get("retry"), options.get("lease")
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError("retry", "must be a Retry, as in Retry(max_attempts=3)", retry)
    return retry, None if lease is None else seconds(lease, "lease", at_least=1, at_most=LONGEST_LEASE)
