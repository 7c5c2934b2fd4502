"""Read single jobs by their ids, also in a transaction of the application's, and make of a row what people see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import JobNotFound
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.life import merging
from holdfast.placing import Every, placed_by, where_id_is
from holdfast.values.payload import decode_value
from holdfast.values.rows import OUTCOMES, when
from holdfast.values.views import JobView, decoded, error_records


def _those(ids: Sequence[str]) -> Every[dict[str, JobView]]:
    return Every(merging.united, ids=ids)


@placed_by(_those)
@flow
def read(ids: Sequence[str]) -> Steps[dict[str, JobView]]:
    """Read jobs, live and finished, by id; those that are not there are left out."""
    rows = yield from ask("jobs_read", ids=sorted(ids), alone=True)
    views = [view_of(decode_value(text_of(row[0]))) for row in rows]
    # The finished row counts: a job that lives a second time is over all the same.
    return {view.id: view for view in sorted(views, key=lambda view: view.state in OUTCOMES)}


@where_id_is
@flow
def get(job_id: str) -> Steps[JobView]:
    """Read one job, live or finished, also on a connection of the application's.

    Raises: JobNotFound.
    """
    found = yield from read([job_id]).start()
    if job_id not in found:
        raise JobNotFound(job_id)
    return found[job_id]


@where_id_is
@flow
def shard_of(job_id: str) -> Steps[int | None]:
    """Tell which shard a job is in, live or finished; None where nobody has said that there are shards.

    Raises: JobNotFound.
    """
    if not (yield from ask("job_state", ids=[job_id])):
        raise JobNotFound(job_id)
    rows = yield from ask("shard_map_read")
    return number_of(rows[0][0]) if rows else None


def view_of(row: Sequence[Any]) -> JobView:
    """Make of the columns of `jobs_list`, in their order, a job as people see it."""
    job_id, state, queue, kind, priority, attempts, most, fence, key, unique, payload, *rest = row
    headers, progress, result, errors, available, created, leased, expires, by, finished, group, replays, *last = rest
    stop, lapses, waits_for = last
    return JobView(
        id=str(job_id),
        state=state,
        queue=queue,
        kind=kind,
        priority=priority,
        attempts=attempts,
        max_attempts=most,
        fence=fence,
        key=key,
        unique=unique,
        payload=payload,
        headers=decoded(headers),
        progress=decoded(progress),
        result=decoded(result),
        errors=error_records(errors),
        available_at=when(available),
        created_at=when(created),
        leased_at=None if leased is None else when(leased),
        lease_expires_at=None if expires is None else when(expires),
        leased_by=by,
        finished_at=None if finished is None else when(finished),
        group=group,
        replays=replays,
        cancel_requested=bool(stop),
        lapses=lapses,
        # A claim leaves it as it was.
        waits_for=None if state == "leased" else waits_for,
    )
