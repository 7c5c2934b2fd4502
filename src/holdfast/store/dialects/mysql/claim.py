"""How MySQL and MariaDB claim: by hops from level to level, each a statement of its own.

MariaDB has no LATERAL, and its recursive queries read whole levels, so what is one statement elsewhere is a sequence
here. A level is all jobs of one queue that are equally urgent. The statements of a query that says `-- bind: hops` are,
in this order:

- narrow: of many queues, find those worth a look
- survey: of many queues, read the first and the last level of each at once
- hop: find the next level of one `:queue` above the last `:urgency`: its urgency, its first row's time, and whether
  that is due
- take: take up to `:limit` rows of one level
- and those for the rows that were taken
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import heappop, heappush
from typing import Any

import msgspec

from holdfast.flow import Row
from holdfast.store.calls import Call, Calls
from holdfast.store.catalogue import Compiled

# An urgency, the time of the first job there, the queue, and whether that job is due.
Level = tuple[int, Any, str, Any]
# Of a queue: its first urgency, the time of its first job, whether that is due, and its last urgency.
Ends = tuple[int, Any, Any, int]

# Outside every urgency that a job can have.
LOWEST, HIGHEST = -32_768, 32_767
# From this many queues on they are looked at together; for fewer a hop each is quicker.
MANY_QUEUES = 16
# As many jobs as the statement that narrows queues reads at most: then there may be others elsewhere.
NARROW_SAMPLE_ROWS = 1_000
LANES = ("lane_queues", "lane_priorities", "lane_belows", "lane_aboves", "lane_floors", "lane_ceilings")
# Outside every time that a job can have; without a zone, as MySQL's are.
FIRST, LAST = datetime(1000, 1, 1), datetime(9999, 1, 1)


def hops(calls: Calls, parts: Sequence[Compiled]) -> Iterator[Call]:
    """Take from the levels of all queues in their order until there is enough, then run the other statements."""
    narrow, survey, hop, take, *others = parts
    in_lanes = "lane_queues" in calls.params
    queues = list(dict.fromkeys(calls.params["lane_queues"])) if in_lanes else calls.params["queues"]
    ends: dict[str, Ends] | None = None
    if len(queues) >= MANY_QUEUES and calls.params.get("kinds"):
        yield calls.call(narrow)
        if sum(count for _, count, _ in calls.rows) < NARROW_SAMPLE_ROWS:
            worth = {queue for queue, _, due in calls.rows if due}
            queues = [queue for queue in queues if queue in worth]
    if len(queues) >= MANY_QUEUES:
        calls.params["many"] = msgspec.json.encode(queues).decode()
        yield calls.call(survey)
        ends = {queue: (first, at, due, last) for queue, first, at, due, last in calls.rows}
    levels = Levels(calls, hop, ends)
    yield from (_taken_from_lanes if in_lanes else _taken)(calls, levels, take, queues)
    if calls.rows:
        yield from calls.in_order(others)


def _taken(calls: Calls, levels: Levels, take: Compiled, queues: Sequence[str]) -> Iterator[Call]:
    """Take from the most urgent level that is due, whatever queue has it, then from the next, until enough."""
    taken: list[Row] = []
    known: list[Level] = []
    for queue in queues:
        yield from levels.next(known, queue, LOWEST)
    while known and calls.params["limit"] > 0:
        urgency, _, queue, due = heappop(known)
        if due:
            calls.params |= {"queue": queue, "urgency": urgency}
            yield calls.call(take)
            taken += calls.rows
            calls.params["limit"] -= len(calls.rows)
        if calls.params["limit"] > 0:
            yield from levels.next(known, queue, urgency)
    calls.rows = taken


def _taken_from_lanes(calls: Calls, levels: Levels, take: Compiled, queues: Sequence[str]) -> Iterator[Call]:
    """Take from each lane in turn, until enough; in a gap between lanes, from the first level that is there."""
    taken: dict[Any, Row] = {}
    worth = set(queues)
    for queue, priority, below, above, floor, ceiling in zip(*map(calls.params.get, LANES), strict=True):
        if queue not in worth:
            continue
        found: list[Level] = []
        if priority is None:
            yield from levels.next(found, queue, -below, -above)
        elif levels.may_have(queue, -priority):
            found = [(-priority, None, queue, True)]
        for urgency, *_ in found:
            calls.params |= {"queue": queue, "urgency": urgency}
            calls.params |= {"floor": floor or FIRST, "ceiling": ceiling or LAST}
            yield calls.call(take)
            # By id: a transaction does not skip its own locks.
            fresh = {row[0]: row for row in calls.rows if row[0] not in taken}
            taken |= fresh
            calls.params["limit"] -= len(fresh)
        if calls.params["limit"] <= 0:
            break
    calls.rows = list(taken.values())


class Levels:
    """Where the levels of queues are: by a hop, or by what a survey of many queues says of their ends."""

    def __init__(self, calls: Calls, hop: Compiled, ends: dict[str, Ends] | None) -> None:
        self._calls = calls
        self._hop = hop
        self._ends = ends

    def next(self, found: list[Level], queue: str, after: int, until: int = HIGHEST) -> Iterator[Call]:
        """Add the first level between two urgencies, if there is one, to a heap."""
        if self._ends is not None:
            first, at, due, last = self._ends.get(queue, (HIGHEST, None, False, LOWEST))
            if first >= until or last <= after:
                return
            if first > after:
                heappush(found, (first, at, queue, due))
                return
        self._calls.params |= {"queue": queue, "urgency": after, "until": until}
        yield self._calls.call(self._hop)
        for urgency, at, due in self._calls.rows:
            heappush(found, (urgency, at, queue, due))

    def may_have(self, queue: str, urgency: int) -> bool:
        """Tell whether a queue may have jobs on a level."""
        if self._ends is None:
            return True
        first, _, _, last = self._ends.get(queue, (HIGHEST, None, False, LOWEST))
        return bool(first <= urgency <= last)
