"""The message envelope of the PHP queue tables: read, checked and written as the contract says. Pure."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidPayload
from holdfast.values.payload import encode_value

LANG = "python"
SCHEMA_VERSION = 1
# MySQL's TEXT; SQLite would take more, but a row must fit every reader.
LONGEST_BODY_BYTES = 65_535
# PHP reads no deeper.
DEEPEST_JSON_LEVELS = 512


class Malformed(Exception):
    """The body is not a valid envelope; `reason` is the contract's word for why, `body` the object if it is one."""

    def __init__(self, reason: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.body = body


@dataclass(frozen=True, slots=True)
class Envelope:
    """A checked message. `body` is the whole object: keys that we do not know are kept when it is rewritten."""

    body: dict[str, Any]

    @property
    def urn(self) -> str:
        return str(self.body["job"] if self.body.get("job") is not None else self.body["urn"])

    @property
    def trace_id(self) -> str:
        return str(self.body["trace_id"])

    @property
    def data(self) -> dict[str, Any]:
        # PHP writes an empty array where an empty object is meant.
        return self.body["data"] or {}

    @property
    def attempts(self) -> int:
        return int(self.body["attempts"])

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.body["meta"]
        return meta

    def with_attempts(self, attempts: int) -> Envelope:
        return Envelope(self.body | {"attempts": attempts})

    def dead(self, letter: Mapping[str, Any]) -> Envelope:
        return Envelope(self.body | {"dead_letter": dict(letter)})

    def revived(self) -> Envelope:
        """Return the message as it was before it died: no dead letter, no attempts."""
        return Envelope({name: value for name, value in self.body.items() if name != "dead_letter"} | {"attempts": 0})

    def text(self) -> str:
        return write(self.body)


def new(urn: str, data: Mapping[str, Any], queue: str, trace_id: str | None = None) -> Envelope:
    """Make the envelope of a new message.

    Raises: InvalidPayload when the data is not JSON.
    """
    meta = {
        "id": str(uuid.uuid4()),
        "queue": queue,
        "lang": LANG,
        "schema_version": SCHEMA_VERSION,
        "created_at": time.time_ns() // 1_000_000,
    }
    plain = json.loads(encode_value(dict(data), f"data of {urn}"))
    return Envelope({"job": urn, "trace_id": trace_id or str(uuid.uuid4()), "data": plain, "meta": meta, "attempts": 0})


def write(body: Any) -> str:
    """Write JSON as the peers do: compact, slashes and unicode unescaped, and never NaN."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload("envelope", None, str(error), subject="envelope") from error


def read(text: str) -> Envelope:
    """Read and check a body; the first rule that it breaks is the reason.

    Raises: Malformed.
    """
    try:
        body = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if "\\ud" in text.lower():
            # A lone surrogate is not Unicode: PHP cannot read it, and no database could keep it.
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        # What is not JSON has no urn either: the peers say the same.
        raise Malformed("missing_urn") from error
    if not isinstance(body, dict) or _too_deep(body, text):
        raise Malformed("missing_urn")
    for reason, holds in _RULES:
        if not holds(body):
            raise Malformed(reason, body)
    return Envelope(body)


def _too_deep(body: Any, text: str) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST_JSON_LEVELS:
        return False
    level = [body]
    for _ in range(DEEPEST_JSON_LEVELS):
        level = [part for each in level for part in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large to be written again")
    return number


def _has_urn(body: dict[str, Any]) -> bool:
    urn = body["job"] if body.get("job") is not None else body.get("urn")
    return isinstance(urn, str) and urn != ""


def _has_version(body: dict[str, Any]) -> bool:
    version = body["meta"].get("schema_version")
    # True equals 1 in Python, and so does 1.0; neither is the integer.
    return type(version) is int and version == SCHEMA_VERSION


def _has_data(body: dict[str, Any]) -> bool:
    data = body.get("data")
    return isinstance(data, dict) or data == []


def _has_attempts(body: dict[str, Any]) -> bool:
    attempts = body.get("attempts")
    return type(attempts) is int and attempts >= 0


_RULES = (
    ("missing_urn", _has_urn),
    ("missing_meta", lambda body: isinstance(body.get("meta"), dict)),
    ("unsupported_schema_version", _has_version),
    ("invalid_data", _has_data),
    ("missing_trace_id", lambda body: isinstance(body.get("trace_id"), str) and body["trace_id"] != ""),
    ("invalid_attempts", _has_attempts),
)
