"""The ring: which of the live workers owns which buckets, worked out alike by everyone.

Each worker has 128 points on a ring of 64-bit numbers, each bucket has one; a bucket belongs to the worker whose point
comes next. A worker that joins or leaves moves about its own share of the buckets and no other. Ownership is a
preference: who may run a job is decided by its lease, so two workers with different views do no harm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from hashlib import blake2b

POINTS_PER_WORKER = 128


def place(text: str) -> int:
    """Return the place of a text on the ring: the first 8 bytes of its BLAKE2b hash, as a big-endian number."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Ring:
    """The buckets of a set of workers."""

    def __init__(self, workers: Iterable[str]) -> None:
        points = [(place(f"{worker}#{n}"), worker) for worker in set(workers) for n in range(POINTS_PER_WORKER)]
        # By worker, too, where two points fall on one place: everyone must sort them alike.
        points.sort()
        self._places = [at for at, _ in points]
        self._workers = [worker for _, worker in points]

    def owner(self, bucket: int) -> str | None:
        """Return the worker that a bucket belongs to; None where there are no workers."""
        if not self._places:
            return None
        found = bisect_left(self._places, place(f"bucket:{bucket}"))
        return self._workers[found % len(self._workers)]

    def owned(self, worker: str, buckets: int) -> list[int]:
        """List the buckets, of 0 up to this number, that belong to a worker."""
        return [bucket for bucket in range(buckets) if self.owner(bucket) == worker]


def moved(before: Collection[str], after: Collection[str], buckets: int) -> list[int]:
    """List the buckets that change hands when one set of workers becomes another."""
    old, new = Ring(before), Ring(after)
    return [bucket for bucket in range(buckets) if old.owner(bucket) != new.owner(bucket)]
