"""Texts that go into columns of limited length, and what no database can keep."""

from __future__ import annotations

import re

from holdfast.errors import ConfigError

NAME_LENGTH = 100
KEY_LENGTH = 200
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def text(value: object, field: str, longest: int) -> str:
    """Check text that goes into a column of limited length."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise ConfigError(field, f"must be text of 1 to {longest} characters", value)
    return storable(value, field)


def storable(value: object, field: str) -> str:
    """Check that every database can keep this text."""
    if not isinstance(value, str):
        raise ConfigError(field, "must be text", value)
    if _UNSTORABLE.search(value):
        raise ConfigError(field, "must not contain NUL characters or lone surrogates", value)
    return value
