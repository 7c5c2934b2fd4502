"""PgQueuer: asyncpg with a pool, claims of 1,000, the fastest found; an idle worker claims 10, its default."""

import json
from collections.abc import Sequence
from typing import Any

import asyncpg
from common import Mode, Peer
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from holdfast.bench import serve


class PgQueuerPeer(Peer):
    tables = ("pgqueuer", "pgqueuer_log")
    live = "select count(*) from pgqueuer"

    async def open(self) -> None:
        await super().open()
        self.queries = Queries(AsyncpgDriver(self.own))

    async def install(self) -> None:
        await self.queries.install()

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        texts = [json.dumps(one).encode() for one in payloads]
        await self.queries.enqueue(["noop"] * len(texts), texts, [0] * len(texts))

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        async with asyncpg.create_pool(self.url, min_size=4, max_size=4) as pool:
            queuer = PgQueuer(AsyncpgPoolDriver(pool))

            @queuer.entrypoint("noop")
            async def noop(job: Any) -> None:
                self.came(json.loads(job.payload))

            await queuer.run(batch_size=10 if mode == "idle" else 1000)


if __name__ == "__main__":
    serve.run(PgQueuerPeer)
