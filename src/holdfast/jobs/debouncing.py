"""Calls that wait for the last of them: a pending job takes their payloads until a worker claims it.

A row of `holdfast_debounces` names the job of each key. A call locks that row, so calls of one key come one after the
other, each when the transaction of the one before has ended. Then it looks at the job: one that nobody has claimed
(fence 0) takes the new payload and is put off; for any other, which may have begun, a new job is added, and the row
names that. So what a call says is in a job that has not begun, whatever workers do meanwhile, and claims know nothing
of it.

Locks are taken in this order: rows of keys by kind and key, then jobs. A worker waits for neither, except for a job of
a line that comes due while a caller's transaction has it; and a call waits for a worker's claim only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.flow import Columns, Rows, Steps, ask, text_of
from holdfast.jobs.chunks import chunks
from holdfast.values.expires import EXPIRES_HEADER, counted_from
from holdfast.values.rows import NewJob, when

# How many keys a statement carries: MySQL compares each with each.
CHUNK_KEYS = 100

Key = tuple[str, str]


class Call(NamedTuple):
    """What is said about one key: by the last job of it in a batch, under the id of the first."""

    kind: str
    key: str
    # The row of the first, with what the last one says.
    job: NewJob
    # The ids of all of them, in their order.
    ids: list[str]


class Absorbed(NamedTuple):
    """What became of debounced jobs: by id which other job stands for them, and the rows of those to be added."""

    found: dict[str, str]
    rows: dict[str, NewJob]


def absorb(jobs: Sequence[NewJob], *, fresh: bool) -> Steps[Absorbed]:
    """Let the jobs that debounce keys name take what new ones say; tell which are to be added instead.

    `fresh` as in `enqueue_many`. Commits: with the enqueue.
    """
    calls = _calls(jobs)
    if any(EXPIRES_HEADER in (call.job.headers or "") for call in calls):
        # Counted from the call that said it, whenever the job was added that takes it.
        [[now]] = yield from ask("clock")
        calls = [call._replace(job=_with_expiry(call.job, now)) for call in calls]
    found: dict[str, str] = {}
    for chunk in chunks(calls, CHUNK_KEYS, _length):
        found |= yield from _absorb(chunk, fresh)
    for call in calls:
        # Those behind the first of a batch are in its job, wherever that is.
        found |= dict.fromkeys(call.ids[1:], found.get(call.job.id, call.job.id))
    return Absorbed(found, {call.job.id: call.job for call in calls})


def _with_expiry(job: NewJob, now: object) -> NewJob:
    return job._replace(headers=counted_from(job.headers, when(now)))


def _calls(jobs: Sequence[NewJob]) -> list[Call]:
    """Put together what is said about each key, in the order of keys: two batches then never wait in a circle."""
    by_key: dict[Key, Call] = {}
    for job in jobs:
        pair = (job.kind, str(job.debounce))
        before = by_key.get(pair)
        if before is None:
            by_key[pair] = Call(*pair, job, [job.id])
        else:
            by_key[pair] = before._replace(job=_said_by(before.job, job), ids=[*before.ids, job.id])
    return [by_key[pair] for pair in sorted(by_key)]


def _said_by(first: NewJob, last: NewJob) -> NewJob:
    """Return the row of the first job with what a later call changes of it."""
    return first._replace(
        payload=last.payload,
        headers=last.headers,
        delay_ms=last.wait_ms,
        wait_ms=last.wait_ms,
        max_wait_ms=last.max_wait_ms,
    )


def _length(call: Call) -> int:
    return len(call.job.payload) + len(call.job.headers or "")


def _absorb(calls: Sequence[Call], fresh: bool) -> Steps[dict[str, str]]:
    """Map the ids of calls to the jobs that have taken them; the others are to be added, and their keys name them."""
    taken = yield from _take(calls, fresh)
    found: dict[str, str] = {}
    others: dict[str, Call] = {}
    for call, (job_id, latest) in zip(calls, taken, strict=True):
        if job_id == call.job.id:
            # The key was free, or this is a repeat, and its job is there or was.
            continue
        if not fresh and latest == call.job.id:
            # A repeat: the job has taken it already, and may have run since.
            found[call.job.id] = job_id
        else:
            others[job_id] = call
    if not others:
        return found
    open_jobs = yield from _update(others)
    found |= {call.job.id: job_id for job_id, call in others.items() if job_id in open_jobs}
    changed = [
        (call, job_id if job_id in open_jobs else call.job.id)
        for job_id, call in others.items()
        if not fresh or job_id not in open_jobs
    ]
    if changed:
        yield from ask("debounce_point", batch=_keys([call for call, _ in changed]) | _pointing(changed))
    return found


def _keys(calls: Sequence[Call]) -> Columns:
    return {"kind": [call.kind for call in calls], "key": [call.key for call in calls]}


def _pointing(changed: Sequence[tuple[Call, str]]) -> Columns:
    return {"job_id": [job_id for _, job_id in changed], "latest": [call.job.id for call, _ in changed]}


def _take(calls: Sequence[Call], fresh: bool) -> Steps[list[tuple[str, str]]]:
    """Lock the rows of keys; return which job each names, and which call was the last to say something."""
    own: Columns = {"job_id": [call.job.id for call in calls]}
    rows: Rows = yield from ask("debounce_take", fresh=fresh or None, batch=_keys(calls) | own)
    if not rows:
        rows = yield from ask("debounce_find", batch=_keys(calls))
    named = {int(place): (text_of(job_id), text_of(latest)) for place, job_id, latest in rows}
    return [named[place] for place in range(1, len(calls) + 1)]


def _update(others: Mapping[str, Call]) -> Steps[set[str]]:
    """Write what calls say into the jobs with these ids; return the ids of those that have taken it."""
    said = [call.job for call in others.values()]
    batch: Columns = {
        "job_id": list(others),
        "payload": [job.payload for job in said],
        "headers": [job.headers for job in said],
        "wait_ms": [job.wait_ms for job in said],
        "max_wait_ms": [job.max_wait_ms for job in said],
    }
    rows = yield from ask("debounce_update", ids=list(others), batch=batch)
    return {text_of(job_id) for _, job_id in rows}
