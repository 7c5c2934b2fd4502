"""Dead and cancelled jobs that are replayed: what still waits, waits for them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from holdfast.chains.joining import Counts, locked, write
from holdfast.flow import Steps, ask, text_of


def wait_again(replayed: Sequence[str]) -> Steps[list[str]]:
    """Let children wait for jobs that came back, where other parents still hold them up; return which those are.

    A child whose parents had all ended is let go already: it runs, or ran, without what comes of the replay. A job that
    had ended before its child was looked at has never heard of it, so all are asked for, whatever their rows say.
    """
    rows = yield from ask("waits_ended", ids=sorted(replayed))
    edges: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for parent, child, outcome in rows:
        edges[text_of(child)].append((text_of(parent), text_of(outcome)))
    joins = yield from locked(edges)
    held_up = [counts for counts in joins.values() if counts.open > 0 and counts.doomed_by is None]
    if not held_up:
        return []
    children = sorted(counts.child for counts in held_up)
    parents = sorted({parent for child in children for parent, _ in edges[child]})
    yield from ask("waits_reopen", parents=parents, ids=children)
    after: list[Counts] = []
    for counts in held_up:
        outcomes = [outcome for _, outcome in edges[counts.child]]
        after.append(
            counts._replace(
                open=counts.open + len(outcomes),
                dead=counts.dead - outcomes.count("dead"),
                cancelled=counts.cancelled - outcomes.count("cancelled"),
            )
        )
    yield from write(after)
    return parents


def pardon(replayed: Sequence[str]) -> Steps[None]:
    """Let replayed children run, though a parent of theirs is dead or cancelled: somebody has seen to that."""
    yield from ask("joins_pardon", ids=sorted(replayed))
