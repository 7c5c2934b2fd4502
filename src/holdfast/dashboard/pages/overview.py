"""The overview: is something late, is something dead, is somebody at work, is something wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.dashboard.http import Response
from holdfast.dashboard.reading import NEWEST, PERIODS, USUAL, history, overview
from holdfast.dashboard.rendering import chart, render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.observe import Depth, Figures, Histogram, History, Point
from holdfast.worker.registry import status_of

# Lines in one chart: more cannot be told apart.
LINES = 5
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def page(visit: Visit) -> Talk[Response]:
    seen = yield from overview(visit.setting)
    said = visit.said.one("period")
    period, told = yield from _told(visit, said if said in PERIODS else "")
    charts = charts_of(told) if any(point.kinds or point.depths is not None for point in told.points) else []
    return render(
        visit,
        "overview.html",
        "Overview",
        seen=seen,
        charts=charts,
        status_of=status_of,
        period=period,
        periods=list(PERIODS),
        said=said,
    )


def _told(visit: Visit, said: str) -> Talk[tuple[str, History]]:
    """Read the period that was asked for; without one an hour, or its last two minutes where nothing is older."""
    if said:
        return said, (yield from history(visit.setting, said))
    usual = yield from history(visit.setting, USUAL)
    if any(point.kinds for point in usual.points[:-3]):
        return USUAL, usual
    return NEWEST, (yield from history(visit.setting, NEWEST))


def charts_of(told: History) -> list[dict[str, Any]]:
    """Make the charts, lag first: it is what people feel. The newest slot is left out, because it is not over."""
    points = told.points[:-1]
    times = [point.at.timestamp() for point in points]

    def by_queue(of: Callable[[Depth], float | None]) -> dict[str, list[float | None]]:
        lines = {queue: [_depth(point, queue, of) for point in points] for queue in told.queues}
        most = {queue: max((one or 0.0 for one in lines[queue]), default=0.0) for queue in lines}
        highest = sorted(lines, key=lambda queue: (-most[queue], queue))[:LINES]
        return {queue: lines[queue] for queue in highest if most[queue] > 0 or queue == highest[0]}

    def rate(of: Callable[[Figures], int]) -> list[float | None]:
        return [of(point.figures()) / point.seconds for point in points]

    def quantiles(of: Callable[[Figures], Histogram]) -> dict[str, list[float | None]]:
        each = [of(point.figures()) for point in points]
        return {name: [one.quantile(share) for one in each] for name, share in QUANTILES.items()}

    rates = {"done": rate(lambda one: one.ended.get("done", 0)), "failed": rate(lambda one: one.failed)}
    return [
        chart("lag", "Lag: how long the oldest job has been due", "s", times, by_queue(lambda one: one.oldest or 0.0)),
        chart("rates", "Attempts a second", "", times, rates),
        chart("waits", "How long jobs waited", "s", times, quantiles(lambda one: one.waits)),
        chart("runs", "How long attempts took", "s", times, quantiles(lambda one: one.runs)),
        chart("depth", "Due jobs", "", times, by_queue(lambda one: one.due)),
        chart("dead", "Dead letters", "", times, by_queue(lambda one: one.dead)),
    ]


def _depth(point: Point, queue: str, of: Callable[[Depth], float | None]) -> float | None:
    if point.depths is None:
        return None
    return of(point.depths.get(queue, Depth()))
