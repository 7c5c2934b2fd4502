"""Send steps to workers elsewhere, and take them back.

Crash windows: before the commit nothing was sent and the journal knows nothing; after it the step is pending, whatever
happens to the one who sent it: any worker that takes the run over waits for its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import LeaseLost
from holdfast.flow import Columns, Steps, ask, flow
from holdfast.remote.rows import Dispatch, letter_id, places
from holdfast.remote.transport import Transport
from holdfast.runs import Entry, Recorded, checkpoint, journal


class Sending(NamedTuple):
    """One step to be sent, and the row of the journal that tells of it."""

    dispatch: Dispatch
    row: Recorded


@flow
def dispatch(
    run: str, fence: int, sending: Sequence[Sending], worker: str, transport: Transport
) -> Steps[list[Recorded]]:
    """Send steps of a held run, and note that in its journal; return the rows. Their places follow each other.

    Commits: its own. Safe to repeat: what an earlier try of the holder has sent is in the answer, and not sent twice.
    Raises: LeaseLost. After a crash: before commit nothing was sent; after it the steps are pending.
    """
    yield from hold(run, fence)
    before = yield from journal(run, sending[0].row.seq, sending[-1].row.seq)
    if before:
        return before
    written = yield from checkpoint([Entry(run, fence, one.row) for one in sending], worker)
    sent = [one.dispatch for one in sending]
    yield from ask("dispatches_put", batch=_batch(sent), look_ms=transport.look_ms())
    yield from transport.send([one.task for one in sent])
    return [one.row._replace(at=written[run, one.row.seq]) for one in sending]


def _batch(sent: Sequence[Dispatch]) -> Columns:
    names = ("run_id", "seq", "key", "engine", "name", "grp", "input", "attempt")
    return {name: [getattr(one, name) for one in sent] for name in names}


def hold(run: str, fence: int) -> Steps[None]:
    """Lock a run that is held. Raises: LeaseLost."""
    if not (yield from ask("run_hold", id=run, fence=fence)):
        raise LeaseLost(run, fence)


@flow
def withdraw(run: str, fence: int, steps: Sequence[str], transport: Transport) -> Steps[None]:
    """Take back steps of a held run for which nobody waits any more; late results of theirs are dropped.

    Commits: its own. Raises: LeaseLost. After a crash: safe to repeat; steps of runs that are over are swept.
    """
    yield from hold(run, fence)
    yield from transport.withdraw(sorted(steps))
    yield from drop(steps)


def drop(steps: Sequence[str]) -> Steps[None]:
    """Forget that these steps were sent, and what lies in the inbox for them."""
    yield from ask("dispatches_drop", batch=places(steps))
    if steps:
        yield from ask("signals_drop", ids=sorted(map(letter_id, steps)))
