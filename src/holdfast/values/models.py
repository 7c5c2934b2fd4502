"""Pydantic models in JSON: known by what they can do, so that Pydantic need not be installed."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def is_model(cls: Any) -> bool:
    """Tell whether a class is a Pydantic model."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_dump_json")


def write_model(value: Any) -> msgspec.Raw:
    """Write what msgspec has no form for: a Pydantic model, by its aliases, as it reads itself back.

    Raises: TypeError for anything else.
    """
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())


def read_model(cls: Any, value: Any) -> Any:
    """Read a Pydantic model from plain data; an instance is taken as it is. Raises: ValueError, TypeError."""
    if isinstance(value, cls):
        return value
    if not is_model(cls):
        raise TypeError(f"Expected `{cls.__name__}`, got `{type(value).__name__}`")
    try:
        # As JSON: a strict model takes a date, a set or a decimal from text or lists there only.
        return cls.model_validate_json(_encode(value))
    except ValueError as error:
        raise ValueError(_told(error)) from error


def _told(error: ValueError) -> str:
    """Say in one line what Pydantic found; its own text has four for each mistake."""
    listed: Any = getattr(error, "errors", None)
    if not callable(listed):
        return str(error)
    found: list[dict[str, Any]] = listed(include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found)
