"""A worker in fifty lines over the protocol of `holdfast.life.source.Source`: runs what is ready, here and now."""

import asyncio
import time
from typing import Any

from holdfast import Holdfast
from holdfast.values.ids import new_id
from holdfast.worker.handler_executor import Executor
from holdfast.worker.handler_threads import Threads
from holdfast.worker.work import Work

SLOTS = 20


class MiniWorker:
    """Claims from an application's foreign sources, runs and settles."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.id = f"mini-{new_id()[-12:]}"
        self.running: dict[asyncio.Task[None], tuple[Any, Work]] = {}
        # What settling came to, in order: (kind, "done" or "lost").
        self.settled: list[tuple[str, str]] = []
        self._threads = Threads(SLOTS, "mini")
        self._executor = Executor(app.context, self.id, self._threads)

    async def round(self) -> int:
        """Claim once from every source, start what was claimed, and return how many that were."""
        count = 0
        for source in self.app.foreign.sources:
            kinds = {kind: round(h.options.lease * 1000) for kind, h in source.handlers.items()}
            leases = await self.app.store.arun(source.claim(kinds, SLOTS - len(self.running), self.id))
            for lease in leases:
                work = Work(lease, source.handlers[lease.kind], True, time.monotonic(), source)
                task = asyncio.create_task(self._run(source, work))
                self.running[task] = (source, work)
                task.add_done_callback(lambda done: self.running.pop(done))
            count += len(leases)
        return count

    async def _run(self, source: Any, work: Work) -> None:
        ended = await self._executor.attempt(work)
        settled = await self.app.store.arun(source.settle([ended.write] if ended.write else [], self.id))
        self.settled.append((work.lease.kind, "lost" if settled.lost else "done"))

    async def drain(self) -> None:
        """Claim and run until nothing is ready."""
        while await self.round() or self.running:
            await asyncio.gather(*self.running)

    def close(self) -> None:
        self._threads.close()


def drain(app: Holdfast) -> MiniWorker:
    """Run everything that is ready, here and now."""

    async def run() -> MiniWorker:
        worker = MiniWorker(app)
        await worker.drain()
        worker.close()
        await app.aclose()
        return worker

    return asyncio.run(run())
