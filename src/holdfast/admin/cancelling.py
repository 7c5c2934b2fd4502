"""Cancel live jobs by hand, by id or by filter: what waits ends, and the workers of what runs are asked to stop.

Each chunk is a transaction of its own, with its audit lines and with all that follows (`life/door.py`): lines call
their next job, those that wait for a job hear of its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Literal

from holdfast.admin.jobs import TRIES_PER_JOB, Filter, one_id, restless, state_of
from holdfast.admin.picking import LIVE, LiveJob, chosen, in_chunks, left_alone, lock
from holdfast.admin.recording import record
from holdfast.errors import Conflict
from holdfast.flow import Series, Steps, ask, flow, number_of, text_of
from holdfast.life.door import Left, consequences
from holdfast.life.listing import Cancelled
from holdfast.lines.leaving import as_in_line

_ADVICE = {
    "done": "Its work is finished: there is nothing left to cancel.",
    "dead": "It does not run again unless it is replayed: discard it to be rid of it.",
    "cancelled": "It does not run again unless it is replayed.",
}


@flow
def cancel(job_id: str, actor: str | None) -> Steps[Literal["cancelled", "requested"]]:
    """End a pending or waiting job as cancelled, or ask the worker of a leased one to stop.

    It hears of that at its next renewal.

    Commits: its own. Raises: JobNotFound; Conflict for a finished job.
    After a crash: nothing happened; safe to repeat. A claim at the same moment wins or loses as a whole: the answer
    tells whether the job had started.
    """
    job = one_id(job_id)
    for _ in range(TRIES_PER_JOB):
        if (yield from _end([job], actor)):
            return "cancelled"
        if (yield from _ask_to_stop([job], actor)):
            return "requested"
        state = yield from state_of(job)
        if state not in LIVE:
            raise Conflict(f"Job {job} is {too_late(state)}")
    raise restless(job)


def too_late(state: str) -> str:
    """Say of a finished job that it cannot be cancelled, and what to do about it."""
    found = "cancelled already" if state == "cancelled" else f"{state} and cannot be cancelled"
    return f"{found}. {_ADVICE[state]}"


def cancel_all(
    meant: Filter, ids: Sequence[str] | None, actor: str | None, limit: int | None = None, dry_run: bool = False
) -> Series[Cancelled]:
    """Cancel the live jobs that are meant, of these ids where some are given, the oldest first.

    Commits: after each chunk. After a crash: the chunks before are done; repeat it for the rest. Where only the reply
    to a commit was lost, the jobs of that chunk are cancelled and may be missing from the answer.
    """
    jobs, named = yield from chosen(meant, ids, limit)
    if dry_run:
        answers = [_foreseen(jobs)]
    else:
        answers = yield from in_chunks(meant, [job.id for job in jobs], partial(cancel_chunk, meant, actor))
    done = reduce(Cancelled.with_more, answers, Cancelled())
    return done.with_more(Cancelled(left=(yield from left_alone(named, done.seen))))


@flow
def cancel_chunk(meant: Filter, actor: str | None, ids: Sequence[str], wait: bool = False) -> Steps[Cancelled]:
    """Cancel those of these jobs that are still live and meant; without `wait`, what somebody has locked is left out.

    Commits: its own, all or none. After a crash: nothing happened; safe to repeat.
    """
    jobs = yield from lock(meant, ids, wait)
    held = [job for job in jobs if job.is_held]
    if held:
        yield from _ask_to_stop([job.id for job in held], actor)
    free = [job for job in jobs if not job.is_held]
    if free:
        yield from _end([job.id for job in free], actor)
    return _foreseen(jobs)


def _end(ids: Sequence[str], actor: str | None) -> Steps[bool]:
    """End pending and waiting jobs as cancelled, with what follows; tell whether there were any."""
    rows = yield from ask("cancel_pending", ids=sorted(ids))
    left = [_left(row) for row in rows]
    yield from record("cancel", actor, [(row.id, {"queue": row.queue, "kind": row.kind}) for row in left])
    yield from consequences(sorted(row for row in left if row.followers))
    return bool(left)


def _left(row: Sequence[object]) -> Left:
    job, queue, kind, key, fence, followers = row
    said = None if key is None else text_of(key)
    bits = as_in_line(said, None if followers is None else number_of(followers))
    return Left(text_of(job), number_of(fence), text_of(queue), text_of(kind), said, bits, "cancelled", held=False)


def _ask_to_stop(ids: Sequence[str], actor: str | None) -> Steps[bool]:
    rows = yield from ask("cancel_leased", ids=sorted(ids))
    lines: list[tuple[str | None, dict[str, Any]]] = []
    for job, queue, kind, worker, fence, *_ in rows:
        holder = {"worker": None if worker is None else text_of(worker), "fence": number_of(fence)}
        lines.append((text_of(job), {"queue": text_of(queue), "kind": text_of(kind), **holder}))
    yield from record("cancel_requested", actor, lines)
    return bool(lines)


def _foreseen(jobs: Sequence[LiveJob]) -> Cancelled:
    free = [job.id for job in jobs if not job.is_held]
    return Cancelled(free, [job.id for job in jobs if job.is_held])
