"""What was counted and timed, as it is stored and added up."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.observe.buckets import Histogram
from holdfast.observe.counting import Depth

# How attempts end. `released` jobs went back to their queue without an attempt, `lost` ones have another holder.
OUTCOMES = ("done", "retried", "dead", "cancelled", "snoozed", "parked", "released", "lost", "reaped")
# Queues and kinds that are told apart in one row; what is beyond them counts as `OTHER`.
MOST_KINDS = 500
OTHER = "other"


class Figures(msgspec.Struct, array_like=True):
    """The attempts of one kind in one queue: how many ended how, how long they had waited, and how long they took."""

    ended: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    waits: Histogram = msgspec.field(default_factory=Histogram)
    runs: Histogram = msgspec.field(default_factory=Histogram)
    # Jobs that were handed in by the processes of workers.
    enqueued: int = 0

    def add(self, other: Figures) -> None:
        for outcome, number in other.ended.items():
            self.ended[outcome] = self.ended.get(outcome, 0) + number
        self.waits.add(other.waits)
        self.runs.add(other.runs)
        self.enqueued += other.enqueued

    @property
    def attempts(self) -> int:
        """How many attempts there were: a job that was released has not been tried."""
        return sum(number for outcome, number in self.ended.items() if outcome not in ("released", "reaped"))

    @property
    def failed(self) -> int:
        return self.ended.get("retried", 0) + self.ended.get("dead", 0)

    def __bool__(self) -> bool:
        return bool(self.ended or self.enqueued)


class Folded(msgspec.Struct):
    """What a row of statistics holds: figures by queue and kind, and a sample of the queues, where it has one."""

    kinds: dict[tuple[str, str], Figures] = msgspec.field(default_factory=dict[tuple[str, str], Figures])
    depths: dict[str, Depth] | None = None
    # Seconds that claims and settles took, and how many jobs they moved, by "claim" and "settle".
    trips: dict[str, Histogram] = msgspec.field(default_factory=dict[str, Histogram])

    def __bool__(self) -> bool:
        return bool(self.kinds or self.depths is not None or self.trips)

    def of(self, queue: str, kind: str) -> Figures:
        """Return the figures of a kind, to be added to."""
        found = self.kinds.get((queue, kind))
        if found is None:
            key = (queue, kind) if len(self.kinds) < MOST_KINDS else (OTHER, OTHER)
            found = self.kinds.setdefault(key, Figures())
        return found

    def add(self, other: Folded) -> None:
        """Add what another row holds; of samples the most counts, as somebody who looks for lag wants it."""
        for (queue, kind), figures in other.kinds.items():
            self.of(queue, kind).add(figures)
        for name, took in other.trips.items():
            self.trips.setdefault(name, Histogram()).add(took)
        if other.depths is not None:
            depths = self.depths = {} if self.depths is None else self.depths
            for queue, depth in other.depths.items():
                depths[queue] = depths[queue].at_most(depth) if queue in depths else depth

    def to_json(self) -> str:
        kinds = [(queue, kind, figures) for (queue, kind), figures in self.kinds.items()]
        return msgspec.json.encode(_Stored(kinds, self.depths, self.trips)).decode()

    @classmethod
    def from_json(cls, text: Any) -> Folded:
        """Read a stored row; one that cannot be read holds nothing."""
        try:
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.MsgspecError, UnicodeError):
            return cls()
        folded = cls(depths=stored.depths, trips=stored.trips)
        for queue, kind, figures in stored.kinds:
            folded.of(queue, kind).add(figures)
        return folded


class _Stored(msgspec.Struct, omit_defaults=True):
    """The text of a row."""

    kinds: list[tuple[str, str, Figures]] = msgspec.field(default_factory=list[tuple[str, str, Figures]])
    depths: dict[str, Depth] | None = None
    trips: dict[str, Histogram] = msgspec.field(default_factory=dict[str, Histogram])
