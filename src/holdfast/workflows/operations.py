"""What a body asks of its run: operations, each with a key that it has for ever."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge, StepFailed
from holdfast.handlers import Registration
from holdfast.runs import Kind
from holdfast.values.failure import ErrorRecord
from holdfast.values.given import given_defaults
from holdfast.values.models import read_model, write_model
from holdfast.values.options import text
from holdfast.values.payload import encode_value
from holdfast.values.retry import Duration, Retry, seconds

KEY_LENGTH = 200

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic", enc_hook=write_model).encode
# What steps are given where nothing is said of them.
USUAL = Retry()


class Operation:
    """One call of the body: its key, what is to be done, and the future that the body waits for."""

    __slots__ = (
        "args",
        "attempt",
        "decoded",
        "digest",
        "due",
        "facts",
        "fn",
        "future",
        "key",
        "kind",
        "kwargs",
        "name",
        "retry",
        "sent",
        "step",
        "timeout",
        "type",
        "via",
    )

    def __init__(
        self,
        kind: Kind,
        key: str,
        future: asyncio.Future[Any],
        *,
        name: str = "",
        fn: Any = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        retry: Retry = USUAL,
        timeout: float | None = None,
        type: Any = Any,
        digest: int | None = None,
    ) -> None:
        self.kind = kind
        self.key = key
        self.future = future
        # In the inbox, for what is sent to the run.
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or {}
        self.retry = retry
        self.timeout = timeout
        # What the value is read back as; and its text with what that was read as, until the body is told.
        self.type = type
        self.decoded: tuple[str, Any] | None = None
        # What is known of the function, if that was looked up.
        self.facts: Facts | None = None
        self.digest = digest
        # How many attempts have failed, and until when the next one waits, by the database's clock.
        self.attempt = 0
        self.due = 0.0
        # Of a remote step: its id for those who do it, when it was sent, as long as nothing has come of that,
        # and by which engine.
        self.step = ""
        self.sent = 0.0
        self.via: str | None = None

    @property
    def done(self) -> bool:
        return self.future.done()


class AttemptFailed(msgspec.Struct, frozen=True):
    """A failed attempt of a step that is made again: its error, and after how many seconds."""

    error: ErrorRecord
    delay: float


def digest_of(*given: Any) -> int | None:
    """Return 64 bits of what a call was given, as JSON has it; None where JSON has no words for it."""
    try:
        written = _encode(given)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
    return int.from_bytes(hashlib.blake2b(written, digest_size=8).digest(), "big", signed=True)


def name_of(fn: Any, name: str | None) -> str:
    """Return what a step is called. Raises: ConfigError."""
    known = _facts(fn) if name is None else None
    if known is not None and known.name:
        return known.name
    if not callable(fn):
        raise ConfigError("step", "takes a function, and what to call it with: run.step(charge, order_id)", fn)
    return _valid(name if name is not None else getattr(_bare(fn), "__name__", type(fn).__name__))


def _valid(name: str) -> str:
    found = text(name, "name", KEY_LENGTH - 20)
    if "#" in found or found.startswith("!") or ":" in found:
        raise ConfigError("name", "must not have # or : in it, nor begin with !", found)
    return found


def policy(retry: Retry | None, timeout: Duration | None) -> tuple[Retry, float | None]:
    """Check what was said of a step."""
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError("retry", "must be a Retry", retry)
    return retry or USUAL, None if timeout is None else seconds(timeout, "timeout", at_least=0.001)


def is_async(fn: Any, known: Facts | None = None) -> bool:
    """Tell whether a call of the function gives a coroutine."""
    known = known or _facts(fn)
    if known is not None:
        return known.is_async
    found = _bare(fn)
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(type(found).__call__)


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial | Registration):
        fn = fn.func if isinstance(fn, functools.partial) else fn.fn
    return fn


class Facts(NamedTuple):
    """What is known of a function that steps call: to find it out takes four times as long as to look it up."""

    # None where it cannot be a step's.
    name: str | None
    is_async: bool
    type: Any
    # What it asks for by `= GIVEN`, by parameter.
    given: Mapping[str, Any]


_known: weakref.WeakKeyDictionary[Any, Facts] = weakref.WeakKeyDictionary()


def _facts(fn: Any) -> Facts | None:
    """Look up what is known of a plain function or method; None for anything else that can be called."""
    bare = fn.__func__ if type(fn) is types.MethodType else fn
    if type(bare) is not types.FunctionType:
        return None
    known = _known.get(bare)
    if known is None:
        name = None
        with suppress(ConfigError):
            name = _valid(bare.__name__)
        known = Facts(name, inspect.iscoroutinefunction(bare), _read_type(bare), given_defaults(bare))
        _known[bare] = known
    return known


def given_of(fn: Any, known: Facts | None = None) -> Mapping[str, Any]:
    """Return what a function that steps call asks for by `= GIVEN`, by parameter. Raises: ConfigError."""
    known = known or _facts(fn)
    if known is not None:
        return known.given
    bare = _bare(fn)
    return given_defaults(bare) if isinstance(bare, types.FunctionType) else {}


def described(fn: Any, name: str | None) -> tuple[str, Any, Facts | None]:
    """Return what a step is called, what its result is read back as, and what else is known. Raises: ConfigError."""
    known = _facts(fn)
    if known is None:
        return name_of(fn, name), type_of(fn), None
    return known.name if name is None and known.name else name_of(fn, name), known.type, known


def type_of(fn: Any) -> Any:
    """Return what a function is annotated to return; anything, where that cannot be read or JSON cannot serve it."""
    known = _facts(fn)
    return _read_type(_bare(fn)) if known is None else known.type


def _read_type(bare: Any) -> Any:
    found: Any = Any
    try:
        found = typing.get_type_hints(getattr(bare, "__func__", bare)).get("return", Any)
        if found is not Any:
            msgspec.json.Decoder(found)
    except Exception:
        found = Any
    return Any if isinstance(found, typing.TypeVar) else found


def encoded(value: Any, op: Operation, limit: int) -> str | None:
    """Write what an operation gave, and make sure that it can be read back as it was annotated.

    Raises: InvalidPayload, PayloadTooLarge.
    """
    if value is None:
        return None
    written = encode_value(value, f"result of {op.key}")
    # A character takes four bytes at most.
    if 4 * len(written) > limit and (size := len(written.encode())) > limit:
        raise PayloadTooLarge(f"the result of {op.key}", size, limit)
    if op.type is not Any:
        op.decoded = written, decoded(written, op)
    return written


def decoded(value: str | None, op: Operation) -> Any:
    """Read what an operation gave, as the function is annotated.

    Raises: InvalidPayload.
    """
    if value is None:
        return None
    known, op.decoded = op.decoded, None
    if known is not None and known[0] is value:
        return known[1]
    try:
        return (_decode if op.type is Any else _reader(op.type))(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        what = f"result of {op.key}"
        raise InvalidPayload(what, None, f"{error}; it does not fit the annotation {op.type}", subject=what) from error


def _reader(type: Any) -> Callable[[str], Any]:
    try:
        return _kept_reader(type)
    except TypeError:
        # A type that cannot be a key.
        return msgspec.json.Decoder(type, dec_hook=read_model).decode


@functools.lru_cache(maxsize=1_000)
def _kept_reader(type: Any) -> Callable[[str], Any]:
    """Keep what reads a type: to make it takes longer than to read a small value."""
    return msgspec.json.Decoder(type, dec_hook=read_model).decode


def failure(key: str, value: str | None) -> StepFailed:
    """Make what the body is told of a step that failed for good."""
    if value is None:
        return StepFailed(key, "Exception", "nothing is known of it")
    record = msgspec.json.decode(value, type=ErrorRecord)
    return StepFailed(key, record.type, record.message, record.code, record.traceback)
