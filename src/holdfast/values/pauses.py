"""What is paused: queues and kinds that workers claim nothing of until somebody resumes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from holdfast.values.views import plain

Scope = Literal["queue", "kind"]


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue or a kind that is paused: since when, by whom and why, as far as that was said."""

    scope: Scope
    name: str
    since: datetime
    by: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """Say it in words: `queue mail is paused since 2026-05-01 12:30:00 UTC by ann@web1: the provider is down`."""
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.scope} {self.name} is paused since {self.since:%Y-%m-%d %H:%M:%S} UTC{by}{why}"

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Paused:
    """The names of what is paused, as a claim asks for them."""

    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pauses: Iterable[Pause]) -> Paused:
        found = list(pauses)
        return cls(
            frozenset(one.name for one in found if one.scope == "queue"),
            frozenset(one.name for one in found if one.scope == "kind"),
        )

    def __bool__(self) -> bool:
        return bool(self.queues or self.kinds)

    def holds(self, queue: str, kind: str) -> bool:
        """Tell whether jobs of this queue and kind may not begin."""
        return queue in self.queues or kind in self.kinds


NOTHING_PAUSED = Paused()
