"""procrastinate: psycopg, 30 jobs at once (its fastest here), finished jobs kept or deleted."""

import logging
from collections.abc import Sequence
from typing import Any

import procrastinate
from common import Mode, Peer

from holdfast.bench import serve

logging.getLogger("procrastinate").setLevel(logging.ERROR)


class ProcrastinatePeer(Peer):
    tables = ("procrastinate_jobs",)
    live = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=40)
        self.app = procrastinate.App(connector=connector)

        @self.app.task(name="noop", queue="bench")
        async def noop(**job: Any) -> None:
            self.came(job)

        self.task = noop

    async def open(self) -> None:
        await super().open()
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()
        await super().close()

    async def install(self) -> None:
        await self.app.schema_manager.apply_schema_async()

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        if len(payloads) == 1:
            await self.task.defer_async(**payloads[0])
        else:
            await self.task.batch_defer_async(*payloads)

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        await self.app.run_worker_async(
            queues=["bench"],
            concurrency=10 if mode == "idle" else 30,
            delete_jobs="never" if keep else "always",
            install_signal_handlers=False,
        )


if __name__ == "__main__":
    serve.run(ProcrastinatePeer)
