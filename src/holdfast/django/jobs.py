"""The handlers of Django's Tasks, found as the `jobs.py` of any application is: where a backend of TASKS is ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string


def _register() -> None:
    ours = [params for params in _backends().values() if _is_ours(str(params.get("BACKEND", "")))]
    if ours:
        from holdfast.django import hf
        from holdfast.django.tasks.running import register

        register(hf, [queue for params in ours for queue in sorted(params.get("QUEUES") or ["default"])])


def _backends() -> Mapping[str, Mapping[str, Any]]:
    return getattr(settings, "TASKS", None) or {}


def _is_ours(path: str) -> bool:
    if not path or path.startswith(("django.", "django_tasks.")):
        return False
    try:
        found = import_string(path)
    except ImportError:
        # The framework says so itself, as soon as a task is made.
        return False
    from holdfast.django.tasks.backend import HoldfastBackend

    return isinstance(found, type) and issubclass(found, HoldfastBackend)


_register()
