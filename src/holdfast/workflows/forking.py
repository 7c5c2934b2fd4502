"""Runs that begin in the middle of another, and runs that go on with the code of another version."""

from __future__ import annotations

from holdfast import admin, runs
from holdfast.admin.picking import lock
from holdfast.admin.recording import record
from holdfast.errors import Conflict
from holdfast.flow import Steps, flow
from holdfast.runs import Recorded
from holdfast.values.words import plural
from holdfast.workflows.histories import History
from holdfast.workflows.starting import NewRun, Started, start

_SHOWN = 20


def before(history: History, key: str) -> list[Recorded]:
    """Return the rows of a journal before the first one of this key. Raises: Conflict where there is none."""
    rows = history.recorded
    places = [place for place, row in enumerate(rows) if row.key == key]
    if not places:
        named = list(dict.fromkeys(row.key for row in rows))
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        raise Conflict(f"Run {history.run} has nothing recorded as {key}; there is: {', '.join(named[:_SHOWN])}{more}")
    return rows[: places[0]]


@flow
def fork(new: NewRun, history: History, key: str, actor: str | None = None) -> Steps[Started]:
    """Start a run that begins with what another has recorded before a key; the rest is done anew.

    Its chance is that of the other, so that what was drawn stays as it was; digests are left out, because arguments may
    have the id of the run in them. Children whose ends are recorded are not started again.
    Commits: its own. Raises: Conflict, where nothing is recorded under the key, or another run has the id.
    After a crash: before commit nothing happened; safe to repeat.
    """
    kept = before(history, key)
    [started] = yield from start([new])
    if started.job_id != new.job.id:
        raise Conflict(f"There is a run {new.key} of {new.workflow} already: give the fork another id.")
    if not started.created:
        # An earlier try whose reply was lost.
        return started
    yield from runs.copy_before(new.job.id, history.job_id, _seed(history), kept)
    detail = {"run": new.key, "workflow": new.workflow, "source": history.run, "at": key}
    yield from record("run_fork", actor, [(started.job_id, detail)])
    return started


def _seed(history: History) -> str:
    """Return what chance follows from: a fork of a fork has that of the first."""
    first = history.rows[0] if history.rows else None
    return first.ref if first is not None and first.kind == "fork" and first.ref else history.job_id


@flow
def migrate(history: History, kind: str, actor: str | None = None) -> Steps[None]:
    """Let a run that nobody holds go on as another version of its workflow, and make it due.

    Who calls it has replayed the history with that version's code; a run that got on since is left alone.
    Commits: its own. Raises: Conflict; RunNotFound. After a crash: before commit nothing happened; safe to repeat.
    """
    found = yield from lock(admin.ALL, [history.job_id], True)
    if not found:
        view = yield from runs.show(history.run, history.workflow)
        raise Conflict(f"Run {history.run} is {view.status}: only one that is not over can go on with other code.")
    [job] = found
    if job.is_held:
        raise Conflict(
            f"A worker holds run {history.run}: pause its queue or kind, wait until it parks, and try again."
        )
    since = yield from runs.journal(history.job_id, history.rows[-1].seq + 1 if history.rows else 0)
    if since:
        raise Conflict(f"Run {history.run} has got on meanwhile, by {plural(len(since), 'row')}. Try again.")
    yield from record("migrate", actor, [(job.id, job.place() | {"to": kind})])
    yield from runs.go_on_as(job.id, job.fence, kind)
