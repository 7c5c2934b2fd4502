"""faststream-outbox: SQLAlchemy on asyncpg, fetches of 500 and deletes of 500 in one statement, the fastest found."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from common import Mode, Peer
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.bench import serve

FETCH = 500


class FastStreamPeer(Peer):
    tables = ("outbox",)
    live = "select count(*) from outbox"

    async def open(self) -> None:
        await super().open()
        self.engine = create_async_engine(self.url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=10)
        self.metadata = MetaData()
        self.table = make_outbox_table(self.metadata, table_name="outbox")
        self.publisher = OutboxBroker(self.engine, outbox_table=self.table, logger=None)
        await self.publisher.connect()

    async def close(self) -> None:
        await self.engine.dispose()
        await super().close()

    async def install(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        async with self.engine.begin() as connection:
            await self.publisher.publish_batch(*payloads, queue="noop", session=connection)

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        broker = OutboxBroker(
            self.engine, outbox_table=self.table, logger=None, log_level=logging.ERROR, apply_types=False
        )

        @broker.subscriber(
            "noop",
            max_workers=1,
            fetch_batch_size=FETCH,
            min_fetch_interval=0.001,
            max_fetch_interval=0.05,
            terminal_flush_batch_size=FETCH,
        )
        async def noop(body: dict[str, Any]) -> None:
            self.came(body)

        await broker.start()
        try:
            await asyncio.Event().wait()
        finally:
            await broker.stop()


if __name__ == "__main__":
    serve.run(FastStreamPeer)
