"""Schedules: when each comes next, what it adds, whether it is paused."""

from __future__ import annotations

from datetime import datetime

from holdfast import schedules
from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.schedules import Stored

TICKS = 5


def page(visit: Visit) -> Talk[Response]:
    found = yield from visit.look(schedules.listed())
    ticks = {one.name: _upcoming(one) for one in found}
    return render(visit, "schedules.html", "Schedules", schedules=found, ticks=ticks)


def _upcoming(one: Stored) -> list[datetime]:
    """Tell the next ticks; a row that this version cannot read has none."""
    try:
        return one.upcoming(TICKS)
    except ConfigError:
        return []
