"""Go through jobs a bounded number at a time: where each look at them ends, and how the next one begins behind it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.admin.filters import Filter
from holdfast.flow import Steps, ask, text_of
from holdfast.life.windows import WINDOW as WINDOW


def horizon(
    filter: Filter, given: dict[str, Any], window: int, newest: bool, *, finished: bool = False, alone: bool = True
) -> Steps[str | None]:
    """Name the job at which a look must end that begins where `given` says; None where it may go to the end.

    Counted are dead letters or finished jobs, where the look is at those alone, else live and finished jobs apart.
    Jobs by their ids need no end.
    """
    if filter.ids:
        return None
    begin = "older_than" if newest else "newer_than"
    asked = (begin, "only_live", "only_dead", "group")
    bounds = {each: given[each] for each in asked if each in given} | ({"newest": True} if newest else {})
    if finished or "only_dead" in given:
        rows = yield from ask("finished_horizon", alone=alone, window=window, **bounds)
    else:
        rows = yield from ask("jobs_horizon", alone=alone, window=window, **bounds)
    return text_of(rows[0][0]) if rows else None


def behind(horizon: str, newest: bool) -> str:
    """Return the id behind which the next look begins: the job at the horizon was not looked at."""
    return str(UUID(int=UUID(horizon).int + (1 if newest else -1)))
