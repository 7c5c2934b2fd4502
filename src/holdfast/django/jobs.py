"""The handlers of Django's Tasks, found as the `jobs.py` of any application is: where a backend of TASKS is ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

_DJANGOS = ("django.", "django_tasks.")


def _register() -> None:
    ours = list(_our_backends())
    if ours:
        from holdfast.django import hf
        from holdfast.django.tasks.running import register

        register(hf, [queue for params in ours for queue in sorted(params.get("QUEUES") or ["default"])])


def _our_backends() -> Iterator[Mapping[str, Any]]:
    """List the settings of backends that are ours, or made of ours."""
    said: object = getattr(settings, "TASKS", None)
    for params in said.values() if isinstance(said, Mapping) else ():
        path = str(params.get("BACKEND", "")) if isinstance(params, Mapping) else ""
        if path and not path.startswith(_DJANGOS) and _is_ours(path):
            yield params


def _is_ours(path: str) -> bool:
    try:
        found, ours = import_string(path), import_string("holdfast.django.tasks.HoldfastBackend")
    except (ImportError, ImproperlyConfigured):
        # The framework says so itself as soon as a task is made; without one, TASKS is a setting of somebody else's.
        return False
    return isinstance(found, type) and issubclass(found, ours)


_register()
