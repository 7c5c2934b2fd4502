"""How results reach the journals of runs.

A result may come at any moment, written by a program that knows nothing of runs. The one who sees it first rings: a
letter in the run's inbox says that it is there, and the run is woken by it as by any other (`runs/inbox.py`). So a
result against a park is the race that is solved there. The run then takes the result: row of the journal, delete of the
result and end of the dispatch are one commit, behind the fence.

Locks: the run's row first, then what the transport has. A look for results takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.flow import Columns, Steps, ask, flow, number_of, text_of
from holdfast.remote.rows import Dispatch, Result, letter_id, parts_of, step_id
from holdfast.remote.sending import drop, hold
from holdfast.remote.transport import Told, Transport
from holdfast.runs import REMOTE, TAKEN_AT_ONCE, Entry, Recorded, checkpoint, journal, wake_for

RUNG_AT_ONCE = 200


class Awaited(NamedTuple):
    """A step whose result a run waits for; `late` says that its time is over."""

    step: str
    key: str
    late: bool = False


class Collected(NamedTuple):
    """What a run has got: rows of its journal, and the keys of steps that were sent and of which nobody knows."""

    rows: list[Recorded]
    unknown: list[str]


class Arrived(NamedTuple):
    """What came of results that were there: how many runs were told of, and how many nobody waits for."""

    told: int
    dropped: int


# Makes a row of a result, or of None for a step whose time is over.
Decide = Callable[[Awaited, Result | None], Recorded]


@flow
def collect(
    run: str, fence: int, awaited: Sequence[Awaited], first: int, worker: str, transport: Transport, decide: Decide
) -> Steps[Collected]:
    """Move what a held run waits for from its transport to its journal, at the places from `first` on.

    A step whose time is over gets its result if that is there by now; else it is withdrawn.
    Commits: its own. Safe to repeat: what an earlier try of the holder has taken is in the answer.
    Raises: LeaseLost. After a crash: before commit every result is where it was; after it the journal has it.
    """
    awaited = awaited[:TAKEN_AT_ONCE]
    yield from hold(run, fence)
    before = yield from journal(run, first, first + len(awaited) - 1)
    if before:
        return Collected(before, [])
    pending = yield from _pending([run])
    known = [one for one in awaited if one.step in pending]
    unknown = [one.key for one in awaited if one.step not in pending]
    letters = yield from _letters(known)
    told = {one.step: letters.get(one.step) for one in known if one.late or one.step in letters}
    if not told:
        return Collected([], unknown)
    results = yield from transport.take(told)
    rows = [decide(one, results.get(one.step)) for one in known if one.step in results or one.late]
    rows = [row._replace(seq=first + place) for place, row in enumerate(rows)]
    yield from transport.withdraw(sorted(one.step for one in known if one.late and one.step not in results))
    yield from drop([one.step for one in known if one.step in results or one.late])
    yield from _drop_letters([step for step in told if step not in results])
    if not rows:
        return Collected([], unknown)
    written = yield from checkpoint([Entry(run, fence, row) for row in rows], worker)
    return Collected([row._replace(at=written[run, row.seq]) for row in rows], unknown)


def dispatches_of(runs: Sequence[str], key: str | None = None) -> Steps[list[Dispatch]]:
    """Read what runs wait for."""
    rows = yield from ask("dispatches_of", ids=sorted(set(runs)), key=key)
    return [Dispatch.of(row) for row in rows]


def _pending(runs: Sequence[str]) -> Steps[set[str]]:
    """Name the steps that runs wait for."""
    rows = yield from ask("dispatches_pending", ids=list(runs))
    return {step_id(text_of(run), number_of(seq)) for run, seq in rows}


def _letters(awaited: Sequence[Awaited]) -> Steps[dict[str, str | None]]:
    """Read of which steps it says in the inbox that their results are there, and with what."""
    steps = {letter_id(one.step): one.step for one in awaited}
    rows = (yield from ask("signals_read", ids=sorted(steps))) if steps else ()
    return {steps[text_of(letter)]: None if payload is None else text_of(payload) for letter, payload in rows}


def _drop_letters(steps: Sequence[str]) -> Steps[None]:
    """Forget letters about results that were not there: somebody else has taken them. The sweep finds such steps."""
    if steps:
        yield from ask("signals_drop", ids=sorted(map(letter_id, steps)))


@flow
def ring(transport: Transport, limit: int = RUNG_AT_ONCE) -> Steps[Arrived]:
    """Tell runs of results that are there, and delete those that nobody waits for.

    Commits: its own. After a crash: safe to repeat; what was not told is found by the next look.
    """
    found = yield from transport.arrived(limit)
    if not found:
        return Arrived(0, 0)
    return (yield from _tell(transport, [Told(step) for step in found]))


@flow
def received(transport: Transport, told: Sequence[Told]) -> Steps[Arrived]:
    """Keep results that came as messages, each in a letter to its run; those that nobody waits for are dropped.

    Commits: its own. After a crash: safe to repeat; a message that comes again is known by its letter.
    """
    return (yield from _tell(transport, told))


def _tell(transport: Transport, told: Sequence[Told]) -> Steps[Arrived]:
    ours = {one.step_id: parts for one in told if (parts := parts_of(one.step_id)) is not None}
    runs = sorted({run for run, _ in ours.values()})
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=runs))} if runs else set[str]()
    pending = (yield from _pending(sorted(live))) if live else set[str]()
    wanted = [one for one in told if one.step_id in pending]
    yield from transport.claim(sorted(one.step_id for one in wanted))
    yield from transport.forget(sorted({one.step_id for one in told} - pending))
    if wanted:
        yield from _put(wanted)
    return Arrived(len(wanted), len(told) - len(wanted))


def _put(told: Sequence[Told]) -> Steps[None]:
    """Put a letter into the inboxes for each result that has none yet, and wake the runs."""
    # The first one counts: a message may come twice, and what is there stays.
    new = {one.step_id: one for one in reversed(told)}
    letters = [new[step] for step in sorted(new)]
    runs = [one.step_id.rpartition(":")[0] for one in letters]
    batch: Columns = {
        "id": [letter_id(one.step_id) for one in letters],
        "run_id": runs,
        "name": [REMOTE] * len(letters),
        "payload": [one.payload for one in letters],
    }
    yield from ask("signals_add", batch=batch, told=1)
    yield from wake_for({run: [REMOTE] for run in runs})
