"""Look at every queue, each count up to a limit: what a dashboard, an alert and `doctor` want to know first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from holdfast.flow import Steps, ask, flow
from holdfast.observe.counting import COUNTED, Depth, Sample
from holdfast.placing import on_every
from holdfast.values.rows import when

# Leased rows that a sample looks at, of all queues together.
LEASED_READ = 100_000


class DueKind(NamedTuple):
    """Due jobs of one kind in a queue, as far as they were counted; oldest: seconds since the first was due."""

    queue: str
    kind: str
    due: int
    oldest: float


@on_every(Sample.merged)
@flow
def sample() -> Steps[Sample]:
    """Count what is due, due later, leased and dead in each queue, and find since when the first job has been due.

    Statements that stand alone: the queues are seen one after the other, and nothing is held meanwhile.
    """
    due: Counter[str] = Counter()
    later: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    for queue, level in (yield from ask("depth_levels", alone=True)):
        rows = yield from ask("depth_of", queue=queue, level=level, limit=COUNTED + 1, alone=True)
        [[due_now, age_us, due_later]] = rows
        later[queue] += int(due_later)
        if due_now:
            due[queue] += int(due_now)
            oldest[queue] = max(oldest.get(queue, 0.0), int(age_us) / 1e6)
    # One look for all queues: what is leased is bounded by what workers hold, so the limit is for a fleet of thousands.
    rows = yield from ask("depth_leased", limit=LEASED_READ, alone=True)
    leased = {queue: min(COUNTED + 1, int(count)) for queue, count in rows}
    dead: dict[str, int] = {}
    for outcome, queue in (yield from ask("prune_queues", alone=True)):
        if outcome == "dead":
            [[count]] = yield from ask("depth_kept", outcome=outcome, queue=queue, limit=COUNTED + 1, alone=True)
            dead[queue] = int(count)
    [[now]] = yield from ask("clock", alone=True)
    names = sorted({*due, *later, *leased, *dead})
    most = COUNTED + 1
    depths = {
        name: Depth(
            min(most, due[name]), min(most, later[name]), leased.get(name, 0), dead.get(name, 0), oldest.get(name)
        )
        for name in names
    }
    return Sample(when(now), 0.0, depths)


@flow
def due_kinds(queues: Collection[str] | None = None) -> Steps[list[DueKind]]:
    """Count due jobs by queue and kind, the first of each queue and priority; in these queues, or in all."""
    found: dict[tuple[str, str], DueKind] = {}
    levels = yield from ask("depth_levels", alone=True)
    for queue, level in (one for one in levels if queues is None or one[0] in queues):
        for kind, count, age_us in (
            yield from ask("depth_due", queue=queue, level=level, limit=COUNTED + 1, alone=True)
        ):
            before = found.get((queue, kind), DueKind(queue, kind, 0, 0.0))
            oldest = max(before.oldest, int(age_us) / 1e6)
            found[queue, kind] = DueKind(queue, kind, before.due + int(count), oldest)
    return list(found.values())
