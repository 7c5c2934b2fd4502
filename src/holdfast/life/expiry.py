"""What becomes of a lease that ran out, judged by what is known of it.

A process that dies takes every job that it had claimed along: one of them may have killed it, and most had not even
begun. Whether a handler had been called is recorded where it decides something (`jobs.begin`): for suspects, whose
process has died before, and for jobs with one attempt. All others come back as suspects, with their attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from holdfast.flow import Steps
from holdfast.values.failure import ErrorRecord, fingerprint
from holdfast.values.rows import MOST_LAPSES, End, Expired, Finish, PutBack, when

LEASE_EXPIRED = "LeaseExpired"
Backoff = Callable[[str, int], float]

_RAN_OUT = "The lease ran out: the worker died, hung, or could not reach the database in time."
NOT_COUNTED = f"{_RAN_OUT} This attempt was not counted, because another job may have been the cause."


class Verdict(NamedTuple):
    """What to write about an expired lease, and what it is called."""

    write: End
    outcome: Literal["retry", "released", "dead", "cancelled"]


# Tells which of these jobs have got on since their lease began.
Progress = Callable[[Sequence[str]], Steps[set[str]]]

_progress: dict[int, Progress] = {}


def attach_progress(bit: int, progress: Progress) -> None:
    """Have jobs whose `followers` hold this bit lose no attempt by a death, if they have got on before it.

    They hear of a request to stop by themselves, and clean up: a death does not end them instead.
    """
    _progress[bit] = progress


def _cleans_up(expired: Expired) -> bool:
    return any((expired.followers or 0) & bit for bit in _progress)


def progressed(expired: Sequence[Expired]) -> Steps[set[str]]:
    """Tell which of these leases have got on before they ran out; nothing is asked for plain jobs."""
    found: set[str] = set()
    for bit, progress in _progress.items():
        ids = [str(one.id) for one in expired if one.followers and one.followers & bit]
        if ids:
            found |= yield from progress(ids)
    return found


def must_record(lapses: int, max_attempts: int) -> bool:
    """Tell whether the call of a job's handler must be recorded before it is made."""
    return lapses > 0 or max_attempts <= 1


def verdict(expired: Expired, backoff: Backoff, *, behind: bool = False, got_on: bool = False) -> Verdict:
    """Judge one expired lease; `backoff` gives seconds by kind and attempt.

    `behind` says that it stood behind another job of its stint whose end was not written: most such jobs have not
    begun. One that has, because the process died before the end of the other could be written, may be known to.
    `got_on` says that what it did before its end was recorded: only deaths without that count.
    """
    recorded = must_record(expired.lapses, expired.max_attempts)
    if expired.cancel_requested and not _cleans_up(expired):
        return Verdict(_finish(expired, "cancelled"), "cancelled")
    if got_on:
        return Verdict(PutBack(expired.id, expired.fence, 0, 1, None, 0), "released")
    if not expired.began and (behind or recorded):
        # It only waited. Nothing happened to it, so it goes back to its old place as if it had not been claimed.
        return Verdict(PutBack(expired.id, expired.fence, None, 1), "released")
    if recorded and expired.attempt >= expired.max_attempts:
        return Verdict(_finish(expired, "dead"), "dead")
    error = _error(expired, _RAN_OUT if recorded else NOT_COUNTED).to_json()
    lapses = min(expired.lapses, MOST_LAPSES) + 1
    delay_ms = round(backoff(expired.kind, expired.attempt) * 1000)
    back = PutBack(expired.id, expired.fence, delay_ms, 0 if recorded else 1, error, lapses)
    return Verdict(back, "retry")


def _finish(expired: Expired, outcome: Literal["dead", "cancelled"]) -> Finish:
    error = _error(expired, _RAN_OUT)
    group = fingerprint(LEASE_EXPIRED, error.message) if outcome == "dead" else None
    return Finish(expired.id, expired.fence, outcome, None, error.to_json(), group)


def _error(expired: Expired, message: str) -> ErrorRecord:
    return ErrorRecord(
        attempt=expired.attempt,
        type=LEASE_EXPIRED,
        message=message,
        traceback="",
        worker=str(expired.leased_by or ""),
        # Never missing, except in a row that was written by hand.
        started_at=when(expired.leased_at or expired.lease_expires_at).isoformat(),
        failed_at=when(expired.lease_expires_at).isoformat(),
    )
