"""Effects that happen once: a key, recorded in the transaction of the effect."""

from __future__ import annotations

from holdfast.flow import Steps, ask, flow
from holdfast.jobs.enqueueing import take_keys
from holdfast.values.once import ONCE_SCOPE
from holdfast.values.rows import NewJob


@flow
def take_once(key: str, window_ms: int, mark: str) -> Steps[bool]:
    """Record that the effect of a key happens in this transaction; False if it has happened within its window.

    mark: an id of this call alone. A transaction under way that has recorded the same key is waited for.
    Commits: with the transaction of the effect.
    After a crash: before that commit the key is free, and after it taken; there is nothing in between.
    """
    # Keys are taken as those of jobs are. The mark stands where a job's id would: the same job may try again.
    mine = NewJob(id=mark, queue="", kind="", payload="", idempotency_key=key, window_ms=window_ms, scope=ONCE_SCOPE)
    found = yield from take_keys([mine])
    return not found


@flow
def forget_once(key: str, mark: str) -> Steps[None]:
    """Take back what `take_once` recorded in this transaction, because the effect failed.

    Commits: with the transaction of the effect.
    After a crash: as `take_once`.
    """
    yield from ask("keys_forget", scope=ONCE_SCOPE, key=key, job_id=mark)
