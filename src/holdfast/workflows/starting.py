"""Starting runs: a run and its job are added in one transaction, once for each id.

Crash windows: before the commit neither is there; after it both are. A repeat with the same ids finds the run that it
has added, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from holdfast import jobs, runs
from holdfast.errors import Conflict, LeaseLost
from holdfast.flow import Steps, ask, flow, text_of
from holdfast.jobs.chunks import chunks
from holdfast.runs import Noted, There, give_keys_away, note, those_with
from holdfast.values.rows import NewJob

Reuse = Literal["never", "finished"]
# Children also take the ids of another run's children that are over: their parent may have followed that run.
Taking = Reuse | Literal["others"]
# Rows a single statement carries.
CHUNK_ROWS = 5_000


class NewRun(NamedTuple):
    """A run about to be started: its job, its workflow, its key, what tells its arguments from others, its parent."""

    job: NewJob
    workflow: str
    key: str
    digest: int | None
    parent_id: str | None = None
    parent_key: str | None = None

    @property
    def noted(self) -> Noted:
        return Noted(self.job.id, self.workflow, self.key, self.digest, self.parent_id, self.parent_key)


class Started(NamedTuple):
    """The job of a run, and whether this call started it or found it; `alone`: a child that was started by itself."""

    job_id: str
    created: bool
    alone: bool = False


@flow
def start(new: Sequence[NewRun], *, reuse: Taking = "never") -> Steps[list[Started]]:
    """Start runs, each once for its workflow and key, and answer in their order.

    A run that is there is found. `reuse="finished"` lets one that is over give its key to the new one.
    Commits: with the caller's transaction when one is given, else its own; all or none.
    Raises: Conflict for one that is there with other arguments; nothing is started then.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    answers: list[Started] = []
    for chunk in chunks(new, CHUNK_ROWS, lambda one: len(one.job.payload)):
        answers += yield from _start(chunk, reuse)
    return answers


@flow
def start_children(parent: str, fence: int, new: Sequence[NewRun]) -> Steps[None]:
    """Start runs for one that is held; those that an earlier attempt has started are found, and their ends with them.

    The parent's row is locked: its end comes before, and then nothing is started, or after, and then it is known that
    there are children to be told to stop. Where the parent continues another run, or has the id of one that is over,
    the children of that one give their ids away.
    Commits: its own, all or none. Raises: LeaseLost; Conflict, also for an id that a run of somebody else's has which
    is not over. After a crash: as `start`.
    """
    if not (yield from ask("run_hold", id=parent, fence=fence)):
        raise LeaseLost(parent, fence)
    started = zip(new, (yield from start(new, reuse="others")), strict=True)
    found = [(run, one) for run, one in started if not one.created]
    # Somebody has started it by its id: it is the same run, and tells its parent from now on.
    alone = [(run, one) for run, one in found if one.alone]
    yield from runs.make_children([(one.job_id, parent, str(run.parent_key)) for run, one in alone])
    # Another run of the parent's id may have made it its child since it was found. It would tell nobody else.
    there = (yield from those_with([run.noted for run, _ in alone])) if alone else {}
    for run, _ in alone:
        _check(run.noted, there[run.noted.pair], "others")
    yield from runs.tell_again([one.job_id for _, one in found])


def _start(new: Sequence[NewRun], reuse: Taking) -> Steps[list[Started]]:
    first: dict[tuple[str, str], Noted] = {}
    for run in new:
        first.setdefault(run.noted.pair, run.noted)
    # Sorted, so that two batches with the same keys wait for each other and never in a circle.
    ordered = [first[pair] for pair in sorted(first)]
    added = yield from note(ordered)
    missing = [one for one in ordered if one.id not in added]
    found = (yield from those_with(missing)) if missing else {}
    known = {one.pair: one.id for one in ordered if one.id in added}
    known |= {pair: there.job_id for pair, there in found.items()}
    # Where nothing answers for what was added, a run of ours that has no job yet was added just now.
    own = [one.id for one in missing if known[one.pair] == one.id]
    added |= set(own) - ((yield from _with_jobs(own)) if own else set())
    others = [one for one in missing if known[one.pair] != one.id]
    over = [one for one in others if _gives_away(found[one.pair], one, reuse)]
    for one in others:
        if one not in over:
            _check(one, found[one.pair], reuse)
    if over:
        yield from give_keys_away([known[one.pair] for one in over])
        yield from note(over)
        added |= {one.id for one in over}
        known |= {one.pair: one.id for one in over}
    new_jobs = [run.job for run in new if run.job.id in added]
    if new_jobs:
        yield from jobs.enqueue_many(new_jobs, fresh=True, followers=runs.RUN)
    alone = {pair for pair, there in found.items() if reuse == "others" and there.parent_id is None}
    return [Started(known[run.noted.pair], run.job.id in added, run.noted.pair in alone) for run in new]


def _gives_away(there: There, one: Noted, reuse: Taking) -> bool:
    if there.outcome is None or reuse == "never":
        return False
    return reuse == "finished" or _is_anothers(there, one)


def _is_anothers(there: There, one: Noted) -> bool:
    return there.parent_id not in (None, one.parent_id)


def _check(one: Noted, there: There, reuse: Taking) -> None:
    if reuse == "others" and _is_anothers(there, one):
        raise Conflict(
            f"Run {one.key} of {one.workflow} (job {there.job_id}) is a child of the run before this one, and not "
            "over: this run goes on once it is. Let a run wait for its children before it continues as new, or name "
            "them apart."
        )
    if there.digest is not None and one.digest is not None and there.digest != one.digest:
        raise Conflict(
            f"Run {one.key} of {one.workflow} was started with other arguments (job {there.job_id}). Give this one "
            'another id, or say reuse="finished" to start it anew once it is over.'
        )


def _with_jobs(ids: list[str]) -> Steps[set[str]]:
    """Tell which of these runs have a job, alive or finished."""
    live = {text_of(row[0]) for row in (yield from ask("live", ids=ids))}
    return live | {text_of(row[0]) for row in (yield from ask("settled", ids=ids))}


@flow
def adopt(job_id: str, workflow: str) -> Steps[None]:
    """Note the run of a job that was added without one: by a schedule, a chain, or by hand; its key is the job's id.

    Commits: its own. After a crash: safe to repeat.
    """
    yield from ask("jobs_lock", ids=[job_id])
    yield from jobs.follow([job_id], runs.RUN)
    yield from note([Noted(job_id, workflow, job_id)])
