"""Cancel live jobs by hand, by id or by filter: what waits ends, and the workers of what runs are asked to stop.

A durable run that has begun is asked to stop whether it runs or waits, because it may have to clean up. By force,
everything ends at once, and a worker that holds it has lost its lease.

Each chunk is a transaction of its own, with its audit lines and with all that follows (`life/door.py`): lines call
their next job, those that wait for a job hear of its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

from holdfast import jobs as flows
from holdfast import runs
from holdfast.admin.jobs import ALL, TRIES_PER_JOB, Filter, one_id, restless, state_of
from holdfast.admin.picking import LIVE, LiveJob, chosen, in_chunks, left_alone, lock
from holdfast.admin.recording import record
from holdfast.errors import Conflict, RunNotFound
from holdfast.flow import Series, Steps, ask, flow, in_turn, number_of, text_of
from holdfast.life import merging
from holdfast.life.door import Left, consequences
from holdfast.life.listing import Cancelled
from holdfast.lines.leaving import as_in_line
from holdfast.placing import Every, on_every, placed_by, where_id_is
from holdfast.values.failure import ErrorRecord
from holdfast.values.ids import is_id, new_ids
from holdfast.values.rows import LAST_FENCE, Finish

NAMES_AT_ONCE = 5_000
_ADVICE = {
    "done": "Its work is finished: there is nothing left to cancel.",
    "dead": "It does not run again unless it is replayed: discard it to be rid of it.",
    "cancelled": "It does not run again unless it is replayed.",
}


@where_id_is
@flow
def cancel(job_id: str, actor: str | None) -> Steps[Literal["cancelled", "requested"]]:
    """End a pending or waiting job as cancelled, or ask the worker of a leased one, or a run, to stop.

    A worker hears of that at its next renewal.

    Commits: its own. Raises: JobNotFound; Conflict for a finished job.
    After a crash: nothing happened; safe to repeat. A claim at the same moment wins or loses as a whole: the answer
    tells whether the job had started.
    """
    job = one_id(job_id)
    for _ in range(TRIES_PER_JOB):
        done = yield from cancel_chunk(ALL, actor, [job], True)
        if done.seen:
            return "cancelled" if done.cancelled else "requested"
        state = yield from state_of(job)
        if state not in LIVE:
            raise Conflict(f"Job {job} is {too_late(state)}")
    raise restless(job)


def too_late(state: str) -> str:
    """Say of a finished job that it cannot be cancelled, and what to do about it."""
    found = "cancelled already" if state == "cancelled" else f"{state} and cannot be cancelled"
    return f"{found}. {_ADVICE[state]}"


def cancel_all(
    meant: Filter,
    ids: Sequence[str] | None,
    actor: str | None,
    limit: int | None = None,
    dry_run: bool = False,
    *,
    force: bool = False,
) -> Series[Cancelled]:
    """Cancel the live jobs that are meant, of these ids where some are given, the oldest first.

    Commits: after each chunk. After a crash: the chunks before are done; repeat it for the rest. Where only the reply
    to a commit was lost, the jobs of that chunk are cancelled and may be missing from the answer.
    """
    by_name = _one_each((yield from in_turn(_named(ids)))) if ids else {}
    ids, unknown = (None, {}) if ids is None else _without_names(ids, by_name)
    jobs, named = yield from chosen(meant, ids, limit)
    if dry_run:
        answers = [(yield from in_turn(_foreseen(jobs, force)))]
    else:
        act = force_chunk if force else cancel_chunk
        answers = yield from in_chunks(meant, [job.id for job in jobs], partial(act, meant, actor))
    done = reduce(Cancelled.with_more, answers, Cancelled())
    left = yield from left_alone(named, done.seen)
    return done.with_more(Cancelled(left=left | unknown)).called({job: name for name, job in by_name.items()})


Named = dict[str, list[tuple[str, str]]]


def _all_named(answers: Sequence[Named]) -> Named:
    names = merging.joined([list(answer) for answer in answers])
    return {name: [one for answer in answers for one in answer.get(name, ())] for name in names}


@placed_by(lambda names: Every(_all_named, lenient=False, ids=names))
@flow
def _named(names: Sequence[str]) -> Steps[Named]:
    """Find the jobs of runs that are named by their own ids, each with its workflow."""
    found: Named = {}
    for start in range(0, len(names), NAMES_AT_ONCE):
        found |= yield from runs.named(names[start : start + NAMES_AT_ONCE])
    return found


def _one_each(named: Named) -> dict[str, str]:
    """Return the job of each run. Raises: RunNotFound where several workflows have one of this name."""
    for name, those in named.items():
        if len(those) > 1:
            raise RunNotFound(name, [workflow for _, workflow in those])
    return {name: those[0][0] for name, those in named.items()}


def _without_names(named: Sequence[str], by_name: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the jobs that are meant, and the names that mean none."""
    unknown = {name: "unknown" for name in named if name not in by_name and not is_id(name)}
    return [by_name.get(name, name) for name in named if name not in unknown], unknown


def _where(meant: Filter, actor: str | None, ids: Sequence[str], wait: bool = False) -> Every[Cancelled]:
    return Every(merging.cancelled, lenient=False, ids=ids)


@placed_by(_where)
@flow
def cancel_chunk(meant: Filter, actor: str | None, ids: Sequence[str], wait: bool = False) -> Steps[Cancelled]:
    """Cancel those of these jobs that are still live and meant; without `wait`, what somebody has locked is left out.

    Commits: its own, all or none. After a crash: nothing happened; safe to repeat.
    """
    jobs = yield from lock(meant, ids, wait)
    begun = yield from _begun(jobs)
    if begun:
        lines = [(job.id, job.place() | {"run": True}) for job in jobs if job.id in begun]
        yield from record("cancel_requested", actor, lines)
        yield from runs.asked_to_stop(sorted(begun), new_ids(len(begun)))
    held = [job.id for job in jobs if job.is_held and job.id not in begun]
    if held:
        yield from _ask_to_stop(held, actor)
    free = [job.id for job in jobs if not job.is_held and job.id not in begun]
    if free:
        yield from _end(free, actor)
    return _answer(jobs, begun)


@placed_by(_where)
@flow
def force_chunk(meant: Filter, actor: str | None, ids: Sequence[str], wait: bool = False) -> Steps[Cancelled]:
    """End those of these jobs that are still live and meant, and the children of runs among them, whatever they do.

    No code of theirs runs, and a run needs no replay for it, so it ends one that is stuck, too. A worker that holds one
    of them has lost its lease by it. The answer names the children, too.
    Commits: its own, all or none. After a crash: nothing happened; safe to repeat.
    """
    jobs = yield from lock(meant, ids, wait)
    family = yield from runs.family_of([job.id for job in jobs if _is_run(job)])
    plain = [job.id for job in jobs if not job.is_held and not _is_run(job)]
    if plain:
        yield from _end(plain, actor)
    taken = sorted({*family, *(job.id for job in jobs if job.is_held)})
    return Cancelled([*plain, *((yield from _take_away(taken, actor)) if taken else [])])


def _take_away(ids: Sequence[str], actor: str | None) -> Steps[list[str]]:
    """End jobs as cancelled under a fence that nobody has."""
    rows = yield from ask("jobs_lock", ids=ids)
    fences = {text_of(row[0]): number_of(row[1]) for row in rows}
    if not fences:
        return []
    # Else the late end of a holder would be taken for this one.
    yield from ask("reap_mark", ids=sorted(fences))
    yield from record("cancel", actor, [(job, {"force": True}) for job in sorted(fences)])
    ends = [Finish(job, min(fence, LAST_FENCE - 1) + 1, "cancelled", None, _forced()) for job, fence in fences.items()]
    settled = yield from flows.settle(ends)
    return sorted(settled.done)


def _forced() -> str:
    moment = "1970-01-01T00:00:00+00:00"
    said = "its end was forced by hand"
    return ErrorRecord.asked("Cancelled", said, attempt=0, worker="", started_at=moment, failed_at=moment).to_json()


def _is_run(job: LiveJob) -> bool:
    return bool(job.followers & runs.RUN)


def _begun(jobs: Sequence[LiveJob]) -> Steps[set[str]]:
    """Tell which of these jobs are runs that may have something to clean up."""
    found = {job.id for job in jobs if _is_run(job)}
    new = [job.id for job in jobs if job.id in found and job.fence == 0]
    return found - (yield from runs.unbegun(new))


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


def _best_known(answers: Sequence[Cancelled]) -> Cancelled:
    """Take of each job what its own shard says: elsewhere nobody knows that a run has not begun."""
    ended = {job for answer in answers for job in answer.cancelled}
    jobs = sorted({job for answer in answers for job in answer.seen})
    return Cancelled([job for job in jobs if job in ended], [job for job in jobs if job not in ended])


@on_every(_best_known, lenient=False)
@flow
def _foreseen(jobs: Sequence[LiveJob], force: bool) -> Steps[Cancelled]:
    """Tell what a cancel would do, by force or not."""
    begun = yield from _begun(jobs)
    return Cancelled([job.id for job in jobs]) if force else _answer(jobs, begun)


def _answer(jobs: Sequence[LiveJob], begun: set[str]) -> Cancelled:
    asked = {job.id for job in jobs if job.is_held} | begun
    return Cancelled([job.id for job in jobs if job.id not in asked], [job.id for job in jobs if job.id in asked])
