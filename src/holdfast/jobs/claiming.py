"""Take jobs and hold on to them: claim, renew, look whether they have expired, begin, progress.

A claim raises the fence, and every write of a holder names the job and the fence of its claim: a holder that lost its
lease changes nothing, whatever it still believes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.flow import Steps, ask, flow
from holdfast.jobs.settling import by_id, held_columns
from holdfast.life.claims import Question, by_urgency
from holdfast.life.source import Renewed
from holdfast.values.expires import expiry_in
from holdfast.values.rows import Held, Lease, when


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
    buckets: Sequence[int] | None = None,
    overdue_ms: int = 10_000,
) -> Steps[list[Lease]]:
    """Lease up to `limit` due jobs, the most urgent first, and count the attempt.

    `leases` maps the kinds to serve to their lease in milliseconds; None serves every kind with `lease_ms`.
    `lanes` says where in the queues to begin (see `lanes.py`); None begins at their front.
    `suspects` False leaves out jobs whose process died before (see `worker/suspects.py`).
    `buckets` leaves out jobs whose key is in another bucket, until they are overdue by `overdue_ms`.
    Commits: its own. After a crash: the jobs stay leased until the reaper takes them back and judges the attempt.
    """
    where: Mapping[str, Any] = lanes or {"queues": [queues] if isinstance(queues, str) else list(dict.fromkeys(queues))}
    rows = yield from ask(
        "claim",
        alone=True,
        limit=limit,
        worker=worker,
        unsuspected=None if suspects else True,
        **Question.of(leases, lease_ms, buckets, overdue_ms)._asdict(),
        **where,
    )
    return by_urgency(list(map(_LEASE_OF, rows)))


# `Lease._make` without its frame, which took a twentieth of the time of a job that does nothing.
_LEASE_OF: Callable[[Sequence[Any]], Lease] = partial(tuple.__new__, Lease)  # pyright: ignore[reportUnknownMemberType]


@flow
def renew(leases: Iterable[tuple[Held | Lease, int]], begun: Collection[Any] = ()) -> Steps[Renewed]:
    """Put off the end of held leases by the milliseconds beside each; a lease that is lost is not in the answer.

    `begun` names the jobs whose handler has been called: the record of it costs nothing here.
    Commits: its own. After a crash: safe to repeat.
    """
    held = sorted(leases, key=lambda one: by_id(one[0]))
    if not held:
        return Renewed(set(), set())
    batch = held_columns([lease for lease, _ in held]) | {"lease_ms": [ms for _, ms in held]}
    # Numbers, which every database reads out of a batch as it reads its own booleans.
    batch["began"] = [int(lease.id in begun) for lease, _ in held]
    rows = yield from ask("renew", batch=batch, alone=True)
    return Renewed({str(row[0]) for row in rows}, {str(row[0]) for row in rows if row[1]})


@flow
def expired(leases: Sequence[Lease]) -> Steps[set[str]]:
    """Tell which of the leased jobs may not begin any more, by the database's time; give those that say when.

    One that was replayed by hand is wanted, whatever time it is. A job that is gone is not in the answer.
    """
    rows = yield from ask("expiry_look", ids=[lease.id for lease in leases], alone=True)
    ends = {lease.job_id: expiry_in(lease.headers, when(lease.created_at)) for lease in leases}
    return {str(job) for job, replays, now in rows if not replays and _is_past(ends[str(job)], now)}


def _is_past(moment: datetime | None, now: Any) -> bool:
    return moment is not None and moment <= when(now)


@flow
def begin(lease: Lease | Held) -> Steps[None]:
    """Record that the handler of the leased job is about to be called.

    Commits: its own. Raises: LeaseLost if a newer claim holds the job; the handler may not be called then.
    After a crash: the reaper takes the handler for called, though the death may have come in the instant before.
    """
    rows = yield from ask("begin", id=lease.id, fence=lease.fence, alone=True)
    if not rows:
        raise LeaseLost(str(lease.id), lease.fence)


@flow
def progress(lease: Lease | Held, value: str) -> Steps[None]:
    """Store how far the leased job is.

    Commits: with the caller's transaction when one is given, else its own. Raises: LeaseLost.
    """
    rows = yield from ask("progress", id=lease.id, fence=lease.fence, progress=value, alone=True)
    if not rows:
        raise LeaseLost(str(lease.id), lease.fence)
