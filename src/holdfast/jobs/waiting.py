"""Jobs that gave their lease back and wait for something, and jobs whose end something else waits for.

A parked job with a delay is pending and due by then at the latest, through the ordinary claim: no timer has to run. One
without a delay is `waiting`, outside the index of the claim, until it is woken.
A wake finds only jobs that are parked already. So what a job waits for is stored in this order: lock the job's row,
store, wake; and the job's own park looks in a later statement whether that is there already (see `life/door.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow import Steps, ask, flow, text_of


@flow
def wake(ids: Sequence[str], waits_for: str | None = None) -> Steps[set[str]]:
    """Make jobs due that wait for something, and return their ids.

    With `waits_for`, only jobs that wait for just this. A job that a worker holds, that is pending for
    another reason or that ended is left alone.
    Commits: with the caller's transaction when one is given, else its own.
    After a crash: before commit nothing happened; safe to repeat, and a repeat answers with what it woke itself.
    """
    if not ids:
        return set()
    rows = yield from ask("wake", ids=sorted(ids), waits_for=waits_for, alone=True)
    return {text_of(row[0]) for row in rows}


@flow
def follow(ids: Sequence[str], bit: int) -> Steps[set[str]]:
    """Have the ends of live jobs pass the door (`life/door.py`) with this bit set, and return the ids of those.

    The row is locked until the transaction ends, so what the caller writes about the follower beside it is there when
    the job ends. A job that is missing from the answer has ended already, or never was.
    Commits: with the caller's transaction when one is given, else its own. After a crash: safe to repeat.
    """
    rows = yield from ask("follow", ids=sorted(ids), bit=bit, alone=True)
    return {text_of(row[0]) for row in rows}
