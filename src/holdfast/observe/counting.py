"""What waits in the queues, as a sample has it: counted up to a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.life.merging import oldest

# Counts go no further than one more than this: beyond it nobody needs the number, and the database the time.
COUNTED = 10_000


def shown(count: int) -> str:
    """Write a count as people read it: what is above the limit was not counted."""
    return f"{COUNTED:,}+" if count > COUNTED else f"{count:,}"


class Depth(msgspec.Struct, array_like=True, frozen=True):
    """What a queue holds; a number above `COUNTED` says only that there are more.

    due: jobs that could run now. scheduled: those that are due later. leased: those that workers hold. dead: dead
    letters. oldest: for how many seconds the first job has been due; None where none is.
    """

    due: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None

    def at_most(self, other: Depth) -> Depth:
        """Return the larger of each number."""
        return Depth(
            max(self.due, other.due),
            max(self.scheduled, other.scheduled),
            max(self.leased, other.leased),
            max(self.dead, other.dead),
            oldest(self.oldest, other.oldest),
        )

    def with_more(self, other: Depth) -> Depth:
        """Add what the same queue holds in another shard."""
        most = COUNTED + 1
        return Depth(
            min(most, self.due + other.due),
            min(most, self.scheduled + other.scheduled),
            min(most, self.leased + other.leased),
            min(most, self.dead + other.dead),
            oldest(self.oldest, other.oldest),
        )


class Sample(NamedTuple):
    """The queues at one moment, by the database's clock; `age` is how many seconds ago that was."""

    at: datetime
    age: float
    queues: dict[str, Depth]

    @classmethod
    def merged(cls, samples: Sequence[Sample]) -> Sample:
        """Make one of the samples of several shards, as old as the oldest of them."""
        return cls(
            min(one.at for one in samples),
            max(one.age for one in samples),
            added(one.queues for one in samples),
        )


def added(several: Iterable[Mapping[str, Depth]]) -> dict[str, Depth]:
    """Add up what queues hold in several shards."""
    total: dict[str, Depth] = {}
    for depths in several:
        for queue, depth in depths.items():
            total[queue] = total[queue].with_more(depth) if queue in total else depth
    return total
