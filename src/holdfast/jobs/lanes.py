"""Lanes: where a worker's next claim begins, so that its cost does not grow with what lies behind it.

The same memory for expired leases is `LookBack`, at the end.

A job that is done stays in the index until it is vacuumed, and one transaction left open anywhere in the database puts
that off for as long as it is open. A claim that begins at the front of the queue then walks over every job done since.
So each queue and priority is a lane with a floor, the place of the last job claimed, and a claim begins there.

A job may still turn up below the floor: its transaction took long to commit, or another worker gave it back. So claims
begin a little below the floor, about once a second further below, and as long as that is cheap at the front. Once it is
expensive, the way from the front to the floor is walked in slices. Each of these takes a bounded share of the time.

One lane, old jobs on the left (x: done, but still in the index; o: due), and what each width of a claim reads:

    front         origin                                floor              now
      |              |                                    |                 |
      x x x x x x x x x x x x x x x x x x x x x x x x x x x o o o o o o o o o
      |              |                         |        | |                 |
      |              |                         |        [near ..............>   the usual claim
      |              |                         [deep .......................>   once a second
      [slice 0......][slice 1][slice 2] ...             [near ..............>   one slice at a time
      [all .................................................................>   while cheap, else once a minute

The origin is where the floor was at the last claim from the front: what is older than that is slice 0.

Between the lanes of a queue lie gaps, the priorities that no claim has met yet. A claim reads their first jobs, too:

    32767 ..gap.. 6 | lane 5 | lane 4 | gap 3 to 2 | lane 1 | 0 ..gap.. -32768
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

from holdfast.values.rows import when

# How far below the floor a claim begins: a transaction that enqueues and commits within it is seen at once.
NEAR_DEPTH = timedelta(milliseconds=250)
DEEP_DEPTH = timedelta(seconds=10)
SLICE_LENGTH = timedelta(seconds=5)
# The smallest difference between two times in a database.
CLOCK_TICK = timedelta(microseconds=1)

# How often a wider claim is made: after a pause of 20 times what the last one took, so that they take about a twentieth
# of the time. For deep claims and slices the pause has a limit: one slow answer may say nothing about the next.
PAUSE_PER_SECOND_OF_LOOKING = 20
LONGEST_PAUSE_SECONDS = 5.0
DEEP_EVERY_SECONDS = 1.0
# A claim from the front is expensive when it takes longer than 0.05 s and 0.00005 s for each job it got. The next one
# is made a minute later then.
EXPENSIVE_CLAIM_SECONDS, EXPENSIVE_SECONDS_PER_JOB = 0.05, 0.00005
FRONT_EVERY_SECONDS = 60.0
# What claiming a job takes by itself; the rest of a claim's time was the walk over dead rows. The figure is small on
# purpose: a slow walk lets jobs pile up, so the next claim gets more of them, and with a larger figure per job the walk
# would seem to have cost nothing.
SECONDS_PER_CLAIMED_JOB = 0.00002

# A look for expired leases goes back to the look before and a little further, because some rows may have been locked
# then. A look at all leases is made this often at most.
LOOK_BACK_MARGIN_SECONDS = 2.0
LOOK_AT_ALL_EVERY_SECONDS = 15.0

# Older times do not become floors: one could not go further back from them.
EARLIEST_FLOOR_YEAR = 1970
# With more lanes than this, it is cheaper to forget them all than to carry them along.
LANES_LIMIT = 1_000
# Outside every priority that a job can have.
ABOVE_ALL_PRIORITIES, BELOW_ALL_PRIORITIES = 32_767, -32_768

_COLUMNS = ("lane_queues", "lane_priorities", "lane_belows", "lane_aboves", "lane_floors", "lane_ceilings")

Width = Literal["all", "deep", "slice", "near"]
Lane = tuple[str, int]


class Placed(Protocol):
    """What a claim has seen: a job, and its place in the queue."""

    @property
    def queue(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def available_at(self) -> Any: ...


class Start(NamedTuple):
    """Where one claim begins; `lanes` None: at the front of every queue."""

    width: Width
    lanes: Mapping[str, list[Any]] | None = None
    # How often the floors had been forgotten by then.
    epoch: int = 0


# One stretch of the index to claim from. First what it is sorted by: priority, a lane before the gap below it, lanes by
# age across the queues, and the place of its queue. Then queue, priority, below, above, floor and ceiling. A gap (no
# priority) is looked through for a priority that is new. A plain tuple, which sorts by itself: with a thousand queues
# there are thousands of them in each claim.
Part = tuple[int, bool, bool, Any, int, str, int | None, int, int, datetime | None, datetime | None]


class Lanes:
    """The floors of one worker, for one set of kinds: jobs of other kinds may wait below them."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._floors: dict[Lane, datetime] = {}
        # Where the floors were after the last claim from the front, and how many slices have been walked since.
        self._origins: dict[Lane, datetime] = {}
        self._slice = 0
        # When, by the monotonic clock, the next claim of each width is due.
        self._due: dict[Width, float] = {"all": 0.0, "deep": 0.0, "slice": 0.0}
        self._epoch = 0

    def start(self, now: float) -> Start:
        """Say where a claim made now begins."""
        if not self._floors:
            return Start("all", None, self._epoch)
        due: list[Width] = [width for width, moment in self._due.items() if now >= moment]
        width: Width = due[0] if due else "near"
        return Start(width, None if width == "all" else self._columns(width), self._epoch)

    def learn(self, start: Start, claimed: Sequence[Placed], limit: int, began: float, ended: float) -> None:
        """Take in what a claim gave; `claimed` is in order of priority and age."""
        if start.epoch != self._epoch:
            # Jobs went back below the floors while this claim was under way: it knows nothing of them.
            return
        # The last of each lane stays: the latest.
        stored = {(lease.queue, lease.priority): lease.available_at for lease in claimed}
        latest = {
            lane: at
            for lane, at in zip(stored, map(when, stored.values()), strict=True)
            if at.year >= EARLIEST_FLOOR_YEAR
        }
        if len(claimed) < limit:
            # Nothing was left behind, so no floor needs to fall.
            latest = {lane: max(at, self._floors.get(lane, at)) for lane, at in latest.items()}
        self._floors |= latest
        self._origins = latest | self._origins
        if len(self._floors) > LANES_LIMIT:
            self.forget()
        # What the jobs themselves take says nothing about the walk to them.
        took = ended - began
        cost = max(0.0, took - SECONDS_PER_CLAIMED_JOB * len(claimed))
        expensive = took > EXPENSIVE_CLAIM_SECONDS + EXPENSIVE_SECONDS_PER_JOB * len(claimed)
        self._plan(start.width, ended, cost, expensive=expensive, full=len(claimed) >= limit)

    def _plan(self, width: Width, ended: float, cost: float, *, expensive: bool, full: bool) -> None:
        pause = PAUSE_PER_SECOND_OF_LOOKING * cost
        match width:
            case "all":
                self._origins, self._slice = dict(self._floors), 0
                self._due["all"] = ended + (max(FRONT_EVERY_SECONDS, pause) if expensive else pause)
                self._due["deep"] = self._due["slice"] = ended + DEEP_EVERY_SECONDS
            case "deep":
                self._due["deep"] = ended + max(DEEP_EVERY_SECONDS, min(LONGEST_PAUSE_SECONDS, pause))
            case "slice":
                self._due["slice"] = ended + min(LONGEST_PAUSE_SECONDS, pause)
                # A full claim may not have come to its slice.
                self._slice += not full
                if all(
                    origin + (self._slice - 1) * SLICE_LENGTH >= self._floors[lane]
                    for lane, origin in self._origins.items()
                ):
                    self._slice = 0
            case "near":
                # Such a claim is made whenever no other is due.
                pass

    def forget(self) -> None:
        """Begin at the front again: jobs went back to where they had been."""
        self._floors, self._origins = {}, {}
        self._epoch += 1

    def _columns(self, width: Width) -> dict[str, list[Any]]:
        parts = list(zip(*sorted(self._parts(width)), strict=True))
        return dict(zip(_COLUMNS, map(list, parts[-len(_COLUMNS) :]), strict=True))

    def _parts(self, width: Width) -> list[Part]:
        """List the lanes and the gaps between them."""
        known: dict[str, list[int]] = {queue: [] for queue in self._queues}
        for queue, priority in self._floors:
            known[queue].append(priority)
        parts: list[Part] = []
        for place, (queue, priorities) in enumerate(known.items()):
            below = ABOVE_ALL_PRIORITIES
            for priority in sorted(priorities, reverse=True) if len(priorities) > 1 else priorities:
                if below - priority > 1:
                    parts.append((-below, True, False, 0, place, queue, None, below, priority, None, None))
                if width == "slice":
                    begin, end = self._next_slice(queue, priority)
                    older = (begin is not None, begin or 0)
                    parts.append((-priority, False, *older, place, queue, priority, priority, priority, begin, end))
                floor = self._floors[queue, priority] - (DEEP_DEPTH if width == "deep" else NEAR_DEPTH)
                parts.append((-priority, False, True, floor, place, queue, priority, priority, priority, floor, None))
                below = priority
            parts.append((-below, True, False, 0, place, queue, None, below, BELOW_ALL_PRIORITIES, None, None))
        return parts

    def _next_slice(self, queue: str, priority: int) -> tuple[datetime | None, datetime]:
        """Return from when to when the next slice of a lane goes."""
        origin = self._origins[queue, priority]
        begin = origin + (self._slice - 1) * SLICE_LENGTH if self._slice else None
        # Apart from what follows: a database that takes them one by one would give the same job twice.
        end = min(origin + self._slice * SLICE_LENGTH, self._floors[queue, priority] - NEAR_DEPTH - CLOCK_TICK)
        return begin, end


class LookBack:
    """How far back a worker looks for leases that ran out: to its last look, and now and then to the beginning."""

    def __init__(self) -> None:
        # When all that had run out was last taken back, and when to look at everything again.
        self._clean_at: float | None = None
        self._all_due = 0.0

    def seconds(self, now: float) -> float | None:
        """Say how far a look made now goes back; None: to the beginning."""
        if self._clean_at is None or now >= self._all_due:
            return None
        return now - self._clean_at + LOOK_BACK_MARGIN_SECONDS

    def learn(self, looked_back: float | None, clean: bool, began: float, ended: float) -> None:
        """Take in a look; `clean` says that there was nothing, so that nothing can have been left either."""
        if clean and (looked_back is None or self._clean_at is not None):
            self._clean_at = began
        if looked_back is None:
            self._all_due = ended + max(
                LOOK_AT_ALL_EVERY_SECONDS, min(FRONT_EVERY_SECONDS, PAUSE_PER_SECOND_OF_LOOKING * (ended - began))
            )
