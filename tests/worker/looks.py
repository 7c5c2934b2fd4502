"""The looks that workers take at what people change, counted: the next one sees a change, however slow it all is."""

from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.events import Event
from holdfast.worker.rounds.settings import Settings


class Looks:
    """Counts the looks that each worker has begun, and at which of them something was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun: Counter[str] = Counter()
        self._told: dict[str, int] = {}
        real = Settings.run

        async def counted(look: Settings) -> None:
            self._begun[look.context.worker] += 1
            await real(look)

        monkeypatch.setattr(Settings, "run", counted)
        assert Settings.every_seconds <= 1, "what changes counts within about a second"

    def until(self, hf: Holdfast, kind: type[Event]) -> None:
        """Note at which look a worker of the application tells this first."""

        def note(event: Any) -> None:
            self._told.setdefault(event.worker, self._begun[event.worker])

        hf.on(kind, note)

    def now(self) -> Counter[str]:
        return self._begun.copy()

    def saw_it_at_once(self, before: Counter[str]) -> bool:
        """Tell whether the first look that began after `before` was told of it, at the latest, by every worker."""
        return bool(self._told) and all(at <= before[worker] + 1 for worker, at in self._told.items())
