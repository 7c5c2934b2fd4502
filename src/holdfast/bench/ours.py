"""Holdfast's side of the benchmark: the public face, with its defaults.

It runs with the Holdfast of another checkout, too (`--before`), so it imports nothing but what stays.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing

from holdfast import Holdfast, admin
from holdfast.handlers import Bound

KEPT, DELETED, STAMPED = "kept", "deleted", "stamped"
# Attempts at once. A no-op handler never waits, so more slots change little; the default of a worker is 20.
CONCURRENCY = 20


class Ours:
    """Holdfast on one database, with a table prefix of its own."""

    def __init__(self, url: str, prefix: str) -> None:
        self.app = Holdfast(url, prefix=prefix)
        self.app.queue(DELETED, retention=0)
        self.app.job(kind="async def", queue=KEPT)(self._noop_async)
        self.app.job(kind="def", queue=KEPT)(self._noop_def)
        self.app.job(kind="stamp", queue=STAMPED)(self._stamp)
        self.stamps: list[float] = []
        self._over = asyncio.Event()
        self._left = 0
        self._computing = 0.0
        self._lock = threading.Lock()
        self._working = AsyncExitStack()

    async def install(self) -> None:
        self.app.migrate()

    async def uninstall(self) -> None:
        with self.app.store.link() as link:
            made = "".join(migration.sql for migration in self.app.store.migrations)
            tables = re.findall(r"create table (?:if not exists )?([^\s(]+)", made, re.IGNORECASE)
            for table in {*tables, self.app.store.dialect.table("meta")}:
                link.tell(f"drop table if exists {table}")

    async def open(self) -> None:
        # So that the first job does not pay for the connection.
        with self.app.store.link():
            pass

    async def close(self) -> None:
        await self.app.aclose()

    async def clear(self) -> None:
        empty = "delete from" if self.app.store.embedded else "truncate table"
        with self.app.store.link() as link:
            for table in ("jobs", "finished"):
                link.tell(f"{empty} {self.app.store.dialect.table(table)}")

    async def enqueue_one(self, count: int) -> None:
        noop = self.app.handlers["async def"]
        for order in range(count):
            noop.enqueue(order=order, amount=12.5)

    async def enqueue_in(self, count: int) -> None:
        dialect = self.app.store.dialect
        noop = self.app.handlers["async def"]
        with closing(dialect.connect(self.app.url)) as theirs:
            dialect.tell(theirs, dialect.begin)
            for order in range(count):
                noop.using(tx=theirs).enqueue(order=order, amount=12.5)
            dialect.tell(theirs, "commit")

    async def aenqueue_one(self, count: int) -> None:
        noop = self.app.handlers["async def"]
        for order in range(count):
            await noop.aenqueue(order=order, amount=12.5)

    async def enqueue_many(self, count: int, per_call: int, handler: str = "async def", keep: bool = True) -> None:
        noop = self.app.handlers[handler].using(queue=KEPT if keep else DELETED)
        for start in range(0, count, per_call):
            orders = range(start, min(start + per_call, count))
            await self._add([noop.bind(order=order, amount=12.5) for order in orders])

    async def _add(self, bound: list[Bound]) -> None:
        if self.app.store.embedded:
            self.app.enqueue_many(bound)
        else:
            await self.app.aenqueue_many(bound)

    async def drain(self, count: int, keep: bool) -> float:
        self._left = count
        self._over.clear()
        self._loop = asyncio.get_running_loop()
        worker = self.app.worker(queues=[KEPT if keep else DELETED], concurrency=CONCURRENCY)
        began = time.perf_counter()
        async with worker:
            await self._over.wait()
            # A worker holds a job until its outcome is committed.
            while worker.held:  # noqa: ASYNC110 (no event is told while nobody subscribes: that is how most will run it)
                await asyncio.sleep(0.001)
            return time.perf_counter() - began

    async def unfinished(self) -> int:
        return await self.app.store.arun(admin.count_jobs(admin.Filter(states=("pending", "leased"))))

    async def work(self, busy: bool = False, keep: bool = True, computing: float = 0.0) -> None:
        self.stamps = []
        self._computing = computing
        if not keep:
            self.app.queue(STAMPED, retention=0)
        self._working = AsyncExitStack()
        await self._working.enter_async_context(self.app.worker(queues=[STAMPED], concurrency=CONCURRENCY))

    async def rest(self) -> None:
        await self._working.aclose()

    async def send(self, sent: Sequence[int]) -> None:
        stamp = self.app.handlers["stamp"]
        if len(sent) > 1:
            await self._add([stamp.bind(sent=one) for one in sent])
        elif self.app.store.embedded:
            stamp.enqueue(sent=sent[0])
        else:
            await stamp.aenqueue(sent=sent[0])

    async def _noop_async(self, order: int, amount: float) -> None:
        self._count()

    def _noop_def(self, order: int, amount: float) -> None:
        with self._lock:
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._over.set)

    async def _stamp(self, sent: int) -> None:
        self.stamps.append((time.monotonic_ns() - sent) / 1e6)
        if self._computing:
            enough = time.thread_time() + self._computing
            while time.thread_time() < enough:
                pass
