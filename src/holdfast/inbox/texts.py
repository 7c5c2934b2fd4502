"""What consumers make of the bytes of a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def text_of(value: object) -> str:
    """Read a header's value as text, whatever type a broker gives it."""
    if isinstance(value, memoryview):
        value = value.tobytes()
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def headers_of(pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Read headers; of several with one name the last one counts."""
    return {text_of(name): text_of(value) for name, value in dict(pairs).items()}


def key_of(value: bytes | str | None) -> str | None:
    """Read the key of a message: as text, or as hexadecimal digits where it is not text."""
    if value is None or isinstance(value, str):
        return value or None
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        return value.hex()
