"""Jobs by search: the newest that fit, in pages, with what can be done to those that were chosen."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import admin
from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.search import QUALIFIERS, wanted_of
from holdfast.dashboard.setting import Place
from holdfast.dashboard.talk import Talk, look
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.life.listing import Wanted
from holdfast.values.views import JobView

ROWS = 50


@dataclass(frozen=True, slots=True)
class Found:
    """A page of rows, and how to go on: the cursor of the next page, and whether the look ended at its horizon."""

    rows: list[JobView]
    more: str | None = None
    at_horizon: bool = False


def page(visit: Visit) -> Talk[Response]:
    place, q = visit.place(), visit.said.one("q")
    problem, found, wanted = "", Found([]), Wanted()
    try:
        wanted = wanted_of(q)
        found = yield from rows_of(place, wanted, visit.said.one("after"))
    except ConfigError as error:
        problem = str(error)
    return render(
        visit,
        "jobs.html",
        "Jobs" if not place.name else place.name,
        code=400 if problem else 200,
        place=place,
        q=q,
        wanted=wanted,
        found=found,
        problem=problem,
        qualifiers=QUALIFIERS,
        states=place.desk.states,
        after=visit.said.one("after"),
    )


def rows_of(place: Place, wanted: Wanted, after: str = "", limit: int = ROWS) -> Talk[Found]:
    """Read a page of rows of any tables."""
    if not place.name:
        filter = admin.filter_of(wanted)
        seen = yield from look(place.store, admin.newest(filter, limit, after or None))
        return Found(seen.rows, seen.more, seen.at_horizon)
    read = place.desk.letters if wanted.states == ("dead",) and place.desk.can("letters") else place.desk.rows
    asked = Wanted(**(vars(wanted) | {"states": ()})) if read == place.desk.letters else wanted
    page = yield from look(place.store, read(asked, limit=limit, after=after or None))
    return Found(page.rows, page.cursor, page.at_horizon)
