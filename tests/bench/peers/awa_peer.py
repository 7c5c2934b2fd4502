"""awa, a Rust engine with Python handlers: added by COPY, 512 workers and a look each 10 ms; idle, its defaults."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import awa
from common import Mode, Peer

from holdfast.bench import serve

CONNECTIONS = 20


@dataclass
class Noop:
    order: int
    amount: float
    sent: int = 0


class AwaPeer(Peer):
    live = "select count(*) from awa.jobs where state not in ('completed', 'failed', 'cancelled')"

    async def open(self) -> None:
        await super().open()
        self.client = awa.AsyncClient(self.url, CONNECTIONS)

    async def close(self) -> None:
        await self.client.close()
        await super().close()

    async def install(self) -> None:
        await self.client.migrate()
        await self.clear()

    async def clear(self) -> None:
        """Make its tables anew: it has many, and its own call for that. Analysed while empty they would be slower."""
        await self.client.install_queue_storage(schema="awa", reset=True)

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        jobs = [Noop(**one) for one in payloads]
        try:
            await self._add(jobs)
        except awa.DatabaseError as error:
            if "cache lookup" not in str(error):
                raise
            # These connections knew the types of tables that `clear` made anew.
            await self.client.close()
            self.client = awa.AsyncClient(self.url, CONNECTIONS)
            await self._add(jobs)

    async def _add(self, jobs: list[Noop]) -> None:
        if len(jobs) == 1:
            await self.client.insert(jobs[0], queue="bench")
        else:
            await self.client.enqueue_many_copy(jobs, queue="bench")

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        client = awa.AsyncClient(self.url, CONNECTIONS)

        @client.task(Noop, queue="bench")
        async def noop(job: Any) -> None:
            self.came({"sent": job.args.sent} if job.args.sent else {})

        calm = mode == "idle"
        await client.start([("bench", 50 if calm else 512)], poll_interval_ms=200 if calm else 10)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(client.shutdown())
            await client.close()


if __name__ == "__main__":
    serve.run(AwaPeer)
