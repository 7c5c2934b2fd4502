"""Batches: many members, and a callback that runs when all of them have ended.

The callback is a job that waits for the members (`chains`). Everything is added in one transaction: a batch is there as
a whole or not at all, and no member can end before it is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import chains
from holdfast.chains import JOINED, PARENTS
from holdfast.errors import BatchNotFound, Conflict
from holdfast.flow import Steps, ask, flow, text_of
from holdfast.jobs.enqueueing import Drawn, enqueue, enqueue_many
from holdfast.jobs.waiting import follow
from holdfast.placing import where_id_is
from holdfast.values.rows import AfterDead, Enqueued, NewJob


@flow
def add_batch(
    then: NewJob,
    members: Sequence[NewJob],
    *,
    sealed: bool = True,
    on_dead: AfterDead = "run",
    fresh: bool = False,
    drawn: Drawn | None = None,
) -> Steps[list[Enqueued]]:
    """Add the members of a batch and the job that runs after them; answer for the members in their order.

    With `sealed` False the callback waits until `seal_batch`, and `grow_batch` adds members; `fresh` and `drawn` as in
    `enqueue_many`. A member that an idempotency key or a unique key names already is no part of the batch.
    Commits: with the caller's transaction when one is given, else its own; all or none.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    if fresh:
        added = yield from enqueue_many(members, fresh=True, followers=JOINED)
        created = [one.id for one in added if one.created]
    else:
        added = yield from enqueue_many(members, drawn=drawn)
        created = yield from _uncounted(then.id, [one.id for one in added if one.created])
        if members and not created:
            # An earlier try was committed, all of it.
            return added
    # Behind its members, in lines too: one that stands before them would hold them up.
    yield from enqueue(then, fresh=fresh, drawn=drawn)
    if fresh or created or then.id in (yield from chains.unknown([then.id])):
        join = chains.Join(then.id, created, on_dead, results=False, sealed=sealed)
        yield from chains.join([join], followed=True)
    return added


@flow
def grow_batch(
    batch: str, members: Sequence[NewJob], *, fresh: bool = False, drawn: Drawn | None = None
) -> Steps[list[Enqueued]]:
    """Add members to a batch that is not sealed; `fresh` and `drawn` as in `enqueue_many`.

    Commits: with the caller's transaction when one is given, else its own; all or none.
    Raises: BatchNotFound if there is no such batch; Conflict if it is sealed.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    joins = yield from chains.locked([batch])
    if batch not in joins:
        raise BatchNotFound(batch)
    counts = joins[batch]
    if fresh and members and counts.sealed:
        # Before anything is written: the caller may catch it and commit what else is in the transaction.
        raise _sealed(batch)
    if fresh:
        added = yield from enqueue_many(members, fresh=True, followers=JOINED)
        new = [one.id for one in added if one.created]
    else:
        added = yield from enqueue_many(members, drawn=drawn)
        new = yield from _uncounted(batch, [one.id for one in added if one.created])
    if not new:
        return added
    if counts.sealed:
        raise _sealed(batch)
    yield from chains.add_edges(batch, new, set(new))
    yield from chains.write([counts._replace(open=counts.open + len(new), total=counts.total + len(new))])
    return added


def _sealed(batch: str) -> Conflict:
    return Conflict(f"Batch {batch} is sealed: no members can be added. Open it with seal=False to add some later.")


def _uncounted(batch: str, ids: Sequence[str]) -> Steps[list[str]]:
    """Tell which of these jobs live and are no members yet, and mark them as such."""
    live = {text_of(row[0]) for row in (yield from ask("live", ids=sorted(ids)))}
    edges = yield from ask("waits_open", ids=sorted(live))
    members = {text_of(row[0]) for row in edges if text_of(row[1]) == batch}
    new = [job for job in ids if job in live - members]
    if new:
        yield from follow(new, JOINED)
    return new


@where_id_is
@flow
def seal_batch(batch: str) -> Steps[bool]:
    """Say that no more members come; False if that was said before.

    Commits: with the caller's transaction when one is given, else its own. Raises: BatchNotFound.
    After a crash: before commit the batch stays open; safe to repeat.
    """
    joins = yield from chains.locked([batch])
    if batch not in joins:
        raise BatchNotFound(batch)
    counts = joins[batch]
    if counts.sealed:
        return False
    after = counts._replace(open=counts.open - 1, sealed=1)
    yield from chains.write([after])
    if after.open <= 0:
        yield from ask("wake", ids=[batch], waits_for=PARENTS)
    return True
