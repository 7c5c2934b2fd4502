"""The task that an embedded worker runs beside; it hears of a broken worker as it would of a broken TaskGroup."""

from __future__ import annotations

import asyncio
from typing import Any


class Host:
    """The task inside `async with hf.worker()`."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._was_cut = False

    def enter(self) -> None:
        self._task = asyncio.current_task()

    def cut(self) -> None:
        """Cancel what the block does: it may wait for jobs that nobody runs any more."""
        if self._task is not None and not self._was_cut:
            self._was_cut = self._task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """Note the end of the block; tell whether it ends because it was cut, and for no other reason."""
        task, self._task = self._task, None
        if not self._was_cut or task is not asyncio.current_task():
            return False
        # More cancellations than ours: somebody else wants the task to end, and must not be kept from that.
        alone = task is not None and task.uncancel() == 0
        return alone and issubclass(type(error), asyncio.CancelledError)
