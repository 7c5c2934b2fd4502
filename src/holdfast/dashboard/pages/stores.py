"""Foreign stores: tables that programs in other languages share, with what waits and runs in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.setting import Place
from holdfast.dashboard.talk import Talk, look
from holdfast.dashboard.visit import Visit
from holdfast.errors import HoldfastError
from holdfast.life.findings import Finding
from holdfast.life.listing import Count
from holdfast.values.words import one_line

COUNTS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one set of tables holds, or why it could not be looked at."""

    place: Place
    counts: list[Count] = field(default_factory=list[Count])
    findings: list[Finding] = field(default_factory=list[Finding])
    problem: str = ""


def page(visit: Visit) -> Talk[Response]:
    seen: list[Seen] = []
    for place in visit.setting.places.values():
        if place.name:
            seen.append((yield from _seen(visit, place)))
    return render(visit, "stores.html", "Foreign stores", stores=seen)


def _seen(visit: Visit, place: Place) -> Talk[Seen]:
    def read() -> Talk[Seen]:
        try:
            counts = yield from look(place.store, place.desk.counts())
            findings = yield from look(place.store, place.desk.examine())
        except HoldfastError as error:
            return Seen(place, problem=one_line(error, 300))
        return Seen(place, counts, [one for one in findings if one.severity != "ok"])

    return visit.setting.shared.read(("store", place.name), COUNTS_SECONDS, read)
