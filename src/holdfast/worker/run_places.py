"""Children of runs where there are shards: they are in their parent's, and no run elsewhere may have their ids."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import Conflict, DatabaseBusy, DatabaseUnavailable
from holdfast.flow import Flow
from holdfast.runs import named
from holdfast.store import Shards
from holdfast.store.trips import Asked, Trips, value_of
from holdfast.values.ids import bucket
from holdfast.values.shards import ShardMap, stamp_of
from holdfast.workflows import NewRun


def no_doubles(shards: Shards, parent: str, new: Sequence[NewRun]) -> Trips[None]:
    """Look whether runs with the ids of these children were started by themselves in other shards.

    Where the parent is in the shard that its id says, so are they: its tables keep each of them to one. Others are
    looked for before they are started.
    Raises: Conflict, also for a child whose queue is kept in another shard; DatabaseUnavailable, DatabaseBusy where the
    shard that an id says does not answer.
    """
    here = stamp_of(parent) or 0
    yield from shards.within(None)
    known = shards.known
    assert known is not None  # noqa: S101 - it was read above
    for one in new:
        _check_queue(shards, known, here, one)
    homes = {one.key: shards.order(known, one.key)[0] for one in new}
    strays = {(one.key, one.workflow) for one in new if homes[one.key] != here}
    if not strays:
        return
    keys = [key for key, _ in strays]
    numbers = [number for number in range(len(shards.stores)) if number != here and not shards.is_over(number)]
    answers = yield [Asked(shards.stores[number], Flow("named", lambda: named(keys)), once=True) for number in numbers]
    for number, answer in zip(numbers, answers, strict=True):
        if isinstance(answer, DatabaseUnavailable | DatabaseBusy) and number not in homes.values():
            continue
        for key, found in value_of(answer).items():
            for job, workflow in found:
                if (key, workflow) in strays:
                    raise Conflict(
                        f"Run {key} of {workflow} was started by itself, in shard {number} (job {job}), and this run "
                        f"is in shard {here}: its child cannot have that id, too. Give the child another name=, or the "
                        "other one another id."
                    )


def _check_queue(shards: Shards, known: ShardMap, here: int, child: NewRun) -> None:
    """Raises: Conflict for a child whose queue is kept in another shard: here its limit would count once more."""
    queue = child.job.queue
    part = bucket(queue, known.buckets)
    if shards.in_one(queue) and here not in (known.owners[part], known.moving.get(part)):
        raise Conflict(
            f"Child {child.key} of {child.workflow} goes to the queue {queue}, which is kept in shard "
            f"{known.owners[part]} because it has limits, and this run is in shard {here}, as its children are. Say "
            f'hf.queue({queue!r}, across="split", …), or let a step start that run by itself.'
        )
