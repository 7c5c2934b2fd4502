"""Workers: who is there, who fell silent, what they serve; and how to let them go."""

from __future__ import annotations

from holdfast.dashboard.http import Response
from holdfast.dashboard.reading import queues_of, workers_now
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.worker.registry import status_of, up

# Those that are gone are forgotten after a day; in a fleet that restarts often there may be many.
GONE_SHOWN = 20


def page(visit: Visit) -> Talk[Response]:
    found = yield from workers_now(visit.setting)
    live = [one for one in found if not one.is_gone]
    gone = sorted((one for one in found if one.is_gone), key=lambda one: one.seen_at, reverse=True)
    return render(
        visit,
        "workers.html",
        "Workers",
        workers=[*live, *gone[:GONE_SHOWN]],
        hidden=max(0, len(gone) - GONE_SHOWN),
        status_of=status_of,
        up=up,
        queues_of=queues_of,
    )
