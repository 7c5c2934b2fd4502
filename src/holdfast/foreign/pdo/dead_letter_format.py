"""How a dead letter of the PHP queue tables is written, so that it always fits its column. Pure.

What people do with dead letters is in `dead.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.foreign.pdo.envelope import LANG, LONGEST_BODY_BYTES, Envelope, Malformed, write

# What an error's text may take of a letter that is short of room.
SHORT_ERROR_LETTERS = 200


@dataclass(frozen=True, slots=True)
class Death:
    """Why a message is given up: a reason that programs read, and a text and a class name for people."""

    reason: str
    error: str
    exception: str


def death_of(error: str | None) -> Death:
    """Read why a job died from its error record."""
    record: Mapping[str, Any] = msgspec.json.decode(error) if error else {}
    name = str(record.get("type", "Error"))
    reason = "poison" if name.endswith("InvalidPayload") else "failed"
    return Death(reason, str(record.get("message", "")), name)


def size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _room(original: str) -> float:
    # A table that holds more already has a column that takes more.
    return LONGEST_BODY_BYTES if size(original) <= LONGEST_BODY_BYTES else float("inf")


def rewritten(envelope: Envelope, original: str) -> str | None:
    """Write a message again; None when it no longer fits the column that it came from."""
    body = envelope.text()
    return body if size(body) <= _room(original) else None


def letter_text(envelope: Envelope, why: Death, queue: str, failed_at_ms: int, original: str) -> str:
    """Write a message with its dead letter; where they do not fit together, the message goes before the letter."""
    letter = {
        "reason": why.reason,
        "error": why.error,
        "exception": why.exception,
        "failed_at": failed_at_ms,
        "original_queue": queue,
        "attempts": envelope.attempts,
        "lang": LANG,
    }
    shorter = letter | {
        "error": why.error[:SHORT_ERROR_LETTERS],
        "exception": why.exception[:SHORT_ERROR_LETTERS],
    }
    for text in (envelope.dead(letter).text(), envelope.dead(shorter).text(), envelope.text()):
        if size(text) <= _room(original):
            return text
    return original


def malformed_text(original: str, flaw: Malformed, queue: str, attempts: int, failed_at_ms: int) -> str:
    """Write the dead letter of a body that is not a message: the body as it came under `raw`, cut where it must be.

    A body that is at least an object keeps its keys, so that a program that knows it better can still use it.
    """
    letter = {
        "reason": "poison",
        "error": f"The message is malformed: {flaw.reason}.",
        "exception": "Malformed",
        "detail": flaw.reason,
        "failed_at": failed_at_ms,
        "original_queue": queue,
        "attempts": attempts,
        "lang": LANG,
        "raw": original,
    }
    room = _room(original)
    whole = [flaw.body | {"dead_letter": letter}] if flaw.body is not None else []
    for body in (*whole, {"dead_letter": letter}):
        text = write(body)
        if size(text) <= room:
            return text
    return _cut(letter, original, room)


def _cut(letter: dict[str, Any], original: str, room: float) -> str:
    kept = original
    while True:
        text = write({"dead_letter": letter | {"raw": kept, "raw_cut": True, "raw_bytes": size(original)}})
        excess = size(text) - room
        if excess <= 0:
            return text
        # A character takes six bytes at most, escaped: so this never cuts far more than it must, and always some.
        kept = kept[: -max(1, int(excess) // 6)]
