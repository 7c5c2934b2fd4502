"""A remote step as an operation of a body, and what comes of its result."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Fatal, InvalidPayload, PayloadTooLarge, TimedOut
from holdfast.remote import Result, group_of
from holdfast.runs import Recorded
from holdfast.values.failure import ErrorRecord, iso
from holdfast.values.options import text
from holdfast.values.payload import encode_value
from holdfast.values.retry import Duration, Retry, delay_by, without_exceptions
from holdfast.workflows.body import Body
from holdfast.workflows.operations import KEY_LENGTH, AttemptFailed, Operation, decoded, digest_of, policy

# What is kept of a text that should have been JSON.
_KEPT = 1_500
_LONGEST_MS = 2**31 - 1


class Wanted(NamedTuple):
    """What a remote step asks for: its input as JSON, its partition and its engine, where they are said."""

    input: str
    partition: str | None
    engine: str | None


def remote_step(
    body: Body,
    step: str,
    given: Any,
    type: Any,
    retry: Retry | None,
    timeout: Duration | None,
    partition: str | None,
    name: str | None,
    engine: str | None,
) -> Operation:
    """Make the operation of a remote step. Raises: ConfigError, InvalidPayload."""
    future = body.future()
    group_of(step, partition)
    written = encode_value(given, f"input of {step}")
    how, limit = policy(retry, timeout)
    without_exceptions(how, "a worker elsewhere raises nothing in Python; it says `retryable` of its failure")
    # A step's name may have colons in it, and be long; its key in the journal is of our own making.
    called = text(step if name is None else name, "name", KEY_LENGTH).replace("#", "_")
    key = body.key_for(f"remote:{called}")
    return Operation(
        "remote",
        key,
        future,
        name=step,
        args=(Wanted(written, partition, engine),),
        retry=how,
        timeout=limit,
        type=type,
        digest=digest_of(step, written, partition),
    )


class RemoteFailed(Exception):
    """What a worker elsewhere said of a failed attempt, or what is wrong with what it said."""

    def __init__(self, message: str, code: str | None = None, stack: str = "", *, retryable: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.stack = stack
        self.retryable = retryable


class _Error(msgspec.Struct):
    message: str = "no message"
    code: str | int | None = None
    retryable: bool | None = None
    stack: str | None = None


class Times(NamedTuple):
    """How long a step waited for a worker and how long that took, in seconds, where the worker has said so."""

    waited: float | None
    took: float | None


def times_of(result: Result, sent: float) -> Times:
    """Work out how long a step waited and took. Two clocks take part in the first; it is never below zero."""
    if result.started_at is None:
        return Times(None, None)
    took = None if result.created_at is None else max(0.0, (result.created_at - result.started_at) / 1000)
    return Times(max(0.0, result.started_at / 1000 - sent), took)


def recorded(op: Operation, result: Result | None, worker: str, now: float, limit: int) -> Recorded:
    """Make the row of the journal for a result, or for None, when the step's time is over.

    It has the output, the failure after which the step is tried again, or the one that is final.
    """
    attempt = op.attempt + 1
    times = Times(None, None) if result is None else times_of(result, op.sent)
    took = None if times.took is None else min(_LONGEST_MS, round(times.took * 1000))
    row = Recorded(0, op.key, "remote", 1, None, op.digest, attempt, worker, took, op.step)
    try:
        return row._replace(value=_output(op, result, limit))
    except (RemoteFailed, TimedOut) as error:
        record = _record(error, attempt, worker, op.sent, now)
    if record.fatal or attempt >= op.retry.max_attempts:
        return row._replace(ok=0, value=record.to_json())
    delay, _ = delay_by(attempt, op.retry)
    return row._replace(kind="attempt", ok=0, value=msgspec.json.encode(AttemptFailed(record, delay)).decode())


def _output(op: Operation, result: Result | None, limit: int) -> str | None:
    if result is None:
        raise TimedOut(op.timeout or 0.0)
    if result.status == "failed":
        raise _failure(result.error)
    if result.status != "completed":
        why = f"the worker's result has the status {result.status!r}, which is neither completed nor failed"
        raise RemoteFailed(why, "invalid_result", retryable=False)
    written = result.output
    if written is None or written.strip() == "null":
        return None
    size = len(written.encode())
    if size > limit:
        raise RemoteFailed(str(PayloadTooLarge(f"the output of {op.name}", size, limit)), retryable=False)
    try:
        # Read back as the body will, so that what it cannot read fails here.
        msgspec.json.decode(written)
        decoded(written, op)
    except msgspec.MsgspecError as error:
        why = f"the worker's output is not JSON ({error}): {written[:_KEPT]}"
        raise RemoteFailed(why, "invalid_result", retryable=False) from None
    except (InvalidPayload, UnicodeError, RecursionError) as error:
        raise RemoteFailed(str(error), "invalid_result", retryable=False) from None
    return written


def _failure(written: str | None) -> RemoteFailed:
    try:
        said = msgspec.json.decode(written or "", type=_Error)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return RemoteFailed((written or "the worker said nothing of its failure")[:_KEPT], "invalid_error")
    code = None if said.code is None else str(said.code)
    # Only this one word of the contract stops retries.
    return RemoteFailed(said.message, code, said.stack or "", retryable=said.retryable is not False)


def _record(error: RemoteFailed | TimedOut, attempt: int, worker: str, sent: float, now: float) -> ErrorRecord:
    def of(exc: Exception) -> ErrorRecord:
        return ErrorRecord.of(exc, attempt=attempt, worker=worker, started_at=iso(sent), failed_at=iso(now))

    if isinstance(error, TimedOut):
        return of(error)
    record = of(Exception(str(error)) if error.retryable else Fatal(str(error)))
    stack = of(Exception(error.stack)).message if error.stack else ""
    return msgspec.structs.replace(record, type="RemoteStepFailed", code=error.code, traceback=stack)
