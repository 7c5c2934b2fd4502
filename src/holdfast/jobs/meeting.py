"""Before a child runs: look whether its parents have ended, and let it wait if they have not.

A job with parents is claimed as any other, and then looked at here, in one transaction: parents that did not know of it
yet are told (their rows are locked for that moment only), those that are gone are counted as ended. Then the join is
locked and read. A child that must wait gives its lease back in the same transaction, so that the last parent finds it
waiting or is seen to have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast import chains
from holdfast.chains import CHILD, CONTINUED, JOINED, PARENTS, Ending
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.jobs.settling import settle
from holdfast.lines import LinedLease
from holdfast.values.ids import next_id
from holdfast.values.rows import AFTER_HEADER, Lease, Park

_MARK = f'"{AFTER_HEADER}"'
# How far along a chain one look goes; what is left is for the next.
MOST_STEPS = 100
# How many ids of chains it asks for at once where many parents have left nothing, and how many of each at least.
MOST_IDS, FEWEST_STEPS, CHUNK_IDS = 100_000, 10, 10_000
# When to look again at a child with a parent that could not be told.
AGAIN_MS = 200


def has_parents(lease: Lease) -> bool:
    """Tell whether a job was enqueued to run after others."""
    return lease.headers is not None and _MARK in lease.headers


@flow
def meet(claimed: Sequence[Lease]) -> Steps[list[Lease]]:
    """Return which of these claimed jobs may run; the others, whose parents have not ended, wait for them.

    A job that is not to run because of a parent that is dead or cancelled comes as one that was asked to stop, with the
    reason. One that was asked to stop already waits for nobody.
    Commits: its own. After a crash: before commit the jobs stay leased and are reaped; safe to repeat.
    """
    children = {str(lease.id): lease for lease in claimed if has_parents(lease) and not lease.cancel_requested}
    if not children:
        return list(claimed)
    yield from _lock_what_a_park_gives_back(children.values())
    again = yield from _tell_parents(sorted(children))
    joins = yield from chains.locked(children)
    if joins:
        # From now on their own end forgets what they have waited for.
        yield from ask("follow", ids=sorted(joins), bit=CHILD)
    # A repeat after a lost reply, or a look that took too long: what another worker holds by now is not ours to run.
    fences = {text_of(row[0]): number_of(row[1]) for row in (yield from ask("live", ids=sorted(children)))}
    lost = {child for child, lease in children.items() if fences.get(child) != lease.fence}
    doomed = {child: counts.doomed_by for child, counts in joins.items() if counts.doomed_by is not None}
    waits = {child for child, counts in joins.items() if counts.open > 0 and child not in doomed}
    back = [
        Park(children[child].id, children[child].fence, PARENTS, AGAIN_MS if child in again else None)
        for child in sorted(waits - lost)
    ]
    if back:
        yield from settle(back)
    gone = waits | lost
    left = [lease for lease in claimed if str(lease.id) not in gone]
    return [_stopped(lease, doomed[str(lease.id)]) if str(lease.id) in doomed else lease for lease in left]


def _stopped(lease: Lease, parent: str) -> Lease:
    return lease._replace(cancel_requested=f"job {parent}, which it was to run after, is dead or cancelled")


def _lock_what_a_park_gives_back(children: Iterable[Lease]) -> Steps[None]:
    """Lock the rows of limited queues and the lines of these jobs, before any join, as the end of a parent does."""
    lined = [lease for lease in children if isinstance(lease, LinedLease)]
    for queue in sorted({lease.queue for lease in lined}):
        yield from ask("queue_lock", name=queue)
        keys = {lease.key for lease in lined if lease.queue == queue and lease.key is not None}
        if keys:
            yield from ask("lines_lock", queue=queue, keys=sorted(keys))


def _tell_parents(children: list[str]) -> Steps[set[str]]:
    """See to parents that do not know of their children: those that live learn of them, the others have ended.

    Return the children to be looked at again soon: a parent is locked, perhaps by a caller's transaction, for which
    nobody may wait, or its chain goes on further than one look.
    """
    again: set[str] = set()
    for _ in range(MOST_STEPS):
        rows = yield from ask("waits_unfollowed", ids=children)
        edges = [(text_of(parent), text_of(child)) for parent, child in rows]
        if not edges:
            return again
        parents = sorted({parent for parent, _ in edges})
        told = {text_of(row[0]) for row in (yield from ask("follow_now", ids=parents, bit=JOINED))}
        if told:
            yield from ask("waits_followed", parents=sorted(told), ids=children)
        untold = [parent for parent in parents if parent not in told]
        live = {text_of(row[0]) for row in (yield from ask("live", ids=untold))} if untold else set[str]()
        again |= {child for parent, child in edges if parent in live}
        live |= told
        children = []
        for child in sorted({child for parent, child in edges if parent not in live}):
            over = [parent for parent, other in edges if other == child and parent not in live]
            if (yield from _count_ended(child, over)):
                children.append(child)
        if not children:
            return again
    return again | set(children)


def _count_ended(child: str, over: list[str]) -> Steps[bool]:
    """Count parents that are not alive any more; True where a chain goes on and is to be looked at again."""
    finished = {text_of(row[0]): row for row in (yield from ask("parents_ended", ids=over))}
    last = yield from _last_of_chains([parent for parent in over if _may_go_on(finished.get(parent))])
    moved = yield from _not_waited_for(child, last)
    if moved:
        parents = sorted(moved)
        batch: dict[str, list[Any]] = {"parent": parents, "next": [moved[parent] for parent in parents]}
        yield from ask("waits_moved", batch=batch, followed=0, children=[child])
    ended = [_ending(parent, finished.get(parent)) for parent in over if parent not in moved]
    if ended:
        yield from chains.resolve(ended, [child])
    return bool(moved)


def _may_go_on(row: Sequence[Any] | None) -> bool:
    """Tell whether a job may be continued by another: it says so, or nothing was kept of it."""
    return row is None or (row[3] is not None and bool(number_of(row[3]) & CONTINUED))


def _last_of_chains(over: Sequence[str]) -> Steps[dict[str, str]]:
    """Find the last job that is there of each chain, alive or finished; those in between may have left nothing."""
    if not over:
        return {}
    steps = max(FEWEST_STEPS, min(MOST_STEPS, MOST_IDS // len(over)))
    ahead: dict[str, list[str]] = {}
    for parent in over:
        ids = [next_id(parent)]
        while len(ids) < steps:
            ids.append(next_id(ids[-1]))
        ahead[parent] = ids
    there: set[str] = set()
    every = sorted({job for ids in ahead.values() for job in ids})
    for start in range(0, len(every), CHUNK_IDS):
        chunk = every[start : start + CHUNK_IDS]
        there |= {text_of(row[0]) for row in (yield from ask("settled", ids=chunk))}
        there |= {text_of(row[0]) for row in (yield from ask("live", ids=chunk))}
    found = {parent: next((job for job in reversed(ids) if job in there), None) for parent, ids in ahead.items()}
    return {parent: job for parent, job in found.items() if job is not None}


def _not_waited_for(child: str, last: Mapping[str, str]) -> Steps[dict[str, str]]:
    """Leave out chains of which the child waits for the last job already, by itself or by another of the chain."""
    if not last:
        return {}
    ids = sorted(set(last.values()))
    waited_for = [*(yield from ask("waits_open", ids=ids)), *(yield from ask("waits_ended", ids=ids))]
    known = {text_of(row[0]) for row in waited_for if text_of(row[1]) == child}
    first = {job: parent for parent, job in sorted(last.items(), reverse=True)}
    return {parent: job for parent, job in last.items() if job not in known and first[job] == parent}


def _ending(parent: str, row: Sequence[Any] | None) -> Ending:
    if row is None:
        return Ending(parent, "gone")
    how = text_of(row[1])
    result = None if row[2] is None else text_of(row[2])
    return Ending(parent, "dead" if how == "dead" else "cancelled" if how == "cancelled" else "done", result)
