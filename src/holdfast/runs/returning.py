"""Runs that go on otherwise: a dead one that is resumed, one as another version, and copies of journals for forks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow import Columns, Steps, ask, number_of, text_of
from holdfast.runs.leaving import put_ends
from holdfast.runs.rows import Recorded


def go_on(ids: Sequence[str]) -> Steps[None]:
    """Let runs go on whose jobs are being put back: the step that failed last is made again, with all its attempts.

    An earlier failure was caught by the body, which went on because of it. Of a run that has undone what it did nothing
    is forgotten: its replay comes to the same end. Children that ended meanwhile are in the inbox: at their end there
    was no parent to tell.
    """
    for run, key, undone in (yield from ask("runs_failures", ids=sorted(ids))):
        if not number_of(undone):
            yield from ask("steps_pardon", id=text_of(run), key=text_of(key))
    batch: Columns = {"id": sorted(ids), "outcome": [None] * len(ids)}
    yield from ask("runs_ended", batch=batch)
    ends = yield from ask("runs_children_over", ids=sorted(ids))
    if ends:
        yield from put_ends([tuple(None if cell is None else text_of(cell) for cell in row) for row in ends])


def go_on_as(run: str, fence: int, kind: str) -> Steps[None]:
    """Let a run that is locked and that nobody holds go on as another version, at once; it is not stuck any more."""
    yield from ask("run_migrate", id=run, kind=kind)
    yield from ask("run_stuck", id=run, fence=fence, reason=None)


def copy_before(new: str, source: str, seed: str, kept: Sequence[Recorded]) -> Steps[None]:
    """Give a new run the first rows of another's journal, with its chance and what it says of itself by then."""
    # A claim with a fence of 1 is the first one, and has no journal to read.
    yield from ask("reap_mark", ids=[new])
    yield from ask("steps_fork", id=new, source=source, seed=seed)
    if kept:
        yield from ask("steps_copy", id=new, source=source, last=kept[-1].seq)
    said = {row.key.partition(":")[2].partition("#")[0]: row.value for row in kept if row.kind == "set"}
    if said:
        batch: Columns = {"run_id": [new] * len(said), "name": list(said), "value": list(said.values())}
        yield from ask("attributes_set", batch=batch)
