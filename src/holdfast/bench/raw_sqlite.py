"""The reference on SQLite: what one would write by hand with sqlite3, on a lean table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.bench import producer
from holdfast.bench.measure import Handler
from holdfast.bench.raw_postgres import payload, written
from holdfast.dialects import dialect_for
from holdfast.ids import new_id
from holdfast.options import StoreOptions
from holdfast.wake import WATCH

BATCH = 500

TABLES = (
    "create table bench_raw (id text primary key, fence integer not null default 0, available_at integer not null,"
    " lease_expires_at integer, attempts integer not null default 0, state text not null default 'pending',"
    " queue text not null, payload text not null, leased_by text) without rowid",
    "create index bench_raw_claim on bench_raw (queue, available_at, id) where state = 'pending'",
    "create table bench_raw_done (id text primary key, fence integer not null, available_at integer not null,"
    " finished_at integer not null, attempts integer not null, queue text not null, payload text not null,"
    " leased_by text) without rowid",
)
INSERT = "insert into bench_raw (id, available_at, queue, payload) values (?, ?, ?, ?)"
CLAIM = """
update bench_raw
   set state = 'leased', fence = fence + 1, attempts = attempts + 1, leased_by = 'raw', lease_expires_at = ?
 where id in (select id from bench_raw where queue = 'bench' and state = 'pending' and available_at <= ?
               order by available_at, id limit ?)
returning id, fence, payload
"""
KEEP = """
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select id, fence, available_at, ?, attempts, queue, payload, leased_by from bench_raw where id = ? and fence = ?
"""
DELETE = "delete from bench_raw where id = ? and fence = ?"


def now() -> int:
    return time.time_ns() // 1000


class RawSqlite:
    """sqlite3, by hand."""

    name = "raw"

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix

    async def open(self) -> None:
        self.db = dialect_for(self.url, StoreOptions()).connect(self.url)
        for statement in TABLES:
            self.db.execute(self.sql(statement))

    async def close(self) -> None:
        for table in ("bench_raw", "bench_raw_done"):
            self.db.execute(self.sql(f"drop table {table}"))
        self.db.close()

    def sql(self, text: str) -> str:
        return written(text, self.prefix)

    async def clear(self) -> None:
        self.db.execute(self.sql("delete from bench_raw"))
        self.db.execute(self.sql("delete from bench_raw_done"))

    async def enqueue_one(self, count: int) -> None:
        insert = self.sql(INSERT)
        for order in range(count):
            self.db.execute(insert, (new_id(), now(), "bench", payload(order)))

    async def aenqueue_one(self, count: int) -> None:
        raise NotImplementedError("sqlite3 has no async face")

    async def enqueue_many(
        self, count: int, per_call: int, handler: Handler = "async def", *, keep: bool = True
    ) -> None:
        insert = self.sql(INSERT)
        for start in range(0, count, per_call):
            orders = range(start, min(start + per_call, count))
            self.db.execute("begin immediate")
            self.db.executemany(insert, [(new_id(), now(), "bench", payload(order)) for order in orders])
            self.db.execute("commit")

    async def drain(self, count: int, *, keep: bool) -> float:
        began = time.perf_counter()
        settled: list[tuple[Any, ...]] = []
        while jobs := self._turn(settled, keep):
            for job in jobs:
                msgspec.json.decode(job[2])
            settled = jobs
        return time.perf_counter() - began

    def _turn(self, settled: list[tuple[Any, ...]], keep: bool) -> list[tuple[Any, ...]]:
        """Settle the last batch and claim the next in one transaction."""
        self.db.execute("begin immediate")
        if keep:
            self.db.executemany(self.sql(KEEP), [(now(), job[0], job[1]) for job in settled])
        self.db.executemany(self.sql(DELETE), [(job[0], job[1]) for job in settled])
        jobs: list[tuple[Any, ...]] = self.db.execute(self.sql(CLAIM), (now() + 30_000_000, now(), BATCH)).fetchall()
        self.db.execute("commit")
        return jobs

    async def unfinished(self) -> int:
        return int(self.db.execute(self.sql("select count(*) from bench_raw")).fetchone()[0])

    async def latencies(self, samples: int) -> list[float]:
        consuming = asyncio.create_task(self._consume(samples))
        async with producer.process(self.url, self.prefix, self.name, samples):
            return await consuming

    async def _consume(self, samples: int) -> list[float]:
        """Look at the file's change counter as often as a worker does; oftener would be quicker and burn the CPU."""
        stamps: list[float] = []
        seen = None
        while len(stamps) < samples:
            await asyncio.sleep(WATCH)
            version = self.db.execute("pragma data_version").fetchone()
            if version != seen:
                seen = version
                jobs = self._turn([], keep=True)
                stamps += [(time.monotonic_ns() - msgspec.json.decode(job[2])["sent"]) / 1e6 for job in jobs]
                self.db.executemany(self.sql(DELETE), [(job[0], job[1]) for job in jobs])
        return stamps


def one_by_one(url: str, prefix: str) -> Callable[[int], object]:
    """Return what the producer process calls for each sample."""
    db = dialect_for(url, StoreOptions()).connect(url)
    insert = written(INSERT, prefix)
    return lambda sent: db.execute(insert, (new_id(), now(), "bench", f'{{"sent":{sent}}}'))
