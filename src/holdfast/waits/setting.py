"""What those who wait in a process share, in either colour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.store import Store
from holdfast.waits.board import Board
from holdfast.waits.ears import Ears, Emit, Hint, can_hear


@dataclass(eq=False)
class Setting:
    """Where jobs are waited for, and what is known of their queues."""

    store: Store
    emit: Emit
    # Names the queues that keep nothing of done jobs; None where any may be one.
    keeping_nothing: Callable[[], list[str] | None]
    # Lets the workers of this process look for work at once.
    wake_workers: Callable[[], None]

    @property
    def can_hear(self) -> bool:
        return can_hear(self.store)

    @property
    def first_look_seconds(self) -> float:
        """How long the first look may take, however short a caller's time is."""
        return self.store.options.connect_timeout

    def board(self, hears: Callable[[], bool]) -> Board:
        return Board(self._keeps_nothing, hears, listens=self.can_hear)

    def ears(self, hint: Hint) -> Ears:
        return Ears(self.store, hint, self.emit)

    def _keeps_nothing(self, queue: str) -> bool:
        queues = self.keeping_nothing()
        return queues is None or queue in queues
