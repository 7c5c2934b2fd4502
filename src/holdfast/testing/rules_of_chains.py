"""Rules of jobs that come after others: chains, jobs with parents, batches, and ticks of schedules.

They read what rows say of themselves, so `History.learn` must have had them. Of jobs that left no row nothing is said:
a test lets its queues keep what is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from holdfast.testing.history import History, Row

# What rules find: a job, queue or key, and what is wrong with it.
Found = Iterator[tuple[str, str]]


def continuations(history: History, chains: Collection[str]) -> Found:
    """Exactly one job continues a completion, and none continues a job that is not done.

    chains: the kinds whose every completion is continued.
    """
    rows = {row.id: row for row in history.rows}
    following: dict[str, set[str]] = defaultdict(set)
    for row in history.rows:
        if row.continues is not None:
            following[row.continues].add(row.id)
    for parent, ids in following.items():
        if len(ids) > 1:
            yield parent, f"{len(ids)} jobs continue it: {', '.join(sorted(ids))}"
        if parent in rows and rows[parent].state != "done":
            yield parent, f"it is {rows[parent].state}, and {min(ids)} continues it"
    for row in rows.values():
        if row.kind in chains and row.state == "done" and row.id not in following:
            yield row.id, "it is done, and nothing continues it"
    yield from _early_continuations(history, rows)


def _early_continuations(history: History, rows: Mapping[str, Row]) -> Found:
    """A handler may complete its job before it ends, so what continues it is compared with its begin."""
    began = {(attempt.id, attempt.fence): attempt.began for attempt in history.attempts}
    firsts = history.firsts()
    for row in rows.values():
        parent = None if row.continues is None else rows.get(row.continues)
        if parent is not None and firsts.get(row.id, float("inf")) < began.get((parent.id, parent.fence), 0.0):
            yield row.id, f"it began before the attempt of {parent.id} that it continues"


def early_children(history: History) -> Found:
    """A job begins when all that it runs after are over, each with the whole of its chain."""
    ends = _Ends(history)
    for sent in history.sent:
        for child in sent.ids if sent.after else ():
            yield from ends.too_late(child, sent.after)


def callbacks(history: History) -> Found:
    """A batch has its callback, which begins when all its members are over, each with the whole of its chain."""
    ends = _Ends(history)
    members: dict[str, list[str]] = defaultdict(list)
    for row in history.rows:
        # What continues a member has its place, not one of its own.
        if row.batch is not None and row.continues is None:
            members[row.batch].append(row.id)
    for batch, ids in members.items():
        if batch not in ends.rows:
            yield batch, f"it has {len(ids)} members, and its callback is not there"
        yield from ends.too_late(batch, ids)


class _Ends:
    """When jobs were over, with all that continues them."""

    def __init__(self, history: History) -> None:
        self.rows = {row.id: row for row in history.rows}
        self._next = {row.continues: row.id for row in history.rows if row.continues is not None}
        self._left, self._firsts, self._lasts = history.left, history.firsts(), history.lasts()

    def too_late(self, child: str, parents: Iterable[str]) -> Found:
        """Tell which parents were not over when the child began."""
        began = self._firsts.get(child)
        for parent in parents if began is not None else ():
            for job in self._chain(parent):
                if job in self._left:
                    yield child, f"it began, and {job}, which comes before it, lives"
                elif self._lasts.get(job, 0.0) > (began or 0.0):
                    yield child, f"it began {self._lasts[job] - (began or 0.0):.6f} s before {job} was over"

    def _chain(self, job: str) -> Iterator[str]:
        seen: set[str] = set()
        following: str | None = job
        while following is not None and following not in seen:
            seen.add(following)
            yield following
            following = self._next.get(following)


def ticks(history: History, owed: Mapping[str, Collection[datetime]]) -> Found:
    """Each tick of a schedule has one job at most; each of those that are `owed` has one, and there are no others."""
    found: dict[tuple[str, datetime], set[str]] = defaultdict(set)
    for row in history.rows:
        if row.schedule is not None and row.tick is not None:
            found[row.schedule, row.tick].add(row.id)
    for (schedule, tick), ids in sorted(found.items()):
        if len(ids) > 1:
            yield schedule, f"tick {tick.isoformat()} has {len(ids)} jobs"
        if schedule in owed and tick not in owed[schedule]:
            yield schedule, f"tick {tick.isoformat()} was not owed"
    for schedule, moments in owed.items():
        for tick in sorted(set(moments)):
            if (schedule, tick) not in found:
                yield schedule, f"tick {tick.isoformat()} has no job"
