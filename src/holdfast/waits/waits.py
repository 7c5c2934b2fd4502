"""All who wait for jobs of one application, in this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence

from holdfast.store import Store
from holdfast.waits.board import Answer
from holdfast.waits.ears import Emit
from holdfast.waits.setting import Setting
from holdfast.waits.tasks import TaskWaits
from holdfast.waits.threads import ThreadWaits


class Waits:
    """Waits for jobs on threads and on event loops.

    keeping_nothing: names the queues that keep nothing of done jobs. Where it is not known which they are,
    `knows_queues` is False, and any may be one.
    """

    def __init__(
        self, store: Store, emit: Emit, keeping_nothing: Callable[[], list[str]], wake_workers: Callable[[], None]
    ) -> None:
        self.knows_queues = True
        self._keeping_nothing = keeping_nothing
        self._setting = Setting(store, emit, self._queues, wake_workers)
        self._begin()

    def _queues(self) -> list[str] | None:
        return self._keeping_nothing() if self.knows_queues else None

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._threads = ThreadWaits(self._setting)
        # Those of loops on which somebody waits.
        self._loops: dict[asyncio.AbstractEventLoop, TaskWaits] = {}

    def _here(self) -> None:
        """Begin anew in a child process: those who wait in its parent are not here, and a lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin()

    def wait(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job on this thread.

        Raises: TooLong.
        """
        self._here()
        return self._threads.wait(job_id, seconds)

    async def await_(self, job_id: str, seconds: float | None) -> Answer:
        """Wait for a job on the running event loop.

        Raises: TooLong.
        """
        self._here()
        loop = asyncio.get_running_loop()
        with self._lock:
            waits = self._loops.get(loop) or self._loops.setdefault(loop, TaskWaits(self._setting))
        try:
            return await waits.wait(job_id, seconds)
        finally:
            with self._lock:
                if not waits.board.jobs and self._loops.get(loop) is waits:
                    # It would keep a loop that is over.
                    del self._loops[loop]

    @property
    def any(self) -> bool:
        """Whether anybody waits in this process."""
        return bool(self._loops or self._threads.board.jobs)

    def ended(self, ids: Sequence[str]) -> None:
        """Say that a worker of this process has ended jobs; from any thread."""
        with self._lock:
            places: list[ThreadWaits | TaskWaits] = [self._threads, *self._loops.values()]
        for place in places:
            if any(job_id in place.board.jobs for job_id in ids):
                place.hint(ids)
