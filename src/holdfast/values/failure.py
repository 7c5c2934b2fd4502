"""Failures as records, and the key under which like failures are grouped."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from hashlib import blake2b

import msgspec

from holdfast.errors import Fatal
from holdfast.values.tracebacks import formatted

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 10_000
NAME_LIMIT = 500
GROUPING_LIMIT = 1_000  # below the other, so that a message and its shortened form fall into one group
_CUT = "…\n"

# In this order: what is removed first may contain what is removed later.
_VARIABLE_PARTS = (
    # An apostrophe inside a word neither opens nor closes a quotation.
    (re.compile(r"(?<!\w)b?'(?:[^'\\\n]|\\.|'(?=\w))*'|b?\"(?:[^\"\\\n]|\\.)*\"|`[^`\n]*`"), "<text>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s,;)\]}>]+", re.IGNORECASE), "<url>"),
    (re.compile(r"(?<![\w/\\])(?:[A-Za-z]:\\|~?/|\.{1,2}/)[^\s:,;()\[\]{}<>]+"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{6,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"[+-]?\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def fingerprint(error_type: str, message: str) -> str:
    """Return 16 hex digits that are the same for failures that differ in ids, numbers, texts or paths only."""
    message = message[:GROUPING_LIMIT]
    for pattern, placeholder in _VARIABLE_PARTS:
        message = pattern.sub(placeholder, message)
    grouped = f"{error_type}\n{message.strip()}"
    return blake2b(grouped.encode("utf-8", "replace"), digest_size=8).hexdigest()


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt, as it is kept beside the job; times are ISO 8601.

    `fatal` and `code` are what a handler said by raising `Fatal`.
    """

    attempt: int
    type: str
    message: str
    traceback: str
    worker: str
    started_at: str
    failed_at: str
    fatal: bool = False
    code: str | int | None = None

    @classmethod
    def of(
        cls,
        exc: BaseException,
        *,
        attempt: int,
        worker: str,
        started_at: datetime | str,
        failed_at: datetime | str,
        limit: int = TRACEBACK_LIMIT,
    ) -> ErrorRecord:
        """Describe an exception, whatever it does when asked for its text, its code or its class.

        The traceback keeps its last `limit` characters, where the failure is; the message keeps its first 2,000.
        """
        message, fatal = words(exc), fatal_in(exc)
        return cls(
            attempt=attempt,
            type=type_name(exc),
            message=_head(message, MESSAGE_LIMIT),
            traceback=_tail(_traceback(exc, message), limit),
            worker=_storable(worker),
            started_at=_iso(started_at),
            failed_at=_iso(failed_at),
            fatal=fatal is not None,
            code=None if fatal is None else _code(fatal),
        )

    @classmethod
    def asked(
        cls, named: str, reason: str, *, attempt: int, worker: str, started_at: str, failed_at: str
    ) -> ErrorRecord:
        """Describe an end that was asked for, or that a sink told of: nobody raised it, so it has no traceback."""
        head = _head(_storable(reason), MESSAGE_LIMIT)
        # By place: a name for each of eight values takes as long as all of them.
        return cls(attempt, named, head, "", _storable(worker), started_at, failed_at, True)

    @property
    def fingerprint(self) -> str:
        """The group of this failure."""
        return fingerprint(self.type, self.message)

    def named(self, error_type: str) -> ErrorRecord:
        """Return the record under another type, for ends that are nobody's exception."""
        return msgspec.structs.replace(self, type=error_type)

    def noted(self, note: str) -> ErrorRecord:
        """Return the record with something added to its message."""
        return msgspec.structs.replace(self, message=_head(f"{self.message}\n{note}", MESSAGE_LIMIT))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()


# These ask objects of a handler's about themselves, and an object may answer with any exception: `except BaseException`
# is meant. What is asked is the type, never `__class__`, which may be a property.


def type_name(value: object) -> str:
    """Name the class of anything, as text that every database keeps."""
    cls = type(value)
    try:
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        return _head(_storable(name), NAME_LIMIT)
    except BaseException:
        return "<a class without a name>"


def words(value: object) -> str:
    """Return the text of anything, as every database keeps it."""
    try:
        return _storable(str(value))
    except BaseException as error:
        return f"<the message cannot be read: {type_name(error)}>"


def fatal_in(error: BaseException) -> Fatal | None:
    """Find the Fatal that an exception is, or that a group of exceptions holds: one task of several may raise it."""
    try:
        if issubclass(type(error), Fatal):
            return error  # type: ignore[return-value]
        if not issubclass(type(error), BaseExceptionGroup):
            return None
        parts = error.exceptions  # type: ignore[attr-defined]
        return next((found for part in parts if (found := fatal_in(part)) is not None), None)
    except BaseException:
        return None


def _code(fatal: Fatal) -> str | int | None:
    """Read a handler's code; what is neither text nor a number of 64 bits is kept as its text."""
    try:
        # A subclass may have left out `super().__init__()`.
        code = getattr(fatal, "code", None)
        code = code.value if isinstance(code, Enum) else code
        if code is None:
            return None
        if isinstance(code, int) and -(2**63) <= (number := int.__index__(code)) < 2**63:
            return number
    except BaseException as error:
        return f"<the code cannot be read: {type_name(error)}>"
    return _head(words(code), NAME_LIMIT)


def _traceback(exc: BaseException, message: str) -> str:
    try:
        return _storable(formatted(exc))
    except BaseException:
        # Chained or grouped exceptions may fail in their turn, or the source cannot be read.
        return f"{type_name(exc)}: {message}"


def _storable(text: str) -> str:
    """Replace what some database cannot keep as text."""
    if type(text) is str and text.isascii() and "\0" not in text:
        # To look for it by the pattern takes 5 µs for 1,000 characters.
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def _head(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else (_CUT + text[len(text) - limit + len(_CUT) :])[:limit]


def _iso(moment: datetime | str) -> str:
    return moment if isinstance(moment, str) else moment.isoformat()


def iso(moment: float) -> str:
    """Write seconds since 1970 as `datetime.isoformat` writes them in UTC, in half the time."""
    second, rest = divmod(round(moment * 1_000_000), 1_000_000)
    return f"{_second(second)}.{rest:06}+00:00" if rest else f"{_second(second)}+00:00"


@lru_cache(maxsize=16)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()
