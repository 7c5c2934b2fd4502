"""Dead letters in groups that fail alike, to be replayed or discarded together."""

from __future__ import annotations

from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.search import QUALIFIERS, wanted_of
from holdfast.dashboard.talk import Talk, look
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.values.views import DeadGroup

GROUPS = 100


def page(visit: Visit) -> Talk[Response]:
    place, q = visit.place(), visit.said.one("q")
    problem, groups = "", list[DeadGroup]()
    try:
        wanted = wanted_of(q)
        place.desk.require("letters")
        groups = yield from look(place.store, place.desk.groups(wanted, GROUPS))
    except ConfigError as error:
        problem = str(error)
    return render(
        visit,
        "dead.html",
        "Dead letters",
        code=400 if problem else 200,
        place=place,
        places=[one for one in visit.setting.places.values() if one.desk.can("letters")],
        q=q,
        groups=groups,
        problem=problem,
        qualifiers=QUALIFIERS,
        most=GROUPS,
    )
