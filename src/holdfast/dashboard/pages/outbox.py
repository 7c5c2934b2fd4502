"""The outbox: where events go, what is behind, and the newest deliveries."""

from __future__ import annotations

from dataclasses import replace

from holdfast import admin
from holdfast.dashboard.http import Response
from holdfast.dashboard.reading import queues_now
from holdfast.dashboard.rendering import render
from holdfast.dashboard.search import wanted_of
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.outbox import UNROUTED, DeliveryView, delivery_of
from holdfast.values.reserved import is_route, route_of

ROWS = 50


def page(visit: Visit) -> Talk[Response]:
    now = {one.queue: one for one in (yield from queues_now(visit.setting)) if is_route(one.queue)}
    routes = {route.queue: route for route in visit.setting.context.routes}
    q, after = visit.said.one("q"), visit.said.one("after")
    problem, rows, more, at_horizon = "", list[DeliveryView](), None, False
    try:
        filter = admin.filter_of(replace(wanted_of(q), outbox=True))
        seen = yield from visit.look(admin.newest(filter, ROWS, after or None))
        rows, more, at_horizon = [delivery_of(row) for row in seen.rows], seen.more, seen.at_horizon
    except ConfigError as error:
        problem = str(error)
    return render(
        visit,
        "outbox.html",
        "Outbox",
        code=400 if problem else 200,
        names=sorted({*now, *routes} - {UNROUTED}),
        unrouted=now.get(UNROUTED),
        unrouted_queue=UNROUTED,
        now_of=now,
        routes=routes,
        route_of=route_of,
        rows=rows,
        more=more,
        at_horizon=at_horizon,
        problem=problem,
        q=q,
        after=after,
    )
