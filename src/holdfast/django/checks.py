"""System checks: what `manage.py check` finds wrong in the settings. No database is asked."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from holdfast.django.application import make
from holdfast.errors import ConfigError


def check_settings(**_: Any) -> list[CheckMessage]:
    """Find what keeps the application from being made."""
    try:
        make()
    except ConfigError as error:
        return [Error(str(error), id="holdfast.E001")]
    return []
