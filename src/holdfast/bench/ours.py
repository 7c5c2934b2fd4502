"""Holdfast's side of the benchmark: the public face, with its defaults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast import Holdfast, admin
from holdfast.bench import producer
from holdfast.bench.measure import Handler
from holdfast.dialects.base import TABLES
from holdfast.events import JobDone
from holdfast.handlers import Bound
from holdfast.worker import Worker

KEPT, DELETED = "kept", "deleted"
# Attempts at once. A no-op handler never waits, so more slots change little; the default of a worker is 20.
CONCURRENCY = 20


class Holdfasts:
    """Holdfast on one database, with a table prefix of its own."""

    name = "holdfast"

    def __init__(self, url: str, prefix: str) -> None:
        self.app = make_app(url, prefix, self._stamp)
        self.app.on(JobDone, self._count)
        self.dialect = self.app.store.dialect
        self._over = asyncio.Event()
        self._left = 0
        self._wanted = 0
        self._stamps: list[float] = []

    async def open(self) -> None:
        self.app.migrate()

    async def close(self) -> None:
        with self.app.store.link() as link:
            for table in TABLES:
                link.raw.execute(f"drop table {self.dialect.table(table)}")
        await self.app.aclose()

    async def clear(self) -> None:
        empty = "delete from" if self.app.store.embedded else "truncate"
        with self.app.store.link() as link:
            for table in ("jobs", "finished"):
                link.raw.execute(f"{empty} {self.dialect.table(table)}")

    async def enqueue_one(self, count: int) -> None:
        noop = self.app.handlers["async def"]
        for order in range(count):
            noop.enqueue(order=order, amount=12.5)

    async def aenqueue_one(self, count: int) -> None:
        noop = self.app.handlers["async def"]
        for order in range(count):
            await noop.aenqueue(order=order, amount=12.5)

    async def enqueue_many(
        self, count: int, per_call: int, handler: Handler = "async def", *, keep: bool = True
    ) -> None:
        noop = self.app.handlers[handler].using(queue=KEPT if keep else DELETED)
        for start in range(0, count, per_call):
            orders = range(start, min(start + per_call, count))
            await self._add([noop.bind(order=order, amount=12.5) for order in orders])

    async def _add(self, bound: list[Bound]) -> None:
        if self.app.store.embedded:
            self.app.enqueue_many(bound)
        else:
            await self.app.aenqueue_many(bound)

    async def drain(self, count: int, *, keep: bool) -> float:
        self._left = count
        self._over.clear()
        worker = self._worker(KEPT if keep else DELETED)
        began = time.perf_counter()
        async with worker:
            await self._over.wait()
            return time.perf_counter() - began

    async def unfinished(self) -> int:
        return await self.app.store.arun(admin.count_jobs(admin.Filter(states=("pending", "leased"))))

    async def latencies(self, samples: int) -> list[float]:
        self._stamps, self._wanted = [], samples
        self._over.clear()
        async with self._worker("latency"):
            await asyncio.sleep(0.3)
            async with producer.process(self.app.url, self.app.options.prefix, self.name, samples):
                await self._over.wait()
        return self._stamps

    def _worker(self, queue: str) -> Worker:
        return self.app.worker(queues=[queue], concurrency=CONCURRENCY)

    def _count(self, _: JobDone) -> None:
        """Hear of a job whose end is committed: the worker says so only then."""
        self._left -= 1
        if self._left == 0:
            self._over.set()

    async def _stamp(self, sent: int) -> None:
        self._stamps.append((time.monotonic_ns() - sent) / 1e6)
        if len(self._stamps) == self._wanted:
            self._over.set()


async def _noop_async(order: int, amount: float) -> None:
    pass


def _noop_def(order: int, amount: float) -> None:
    pass


async def _nobody(sent: int) -> None:
    """Stand in for the handler in the process that only enqueues."""


def make_app(url: str, prefix: str, stamp: Callable[[int], Awaitable[None]] = _nobody) -> Holdfast:
    """Make the application that both the measuring process and the producer use."""
    app = Holdfast(url, prefix=prefix)
    app.queue(DELETED, retention=0)
    app.job(kind="async def", queue=KEPT)(_noop_async)
    app.job(kind="def", queue=KEPT)(_noop_def)
    app.job(kind="stamp", queue="latency")(stamp)
    return app


def one_by_one(url: str, prefix: str) -> Callable[[int], object]:
    """Return what the producer process calls for each sample, with its connection open."""
    app = make_app(url, prefix)
    app.store.check()
    stamp = app.handlers["stamp"]
    return lambda sent: stamp.enqueue(sent=sent)
