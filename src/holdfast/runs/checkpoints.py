"""The journal of a run: rows that are only added, each by the holder of its lease.

Crash windows: before the commit of a checkpoint the row is not there, and what it tells of is done again (a step) or
was undone with it (a transaction); after it, every replay is told the same. Nothing is told to a run's body before.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from holdfast.errors import LeaseLost
from holdfast.flow import Columns, Statement, Steps, ask, flow, number_of, text_of
from holdfast.runs.rows import Recorded

_COLUMNS = ("seq", "key", "kind", "ok", "value", "digest", "attempt", "took_ms", "ref")
_BY_PLACE = itemgetter(0, 1)
# Single checkpoints are alike in all but these parameters, so that how they are sent is worked out once.
_ALIKE = ("checkpoint_one",)
_OWN = ("id", "fence", "worker", *_COLUMNS)


class Entry(NamedTuple):
    """A row for the journal of a run that is held."""

    run: str
    fence: int
    row: Recorded


class Head(NamedTuple):
    """What is known of a run beside its journal: the columns of `run_read` in their order."""

    id: str
    workflow: str
    key: str
    parent_id: str | None
    parent_key: str | None
    outcome: str | None
    stuck: str | None


@flow
def checkpoint(entries: Sequence[Entry], worker: str) -> Steps[dict[tuple[str, int], int]]:
    """Add rows to the journals of runs; return when each was written, in microseconds since 1970, by run and place.

    A row that is missing from the answer was not written: its run has another holder, or none.
    Commits: its own, or with the caller's transaction. Safe to repeat: a row that is there already by an earlier try
    of the holder counts as written.
    After a crash: before commit the rows are not there; what they tell of is done again.
    """
    sets = [entry for entry in entries if entry[2][2] == "set"]
    written = yield from _write(entries, worker, alone=not sets)
    # By run and name the last one counts; PostgreSQL refuses a statement that writes a row twice.
    said = {(one.run, _attribute(one.row)): one for one in sets if (one.run, one.row.seq) in written}
    if said:
        batch: Columns = {
            "run_id": [run for run, _ in said],
            "name": [name for _, name in said],
            "value": [one.row.value for one in said.values()],
        }
        yield from ask("attributes_set", batch=batch)
    return written


def _attribute(row: Recorded) -> str:
    """Name what a row sets: its key is `set:name`, and `set:name#2` the second time."""
    return row.key.partition(":")[2].partition("#")[0]


def _write(entries: Sequence[Entry], worker: str, *, alone: bool) -> Steps[dict[tuple[str, int], int]]:
    # Plain tuples: run and place come first.
    ordered = sorted([(run, row[0], fence, row) for run, fence, row in entries], key=_BY_PLACE)
    rows = yield (_one(entries[0], worker, alone) if len(entries) == 1 else _many(ordered, worker, alone))
    if len(rows) == 1 and rows[0][0] is None:
        # One row without a run stands for the whole batch, which spares us a row for each.
        return dict.fromkeys([(run, seq) for run, seq, _, _ in ordered], number_of(rows[0][2]))
    written = {(text_of(run), number_of(seq)): number_of(at) for run, seq, at in rows}
    missing = [one for one in ordered if one[:2] not in written] if len(written) < len(ordered) else []
    if missing:
        rows = yield from ask("checkpoint_look", batch=_batch(missing), alone=alone)
        written |= {(text_of(run), number_of(seq)): number_of(at) for run, seq, at in rows}
    return written


def _one(entry: Entry, worker: str, alone: bool) -> Statement:
    """A run that goes on alone is spared what a batch needs, in the worker and in the database."""
    run, fence, row = entry
    params = {"id": run, "fence": fence, **dict(zip(Recorded._fields, row, strict=True)), "worker": worker}
    del params["at"]
    return Statement("checkpoint_one", params, alone=alone, like=_ALIKE, own=_OWN)


def _many(ordered: Sequence[tuple[str, int, int, Recorded]], worker: str, alone: bool) -> Statement:
    fences = {run: fence for run, _, fence, _ in ordered}
    params = {"worker": worker, "held": list(fences), "fences": list(fences.values())}
    return Statement("checkpoint", params, _batch(ordered), alone)


def _batch(ordered: Sequence[tuple[str, int, int, Recorded]]) -> Columns:
    runs, _, fences, rows = zip(*ordered, strict=True)
    columns: Columns = dict(zip(Recorded._fields, map(list, zip(*rows, strict=True)), strict=True))
    return {"run_id": list(runs), "fence": list(fences), **{name: columns[name] for name in _COLUMNS}}


class EffectThere(Exception):
    """The place of a transaction is taken: by an earlier try of it, or because it was given up."""

    def __init__(self, row: Recorded) -> None:
        super().__init__(row.key)
        self.row = row


@flow
def add_one(entry: Entry, worker: str) -> Steps[int]:
    """Add a row in a transaction that also holds the effect it tells of; return when that was.

    The row has a `ref` of this try alone. What another try wrote at the same place is that one's effect.
    Commits: with the caller's transaction. Raises: LeaseLost, when the run has another holder, and EffectThere: the
    effect must not be committed then. After a crash: effect and row are there together, or neither is.
    """
    there = yield from _placed(entry, worker)
    if there.ref != entry.row.ref:
        raise EffectThere(there)
    return there.at


@flow
def decide(entry: Entry, worker: str) -> Steps[Recorded]:
    """Write a row at a place where a transaction may have written, or may be about to; return what stands there then.

    Commits: its own. Raises: LeaseLost. After a crash: safe to repeat; whichever was there first stays.
    """
    return (yield from _placed(entry, worker))


def _placed(entry: Entry, worker: str) -> Steps[Recorded]:
    rows = yield _one(entry, worker, alone=False)
    if rows:
        return entry.row._replace(at=number_of(rows[0][2]))
    for row in (yield from ask("journal_at", id=entry.run, fence=entry.fence, seq=entry.row.seq)):
        return Recorded.of(row)
    raise LeaseLost(entry.run, entry.fence)


@flow
def journal(run: str, first: int = 0, last: int | None = None) -> Steps[list[Recorded]]:
    """Read the journal of a run, or the part of it from place `first` to place `last`."""
    rows = yield from ask("journal_read", id=run, first=first, last=last, alone=True)
    return [Recorded.of(row) for row in rows]


@flow
def head(run: str) -> Steps[Head | None]:
    """Read what is known of a run beside its journal; None for a job of which no run is noted."""
    for row in (yield from ask("run_read", id=run, alone=True)):
        return Head(*(None if cell is None else text_of(cell) for cell in row))  # type: ignore[arg-type]
    return None


@flow
def stick(run: str, fence: int, reason: str | None) -> Steps[None]:
    """Note why a held run cannot go on; None: that it can.

    Commits: its own. After a crash: the next try of the run finds the same, and notes it.
    """
    yield from ask("run_stuck", id=run, fence=fence, reason=reason, alone=True)


def progressed(ids: Sequence[str]) -> Steps[set[str]]:
    """Tell which of these leases have added a row to the journal of their run."""
    return {text_of(row[0]) for row in (yield from ask("runs_progressed", ids=sorted(ids)))}
