"""huey: a file of its own on SQLite, synced at each commit; peewee's tables on MySQL and MariaDB.

It takes a task off the table before it runs it, so that a crash loses it, and has no call for several tasks. Results
are off. A drain has four threads, which were as fast as eight and two to three times as fast as one, and looks at an
empty queue again after 10 ms; an idle worker has one and looks as often as by default.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from common import Mode, Peer
from huey import Huey, SqliteHuey
from huey.consumer import Consumer

from holdfast.bench import serve

logging.getLogger("huey").setLevel(logging.ERROR)


class HueyPeer(Peer):
    async def open(self) -> None:
        self.loop, self.lock = asyncio.get_running_loop(), threading.Lock()
        self.huey = _on_sqlite(self.url) if self.url.startswith("sqlite") else _on_mysql(self.url)

        @self.huey.task(name="noop")
        def noop(**job: Any) -> None:
            self.came(job)

        self.task = noop

    def came(self, job: dict[str, Any]) -> None:
        with self.lock:
            super().came(job)

    def all_came(self) -> None:
        """A worker's thread says so."""
        self.loop.call_soon_threadsafe(super().all_came)

    async def close(self) -> None:
        self.huey.storage.close()

    async def install(self) -> None:
        """The tables were made when it opened."""

    async def clear(self) -> None:
        self.huey.storage.flush_queue()

    async def unfinished(self) -> int:
        return self.huey.storage.queue_size()

    async def enqueue_one(self, count: int) -> None:
        await self.aenqueue_one(count)

    async def add(self, payloads: Sequence[dict[str, Any]]) -> None:
        for one in payloads:
            self.task(**one)

    async def serve(self, mode: Mode, *, keep: bool) -> None:
        busy = {"workers": 4, "initial_delay": 0.01, "max_delay": 0.01}
        consumer = Embedded(self.huey, periodic=False, **({} if mode == "idle" else busy))
        consumer.start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)


class Embedded(Consumer):
    """A consumer inside another program, which keeps its signals to itself."""

    def _set_signal_handlers(self) -> None:
        pass


def _on_sqlite(url: str) -> Huey:
    return SqliteHuey("bench", filename=url.removeprefix("sqlite:///") + ".huey", fsync=True, results=False)


def _on_mysql(url: str) -> Huey:
    from huey.contrib.sql_huey import SqlHuey
    from peewee import MySQLDatabase

    at = urlsplit(url)
    login = {"user": at.username, "password": at.password or ""}
    database = MySQLDatabase(at.path.strip("/"), host=at.hostname, port=at.port, **login)
    return SqlHuey("bench", database=database, results=False)


if __name__ == "__main__":
    serve.run(HueyPeer)
