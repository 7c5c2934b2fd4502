"""Which of our jobs are meant: a filter with its checks, as the parameters that the queries name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from holdfast.errors import ConfigError
from holdfast.life.listing import Wanted
from holdfast.values.ids import parse_id
from holdfast.values.options import KEY_LENGTH, NAME_LENGTH, text

LIVE_STATES = ("pending", "waiting", "leased")
STATES = (*LIVE_STATES, "done", "dead", "cancelled")

_TEXTS = {
    "queue": NAME_LENGTH,
    "kind": NAME_LENGTH,
    "key": KEY_LENGTH,
    "group": 64,
    "worker": 500,
    "error": 1000,
    "event": KEY_LENGTH,
}
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")


@dataclass(frozen=True)
class Filter(Wanted):
    """Which jobs are meant; what is left out is not asked, and all that is given must hold.

    `group` is the fingerprint of dead letters. `worker` holds the lease, or held the last one. `created_after` and
    `finished_after` include their moment, `…_before` do not. `error` is a part of the last error as it is shown,
    "type: message", in any case of letters. `event` and `outbox` mean deliveries of the outbox.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", _texts(self.states, "states"))
        if strange := [state for state in self.states if state not in STATES]:
            raise ConfigError("states", f"must be among {', '.join(STATES)}", strange[0])
        object.__setattr__(self, "ids", tuple(map(parse_id, _texts(self.ids, "ids"))))
        for name, longest in _TEXTS.items():
            if (value := getattr(self, name)) is not None:
                text(value, name, longest)
        for name in _TIMES:
            if (moment := getattr(self, name)) is not None:
                _aware(moment, name)

    def params(self) -> dict[str, Any]:
        """Return what is given, as the parameters that the queries' `when` lines name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        given |= {name: list(given[name]) for name in ("states", "ids") if name in given}
        if self.group is not None or set(self.states) == {"dead"}:
            # Said as a constant, which lets a database use the indexes of the dead letters. Not as a list, too: a
            # planner would take both for chances, and expect far fewer than there are.
            given["only_dead"] = True
            if set(self.states) == {"dead"}:
                del given["states"]
        if self.states and not set(self.states) - set(LIVE_STATES):
            # Without it, a database reads every finished row only to find that none is live.
            given["only_live"] = True
        return given


def _texts(values: object, name: str) -> tuple[str, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise ConfigError(name, "must be a sequence of texts", values)
    return tuple(values)


def _aware(moment: object, name: str) -> None:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ConfigError(name, "must be a datetime with a time zone, as in datetime.now(UTC)", moment)


ALL = Filter()
