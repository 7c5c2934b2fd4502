"""Look after what was sent: dispatches that got lost, steps of runs that are over, and what people ask for.

A dispatch is lost when neither its task nor a result is there: somebody has deleted one of them. Workers of other
makers delete a task by its id a moment after they have written its result, no matter who holds it by then; so a step
that is sent again at that moment disappears. Looked after, it is sent once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.errors import Conflict
from holdfast.flow import Columns, Steps, ask, flow, number_of, text_of
from holdfast.placing import where_id_is
from holdfast.remote.results import dispatches_of
from holdfast.remote.rows import Dispatch, places, step_id
from holdfast.remote.sending import drop
from holdfast.remote.transport import Transport
from holdfast.runs import find
from holdfast.values.rows import when

SWEPT_AT_ONCE = 200
# A dispatch that has been waiting for long is looked at less often: after as long again, up to this.
MOST_MS = 600_000
# Who takes messages to be sent has this long before another does.
SEND_MS = 30_000


class Swept(NamedTuple):
    """What a sweep found: dispatches that were lost and sent again, those sent again by hand, and withdrawn ones."""

    looked: int
    lost: list[Dispatch]
    again: list[Dispatch]
    withdrawn: list[str]


@flow
def sweep(engine: str, transport: Transport, least_ms: int, limit: int = SWEPT_AT_ONCE) -> Steps[Swept]:
    """Send again what was lost, or is to be sent again, and withdraw the steps of runs that are over.

    Commits: its own. After a crash: safe to repeat.
    """
    due = yield from ask("dispatches_due", look=True, engine=engine, limit=limit)
    steps = {step_id(text_of(run), number_of(seq)) for run, seq in due}
    if not steps:
        return Swept(0, [], [], [])
    runs = sorted({text_of(run) for run, _ in due})
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=runs))}
    # Read again behind the lock: results may have been taken since.
    kept = [one for one in (yield from dispatches_of(runs)) if one.step_id in steps and one.due]
    over = sorted(one.step_id for one in kept if one.run_id not in live)
    if over:
        yield from transport.withdraw(over)
        yield from drop(over)
    held = [one for one in kept if one.run_id in live]
    there = yield from transport.present(sorted(one.step_id for one in held))
    again = [one for one in held if one.again]
    lost = [one for one in held if not one.again and one.step_id not in there]
    yield from transport.send([one.task for one in [*again, *lost]])
    yield from _looked(held, lost, least_ms)
    return Swept(len(due), lost, again, over)


def _looked(held: Sequence[Dispatch], lost: Sequence[Dispatch], least_ms: int) -> Steps[None]:
    if held:
        batch: Columns = {
            "run_id": [one.run_id for one in held],
            "seq": [one.seq for one in held],
            "lost": [int(one in lost) for one in held],
        }
        yield from ask("dispatches_looked", batch=batch, least_ms=least_ms, most_ms=MOST_MS)


@flow
def to_send(engine: str, limit: int = SWEPT_AT_ONCE) -> Steps[list[Dispatch]]:
    """Take the dispatches whose messages are to be sent; those of runs that are over are forgotten instead.

    Commits: its own. After a crash: what was not sent is taken again later.
    """
    due = yield from ask("dispatches_due", look=True, engine=engine, limit=limit)
    steps = {step_id(text_of(run), number_of(seq)) for run, seq in due}
    if not steps:
        return []
    runs = sorted({text_of(run) for run, _ in due})
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=runs))}
    # Read again behind the lock: another worker may be sending them.
    kept = [one for one in (yield from dispatches_of(runs)) if one.step_id in steps and one.due]
    over = [one.step_id for one in kept if one.run_id not in live]
    if over:
        yield from drop(over)
    held = [one for one in kept if one.run_id in live]
    yield from _looked(held, [], SEND_MS)
    return held


@flow
def were_sent(sent: Sequence[Dispatch]) -> Steps[None]:
    """Note that messages were sent.

    Commits: its own. After a crash: they are sent once more; workers get such a message twice.
    """
    batch = places(one.step_id for one in sent)
    attempts = {(one.run_id, one.seq): one.attempt for one in sent}
    pairs = zip(batch["run_id"], batch["seq"], strict=True)
    yield from ask("dispatches_sent", batch=batch | {"attempt": [attempts[pair] for pair in pairs]})


@flow
def forget_over(engine: str) -> Steps[None]:
    """Forget what was sent by messages for runs that are over: nobody takes their results.

    Commits: its own. After a crash: safe to repeat.
    """
    yield from ask("dispatches_over", engine=engine)


@where_id_is
@flow
def redispatch(run: str, key: str | None = None, workflow: str | None = None) -> Steps[list[str]]:
    """Ask for the remote steps that a run waits for to be sent again; return their keys. A worker does so.

    Commits: its own. Raises: RunNotFound; Conflict, when the run waits for no such step.
    After a crash: before commit nothing was asked for; safe to repeat.
    """
    job = yield from find(run, workflow)
    rows = yield from ask("dispatches_again", id=job, key=key)
    if not rows:
        which = "any remote step" if key is None else f"a remote step {key}"
        raise Conflict(f"Run {run} does not wait for {which}: `holdfast runs show {run}` shows what it has done.")
    return [text_of(row[0]) for row in rows]


class OpenDispatch(NamedTuple):
    """A dispatch that needs somebody's attention."""

    run: str
    key: str
    engine: str
    name: str
    lost: int
    sent_at: datetime
    unwatched: bool


@flow
def missing(engine: str, transport: Transport, limit: int) -> Steps[int]:
    """Count the dispatches that are to be looked after and of which neither a task nor a result is there."""
    due = yield from ask("dispatches_due", engine=engine, limit=limit)
    steps = sorted(step_id(text_of(run), number_of(seq)) for run, seq in due)
    there = yield from transport.present(steps)
    return len(set(steps) - there)


@flow
def open_dispatches(late_ms: int, losses: int, limit: int) -> Steps[list[OpenDispatch]]:
    """List dispatches that nobody has looked after for this long, or that were lost this often."""
    rows = yield from ask("dispatches_open", late_ms=late_ms, losses=losses, limit=limit, alone=True)
    return [_open(row) for row in rows]


def _open(row: Sequence[Any]) -> OpenDispatch:
    run, key, engine, name, lost, sent_at, unwatched = row
    texts = (text_of(run), text_of(key), text_of(engine), text_of(name))
    return OpenDispatch(*texts, number_of(lost), when(sent_at), bool(unwatched))
