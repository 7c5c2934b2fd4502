"""What is sent to runs: signals, requests to cancel, the ends of children; and how a run takes it.

A run that waits is woken by what it waits for, whatever happens at the same moment. The sender locks the run's row in
the table of jobs, stores, and wakes; the run's park locks the same row, and looks in a later statement of its
transaction (`leaving.py`). So one of the two sees the other.

A sender in a caller's transaction must not lock a row that a worker renews: that worker would wait for the caller. It
leaves a run that is held alone and notes that nobody was told; `tell` sees to that, about once a second.

What a look costs follows from what is new or wanted, never from how much lies in the inbox. A sender wakes for what it
has sent: what came before was looked for by the park. A park, and a run at work, ask for the names that they wait for;
a run takes the oldest by each of them.

Crash windows: before the commit nothing was sent, or taken; after it the signal is in the inbox until one commit
deletes it and adds the row of the journal that has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import LeaseLost, RunFinished, RunNotFound
from holdfast.flow import Columns, Steps, ask, flow, text_of
from holdfast.placing import where_id_is
from holdfast.runs.checkpoints import Entry, checkpoint, journal
from holdfast.runs.rows import CANCEL, CHILD, ChildLetter, Recorded, Wanted, names_for

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
        yield from wake_for({run: [letter.name] for run in runs})


def wake_for(sent: Mapping[str, Collection[str]]) -> Steps[None]:
    """Wake those of these runs that wait for what was just sent to them by these names; their rows are locked.

    What was sent before needs no look: the park of a run has looked for it, or `tell` will.
    """
    waits = yield from ask("runs_waits", ids=sorted(sent))
    ready = [text_of(run) for run, text in waits if not names_for(text_of(text)).isdisjoint(sent[text_of(run)])]
    if ready:
        yield from ask("wake", ids=sorted(ready), waits_for=None)


def wake_parked(parked: Mapping[str, str | None]) -> Steps[None]:
    """Wake those of these runs for which something is there; they are parked just now, and wait for what is said."""
    found = yield from _there({run: names_for(waits_for) for run, waits_for in parked.items()})
    if found:
        yield from ask("wake", ids=sorted(found), waits_for=None)


def _there(names: Mapping[str, Iterable[str]], *, alone: bool = False) -> Steps[dict[str, set[str]]]:
    """Tell which of these names there is something by, for each run that has any."""
    pairs = [(run, name) for run in sorted(names) for name in sorted(names[run])]
    batch: Columns = {"run_id": [run for run, _ in pairs], "name": [name for _, name in pairs]}
    found: dict[str, set[str]] = defaultdict(set)
    for run, name in (yield from ask("signals_there", batch=batch, alone=alone)) if pairs else ():
        found[text_of(run)].add(text_of(name))
    return dict(found)


@flow
def tell(*, limit: int = UNTOLD_AT_ONCE) -> Steps[int]:
    """Wake runs for what a caller's transaction has put into their inboxes; return for how many signals.

    Commits: its own. After a crash: safe to repeat.
    """
    untold = yield from ask("signals_untold", look=True, limit=limit)
    if not untold:
        return 0
    sent: dict[str, set[str]] = defaultdict(set)
    for _, run, name in untold:
        sent[text_of(run)].add(text_of(name))
    yield from ask("jobs_lock", ids=sorted(sent))
    yield from wake_for(sent)
    yield from ask("signals_told", ids=sorted(text_of(signal) for signal, *_ in untold))
    return len(untold)


@flow
def news(wanted: Mapping[str, Iterable[str]]) -> Steps[dict[str, set[str]]]:
    """Tell which of the names that these runs wait for there is something by."""
    return (yield from _there(wanted, alone=True))


class _Found(NamedTuple):
    """Something in an inbox; of the end of a child the child's key."""

    id: str
    name: str
    payload: str | None
    key: str = ""


def _nothing(key: str) -> bool:
    return False


@flow
def take(
    run: str,
    fence: int,
    wanted: Sequence[Wanted],
    first: int,
    worker: str,
    unwanted: Callable[[str], bool] = _nothing,
) -> Steps[list[Recorded]]:
    """Move what a held run waits for from its inbox to its journal, at the places from `first` on; return the rows.

    Each operation gets one, in the order of their calls; by each name the oldest comes first. No more than
    TAKEN_AT_ONCE are taken. Ends of children whose key is `unwanted` are deleted: nobody will ask for them.
    Commits: its own. Safe to repeat: what an earlier try of the holder has taken is in the answer.
    Raises: LeaseLost. After a crash: before commit all of it is still in the inbox.
    """
    room = min(len(wanted), TAKEN_AT_ONCE)
    if not (yield from ask("run_hold", id=run, fence=fence)):
        raise LeaseLost(run, fence)
    before = (yield from journal(run, first, first + room - 1)) if room else []
    if before:
        return before
    found = yield from _sent(run, [one.name for one in wanted if one.kind != "child"])
    children = {one.key for one in wanted if one.kind == "child"}
    if children:
        found += yield from _ends(run, children, unwanted)
    taken = _matched(found, wanted, first)[:room]
    # A run is asked to stop once: what came after that would wake it for ever.
    asked = [one.id for one in found if one.name == CANCEL]
    done = {*asked, *(str(row.ref) for row in taken)}
    if done:
        yield from ask("signals_drop", ids=sorted(done))
    if asked:
        yield from ask("run_calm", id=run, fence=fence)
    if not taken:
        return []
    written = yield from checkpoint([Entry(run, fence, row) for row in taken], worker)
    return [row._replace(at=written[run, row.seq]) for row in taken]


def _sent(run: str, names: Sequence[str]) -> Steps[list[_Found]]:
    """Read the oldest signals by these names, as many by each as it is named, and the requests to stop."""
    wanted = Counter(names) | Counter({CANCEL: TAKEN_AT_ONCE})
    rows = yield from ask("signals_first", id=run, names=sorted(wanted))
    found = [_found(row) for row in rows]
    many = [one.name for one in found if wanted[one.name] > 1]
    found = [one for one in found if one.name not in many]
    for name in many:
        rows = yield from ask("signals_next", id=run, name=name, limit=min(wanted[name], TAKEN_AT_ONCE))
        found += [_found(row) for row in rows]
    return found


def _ends(run: str, children: Collection[str], unwanted: Callable[[str], bool]) -> Steps[list[_Found]]:
    """Read how children ended, the oldest ends first, until some are found; delete those that nobody will ask for."""
    while True:
        rows = yield from ask("signals_next", id=run, name=CHILD, limit=TAKEN_AT_ONCE)
        there = [_end(row) for row in rows]
        found = [one for one in there if one.key in children]
        useless = [one.id for one in there if one.key not in children and unwanted(one.key)]
        if useless:
            yield from ask("signals_drop", ids=sorted(useless))
        if found or not useless or len(rows) < TAKEN_AT_ONCE:
            return found


def _found(row: Sequence[object]) -> _Found:
    signal, name, payload = row
    return _Found(text_of(signal), text_of(name), None if payload is None else text_of(payload))


def _end(row: Sequence[object]) -> _Found:
    one = _found(row)
    letter = msgspec.json.decode(one.payload or "", type=ChildLetter)
    return one._replace(key=letter.key, payload=bytes(letter.end).decode())


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


def _matched(found: Sequence[_Found], wanted: Sequence[Wanted], first: int) -> list[Recorded]:
    letters: dict[tuple[str, str], deque[_Found]] = defaultdict(deque)
    for letter in found:
        letters[letter.name, letter.key].append(letter)
    taken: list[Recorded] = []
    for one in wanted:
        place = one.name, one.key if one.kind == "child" else ""
        if letters.get(place):
            letter = letters[place].popleft()
            taken.append(Recorded(first + len(taken), one.key, one.kind, 1, letter.payload, ref=letter.id))
    return taken


def asked_to_stop(runs: Sequence[str], ids: Sequence[str]) -> Steps[None]:
    """Ask runs to stop, and wake those that wait; `ids` name the requests. One request at a time is enough."""
    if not runs:
        return
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=sorted(runs)))}
    live -= (yield from _there({run: [CANCEL] for run in live})).keys()
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
    yield from wake_for({run: [CANCEL] for run in runs})
