"""Checkpoints of all runs of a store, written together: while one batch is being written the next one grows.

It changes no promise of a run: its body is told nothing before the commit. It only shares the flush to the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from holdfast.errors import StoreError
from holdfast.flow import Flow
from holdfast.runs import Entry, Recorded, checkpoint

# Rows of one batch.
BATCH_LIMIT = 1_000
# A batch of this size is sent at once: the worker goes on with the next one while the database writes it.
ENOUGH = 64
# How many turns of the loop it takes from a commit to the next rows of its runs: in the first one their bodies are
# told, in the second one their steps are made.
TURNS_OF_A_STEP = 2

_RECORDED: Callable[[tuple[Any, ...]], Recorded] = partial(tuple.__new__, Recorded)


class Owner(Protocol):
    """The one who waits for a checkpoint."""

    def committed(self, row: Recorded) -> None: ...

    def lost_lease(self) -> None: ...

    def refused(self, row: Recorded, error: BaseException) -> None: ...


class Waiting(NamedTuple):
    """A checkpoint to be written."""

    owner: Owner
    entry: Entry


class CheckpointWriter:
    """Writes the checkpoints of one store's runs. `run` outlives outages, and raises where the data is refused."""

    def __init__(
        self, run: Callable[[Flow[Any]], Awaitable[Any]], worker: str, tell_time: Callable[[float], None]
    ) -> None:
        self._run = run
        self._worker = worker
        # Hears what the database's time was.
        self._tell_time = tell_time
        self._waiting: list[Waiting] = []
        self._task: asyncio.Task[None] | None = None
        # Whether the last batch was of several rows.
        self._shared = False

    def add(self, owner: Owner, entry: Entry) -> None:
        """Take a row; its owner hears of it once it is committed, refused, or known to be too late."""
        self._waiting.append(Waiting(owner, entry))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="holdfast-checkpoints")

    async def _serve(self) -> None:
        follows = False
        while self._waiting:
            await self._grow(follows)
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            await self._write(_of_latest_claims(batch) if len(batch) > 1 else batch)
            follows = True

    async def _grow(self, follows: bool) -> None:
        """Let a small batch grow for as long as each turn of the loop adds to it.

        A batch costs the worker something of its own, whatever its size. A run that goes on alone waits for nobody.
        What was added while another batch was written (`follows`) waits for those of that one to go on: else the two
        would take turns for ever, and each run would wait for two commits at every step.
        """
        count, quiet = len(self._waiting), TURNS_OF_A_STEP if follows else 1
        while count < ENOUGH and (count > 1 or self._shared or follows) and quiet:
            await asyncio.sleep(0)
            quiet = quiet - 1 if len(self._waiting) == count else 1
            count = len(self._waiting)
        self._shared = count > 1

    async def _write(self, batch: Sequence[Waiting]) -> None:
        try:
            written = await self._run(checkpoint([one.entry for one in batch], self._worker))
        except StoreError as error:
            # The database is there and refuses the data: one row that it does not take costs itself and nothing else.
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write(batch[:middle])
                await self._write(batch[middle:])
            else:
                batch[0].owner.refused(batch[0].entry.row, error)
            return
        if written:
            self._tell_time(max(written.values()) / 1_000_000)
        for owner, (run, _, row) in batch:
            at = written.get((run, row[0]))
            if at is None:
                owner.lost_lease()
            else:
                # `row._replace(at=at)`, which takes three times as long.
                owner.committed(_RECORDED((*row[:-1], at)))


def _of_latest_claims(batch: Sequence[Waiting]) -> Sequence[Waiting]:
    """Drop rows of runs that this very worker has lost and claimed again: a batch has one fence for each run."""
    fences: dict[str, int] = {}
    for _, (run, fence, _) in batch:
        if fences.setdefault(run, fence) < fence:
            fences[run] = fence
    late = [one for one in batch if one.entry[1] < fences[one.entry[0]]]
    for one in late:
        one.owner.lost_lease()
    return [one for one in batch if one.entry[1] == fences[one.entry[0]]] if late else batch
