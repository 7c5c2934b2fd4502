"""A job's life as flows: enqueue, claim, renew, settle, reap, prune.

Every write of a holder names the job and the fence of its claim. A claim, a return to the queue and a reap each raise
the fence, so a holder that lost its lease changes nothing, whatever it still believes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

from holdfast.errors import DatabaseBusy, LeaseLost
from holdfast.fingerprint import ErrorRecord, fingerprint
from holdfast.flow import Columns, Rows, Statement, Steps, ask, flow
from holdfast.model import Enqueued, Expired, Finish, Held, Lease, NewJob, Outcome, PutBack, Reaped, when
from holdfast.retry import Retry

# Rows a single statement carries: 10,000 jobs of 200 bytes are 2 MB on the wire.
CHUNK = 10_000
# And their text: a packet of MySQL's has 16 MB unless told, and quotes within quotes make four characters of one.
CHUNK_TEXT = 2_000_000
# A key or a unique job may vanish between two statements; each round that finds it gone tries again.
ROUNDS = 10

LEASE_EXPIRED = "LeaseExpired"

# The parameters of `enqueue` and `enqueue_many`, in the order of NewJob's fields.
_PARAMS = (*NewJob._fields[:12], "unique_key")
# What no two jobs share, or hardly ever.
_OWN = ("id", "payload")


@flow
def enqueue(job: NewJob, *, fresh: bool = False) -> Steps[Enqueued]:
    """Add one job; `fresh` as in `enqueue_many`.

    Commits: with the caller's transaction when one is given, else its own.
    After a crash: before commit nothing happened; running it again with the same id adds nothing.
    """
    if job.idempotency_key is not None or job.unique is not None:
        [answer] = yield from enqueue_many([job], fresh=fresh)
        return answer
    yield _adding((job,), alone=fresh)
    if not fresh:
        yield from ask("take_back", ids=[job.id])
    return Enqueued(job.id)


@flow
def enqueue_many(jobs: Sequence[NewJob], *, fresh: bool = False) -> Steps[list[Enqueued]]:
    """Add many jobs and answer in their order; a job that a key already names is found, not added.

    `fresh` says that the ids were drawn for this run, so that no worker can have finished the jobs already: then a
    look among the finished is spared. Whoever runs it again must not say so.
    Commits: with the caller's transaction when one is given, else its own; all or none.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    keyed = [job for job in jobs if job.idempotency_key is not None]
    found = (yield from _take_keys(keyed)) if keyed else {}
    new = [job for job in jobs if job.id not in found] if found else jobs
    unique = [job for job in new if job.unique is not None]
    for chunk in _chunks([job for job in new if job.unique is None] if unique else new):
        yield _adding(chunk, alone=fresh and len(chunk) == len(jobs))
    if unique:
        live = yield from _add_unique(unique)
        yield from _point_keys([job for job in unique if job.id in live and job.idempotency_key is not None], live)
        found |= live
    if jobs and not fresh:
        yield from ask("take_back", ids=[job.id for job in jobs])
    if not found:
        return [Enqueued(job.id) for job in jobs]
    return [Enqueued(found.get(job.id, job.id), created=job.id not in found) for job in jobs]


def _chunks(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Split jobs into what one statement carries."""
    if len(jobs) <= CHUNK and sum(map(_length, jobs)) <= CHUNK_TEXT:
        if jobs:
            yield jobs
        return
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        length = _length(job)
        if chunk and (len(chunk) == CHUNK or size + length > CHUNK_TEXT):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += length
    if chunk:
        yield chunk


def _length(job: NewJob) -> int:
    return len(job.payload or "") + len(job.headers or "")


def _adding(jobs: Sequence[NewJob], *, alone: bool = False) -> Statement:
    """Say how to add what one statement carries: one job alone is spared the arrays, like jobs are told apart once."""
    params: dict[str, Any] = dict(zip(_PARAMS, jobs[0], strict=False))
    # Left out like NULLs.
    params["priority"], params["delay_ms"] = params["priority"] or None, params["delay_ms"] or None
    if len(jobs) == 1:
        return Statement("enqueue", params, None, alone)
    columns = dict(zip(_PARAMS, zip(*jobs, strict=True), strict=False))
    own: Columns = {name: list(columns.pop(name)) for name in _OWN}
    if all(column.count(column[0]) == len(jobs) for column in columns.values()):
        return Statement("enqueue_alike", {name: params[name] for name in columns}, own, alone)
    each: Columns = {name: own.get(name) or list(columns[name]) for name in _PARAMS}
    return Statement("enqueue_many", {}, each, alone)


def _take_keys(jobs: Sequence[NewJob]) -> Steps[dict[str, str]]:
    """Take each job's idempotency key; map the ids of jobs that came second to the id that holds the key."""
    holders: dict[tuple[str, str], str] = {}
    wanted: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        wanted.setdefault((job.kind, str(job.idempotency_key)), job)
    for _ in range(ROUNDS):
        # Sorted, so that two batches with the same keys wait for each other and never in a circle.
        missing = sorted(wanted.keys() - holders.keys())
        if not missing:
            break
        pairs: Columns = {"scope": [scope for scope, _ in missing], "key": [key for _, key in missing]}
        takers = [wanted[pair] for pair in missing]
        yield from ask(
            "keys_take",
            batch=pairs | {"job_id": [job.id for job in takers], "window_ms": [job.window_ms for job in takers]},
        )
        rows = yield from ask("keys_find", batch=pairs)
        holders |= {(scope, key): str(job_id) for scope, key, job_id in rows}
    else:
        raise DatabaseBusy("busy", "idempotency keys kept vanishing while they were read")
    held = {job.id: holders[job.kind, str(job.idempotency_key)] for job in jobs}
    return {mine: holder for mine, holder in held.items() if mine != holder}


def _add_unique(jobs: Sequence[NewJob]) -> Steps[dict[str, str]]:
    """Add jobs of which one may be live per key; map the ids of those not added to the live job's id."""
    holders: dict[tuple[str, str], str] = {}
    wanted: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        wanted.setdefault((job.kind, str(job.unique)), job)
    for _ in range(ROUNDS):
        missing = sorted(wanted.keys() - holders.keys())
        if not missing:
            break
        for chunk in _chunks([wanted[pair] for pair in missing]):
            yield _adding(chunk)
        names: Columns = {"kind": [kind for kind, _ in missing], "unique_key": [key for _, key in missing]}
        rows = yield from ask("unique_find", batch=names)
        holders |= {(kind, key): str(job_id) for kind, key, job_id in rows}
    else:
        raise DatabaseBusy("busy", "unique jobs kept finishing while they were read")
    held = {job.id: holders[job.kind, str(job.unique)] for job in jobs}
    return {mine: holder for mine, holder in held.items() if mine != holder}


def _point_keys(jobs: Sequence[NewJob], live: Mapping[str, str]) -> Steps[None]:
    """Let the idempotency keys of jobs that were not added name the unique jobs that were found instead."""
    if jobs:
        yield from ask(
            "keys_point",
            batch={
                "scope": [job.kind for job in jobs],
                "key": [job.idempotency_key for job in jobs],
                "job_id": [job.id for job in jobs],
                "holder": [live[job.id] for job in jobs],
            },
        )


@flow
def claim(
    queues: str | Sequence[str],
    *,
    limit: int,
    worker: str = "worker",
    lease_ms: int = 30_000,
    leases: Mapping[str, int] | None = None,
    lanes: Mapping[str, list[Any]] | None = None,
) -> Steps[list[Lease]]:
    """Lease up to `limit` due jobs, the most urgent first, and count the attempt.

    `leases` maps the kinds to serve to their lease in milliseconds; None serves every kind with `lease_ms`.
    `lanes` says where in the queues to begin (see `lanes.py`); None begins at their front.
    Commits: its own. After a crash: the jobs stay leased, with the attempt counted, until the reaper takes them back.
    """
    # One lease for all kinds, as is usual, spares the database a search for each job.
    lengths = set((leases or {}).values())
    where: Mapping[str, Any] = lanes or {"queues": [queues] if isinstance(queues, str) else list(dict.fromkeys(queues))}
    rows = yield from ask(
        "claim",
        alone=True,
        kinds=None if leases is None else list(leases),
        leases=list(leases.values()) if leases and len(lengths) > 1 else None,
        limit=limit,
        worker=worker,
        lease_ms=lengths.pop() if len(lengths) == 1 else lease_ms,
        **where,
    )
    claimed = list(map(Lease._make, rows))
    # The update gives rows in no promised order. Two stable sorts by C functions cost half of one with a key of ours.
    claimed.sort(key=_BY_AGE)
    claimed.sort(key=_BY_PRIORITY, reverse=True)
    return claimed


_BY_AGE, _BY_PRIORITY = attrgetter("available_at", "id"), attrgetter("priority")


def _by_id(one: Held | Lease | Finish | PutBack) -> str:
    """Sort a batch of held jobs: PostgreSQL finds a row's place in it by halving, and locks are taken in one order."""
    return str(one.id)


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which leases were put off, which of those were asked to stop, and the fences that changed by it.

    Ours never change; a foreign table whose only fence is a time gets a new one with each renewal.
    """

    kept: set[str]
    cancelled: set[str]
    fences: dict[str, Any] = field(default_factory=dict)


@flow
def renew(leases: Iterable[tuple[Held | Lease, int]]) -> Steps[Renewed]:
    """Put off the end of held leases by so many milliseconds from now; a lease that is lost is left out of the answer.

    Commits: its own. After a crash: safe to repeat.
    """
    held = sorted(leases, key=lambda one: _by_id(one[0]))
    if not held:
        return Renewed(set(), set())
    batch = _held([lease for lease, _ in held]) | {"lease_ms": [ms for _, ms in held]}
    rows = yield from ask("renew", batch=batch, alone=True)
    return Renewed({str(row[0]) for row in rows}, {str(row[0]) for row in rows if row[1]})


def _held(leases: Iterable[Held | Lease | Finish]) -> Columns:
    ordered = sorted(leases, key=_by_id)
    return {"id": [lease.id for lease in ordered], "fence": [lease.fence for lease in ordered]}


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch came to: ids written now or by an earlier try, and ids whose lease was lost."""

    done: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


@flow
def settle(finishes: Sequence[Finish] = (), returns: Sequence[PutBack] = ()) -> Steps[Settled]:
    """Write the outcomes of a batch of leases: finished rows move, retried ones return, lost ones change nothing.

    Each job may be in it once.
    Commits: its own. Safe to repeat: when the reply to COMMIT was lost, the second try finds what the first one wrote
    (a finished row with this fence, no row at all where nothing is kept, a raised fence on a returned one).
    After a crash: before commit all stay leased and are reaped later; after it none of them runs again by this lease.
    """
    kept = [one for one in finishes if one.keep]
    dropped = [one for one in finishes if not one.keep]
    writes: list[tuple[str, Columns]] = []
    if kept:
        writes.append(("finish", _finish_columns(kept)))
    if dropped:
        writes.append(("drop", _held(dropped)))
    if returns:
        writes.append(("put_back", _return_columns(returns)))
    written: set[str] = set()
    for name, batch in writes:
        rows = yield from ask(name, batch=batch, alone=len(writes) == 1)
        written.update(map(str, batch["id"]) if _all_of_them(rows) else [str(row[0]) for row in rows])
    if len(written) == len(finishes) + len(returns):
        return Settled(written)
    everything: list[Finish | PutBack] = [*finishes, *returns]
    missing = [one for one in everything if str(one.id) not in written]
    written |= yield from _written_before(missing, gone_is_done={str(one.id) for one in dropped})
    return Settled(written, {str(one.id) for one in missing} - written)


def _all_of_them(rows: Rows) -> bool:
    """Tell whether one row without an id answers for a whole batch, which spares PostgreSQL and us a row for each."""
    return len(rows) == 1 and rows[0][0] is None


def _written_before(missing: Sequence[Finish | PutBack], gone_is_done: set[str]) -> Steps[set[str]]:
    """Ask which writes an earlier try of the same batch had committed before its reply was lost."""
    ids = [one.id for one in missing]
    finished = {str(job_id): fence for job_id, fence in (yield from ask("settled", ids=ids))}
    live = {str(job_id): fence for job_id, fence in (yield from ask("live", ids=ids))}
    before = set()
    for one in missing:
        job_id = str(one.id)
        if isinstance(one, PutBack):
            # A reaper raises the fence twice, so one more is this holder's own return.
            written = live.get(job_id) == one.fence + 1
        elif job_id in gone_is_done:
            written = job_id not in live and job_id not in finished
        else:
            written = finished.get(job_id) == one.fence
        if written:
            before.add(job_id)
    return before


def _finish_columns(finishes: Sequence[Finish]) -> Columns:
    columns = _transposed(Finish._fields, finishes)
    del columns["keep"]
    return columns


def _return_columns(returns: Sequence[PutBack]) -> Columns:
    return _transposed(PutBack._fields, returns)


def _transposed(names: Sequence[str], rows: Sequence[Finish | PutBack]) -> Columns:
    return dict(zip(names, map(list, zip(*sorted(rows, key=_by_id), strict=True)), strict=True))


@flow
def complete(lease: Lease | Held, result: str | None = None, *, keep: bool = True) -> Steps[None]:
    """Record that the leased job succeeded; meant for a transaction that also holds the job's effect.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: LeaseLost if a newer claim holds the job. Strict on purpose: a lost reply is not excused here, because the
    caller's effect would be committed a second time.
    After a crash: before commit the job stays leased and is reaped later; after it, it never runs again.
    """
    yield from _finish_one(Finish(lease.id, lease.fence, "done", result, keep=keep))


@flow
def kill(lease: Lease | Held, error: str, group: str) -> Steps[None]:
    """Send the leased job to the dead letters with its error.

    Commits, Raises, After a crash: as `complete`.
    """
    yield from _finish_one(Finish(lease.id, lease.fence, "dead", None, error, group))


@flow
def cancel(lease: Lease | Held, error: str | None = None) -> Steps[None]:
    """End the leased job as cancelled.

    Commits, Raises, After a crash: as `complete`.
    """
    yield from _finish_one(Finish(lease.id, lease.fence, "cancelled", None, error))


def _finish_one(end: Finish) -> Steps[None]:
    if end.keep:
        rows = yield from ask("finish", batch=_finish_columns([end]), alone=True)
    else:
        rows = yield from ask("drop", batch=_held([end]), alone=True)
    if not rows:
        # The same answer for "reaped" and "deleted": the holder may act on neither.
        raise LeaseLost(str(end.id), end.fence)


@flow
def retry(lease: Lease | Held, delay_ms: int, error: str) -> Steps[None]:
    """Return the leased job to its queue after a failed attempt.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: LeaseLost if a newer claim holds the job.
    After a crash: before commit the job stays leased and is reaped later, with a backoff of the reaper's.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, delay_ms, 0, error))


@flow
def snooze(lease: Lease | Held, delay_ms: int) -> Steps[None]:
    """Return the leased job for later without using an attempt.

    Commits, Raises, After a crash: as `retry`.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, delay_ms, 1))


@flow
def release(lease: Lease | Held) -> Steps[None]:
    """Give the leased job back, to its old place and without using an attempt.

    Commits, Raises, After a crash: as `retry`.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, None, 1))


def _put_back_one(one: PutBack) -> Steps[None]:
    rows = yield from ask("put_back", batch=_return_columns([one]), alone=True)
    if not rows:
        raise LeaseLost(str(one.id), one.fence)


@flow
def progress(lease: Lease | Held, value: str) -> Steps[None]:
    """Store how far the leased job is.

    Commits: with the caller's transaction when one is given, else its own. Raises: LeaseLost.
    """
    rows = yield from ask("progress", id=lease.id, fence=lease.fence, progress=value, alone=True)
    if not rows:
        raise LeaseLost(str(lease.id), lease.fence)


Backoff = Callable[[str, int], float]


def default_backoff(kind: str, attempt: int) -> float:
    return Retry().delay(attempt)


@flow
def reap(
    *,
    kinds: Sequence[str] | None = None,
    exclude: Sequence[Any] = (),
    limit: int = 100,
    backoff: Backoff = default_backoff,
    look_back: float | None = None,
) -> Steps[list[Reaped]]:
    """Take back leases that ran out: to the queue with a backoff, to the dead letters when the attempts are used up.

    `exclude` names jobs that the caller itself still works on; `backoff` gives seconds by kind and attempt.
    `look_back` leaves out leases that ran out more than so many seconds ago; None looks at all.
    Nearly always there is nothing to take back, so it looks without a lock or a transaction first.
    Commits: its own. After a crash: nothing happened; the leases are still expired and the next reaper takes them.
    """
    which: dict[str, Any] = {
        "kinds": None if kinds is None else list(kinds),
        "ids": list(exclude),
        "look_back_ms": None if look_back is None else round(look_back * 1000),
    }
    if not (yield from ask("reap_pick", look=True, limit=1, lock=None, **which)):
        return []
    rows = yield from ask("reap_pick", limit=limit, lock=True, **which)
    if not rows:
        return []
    yield from ask("reap_mark", ids=[row[0] for row in rows])
    expired = [one._replace(fence=one.fence + 1) for one in (Expired(*row) for row in rows)]
    ends = {str(one.id): _end_of(one) for one in expired}
    yield from settle(
        [_finish_expired(one, outcome) for one in expired if (outcome := ends[str(one.id)]) is not None],
        [_return_expired(one, backoff) for one in expired if ends[str(one.id)] is None],
    )
    return [Reaped(str(e.id), e.queue, e.kind, e.attempt, e.leased_by, ends[str(e.id)] or "retry") for e in expired]


def _end_of(expired: Expired) -> Literal["dead", "cancelled"] | None:
    if expired.cancel_requested:
        return "cancelled"
    return "dead" if expired.attempt >= expired.max_attempts else None


def _finish_expired(expired: Expired, outcome: Outcome) -> Finish:
    error = _expiry_error(expired)
    group = fingerprint(LEASE_EXPIRED, error.message) if outcome == "dead" else None
    return Finish(expired.id, expired.fence, outcome, None, error.to_json(), group)


def _return_expired(expired: Expired, backoff: Backoff) -> PutBack:
    delay_ms = round(backoff(expired.kind, expired.attempt) * 1000)
    return PutBack(expired.id, expired.fence, delay_ms, 0, _expiry_error(expired).to_json())


def _expiry_error(expired: Expired) -> ErrorRecord:
    return ErrorRecord(
        attempt=expired.attempt,
        type=LEASE_EXPIRED,
        message="The lease ran out: the worker died, hung, or could not reach the database in time.",
        traceback="",
        worker=expired.leased_by or "",
        started_at=when(expired.leased_at).isoformat(),
        failed_at=when(expired.lease_expires_at).isoformat(),
    )


@flow
def release_strays(worker: str, known: Sequence[Any]) -> Steps[int]:
    """Give back jobs that a lost reply to a claim left leased to a worker that never heard of them.

    Commits: its own. After a crash: they wait for the reaper instead.
    """
    strays = yield from ask("strays", worker=worker, ids=list(known))
    if not strays:
        return 0
    returns = [PutBack(job_id, fence, None, 1) for job_id, fence in strays]
    return len((yield from ask("put_back", batch=_return_columns(returns))))


@flow
def prune_queues() -> Steps[list[tuple[Outcome, str]]]:
    """List the (outcome, queue) pairs that have finished rows."""
    rows = yield from ask("prune_queues", alone=True)
    return [(outcome, queue) for outcome, queue in rows]


@flow
def prune(outcome: Outcome, queue: str, older_ms: int, *, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of finished jobs older than so many milliseconds; fewer than `limit` means there are no more.

    Commits: its own, so that no chunk holds locks for long. After a crash: go on with the next chunk.
    """
    rows = yield from ask("prune", outcome=outcome, queue=queue, older_ms=older_ms, limit=limit, alone=True)
    return len(rows)


@flow
def prune_keys(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of idempotency keys past their window.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("keys_prune", limit=limit, alone=True)
    return len(rows)
