"""The Tasks framework of this project: Django's own from 6.0 on, or its backport `django_tasks`.

The two have the same names in two places, and a few that differ; what uses them takes them from here.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

DJANGO, BACKPORT = "django.tasks", "django_tasks"


def framework() -> str:
    """Name the framework: the backport where it is installed as an application, else Django's own, else the backport.

    Raises: ImproperlyConfigured where there is none.
    """
    if BACKPORT in settings.INSTALLED_APPS:
        return BACKPORT
    for name in (DJANGO, BACKPORT):
        if find_spec(name) is not None:
            return name
    raise ImproperlyConfigured(
        "holdfast.django.tasks.HoldfastBackend needs Django 6.0 or later, or the backport: pip install django-tasks"
    )


def _found(module: str, *names: str) -> Any:
    """Return what a module of the framework calls by one of these names."""
    part = import_module(f"{_NAME}.{module}")
    return next(getattr(part, name) for name in names if hasattr(part, name))


_NAME = framework()
# Any for type checkers: which of the two it is shows at run time only.
task_backends: Any = import_module(_NAME).task_backends
BaseTaskBackend: Any = _found("backends.base", "BaseTaskBackend")
Task: Any = _found("base", "Task")
TaskContext: Any = _found("base", "TaskContext")
TaskError: Any = _found("base", "TaskError")
TaskResult: Any = _found("base", "TaskResult")
TaskResultStatus: Any = _found("base", "TaskResultStatus")
InvalidTask: Any = _found("exceptions", "InvalidTask", "InvalidTaskError")
InvalidTaskBackend: Any = _found("exceptions", "InvalidTaskBackend", "InvalidTaskBackendError")
TaskResultDoesNotExist: Any = _found("exceptions", "TaskResultDoesNotExist")
task_enqueued: Any = _found("signals", "task_enqueued")
task_started: Any = _found("signals", "task_started")
task_finished: Any = _found("signals", "task_finished")
normalize_json: Any = (
    import_module("django.utils.json").normalize_json if _NAME == DJANGO else _found("utils", "normalize_json")
)
