"""DBOS: workflows and steps as `async def`, started and run in one process, which is the fastest way that it has."""

import asyncio
import random
import time
from typing import Any

import asyncpg
from dbos import DBOS, DBOSClient, SetWorkflowID

from holdfast.bench import serve

# How long workflows get to come to their wait for a message.
SETTLE = 1.0


class DbosPeer:
    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.stamps: list[float] = []
        self._launched = False

    async def open(self) -> None:
        self.own = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self.own.close()

    async def install(self) -> None:
        self._launch()

    async def uninstall(self) -> None:
        """Leave the tables: the database is dropped as a whole."""

    def _launch(self) -> None:
        """Begin only where workflows are to run: at its start it takes up those that another process has left."""
        if self._launched:
            return
        self._launched = True
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.url,
                "log_level": "ERROR",
                "application_version": "1",
                "run_admin_server": False,
            }
        )

        @DBOS.step()
        async def charge(order: int) -> dict[str, Any]:
            return {"charge": "ch_123", "amount": 12.5}

        @DBOS.workflow()
        async def many(n: int) -> int:
            for order in range(n):
                await charge(order)
            return n

        @DBOS.step()
        async def stamp(sent: int) -> None:
            self.stamps.append((time.monotonic_ns() - sent) / 1e6)

        @DBOS.workflow()
        async def answer() -> None:
            await stamp(await DBOS.recv_async("go", timeout_seconds=600))

        self.many, self.answer = many, answer
        DBOS.launch()

    async def clear(self) -> None:
        await self.own.execute("truncate dbos.workflow_status cascade")

    async def start_runs(self, count: int, steps: int) -> None:
        self._launch()

    async def run_all(self, count: int, steps: int, at_once: int) -> float:
        began = time.perf_counter()
        handles = [await DBOS.start_workflow_async(self.many, steps) for _ in range(count)]
        for handle in handles:
            await handle.get_result()
        return time.perf_counter() - began

    async def unfinished(self) -> int:
        return int(await self.own.fetchval("select count(*) from dbos.workflow_status where status <> 'SUCCESS'"))

    async def wait_for_signals(self, count: int) -> None:
        self._launch()
        self.stamps = []
        for number in range(count):
            with SetWorkflowID(f"run-{number}"):
                await DBOS.start_workflow_async(self.answer)
        await asyncio.sleep(SETTLE)

    async def signal_runs(self, count: int, gap: tuple[float, float]) -> None:
        client = DBOSClient(system_database_url=self.url)
        for number in range(count):
            await asyncio.sleep(random.uniform(*gap))
            await client.send_async(f"run-{number}", time.monotonic_ns(), "go")

    async def rest(self) -> None:
        """Nothing: its workflows are over."""


if __name__ == "__main__":
    serve.run(DbosPeer)
