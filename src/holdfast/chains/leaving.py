"""What follows when a job ends that others wait for, and when one ends that has waited.

The parent's row is locked by the transaction that ends it, so its edges are resolved once. Joins are then locked in the
order of children, read, and written: two parents that end at the same moment take turns, and the second finds none
left.

Crash windows, all of them: before the commit the parent has not ended, and is counted as open; after it, it is not, and
the child is due if it was the last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.chains.joining import CHILD, JOINED, PARENTS, Counts, locked, write
from holdfast.flow import Columns, Steps, ask, text_of
from holdfast.life.door import Left, attach

# How a parent ended; `gone`: nothing is known of it any more, or never was.
How = Literal["done", "dead", "cancelled", "gone"]


class Ending(NamedTuple):
    """How a parent ended, and with what result."""

    parent: str
    how: How
    result: str | None = None


class Edge(NamedTuple):
    """A child that waits for a parent: the columns of `waits_open` in their order."""

    parent: str
    child: str


def count_parents(left: Sequence[Left]) -> Steps[None]:
    """Let children go on whose parents ended; those of a job that is continued wait for the next of its chain."""
    moved = sorted((row.id, row.then) for row in left if row.then is not None)
    if moved:
        batch: Columns = {"parent": [parent for parent, _ in moved], "next": [following for _, following in moved]}
        yield from ask("waits_moved", batch=batch, followed=1)
    # What did not move waits for the next of the chain by an edge of its own: this one is done.
    ended = [Ending(parent, "done") for parent, _ in moved]
    ended += [
        Ending(row.id, row.how, row.result)
        for row in left
        if row.then is None and (row.how == "done" or row.how == "dead" or row.how == "cancelled")
    ]
    if ended:
        ready = yield from resolve(ended)
        if ready:
            yield from ask("wake", ids=sorted(ready), waits_for=PARENTS)


def resolve(ended: Sequence[Ending], children: Collection[str] | None = None) -> Steps[list[str]]:
    """Count parents as ended, for all that wait for them or for these children; return the children that may go on."""
    by_parent = {one.parent: one for one in sorted(ended)}
    rows = yield from ask("waits_open", ids=list(by_parent))
    edges = [Edge(text_of(parent), text_of(child)) for parent, child in rows]
    if children is not None:
        edges = [edge for edge in edges if edge.child in children]
    if not edges:
        return []
    by_child: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        by_child[edge.child].append(edge)
    before = yield from locked(by_child)
    yield from _end_edges(by_parent, edges, before, children)
    after = [_counted(counts, by_parent, by_child[child]) for child, counts in before.items()]
    yield from write(after)
    return [counts.child for counts in after if counts.open <= 0 or counts.doomed_by is not None]


def _end_edges(
    by_parent: Mapping[str, Ending],
    edges: Sequence[Edge],
    joins: Mapping[str, Counts],
    children: Collection[str] | None,
) -> Steps[None]:
    """Write on each edge how its parent ended; of members of a batch that are done nothing is kept."""
    batches = {child for child, counts in joins.items() if not counts.results}
    dropped = [edge for edge in edges if edge.child in batches and by_parent[edge.parent].how == "done"]
    if dropped:
        ids = sorted({edge.child for edge in dropped})
        yield from ask("waits_drop", parents=sorted({edge.parent for edge in dropped}), ids=ids)
    if len(dropped) < len(edges):
        endings = [by_parent[parent] for parent in sorted({edge.parent for edge in edges})]
        batch: Columns = {
            "parent": [one.parent for one in endings],
            "outcome": [one.how for one in endings],
            "result": [one.result for one in endings],
        }
        yield from ask("waits_end", batch=batch, children=None if children is None else sorted(children))


def _counted(counts: Counts, by_parent: Mapping[str, Ending], edges: Sequence[Edge]) -> Counts:
    how = Counter(by_parent[edge.parent].how for edge in edges)
    failed = sorted(edge.parent for edge in edges if by_parent[edge.parent].how in ("dead", "cancelled"))
    doomed_by = failed[0] if failed and counts.on_dead == "cancel" else None
    return counts._replace(
        open=counts.open - len(edges),
        done=counts.done + how["done"] + how["gone"],
        dead=counts.dead + how["dead"],
        cancelled=counts.cancelled + how["cancelled"],
        doomed_by=counts.doomed_by or doomed_by,
    )


def forget_parents(left: Sequence[Left]) -> Steps[None]:
    """Forget what a job has waited for, once it cannot run again: a dead one may be replayed, and then asks for it."""
    over = sorted(row.id for row in left if row.how in ("done", "discarded"))
    if over:
        yield from ask("joins_drop", ids=over)


attach(JOINED, count_parents)
attach(CHILD, forget_parents)
