"""Django's Tasks on Holdfast: `TASKS = {"default": {"BACKEND": "holdfast.django.tasks.HoldfastBackend"}}`.

Made when it is first asked for: other libraries import every application's `tasks.py`, also where there is no Tasks
framework. What a job or a worker does belongs to other rooms; here a task becomes a job, and a job a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.django.tasks.backend import HoldfastBackend
    from holdfast.django.tasks.task import HoldfastTask

__all__ = ["HoldfastBackend", "HoldfastTask"]


def __getattr__(name: str) -> Any:
    if name == "HoldfastBackend":
        from holdfast.django.tasks.backend import HoldfastBackend

        return HoldfastBackend
    if name == "HoldfastTask":
        from holdfast.django.tasks.task import HoldfastTask

        return HoldfastTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
