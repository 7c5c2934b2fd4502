"""How rows of statistics are written, merged and deleted."""

from __future__ import annotations

from collections import defaultdict

from holdfast.flow import Steps, ask, flow
from holdfast.observe.figures import Folded
from holdfast.values.ids import new_id
from holdfast.values.rows import when

# Seconds that a row is about: as it was written with a beat, a minute, ten minutes.
WRITTEN, MINUTE, TEN_MINUTES = 10, 60, 600
# Rows are merged once they are older than this, minutes once they are older than that; then how long the rest is kept.
WRITTEN_KEPT, MINUTES_KEPT, ALL_KEPT = 120, 8 * 3600, 7 * 86_400
# Under whose name samples of the queues are written.
SAMPLER = "fleet"
MERGED_AT_ONCE = 2_000


def note(worker: str, folded: Folded, row_id: str) -> Steps[None]:
    """Write what was counted as one row, in the transaction of who asks; the same id adds nothing a second time.

    Rows are merged after two minutes, and then their ids are gone: the registry keeps that of a worker's last one.
    """
    yield from ask("stats_add", id=row_id, span=WRITTEN, worker=worker, data=folded.to_json())


def add(worker: str, folded: Folded) -> Steps[None]:
    """As `note`, under a new id."""
    return note(worker, folded, new_id())


@flow
def merge() -> Steps[int]:
    """Add rows that are old enough up to one for each minute, and minutes to ten minutes; returns how many were taken.

    Commits: its own. After a crash: nothing happened. A row is taken away and added up in one transaction, so that it
    counts once, also when two do this at the same time; what comes late makes a second row of its slot.
    """
    now = int(when((yield from ask("clock"))[0][0]).timestamp())
    taken = 0
    for span, into, kept in ((WRITTEN, MINUTE, WRITTEN_KEPT), (MINUTE, TEN_MINUTES, MINUTES_KEPT)):
        until = (now - kept) // into * into
        rows = yield from ask("stats_take", span=span, until=until, limit=MERGED_AT_ONCE)
        slots: dict[int, Folded] = defaultdict(Folded)
        for _, slot, _, data in rows:
            slots[int(slot) // into * into].add(Folded.from_json(data))
        for slot, folded in slots.items():
            yield from ask("stats_keep", id=new_id(), span=into, slot=slot, data=folded.to_json())
        taken += len(rows)
    return taken


@flow
def prune(*, limit: int = 1000) -> Steps[int]:
    """Delete a chunk of what is older than a week.

    Commits: its own. After a crash: go on with the next chunk.
    """
    now = int(when((yield from ask("clock", alone=True))[0][0]).timestamp())
    rows = yield from ask("stats_prune", span=TEN_MINUTES, until=now - ALL_KEPT, limit=limit, alone=True)
    return len(rows)
