"""Ending runs by hand: asked to stop, or by force, which runs no code; and dead runs that go on."""

from __future__ import annotations

from holdfast import admin, runs
from holdfast.errors import Conflict, RunFinished
from holdfast.flow import Steps, ask, flow
from holdfast.placing import where_id_is
from holdfast.runs import find
from holdfast.values.ids import new_id

# A run may be continued by another between the look for it and the lock; each try looks again.
TRIES = 3


@where_id_is
@flow
def stop(
    key: str, workflow: str | None = None, actor: str | None = None, *, in_tx: bool = False, fresh: bool = True
) -> Steps[None]:
    """Ask a run to stop; one that has not begun ends at once.

    `in_tx` says that the transaction is the caller's, whose end nobody may wait for. A repeat must not say `fresh`.
    Commits: with the caller's transaction when one is given, else its own.
    Raises: RunNotFound; RunFinished. After a crash: before commit nothing happened; safe to repeat.
    """
    for _ in range(TRIES):
        run = yield from find(key, workflow)
        if in_tx and not (yield from ask("run_free", id=run)):
            # A worker holds it, and must not wait for the caller.
            yield from runs.send(key, stop_letter(), workflow, in_tx=True)
            return
        if (yield from admin.cancel_chunk(admin.ALL, actor, [run], True)).seen:
            return
    if fresh or (yield from runs.show(key, workflow)).status != "cancelled":
        raise RunFinished(key)


def stop_letter() -> runs.Letter:
    """Make a request to stop."""
    return runs.Letter(new_id(), runs.CANCEL)


@where_id_is
@flow
def force(key: str, workflow: str | None = None, actor: str | None = None) -> Steps[int]:
    """End a run and its children as cancelled, whatever they do; return how many were ended. No code of theirs runs.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: RunNotFound; RunFinished. After a crash: before commit nothing happened.
    """
    run = yield from find(key, workflow)
    ended = yield from admin.force_chunk(admin.ALL, actor, [run], True)
    if not ended.cancelled:
        raise RunFinished(key)
    return len(ended.cancelled)


@where_id_is
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
    yield from admin.replay(admin.Filter(ids=(view.job_id,)), 1, actor)
    return view.job_id
