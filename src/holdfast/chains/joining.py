"""Say that a job waits for others: the row that counts its parents, and an edge to each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.flow import Columns, Steps, ask, number_of, text_of
from holdfast.values.rows import AfterDead

# What rows say about chains in `followers`; the table in `life/door.py` has these bits.
# Something waits for the end of the job.
JOINED = 1 << 3
# The job has parents, which are noted.
CHILD = 1 << 4
# Of a finished row: another job continues it.
CONTINUED = 1 << 6

# What `waits_for` says of a child that waits.
PARENTS = "parents"
# Edges that one statement carries.
CHUNK_EDGES = 10_000


class Join(NamedTuple):
    """A job that is to wait for others.

    `results` keeps those of its parents for it; a batch of many thousands does not. `sealed` False holds it back until
    it is said that no more parents come.
    """

    child: str
    parents: Sequence[str]
    on_dead: AfterDead = "run"
    results: bool = True
    sealed: bool = True


class Counts(NamedTuple):
    """What a join counts: the columns of `joins_lock` in their order."""

    child: str
    open: int
    total: int
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    sealed: int = 1
    doomed_by: str | None = None
    results: bool = True
    on_dead: AfterDead = "run"


def join(joins: Sequence[Join], *, followed: bool = False) -> Steps[None]:
    """Note what children wait for; `followed` says that their parents were added with the bit, by this transaction.

    Parents that a worker holds, or that another transaction has locked, do not learn of it here: nobody may wait for a
    caller's transaction. The worker that claims the child sees to them.
    """
    parents = sorted({parent for one in joins for parent in one.parents})
    knowing = set(parents)
    if not followed and parents:
        rows = yield from ask("follow_free", ids=parents, bit=JOINED, own=joins[0].child)
        knowing = {text_of(row[0]) for row in rows}
    batch: Columns = {
        "child": [one.child for one in joins],
        "open": [len(one.parents) + (not one.sealed) for one in joins],
        "total": [len(one.parents) for one in joins],
        "sealed": [int(one.sealed) for one in joins],
        "results": [int(one.results) for one in joins],
        "on_dead": [one.on_dead for one in joins],
    }
    yield from ask("joins_add", batch=batch)
    for one in joins:
        yield from add_edges(one.child, one.parents, knowing)


def add_edges(child: str, parents: Sequence[str], knowing: set[str]) -> Steps[None]:
    """Note the parents of a child, and which of them know of it."""
    for chunk in _chunks(parents):
        edges: Columns = {
            "parent": list(chunk),
            "child": [child] * len(chunk),
            "followed": [int(parent in knowing) for parent in chunk],
        }
        yield from ask("waits_add", batch=edges)


def _chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), CHUNK_EDGES):
        yield items[start : start + CHUNK_EDGES]


def unknown(children: Iterable[str]) -> Steps[set[str]]:
    """Tell which of these jobs are alive and not noted as waiting: for an enqueue that is repeated."""
    ids = sorted(children)
    live = {text_of(row[0]) for row in (yield from ask("live", ids=ids))}
    known = {text_of(row[0]) for row in (yield from ask("joins_known", ids=ids))}
    return live - known


def locked(children: Iterable[str]) -> Steps[dict[str, Counts]]:
    """Lock joins in the order of children, and read them; those that are not there are left out."""
    ids = sorted(children)
    rows = (yield from ask("joins_lock", ids=ids)) if ids else ()
    return {counts.child: counts for counts in map(_counts, rows)}


def _counts(row: Sequence[object]) -> Counts:
    child, still, total, done, dead, cancelled, sealed, doomed_by, results, on_dead = row
    return Counts(
        text_of(child),
        number_of(still),
        number_of(total),
        number_of(done),
        number_of(dead),
        number_of(cancelled),
        number_of(sealed),
        None if doomed_by is None else text_of(doomed_by),
        number_of(results) == 1,
        "cancel" if text_of(on_dead) == "cancel" else "run",
    )


def write(counts: Iterable[Counts]) -> Steps[None]:
    """Store the counts of joins that are locked."""
    rows = sorted(counts)
    if rows:
        columns = dict(zip(Counts._fields, map(list, zip(*rows, strict=True)), strict=True))
        # What a join asks for never changes.
        del columns["results"], columns["on_dead"]
        yield from ask("joins_write", batch=columns)
