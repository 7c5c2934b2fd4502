"""System checks: what `manage.py check` finds wrong in the settings. No database is asked."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from holdfast.django.application import make
from holdfast.errors import ConfigError


def check_settings(**_: Any) -> list[CheckMessage]:
    """Find what keeps the application from being made, and what keeps its handlers from committing."""
    try:
        alias = make().alias
    except ConfigError as error:
        return [Error(str(error), id="holdfast.E001")]
    if connections[alias].settings_dict["AUTOCOMMIT"]:
        return []
    found = f'DATABASES["{alias}"]["AUTOCOMMIT"] is False: each enqueue waits for a commit() of yours.'
    hint = "Remove it: job.transaction() is refused without it, and a completion in atomic() is not committed."
    return [Warning(found, hint=hint, id="holdfast.W001")]
