"""absurd: tasks with steps in the async client, as many at once as there are runs, and a look each 10 ms."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from holdfast.bench import serve

QUEUE = "bench"
UNFINISHED = "select count(*) from absurd.r_bench where state <> 'completed'"
LOOK = 0.01
# More at once were no faster for runs of one step.
MOST_AT_ONCE = 200


class AbsurdPeer:
    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.stamps: list[float] = []

    async def open(self) -> None:
        self.own = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self.own.close()

    async def install(self) -> None:
        tool = Path(sys.executable).with_name("absurdctl")
        subprocess.run([tool, "init", "-d", self.url], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 - nothing else is going on
        with psycopg.connect(self.url, autocommit=True) as connection:
            Absurd(connection, queue_name=QUEUE).create_queue()

    async def uninstall(self) -> None:
        """Leave the tables: the database is dropped as a whole."""

    async def clear(self) -> None:
        tables = await self.own.fetch(
            "select tablename from pg_tables where schemaname = 'absurd' and tablename ~ $1", f"^[a-z]+_{QUEUE}$"
        )
        names = ", ".join(f'absurd."{row[0]}"' for row in tables)
        await self.own.execute(f"truncate {names} cascade")

    async def start_runs(self, count: int, steps: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            app = Absurd(connection, queue_name=QUEUE)

            @app.register_task("many")
            def many(params: Any, context: Any) -> None:
                """Only its name is needed here."""

            with connection.transaction():
                for _ in range(count):
                    app.spawn("many", {"n": steps})

    async def run_all(self, count: int, steps: int, at_once: int) -> float:
        app = AsyncAbsurd(self.url, queue_name=QUEUE)
        at_once = min(at_once, MOST_AT_ONCE)

        async def charge() -> dict[str, Any]:
            return {"charge": "ch_123", "amount": 12.5}

        @app.register_task("many")
        async def many(params: Any, context: Any) -> int:
            for _ in range(params["n"]):
                await context.step("charge", charge)
            return int(params["n"])

        began = time.perf_counter()
        working = asyncio.create_task(
            app.start_worker(concurrency=at_once, batch_size=at_once, poll_interval=LOOK, claim_timeout=60)
        )
        while await self.unfinished():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.02)
        ended = time.perf_counter()
        working.cancel()
        await asyncio.wait([working], timeout=2)
        return ended - began

    async def unfinished(self) -> int:
        return int(await self.own.fetchval(UNFINISHED))


if __name__ == "__main__":
    serve.run(AbsurdPeer)
