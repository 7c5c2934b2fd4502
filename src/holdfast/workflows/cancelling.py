"""Ending runs by hand: a forced end, which runs no code, and a dead run that goes on."""

from __future__ import annotations

from holdfast import admin, jobs, runs
from holdfast.errors import Conflict, RunFinished
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.runs import family_of, find, goes_on, pardon
from holdfast.values.failure import ErrorRecord
from holdfast.values.rows import Finish

_BY_HAND = "Cancelled"


@flow
def force(key: str, workflow: str | None = None) -> Steps[int]:
    """End a run and its children as cancelled, whatever they do; return how many were ended. No code of theirs runs.

    Needs no replay, so it ends a run that is stuck, too. A worker that holds one of them has lost its lease by it.
    Commits: with the caller's transaction when one is given, else its own.
    Raises: RunNotFound; RunFinished. After a crash: before commit nothing happened.
    """
    first = yield from find(key, workflow)
    family = yield from family_of(first)
    rows = yield from ask("jobs_lock", ids=sorted(family))
    fences = {text_of(row[0]): number_of(row[1]) for row in rows}
    if first not in fences:
        raise RunFinished(key)
    # Else the late end of a holder would be taken for this one.
    yield from ask("reap_mark", ids=sorted(fences))
    error = _asked()
    ends = [Finish(job_id, fence + 1, "cancelled", None, error) for job_id, fence in fences.items()]
    settled = yield from jobs.settle(ends)
    return len(settled.done)


def _asked() -> str:
    moment = "1970-01-01T00:00:00+00:00"
    return ErrorRecord.asked(
        _BY_HAND, "its end was forced by hand", attempt=0, worker="", started_at=moment, failed_at=moment
    ).to_json()


@flow
def resume(key: str, actor: str | None, workflow: str | None = None) -> Steps[str]:
    """Let a dead run go on: the step whose failure ended it is made again, with all its attempts.

    Commits: its own. Raises: RunNotFound; Conflict for a run that is not dead, or that has undone what it did.
    After a crash: before commit nothing happened; safe to repeat.
    """
    view, rows = yield from runs.timeline(key, workflow)
    if view.status != "dead":
        raise Conflict(f"Run {view.id} is {view.status}: only one that is dead can be resumed.")
    if any(row.kind == "undo" for row in rows):
        raise Conflict(f"Run {view.id} has undone what it did: start another one, with another id.")
    failed = [row.key for row in rows if not row.ok and row.kind != "attempt"]
    if failed:
        # The last one: an earlier failure was caught by the body, which went on because of it.
        yield from pardon(view.job_id, failed[-1])
    yield from goes_on(view.job_id)
    yield from admin.replay(admin.Filter(ids=(view.job_id,)), 1, actor)
    return view.job_id
