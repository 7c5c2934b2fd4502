"""What a child and people ask of parents and children."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.values.payload import decode_value
from holdfast.values.rows import AfterDead

# The parents that are listed at most; the numbers count all.
MOST_LISTED = 10_000


class Parent(msgspec.Struct, frozen=True):
    """A job that another waits for: outcome None while it has not ended, `gone` if nothing of it was kept.

    `last` is the last job of its chain so far: that one has the outcome and the result.
    """

    id: str
    outcome: Literal["done", "dead", "cancelled", "gone"] | None
    result: Any = None
    last: str = ""


class Parents(msgspec.Struct, frozen=True):
    """What a job waits for, or has waited for.

    `each` lists the parents in the order of their ids; of a batch, the members that have not ended and those that are
    dead or cancelled. `open` counts what has not ended, and one more while a batch is not sealed.
    """

    open: int
    total: int
    done: int
    dead: int
    cancelled: int
    sealed: bool
    after_dead: AfterDead
    each: list[Parent]

    def results(self) -> dict[str, Any]:
        """Return the results of those that are done, by id."""
        return {parent.id: parent.result for parent in self.each if parent.outcome == "done"}


@flow
def parents_of(job_id: str) -> Steps[Parents | None]:
    """Read what a job waits for, or has waited for; None for a job without parents."""
    rows = yield from ask("join_show", id=job_id, alone=True)
    if not rows:
        return None
    [[still, total, done, dead, cancelled, sealed, on_dead, _]] = rows
    edges = yield from ask("waits_of", id=job_id, limit=MOST_LISTED, alone=True)
    return Parents(
        open=number_of(still),
        total=number_of(total),
        done=number_of(done),
        dead=number_of(dead),
        cancelled=number_of(cancelled),
        sealed=bool(number_of(sealed)),
        after_dead="cancel" if text_of(on_dead) == "cancel" else "run",
        each=[_parent(*edge) for edge in edges],
    )


def _parent(job_id: Any, last: Any, outcome: Any, result: Any) -> Parent:
    how: Any = None if outcome is None else text_of(outcome)
    return Parent(text_of(job_id), how, None if result is None else decode_value(text_of(result)), text_of(last))


@flow
def children_of(job_id: str, limit: int = 100) -> Steps[list[str]]:
    """Read which jobs wait for this one, or have waited and are not over."""
    rows = yield from ask("children_of", id=job_id, limit=limit, alone=True)
    return [text_of(row[0]) for row in rows]
