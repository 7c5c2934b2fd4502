"""Queues: how far behind, what is paused, order and limits, and the lines of their keys."""

from __future__ import annotations

from holdfast import admin, jobs, lines
from holdfast.dashboard.http import Response
from holdfast.dashboard.reading import queues_now, queues_of, workers_now
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.values.reserved import is_route
from holdfast.worker.registry import status_of

LINES = 100


def page(visit: Visit) -> Talk[Response]:
    now = {one.queue: one for one in (yield from queues_now(visit.setting))}
    stored = yield from visit.look(lines.stored())
    pauses = yield from visit.look(jobs.pauses())
    stopped = yield from visit.look(admin.list_lines(stopped=True, limit=LINES))
    alive = [one for one in (yield from workers_now(visit.setting)) if status_of(one) == "alive"]
    declared = {name: one.settings for name, one in visit.setting.context.queues.items()}
    names = sorted(name for name in {*now, *stored, *declared} if not is_route(name))
    serving = {name: sum(name in queues_of(one) for one in alive) for name in names}
    return render(
        visit,
        "queues.html",
        "Queues",
        names=names,
        now_of=now,
        stored=stored,
        declared=declared,
        kinds=[one for one in pauses if one.scope == "kind"],
        stopped=stopped,
        serving=serving,
    )


def lines_page(visit: Visit) -> Talk[Response]:
    queue, after = visit.said.one("queue"), visit.said.one("after")
    found = yield from visit.look(
        admin.list_lines(
            queue or None,
            visit.said.one("key") or None,
            stopped=visit.said.one("stopped") == "1",
            limit=LINES,
            after=(visit.said.one("after_queue"), after) if after else None,
        )
    )
    more = found[-1] if len(found) == LINES else None
    return render(visit, "lines.html", "Lines", queue=queue, lines=found, more=more, stopped=visit.said.one("stopped"))
