"""Reading statistics: what happened in the last minutes, hours or days, and the newest sample of the queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from holdfast.flow import Steps, ask, flow
from holdfast.observe.counting import Depth, Sample, added
from holdfast.observe.figures import Figures, Folded
from holdfast.observe.keeping import ALL_KEPT, MINUTE, MINUTES_KEPT, SAMPLER, TEN_MINUTES, WRITTEN_KEPT
from holdfast.placing import on_every
from holdfast.values.rows import when

# How far back the newest sample is looked for.
SAMPLE_LOOK_SECONDS = WRITTEN_KEPT + 2 * MINUTE


@dataclass(frozen=True, slots=True)
class Point:
    """What happened in one slot: from `at` on, for `seconds`. The last one is not over yet.

    kinds: figures by (queue, kind). depths: by queue, the most that a sample of the slot saw; None without one.
    """

    at: datetime
    seconds: int
    kinds: dict[tuple[str, str], Figures]
    depths: dict[str, Depth] | None

    @classmethod
    def merged(cls, several: Sequence[Point]) -> Point:
        """Add up what happened in one slot in several shards."""
        pairs = {pair for point in several for pair in point.kinds}
        kinds = {pair: _sum(point.kinds[pair] for point in several if pair in point.kinds) for pair in pairs}
        sampled = [point.depths for point in several if point.depths is not None]
        return cls(several[0].at, several[0].seconds, kinds, added(sampled) if sampled else None)

    def figures(self, queue: str | None = None, kind: str | None = None) -> Figures:
        """Add up what is asked for: all, a queue, a kind, or a kind in a queue."""
        return _sum(
            one
            for (of_queue, of_kind), one in self.kinds.items()
            if queue in (None, of_queue) and kind in (None, of_kind)
        )


@dataclass(frozen=True, slots=True)
class History:
    """Points of equal length, one behind the other and without gaps, the oldest first; `now` is the database's time."""

    now: datetime
    step: int
    points: list[Point]

    @classmethod
    def merged(cls, several: Sequence[History]) -> History:
        """Make one of what happened in several shards, whose clocks may differ a little."""
        points: dict[datetime, list[Point]] = defaultdict(list)
        for point in chain.from_iterable(one.points for one in several):
            points[point.at].append(point)
        together = [Point.merged(points[at]) for at in sorted(points)]
        return cls(max(one.now for one in several), several[0].step, together)

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Every (queue, kind) that occurs, in order."""
        return sorted({pair for point in self.points for pair in point.kinds})

    @property
    def queues(self) -> list[str]:
        """Every queue that occurs, in order."""
        named = {queue for point in self.points for queue, _ in point.kinds}
        return sorted(named | {queue for point in self.points for queue in point.depths or ()})

    def figures(self, queue: str | None = None, kind: str | None = None) -> Figures:
        """Add up all points: of all, a queue, a kind, or a kind in a queue."""
        return _sum(point.figures(queue, kind) for point in self.points)


def _sum(parts: Iterable[Figures]) -> Figures:
    total = Figures()
    for part in parts:
        total.add(part)
    return total


@on_every(History.merged)
@flow
def history(seconds: int = 3600, step: int | None = None) -> Steps[History]:
    """Read what happened in the last `seconds`, at most a week, in steps of `step` seconds.

    By default a step is a minute, and ten minutes where more than eight hours are asked for: older rows are no finer.
    """
    back = max(1, min(int(seconds), ALL_KEPT))
    length = step or (MINUTE if back <= MINUTES_KEPT else TEN_MINUTES)
    now = when((yield from ask("clock", alone=True))[0][0])
    end = int(now.timestamp())
    first = (end - back) // length * length
    slots: dict[int, Folded] = {slot: Folded() for slot in range(first, end + 1, length)}
    rows = yield from ask("stats_read", since=first, alone=True)
    for _, slot, _, data in rows:
        place = int(slot) // length * length
        if place in slots:
            slots[place].add(Folded.from_json(data))
    points = [
        Point(datetime.fromtimestamp(slot, UTC), length, folded.kinds, folded.depths) for slot, folded in slots.items()
    ]
    return History(now, length, points)


def _newest(answers: Sequence[Sample | None]) -> Sample | None:
    """Make one of the samples of several shards; none where one of them has none, for it would look empty."""
    samples = [one for one in answers if one is not None]
    return Sample.merged(samples) if len(samples) == len(answers) else None


@on_every(_newest)
@flow
def latest() -> Steps[Sample | None]:
    """Read the newest sample of the queues; None where no worker has taken one in the last minutes."""
    now = when((yield from ask("clock", alone=True))[0][0])
    since = int(now.timestamp()) - SAMPLE_LOOK_SECONDS
    for slot, _, data in (yield from ask("stats_latest", since=since, worker=SAMPLER, limit=1, alone=True)):
        age = max(0.0, now.timestamp() - int(slot))
        return Sample(datetime.fromtimestamp(int(slot), UTC), age, Folded.from_json(data).depths or {})
    return None
