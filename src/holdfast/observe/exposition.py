"""Figures as Prometheus reads them: its text format, written here, for it is a dozen lines (decision 0038)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.observe.buckets import BOUNDS, Histogram
from holdfast.observe.counting import Depth, Sample
from holdfast.observe.figures import Folded

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_BOUNDS = [f"{bound:g}" for bound in BOUNDS] + ["+Inf"]

# Told from the beginning: what first appears as 1 is no increase to Prometheus, and nobody would hear of it.
_NONE_YET = {"done": 0, "retried": 0, "dead": 0}

Labels = Mapping[str, str]


class Slots(NamedTuple):
    """How many attempts the workers of this host run, and how many more they could."""

    busy: int = 0
    free: int = 0


def of_process(folded: Folded, slots: Slots, processes: int) -> str:
    """Write what the workers of one host have counted since they began, and what they do now."""
    kinds = sorted(folded.kinds.items())
    lines = [
        *_metric(
            "holdfast_jobs_enqueued_total",
            "counter",
            "Jobs that were enqueued by the processes of these workers.",
            ((_labels(pair), one.enqueued) for pair, one in kinds if one.enqueued),
        ),
        *_metric(
            "holdfast_attempts_total",
            "counter",
            "Attempts by how they ended; a released job has not been tried.",
            (
                ({**_labels(pair), "outcome": outcome}, number)
                for pair, one in kinds
                for outcome, number in sorted((_NONE_YET | one.ended).items())
                if outcome != "reaped"
            ),
        ),
        *_histograms(
            "holdfast_attempt_duration_seconds",
            "How long attempts took.",
            ((_labels(pair), one.runs) for pair, one in kinds if one.runs.count),
        ),
        *_histograms("holdfast_wait_seconds", "From when jobs were due to their start.", _waits(folded)),
        *_trip(folded, "claim", "How long claims took that found something."),
        *_trip(folded, "settle", "How long it took to write how attempts ended, in batches."),
        *_metric(
            "holdfast_leases_reaped_total",
            "counter",
            "Leases that ran out and were taken back by these workers, of any holder.",
            [({}, sum(one.ended.get("reaped", 0) for _, one in kinds))],
        ),
        *_metric(
            "holdfast_leases_lost_total",
            "counter",
            "Leases that these workers lost while they worked.",
            [({}, sum(one.ended.get("lost", 0) for _, one in kinds))],
        ),
        *_metric(
            "holdfast_worker_slots",
            "gauge",
            "Attempts that run now, and that could run beside them.",
            [({"state": "busy"}, slots.busy), ({"state": "free"}, slots.free)],
        ),
        *_metric("holdfast_worker_processes", "gauge", "Processes that run workers here.", [({}, processes)]),
    ]
    return "\n".join(lines) + "\n"


def of_fleet(sample: Sample, workers: Mapping[str, int], shards: Mapping[int, bool] | None = None) -> str:
    """Write what all workers of a database share: what waits in its queues, and how many workers there are.

    shards: whether each answered, where there are some.
    """
    queues = sorted(sample.queues.items())
    lines = [
        *_depths("due", "Jobs that could run now; 10001 means more than 10000.", queues),
        *_depths("scheduled", "Jobs that are due later; 10001 means more than 10000.", queues),
        *_depths("leased", "Jobs that workers hold.", queues),
        *_metric(
            "holdfast_queue_oldest_due_seconds",
            "gauge",
            "For how long the first job of a queue has been due; 0 where none is.",
            (({"queue": queue}, round(depth.oldest or 0.0, 3)) for queue, depth in queues),
        ),
        *_metric(
            "holdfast_dead_letters",
            "gauge",
            "Dead letters that are kept; 10001 means more than 10000.",
            (({"queue": queue}, depth.dead) for queue, depth in queues),
        ),
        *_metric(
            "holdfast_workers",
            "gauge",
            "Workers in the registry; silent ones say they live and have not been heard of for 30 s.",
            (({"status": status}, number) for status, number in workers.items()),
        ),
        *_metric(
            "holdfast_sample_timestamp_seconds",
            "gauge",
            "When the queues were looked at.",
            [({}, round(sample.at.timestamp(), 3))],
        ),
    ]
    if shards:
        values = [({"shard": str(number)}, int(here)) for number, here in shards.items()]
        told = "Whether a shard answered; what is in one that did not is missing in the other numbers."
        lines += _metric("holdfast_shard_up", "gauge", told, values)
    return "\n".join(lines) + "\n"


def _depths(name: str, help_: str, queues: Iterable[tuple[str, Depth]]) -> Iterator[str]:
    values = (({"queue": queue}, getattr(depth, name)) for queue, depth in queues)
    return _metric(f"holdfast_queue_{name}", "gauge", help_, values)


def _waits(folded: Folded) -> list[tuple[Labels, Histogram]]:
    by_queue: dict[str, Histogram] = {}
    for (queue, _), one in sorted(folded.kinds.items()):
        if one.waits.count:
            by_queue.setdefault(queue, Histogram()).add(one.waits)
    return [({"queue": queue}, waits) for queue, waits in by_queue.items()]


def _trip(folded: Folded, name: str, help_: str) -> Iterator[str]:
    return _histograms(f"holdfast_{name}_duration_seconds", help_, [({}, folded.trips.get(name, Histogram()))])


def _metric(name: str, kind: str, help_: str, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        yield f"{name}{_written(labels)} {value}"


def _histograms(name: str, help_: str, values: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} histogram"
    for labels, histogram in values:
        upto = histogram.upto()
        for bound, number in zip(_BOUNDS, upto, strict=True):
            yield f"{name}_bucket{_written({**labels, 'le': bound})} {number}"
        yield f"{name}_sum{_written(labels)} {histogram.total:.6f}"
        yield f"{name}_count{_written(labels)} {upto[-1]}"


def _labels(pair: tuple[str, str]) -> Labels:
    return {"queue": pair[0], "kind": pair[1]}


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
