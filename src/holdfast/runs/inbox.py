"""What is sent to runs: signals, requests to cancel, the ends of children; and how a run takes it.

A run that waits is woken by what it waits for, whatever happens at the same moment. The sender locks the run's row in
the table of jobs, stores, and wakes; the run's park locks the same row, and looks in a later statement of its
transaction (`leaving.py`). So one of the two sees the other.

A sender in a caller's transaction must not lock a row that a worker renews: that worker would wait for the caller. It
leaves a run that is held alone and notes that nobody was told; `tell` sees to that, about once a second.

Crash windows: before the commit nothing was sent, or taken; after it the signal is in the inbox until one commit
deletes it and adds the row of the journal that has it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.errors import LeaseLost, RunFinished, RunNotFound
from holdfast.flow import Columns, Steps, ask, flow, text_of
from holdfast.placing import where_id_is
from holdfast.runs.checkpoints import Entry, checkpoint, journal
from holdfast.runs.rows import CANCEL, Recorded, Wanted, has_news

# How much a run takes out of its inbox in one transaction.
TAKEN_AT_ONCE = 500
UNTOLD_AT_ONCE = 500
# A run may be continued by another between the look for it and the lock; each try looks again.
TRIES = 3


class Letter(NamedTuple):
    """Something for a run's inbox; the id is ours, so that a repeat sends nothing twice."""

    id: str
    name: str
    payload: str | None = None
    idempotency_key: str | None = None
    window_ms: int = 86_400_000


def find(key: str, workflow: str | None = None) -> Steps[str]:
    """Return the job of the run that has this key. Raises: RunNotFound, also where several workflows have one."""
    rows = yield from ask("runs_named", run_key=key, workflow=workflow)
    if len(rows) != 1:
        raise RunNotFound(key, [text_of(row[1]) for row in rows])
    return text_of(rows[0][0])


@where_id_is
@flow
def send(
    key: str, letter: Letter, workflow: str | None = None, *, in_tx: bool = False, fresh: bool = True
) -> Steps[bool]:
    """Put something into the inbox of a run, and wake the run if it waits for it; False if it was sent before.

    `in_tx` says that the transaction is the caller's, whose end nobody may wait for. A repeat must not say `fresh`.
    Commits: with the caller's transaction when one is given, else its own.
    Raises: RunNotFound; RunFinished, when the run takes nothing any more.
    After a crash: before commit nothing was sent; safe to repeat with the same id.
    """
    for _ in range(TRIES):
        run = yield from find(key, workflow)
        if not fresh and (yield from ask("signals_known", id=letter.id, run=run)):
            return True
        told = yield from _reach(run, in_tx)
        if told is None:
            continue
        if letter.idempotency_key is not None and not (yield from _first_of_its_key(run, letter)):
            return False
        yield from _put([run], letter, told)
        return True
    raise RunFinished(key)


def _reach(run: str, in_tx: bool) -> Steps[bool | None]:
    """Lock a run that is to be woken; False where it cannot be locked, None where it is over."""
    if not in_tx:
        return bool((yield from ask("jobs_lock", ids=[run]))) or None
    if (yield from ask("run_free", id=run)):
        return True
    return False if (yield from ask("live", ids=[run])) else None


def _first_of_its_key(run: str, letter: Letter) -> Steps[bool]:
    pair: Columns = {"scope": [f"signal:{run}"], "key": [letter.idempotency_key]}
    own: Columns = {"job_id": [letter.id]}
    rows = yield from ask("keys_take", window_ms=letter.window_ms, batch=pair | own)
    if any(row[0] is not None and text_of(row[0]) == letter.id for row in rows):
        return True
    holders = [text_of(holder) for _, holder in (yield from ask("keys_find", batch=pair))]
    return letter.id in holders


def _put(runs: Sequence[str], letter: Letter, told: bool) -> Steps[None]:
    batch: Columns = {
        "id": [letter.id],
        "run_id": list(runs),
        "name": [letter.name],
        "payload": [letter.payload],
    }
    yield from ask("signals_add", batch=batch, told=int(told))
    if told:
        if letter.name == CANCEL:
            yield from ask("runs_asked", ids=sorted(runs))
        yield from wake_for_news(runs)


def wake_for_news(runs: Sequence[str]) -> Steps[list[str]]:
    """Wake those of these runs that wait for something in their inbox; their rows are locked."""
    names: dict[str, list[str]] = defaultdict(list)
    waits_for: dict[str, str | None] = {}
    for run, name, waits in (yield from ask("signals_named", ids=sorted(runs))):
        names[text_of(run)].append(text_of(name))
        waits_for[text_of(run)] = None if waits is None else text_of(waits)
    ready = sorted(run for run, found in names.items() if has_news(waits_for[run], found))
    if ready:
        yield from ask("wake", ids=ready, waits_for=None)
    return ready


@flow
def tell(*, limit: int = UNTOLD_AT_ONCE) -> Steps[int]:
    """Wake runs for what a caller's transaction has put into their inboxes; return for how many signals.

    Commits: its own. After a crash: safe to repeat.
    """
    untold = yield from ask("signals_untold", look=True, limit=limit)
    if not untold:
        return 0
    runs = sorted({text_of(run) for _, run in untold})
    yield from ask("jobs_lock", ids=runs)
    yield from wake_for_news(runs)
    yield from ask("signals_told", ids=sorted(text_of(signal) for signal, _ in untold))
    return len(untold)


@flow
def news(runs: Sequence[str]) -> Steps[dict[str, set[str]]]:
    """Tell by which names there is something in the inboxes of these runs."""
    names: dict[str, set[str]] = defaultdict(set)
    for run, name, _ in (yield from ask("signals_named", ids=sorted(runs), alone=True)):
        names[text_of(run)].add(text_of(name))
    return names


@flow
def take(run: str, fence: int, wanted: Sequence[Wanted], first: int, worker: str) -> Steps[list[Recorded]]:
    """Move what a held run waits for from its inbox to its journal, at the places from `first` on; return the rows.

    Each operation gets one, in the order of their calls; by each name the oldest comes first.
    Commits: its own. Safe to repeat: what an earlier try of the holder has taken is in the answer.
    Raises: LeaseLost. After a crash: before commit all of it is still in the inbox.
    """
    wanted = wanted[:TAKEN_AT_ONCE]
    if not (yield from ask("run_hold", id=run, fence=fence)):
        raise LeaseLost(run, fence)
    before = (yield from journal(run, first, first + len(wanted) - 1)) if wanted else []
    if before:
        return before
    rows = yield from _letters(run, {CANCEL, *(one.name for one in wanted)})
    taken = _matched(rows, wanted, first)
    # A run is asked to stop once: what came after that would wake it for ever.
    asked = [text_of(signal) for signal, name, _ in rows if text_of(name) == CANCEL]
    done = {*asked, *(str(row.ref) for row in taken)}
    if done:
        yield from ask("signals_drop", ids=sorted(done))
    if asked:
        yield from ask("run_calm", id=run, fence=fence)
    if not taken:
        return []
    written = yield from checkpoint([Entry(run, fence, row) for row in taken], worker)
    return [row._replace(at=written[run, row.seq]) for row in taken]


def _letters(run: str, names: set[str]) -> Steps[list[Any]]:
    """Read the oldest letters by these names; many by one of them hide none of another."""
    found: list[Any] = []
    missing = names
    while missing:
        rows = yield from ask("signals_next", id=run, names=sorted(missing), limit=TAKEN_AT_ONCE)
        found += rows
        missing = missing - {text_of(name) for _, name, _ in rows} if len(rows) == TAKEN_AT_ONCE else set[str]()
    return found


@flow
def hear(run: str, fence: int, request: str, journal: Sequence[Recorded], worker: str) -> Steps[list[Recorded]]:
    """Let a held run that is asked to stop take the request before anything else; return what its journal gets.

    `request` names the one that is made where none is there. Commits: its own. Safe to repeat.
    Raises: LeaseLost. After a crash: before commit the request is still there.
    """
    yield from asked_to_stop([run], [request])
    known = any(row.kind == "cancel" for row in journal)
    wanted = [] if known else [Wanted(CANCEL, "cancel", "cancel")]
    return (yield from take(run, fence, wanted, journal[-1].seq + 1 if journal else 1, worker))


def _matched(rows: Sequence[Any], wanted: Sequence[Wanted], first: int) -> list[Recorded]:
    letters: dict[str, deque[tuple[str, str | None]]] = defaultdict(deque)
    for signal, name, payload in rows:
        letters[text_of(name)].append((text_of(signal), None if payload is None else text_of(payload)))
    taken: list[Recorded] = []
    for one in wanted:
        if letters[one.name]:
            signal, payload = letters[one.name].popleft()
            taken.append(Recorded(first + len(taken), one.key, one.kind, 1, payload, ref=signal))
    return taken


def asked_to_stop(runs: Sequence[str], ids: Sequence[str]) -> Steps[None]:
    """Ask runs to stop, and wake those that wait; `ids` name the requests. One request at a time is enough."""
    if not runs:
        return
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=sorted(runs)))}
    there = yield from ask("signals_named", ids=sorted(runs))
    live -= {text_of(run) for run, name, _ in there if text_of(name) == CANCEL}
    new = {run: request for run, request in zip(runs, ids, strict=True) if run in live}
    if new:
        batch: Columns = {
            "id": list(new.values()),
            "run_id": list(new),
            "name": [CANCEL] * len(new),
            "payload": [None] * len(new),
        }
        yield from ask("signals_add", batch=batch, told=1)
    yield from ask("runs_asked", ids=sorted(runs))
    yield from wake_for_news(runs)
