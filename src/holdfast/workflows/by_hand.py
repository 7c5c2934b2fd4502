"""What people send to runs, each with its line in the audit."""

from __future__ import annotations

from holdfast import remote, runs
from holdfast.admin.recording import record
from holdfast.flow import Steps, ask, flow
from holdfast.placing import where_id_is
from holdfast.runs import Letter


@where_id_is
@flow
def send_by_hand(
    key: str, letter: Letter, workflow: str | None, actor: str | None, action: str = "run_signal"
) -> Steps[bool]:
    """Put a letter into the inbox of a run, with an audit line; False if one with its idempotency key was sent before.

    The audit keeps the name of a signal and not what is in it.
    Commits: its own. Raises: RunNotFound; RunFinished. After a crash: safe to repeat, because a letter has an id.
    """
    run = yield from runs.find(key, workflow)
    if (yield from ask("signals_known", id=letter.id, run=run)):
        return True
    new = yield from runs.send(key, letter, workflow)
    if new:
        # Its row is locked by now: the holder of the key is the one that got the letter.
        view = yield from runs.show(key, workflow)
        detail = {"run": view.id, "workflow": view.workflow, "signal": letter.name}
        yield from record(action, actor, [(view.job_id, detail)])
    return new


@where_id_is
@flow
def redispatch_by_hand(run: str, key: str | None, workflow: str | None, actor: str | None) -> Steps[list[str]]:
    """Ask for the remote steps that a run waits for to be sent again, with an audit line; return their keys.

    Commits: its own. Raises: RunNotFound; Conflict, when the run waits for no such step.
    After a crash: before commit nothing was asked for; safe to repeat.
    """
    keys = yield from remote.redispatch(run, key, workflow)
    view = yield from runs.show(run, workflow)
    detail = {"run": view.id, "workflow": view.workflow, "steps": len(keys), "key": key}
    yield from record("run_redispatch", actor, [(view.job_id, detail)])
    return keys
