"""A job's life as flows: enqueue, claim, renew, settle, reap, prune.

Every write of a holder names the job and the fence of its claim. A claim, a return to the queue and a reap each raise
the fence, so a holder that lost its lease changes nothing, whatever it still believes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.flow import Columns, Rows, Steps, ask, flow
from holdfast.jobs.enqueueing import NOTED_SECONDS
from holdfast.life.expiry import Backoff, verdict
from holdfast.values.retry import Retry
from holdfast.values.rows import LAST_FENCE, Expired, Finish, Held, Lease, Outcome, PutBack, Reaped


@flow
def claim(
    queues: str | Sequence[str],
    *,
    limit: int,
    worker: str = "worker",
    lease_ms: int = 30_000,
    leases: Mapping[str, int] | None = None,
    lanes: Mapping[str, list[Any]] | None = None,
    suspects: bool = True,
) -> Steps[list[Lease]]:
    """Lease up to `limit` due jobs, the most urgent first, and count the attempt.

    `leases` maps the kinds to serve to their lease in milliseconds; None serves every kind with `lease_ms`.
    `lanes` says where in the queues to begin (see `lanes.py`); None begins at their front.
    `suspects` False leaves out jobs whose process died before (see `suspects.py`).
    Commits: its own. After a crash: the jobs stay leased until the reaper takes them back and judges the attempt.
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
        unsuspected=None if suspects else True,
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
def renew(leases: Iterable[tuple[Held | Lease, int]], begun: Collection[Any] = ()) -> Steps[Renewed]:
    """Put off the end of held leases by so many milliseconds from now; a lease that is lost is left out of the answer.

    `begun` names the jobs whose handler has been called: the record of it costs nothing here.
    Commits: its own. After a crash: safe to repeat.
    """
    held = sorted(leases, key=lambda one: _by_id(one[0]))
    if not held:
        return Renewed(set(), set())
    batch = _held([lease for lease, _ in held]) | {"lease_ms": [ms for _, ms in held]}
    # Numbers, which every database reads out of a batch as it reads its own booleans.
    batch["began"] = [int(lease.id in begun) for lease, _ in held]
    rows = yield from ask("renew", batch=batch, alone=True)
    return Renewed({str(row[0]) for row in rows}, {str(row[0]) for row in rows if row[1]})


@flow
def begin(lease: Lease | Held) -> Steps[None]:
    """Record that the handler of the leased job is about to be called.

    Commits: its own. Raises: LeaseLost if a newer claim holds the job; the handler may not be called then.
    After a crash: the reaper takes the handler for called, though the death may have come in the instant before.
    """
    rows = yield from ask("begin", id=lease.id, fence=lease.fence, alone=True)
    if not rows:
        raise LeaseLost(str(lease.id), lease.fence)


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
            # A finished row of an older lease was there before; only one of a later lease says that this one was lost.
            written = job_id not in live and finished.get(job_id, one.fence) <= one.fence
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
    # Strict: what else runs on the caller's connection, such as a listener that writes a log, may not answer for it.
    if end.keep:
        rows = yield from ask("finish", batch=_finish_columns([end]), alone=True, strict=True)
    else:
        rows = yield from ask("drop", batch=_held([end]), alone=True, strict=True)
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
    """Take back leases that ran out: to their queue, or to the dead letters; `expiry.py` says which.

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
    expired = [Expired(*row) for row in rows]
    verdicts = {
        str(one.id): verdict(one._replace(fence=min(one.fence, LAST_FENCE - 1) + 1), backoff) for one in expired
    }
    writes = [one.write for one in verdicts.values()]
    finishes = [one for one in writes if isinstance(one, Finish)]
    if finishes:
        # One that is finished already, from whatever cause, would keep the others from being written.
        yield from ask("take_back", ids=[one.id for one in finishes])
    settled = yield from settle(finishes, [one for one in writes if isinstance(one, PutBack)])
    taken = [one for one in expired if str(one.id) in settled.done]
    return [Reaped(str(e.id), e.queue, e.kind, e.attempt, e.leased_by, verdicts[str(e.id)].outcome) for e in taken]


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
def stuck(*, limit: int = 100) -> Steps[list[tuple[str, str]]]:
    """Read rows, written by hand, that no claim and no reaper can ever take: their ids, and why."""
    rows = yield from ask("stuck", limit=limit, alone=True)
    return [(str(job_id), why) for job_id, why in rows]


@flow
def prune_queues() -> Steps[list[tuple[Outcome, str]]]:
    """List the (outcome, queue) pairs that have finished rows."""
    rows = yield from ask("prune_queues", alone=True)
    return [(outcome, queue) for outcome, queue in rows]


@flow
def prune(outcome: Outcome, queue: str, older_ms: int, *, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of finished jobs older than so many milliseconds; fewer than `limit` means there are no more.

    Rows that are not kept for as long as an enqueue may be repeated have their ids noted, as dropped jobs have.
    Commits: its own, so that no chunk holds locks for long. After a crash: go on with the next chunk.
    """
    noted = older_ms < NOTED_SECONDS * 1000
    rows = yield from ask("prune", outcome=outcome, queue=queue, older_ms=older_ms, limit=limit, alone=not noted)
    if rows and noted:
        yield from ask("dropped_add", ids=[row[0] for row in rows])
    return len(rows)


@flow
def prune_dropped(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of the notes about dropped jobs, once no enqueue of theirs can be repeated any more.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("dropped_prune", older_ms=round(NOTED_SECONDS * 1000), limit=limit, alone=True)
    return len(rows)


@flow
def prune_keys(*, limit: int = 1000) -> Steps[int]:
    """Delete one chunk of idempotency keys past their window.

    Commits: its own. After a crash: go on with the next chunk.
    """
    rows = yield from ask("keys_prune", limit=limit, alone=True)
    return len(rows)
