"""procrastinate: psycopg, 30 jobs at once (its fastest here), finished jobs kept or deleted; a lock for order."""

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

    async def add_keyed(self, payloads: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
        # Its call for many jobs takes one lock for all of them; this is what that call does, with one for each.
        new = [self.task.configure(lock=key).make_new_job(**one) for one, key in zip(payloads, keys, strict=True)]
        await self.app.job_manager.batch_defer_jobs_async(jobs=new)

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        await self.app.run_worker_async(
            queues=["bench"],
            concurrency=10 if mode == "idle" else 30,
            delete_jobs="never" if keep else "always",
            install_signal_handlers=False,
            # A job that ends wakes nobody for the next one with its lock.
            fetch_job_polling_interval=0.01 if mode == "ordered" else 5,
        )


if __name__ == "__main__":
    serve.run(ProcrastinatePeer)
