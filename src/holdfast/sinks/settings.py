"""What the settings of sinks have in common: each is checked when the application is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast, get_args

from holdfast.errors import ConfigError
from holdfast.sinks.base import Mode


def mode_of(value: object) -> Mode:
    """Raises: ConfigError."""
    for mode in get_args(Mode):
        if value == mode:
            return mode  # type: ignore[no-any-return]
    raise ConfigError("mode", "must be binary (attributes in headers) or structured (all in one JSON text)", value)


def whole(field: str, value: object, *, at_least: int) -> int:
    """Raises: ConfigError for what is not a whole number of at least this."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(field, f"must be a whole number, {at_least} or more", value)
    return value


def seconds(field: str, value: object) -> float:
    """Raises: ConfigError for what is not a positive number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise ConfigError(field, "must be a number of seconds above 0", value)
    return float(value)


def texts(field: str, value: object) -> list[str]:
    """Raises: ConfigError for what is not an address, or a list of addresses."""
    # Not shown as it is: an address may hold a password.
    shown = type(value).__name__
    several = list(cast("Sequence[object]", value)) if isinstance(value, Sequence) else []
    given: list[object] = [value] if isinstance(value, str) else several
    if not given or not all(isinstance(one, str) and one for one in given):
        raise ConfigError(field, "must be an address, or a list of them", shown)
    return [str(one) for one in given]
