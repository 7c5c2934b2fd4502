"""Which rows an action means: those that were chosen, or all that a search finds, as of the moment of the preview."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.admin import health
from holdfast.dashboard.actions.base import Pairs
from holdfast.dashboard.search import wanted_of
from holdfast.dashboard.setting import Place
from holdfast.dashboard.talk import Talk, look
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.life.listing import Wanted

MOST_CHOSEN = 500
SAMPLE = 10


def chosen(visit: Visit) -> tuple[Place, Wanted]:
    """Read what was chosen. Raises: ConfigError where nothing was: to say nothing is not to say everything."""
    place, ids, q = visit.place(), tuple(dict.fromkeys(visit.said.many("id"))), visit.said.one("q")
    if len(ids) > MOST_CHOSEN:
        raise ConfigError("id", f"may name {MOST_CHOSEN} rows; search for them instead", len(ids))
    wanted = wanted_of(q)
    if ids:
        wanted = replace(wanted, ids=ids)
    elif not wanted.given() and visit.said.one("all") != "1":
        raise ConfigError("id", "choose rows, or search for those that are meant", q)
    return place, wanted


def again(visit: Visit, *leave: str) -> Pairs:
    """Say the same again, for the form that follows."""
    return visit.said.pairs("as_of", "total", "done", "stay", *leave)


def as_of(visit: Visit, place: Place) -> Talk[str]:
    """Return the moment of the preview, by the database's clock; what comes later is not meant."""
    said = visit.said.one("as_of")
    if said:
        return said
    if place.name:
        return ""
    moment = yield from look(place.store, health.clock())
    return moment.isoformat()


def until(wanted: Wanted, name: str, moment: str) -> Wanted:
    """Mean nothing that came after a moment. Raises: ConfigError."""
    if not moment:
        return wanted
    try:
        limit = datetime.fromisoformat(moment)
    except ValueError as error:
        raise ConfigError("as_of", "must be the time that the preview wrote", moment) from error
    if limit.tzinfo is None:
        raise ConfigError("as_of", "must be the time that the preview wrote", moment)
    before = getattr(wanted, name)
    given: dict[str, Any] = {name: limit if before is None else min(limit, before)}
    return replace(wanted, **given)
