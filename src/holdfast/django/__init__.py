"""Holdfast as an application of a Django project: `INSTALLED_APPS += ["holdfast.django"]`.

`from holdfast.django import hf` is made of the project's own settings: the database is an alias of `DATABASES`, and
what is enqueued goes on Django's connection to it, in the transaction that is open there. What knows Django belongs
here, and what a connection of Django's is to `tx=` belongs to `store/callers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast

    hf: Holdfast

__all__ = ["hf"]


def __getattr__(name: str) -> Any:
    # Made when it is first asked for: Django imports this package before its settings may be used.
    if name == "hf":
        from holdfast.django.application import application

        return application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
