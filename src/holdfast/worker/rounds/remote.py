"""Remote results: wake runs whose remote steps have results, and see to dispatches that were lost."""

from __future__ import annotations

import asyncio
import time

from holdfast import events, remote
from holdfast.remote import Engine
from holdfast.remote.care import SWEPT_AT_ONCE
from holdfast.remote.results import RUNG_AT_ONCE
from holdfast.worker.rounds.base import Round, RoundContext, jittered

# Right after a dispatch or a result the next look comes soon; then later and later, up to the engine's `poll`.
SOON_SECONDS = 0.02
SLOWER = 1.3
SWEEP_SECONDS = 1.0


def serves_runs(context: RoundContext) -> bool:
    """Tell whether a worker serves runs on its application's own store."""
    kinds = (handler for source in context.sources if source.ours for handler in source.handlers.values())
    return context.is_first and any(handler.executor == "run" for handler in kinds)


class RemoteResults(Round):
    name = "remote"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._engines = [engine for engine in context.engines.values() if engine.messenger is None]
        self._pause = SOON_SECONDS
        self._hinted = asyncio.Event()
        self._sweep_at = 0.0

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return any(engine.messenger is None for engine in context.engines.values()) and serves_runs(context)

    async def serve(self) -> None:
        self.context.dispatch_hints.add(self._hint)
        try:
            await super().serve()
        finally:
            self.context.dispatch_hints.discard(self._hint)

    def _hint(self, engine: str) -> None:
        self._hinted.set()

    async def pause(self) -> None:
        try:
            async with asyncio.timeout(jittered(self._pause)):
                await self._hinted.wait()
                # A result takes a moment, too.
                await asyncio.sleep(SOON_SECONDS)
        except TimeoutError:
            pass
        if self._hinted.is_set():
            self._hinted.clear()
            self._pause = SOON_SECONDS

    async def run(self) -> None:
        sweeps = time.monotonic() >= self._sweep_at
        found = 0
        for engine in self._engines:
            await engine.aprepare()
            found += await self._look(engine, sweeps)
        if sweeps:
            self._sweep_at = time.monotonic() + jittered(SWEEP_SECONDS)
        slowest = min(engine.poll for engine in self._engines)
        self._pause = SOON_SECONDS if found else min(self._pause * SLOWER, slowest)

    async def _look(self, engine: Engine, sweeps: bool) -> int:
        outlive, found = self.context.patience.outlive, 0
        arrived = RUNG_AT_ONCE
        while arrived >= RUNG_AT_ONCE and not self.context.stopping.is_set():
            told, dropped = await outlive(remote.ring(engine.transport))
            arrived = told + dropped
            found += arrived
            if told:
                self.context.wake()
        if sweeps:
            await self._sweep(engine)
        return found

    async def _sweep(self, engine: Engine) -> None:
        looked = SWEPT_AT_ONCE
        while looked >= SWEPT_AT_ONCE and not self.context.stopping.is_set():
            work = remote.sweep(engine.name, engine.transport, round(engine.lost_after * 1000))
            swept: remote.Swept = await self.context.patience.outlive(work)
            looked = swept.looked
            for one in swept.lost:
                lost = events.DispatchLost(self.context.worker, engine.name, one.run_id, one.key, one.lost + 1)
                self.context.emit(lost)
