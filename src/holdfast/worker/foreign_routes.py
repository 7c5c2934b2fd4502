"""Foreign outbox tables whose events a worker sends on: claimed while the sinks of their types take messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from holdfast.flow import Flow
from holdfast.handlers import Registration
from holdfast.life.source import Source
from holdfast.sinks import Sink
from holdfast.values.options import Part
from holdfast.values.rows import Lease
from holdfast.worker.breaker import Breaker

RELAY = "relay"


def sending(source: Source, breaker_of: Callable[[Sink], Breaker], *, part: Part) -> Source:
    """Have a source of foreign tables rest while a sink is down that it sends to; any other stays as it is."""
    kinds = [kind for kind in source.handlers if source.executor(kind) == RELAY]
    breakers = {kind: breaker_of(cast("Any", source.handlers[kind]).route.sink) for kind in kinds}
    return cast("Source", ForeignRoutes(source, breakers, part)) if breakers else source


class ForeignRoutes:
    """One worker's view of foreign tables with kinds that are sent on; all else is as the tables' own source has it.

    part: handlers or routes alone, or all.
    """

    def __init__(self, source: Source, breakers: Mapping[str, Breaker], part: Part) -> None:
        self._source = source
        self._breakers = breakers
        meant = {
            "all": source.handlers.keys(),
            "routes": breakers.keys(),
            "handlers": source.handlers.keys() - breakers.keys(),
        }
        served = {kind: one for kind, one in source.handlers.items() if kind in meant[part]}
        self.handlers: Mapping[str, Registration[..., Any]] = served

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __repr__(self) -> str:
        return repr(self._source)

    def breaker_for(self, kind: str) -> Breaker:
        return self._breakers[kind]

    def turns(self) -> Sequence[str | None]:
        return self._source.turns() if any(self._room(kind) != 0 for kind in self.handlers) else []

    def again_in(self) -> float | None:
        waits = [self._source.again_in(), *(breaker.again_in() for breaker in self._breakers.values())]
        return min((wait for wait in waits if wait is not None), default=None)

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]] | None:
        rooms = {kind: self._room(kind) for kind in leases if kind in self.handlers}
        # A sink that is probed gets few messages; nothing else is claimed with them, so that they are its own.
        probed = next((kind for kind, room in rooms.items() if room), None)
        open_to = [probed] if probed is not None else [kind for kind, room in rooms.items() if room is None]
        if not open_to:
            return None
        most = limit if probed is None else min(limit, rooms[probed] or limit)
        meant = {kind: leases[kind] for kind in open_to}
        return self._source.claim(meant, most, worker, suspects=suspects, turn=turn)

    def _room(self, kind: str) -> int | None:
        breaker = self._breakers.get(kind)
        return None if breaker is None else breaker.room()
