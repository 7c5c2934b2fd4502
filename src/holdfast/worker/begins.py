"""The record that a handler begins, made before the call and one at a time.

It is made for the few jobs of which a death must be told from a wait (see `life/expiry.py`). The next record is sent
only once the handler before has been entered: one that kills its process at its start then leaves no neighbour behind
that is recorded as begun and never was. Each store has its own records, so that none waits for the outage of another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.flow import Flow
from holdfast.worker.handler_threads import Call
from holdfast.worker.work import Work

# How long the next record waits for a handler that its middlewares, or a lack of threads, keep from its call.
LONGEST_ENTRY_SECONDS = 1.0
# A thread says that it is about to call a handler; after this time it has done so.
THREAD_ENTERS_IN_SECONDS = 0.005
THREAD_LOOK_SECONDS = 0.001


class Begins:
    """Records begins for one worker; `inside` is the job whose handler has been recorded and not yet entered."""

    def __init__(self, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self.inside: Work | None = None
        # What else a slot waits for before a handler is called is asked in the same way.
        self.run = run
        self._one = asyncio.Lock()
        self._limit: asyncio.TimerHandle | None = None

    async def record(self, work: Work, recording: Flow[None]) -> None:
        """Wait for the turn of this job and write its record; what follows must end in `entered`.

        Raises: LeaseLost, when the handler may not be called.
        """
        await self._one.acquire()
        try:
            await self.run(recording)
        except BaseException:
            self._one.release()
            raise
        self.inside = work
        self._limit = asyncio.get_running_loop().call_later(LONGEST_ENTRY_SECONDS, self.entered, work)

    def entered(self, work: Work) -> None:
        """Let the next record be made: the handler of this job is called now, or never will be.

        The next in line is woken by the event loop, so what the caller does before it waits again comes first.
        """
        if self.inside is work and self._limit is not None:
            self.inside = None
            self._limit.cancel()
            self._one.release()

    async def entered_on_thread(self, work: Work, call: Call) -> None:
        """Wait until a thread has entered the handler, and let the next record be made.

        The thread only sets a flag. A wake-up for the loop would let go of the interpreter right before the call, and
        the next record might be sent before it.
        """
        deadline = time.monotonic() + LONGEST_ENTRY_SECONDS
        while not call.entered and not call.future.done() and time.monotonic() < deadline:  # noqa: ASYNC110 - see above
            await asyncio.sleep(THREAD_LOOK_SECONDS)
        await asyncio.wait([call.future], timeout=THREAD_ENTERS_IN_SECONDS)
        self.entered(work)
