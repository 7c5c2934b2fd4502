"""Oban for Python, the open-source package: 1,000 jobs at once, and fetches 5 ms apart; idle, 10 at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

from common import Mode, Peer
from oban import Oban, worker
from oban.schema import install

from holdfast.bench import serve

BUSY = {"limit": 1000, "debounce_interval": 0.005}
CALM = {"limit": 10}


class ObanPeer(Peer):
    tables = ("oban_jobs",)
    live = "select count(*) from oban_jobs where state not in ('completed', 'discarded', 'cancelled')"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        came = self.came

        @worker(queue="bench")
        class Noop:
            async def process(self, job: Any) -> None:
                came(job.args)

        self.noop = Noop

    async def open(self) -> None:
        await super().open()
        self.pool = await Oban.create_pool(self.url, min_size=2, max_size=10)
        self.adding = Oban(pool=self.pool, name="adding")

    async def close(self) -> None:
        await self.pool.close()
        await super().close()

    async def install(self) -> None:
        await install(self.pool)

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        jobs = [self.noop.new(one) for one in payloads]
        if len(jobs) == 1:
            await self.adding.enqueue(jobs[0])
        else:
            await self.adding.enqueue_many(jobs)

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        pool = await Oban.create_pool(self.url, min_size=2, max_size=10)
        calm = mode == "idle"
        stager = {"interval": 1.0 if calm else 0.02}
        working = Oban(pool=pool, name="working", queues={"bench": CALM if calm else BUSY}, stager=stager)
        await working.start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(working.stop())
            await pool.close()


if __name__ == "__main__":
    serve.run(ObanPeer)
