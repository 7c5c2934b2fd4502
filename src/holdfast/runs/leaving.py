"""What follows when the job of a run ends, or gives its lease back: `life/door.py` calls it in that transaction.

A run that parks looks into its inbox; one that ends is noted as over, tells its parent, and asks its children to stop
unless it is done; one that is continued hands key and inbox to the next of its chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.flow import Columns, Steps, ask, text_of
from holdfast.life.door import Left, attach
from holdfast.life.expiry import attach_progress
from holdfast.runs.checkpoints import progressed
from holdfast.runs.inbox import asked_to_stop, wake_for, wake_parked
from holdfast.runs.rows import CHILD, RUN, ChildLetter
from holdfast.values.ids import new_ids


class ChildEnd(msgspec.Struct, frozen=True):
    """How a child ended, as its parent's journal keeps it."""

    outcome: str
    result: msgspec.Raw = msgspec.Raw(b"null")


def leave(left: Sequence[Left]) -> Steps[None]:
    """Do what follows for runs that left."""
    parked = {row.id: row.waits_for for row in left if row.how == "parked"}
    if parked:
        yield from wake_parked(parked)
    moved = [row for row in left if row.then is not None]
    if moved:
        yield from _continue(moved)
    ended = [row for row in left if row.how in ("done", "dead", "cancelled")]
    if not ended:
        gone = [row.id for row in left if row.how == "discarded"]
        if gone:
            yield from ask("runs_forget", ids=sorted(gone))
        return
    batch: Columns = {"id": [row.id for row in ended], "outcome": [row.how for row in ended]}
    yield from ask("runs_ended", batch=batch)
    yield from _tell_parents([row for row in ended if row.then is None])
    yield from _stop_children([row.id for row in ended if row.how != "done"])
    dropped = [row.id for row in ended if not row.kept]
    if dropped:
        yield from ask("runs_forget", ids=sorted(dropped))


def _continue(moved: Sequence[Left]) -> Steps[None]:
    batch: Columns = {"id": [row.id for row in moved], "next": [row.then for row in moved]}
    yield from ask("runs_rename", ids=sorted(row.id for row in moved))
    yield from ask("runs_follow_on", batch=batch)
    yield from ask("signals_move", batch=batch)


def _tell_parents(ended: Sequence[Left]) -> Steps[None]:
    """Put how children ended into the inboxes of their parents, and wake each parent once."""
    by_id = {row.id: row for row in ended}
    rows = (yield from ask("runs_parents", ids=sorted(by_id))) if by_id else ()
    if not rows:
        return
    parents = sorted({text_of(parent) for _, parent, _ in rows})
    live = {text_of(row[0]) for row in (yield from ask("jobs_lock", ids=parents))}
    ends = [(text_of(child), text_of(parent), text_of(key)) for child, parent, key in rows if text_of(parent) in live]
    if not ends:
        return
    yield from put_ends([(child, parent, key, by_id[child].how, by_id[child].result) for child, parent, key in ends])
    yield from wake_for({parent: [CHILD] for parent in live})


def tell_again(children: Sequence[str]) -> Steps[None]:
    """Put how children ended into the inbox of their parent, where it is missing; the parent has not taken it yet.

    It is there in nearly all cases: one is deleted only if nobody asked for it when it came (`inbox.take`).
    """
    rows = (yield from ask("runs_ends", ids=sorted(children))) if children else ()
    if rows:
        yield from put_ends([tuple(None if cell is None else text_of(cell) for cell in row) for row in rows])


def put_ends(ends: Sequence[tuple[Any, ...]]) -> Steps[None]:
    """Put how children ended into inboxes: each is child, parent, key, outcome and result."""
    batch: Columns = {
        # A child ends once, so the end has its id.
        "id": [child for child, *_ in ends],
        "run_id": [parent for _, parent, *_ in ends],
        "name": [CHILD] * len(ends),
        "payload": [_letter(key, how, result) for _, _, key, how, result in ends],
    }
    yield from ask("signals_add", batch=batch, told=1)


def _letter(key: str, how: str, result: str | None) -> str:
    end = msgspec.json.encode(ChildEnd(how, msgspec.Raw((result or "null").encode())))
    return msgspec.json.encode(ChildLetter(key, msgspec.Raw(end))).decode()


def _stop_children(parents: Sequence[str]) -> Steps[None]:
    if parents:
        rows = yield from ask("runs_children", ids=sorted(parents))
        children = [text_of(row[0]) for row in rows]
        yield from asked_to_stop(children, new_ids(len(children)))


attach(RUN, leave, inherited=True)
attach_progress(RUN, progressed)
