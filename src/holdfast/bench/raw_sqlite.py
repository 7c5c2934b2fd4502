"""The reference on SQLite: what one would write by hand with sqlite3, on a lean table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from holdfast.bench.by_hand import ERROR, Jobs, age, effect_row, parted, payload, stamp, written
from holdfast.bench.effects import Effects
from holdfast.store.dialects import dialect_for
from holdfast.store.dialects.sqlite.waker import WATCH_EVERY_SECONDS
from holdfast.values.ids import new_id
from holdfast.values.options import StoreOptions

BATCH = 500

TABLES = (
    "create table bench_raw (id text primary key, fence integer not null default 0, available_at integer not null,"
    " lease_expires_at integer, attempts integer not null default 0, state text not null default 'pending',"
    " queue text not null, payload text not null, leased_by text, error text) without rowid",
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
returning id, fence, payload, attempts
"""
KEEP = """
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select id, fence, available_at, ?, attempts, queue, payload, leased_by from bench_raw where id = ? and fence = ?
"""
DELETE = "delete from bench_raw where id = ? and fence = ?"
PUT_BACK = """
update bench_raw
   set state = 'pending', fence = fence + 1, available_at = ?, leased_by = null, lease_expires_at = null, error = ?
 where id = ? and fence = ?
"""


def now() -> int:
    return time.time_ns() // 1000


class RawSqlite:
    """sqlite3, by hand."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.effect = Effects(self.sql("bench_raw"))
        self.stamps: list[float] = []

    async def install(self) -> None:
        for statement in (*map(self.sql, TABLES), *self.effect.make):
            self.db.execute(statement)

    async def uninstall(self) -> None:
        for table in ("bench_raw", "bench_raw_done"):
            self.db.execute(self.sql(f"drop table {table}"))
        self.db.execute(self.effect.drop)

    async def open(self) -> None:
        self.db = dialect_for(self.url, StoreOptions()).connect(self.url)

    async def close(self) -> None:
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

    async def enqueue_in(self, count: int) -> None:
        self.db.execute("begin immediate")
        await self.enqueue_one(count)
        self.db.execute("commit")

    async def aenqueue_one(self, count: int) -> None:
        raise NotImplementedError("sqlite3 has no async face")

    async def enqueue_many(self, count: int, per_call: int, handler: str = "async def", keep: bool = True) -> None:
        for start in range(0, count, per_call):
            self._insert([payload(order) for order in range(start, min(start + per_call, count))])

    def _insert(self, payloads: list[str]) -> None:
        self.db.execute("begin immediate")
        self.db.executemany(self.sql(INSERT), [(new_id(), now(), "bench", one) for one in payloads])
        self.db.execute("commit")

    async def drain(self, count: int, keep: bool, handler: str = "async def") -> float:
        began = time.perf_counter()
        if handler.startswith("effect"):
            self._effects()
        else:
            self._loop(keep, handler)
        return time.perf_counter() - began

    def _loop(self, keep: bool, handler: str) -> None:
        failed: Jobs = []
        done: Jobs = []
        while jobs := self._turn(done, keep, failed):
            failed, done = parted(jobs, handler)

    def _turn(self, settled: Jobs, keep: bool, failed: Jobs = ()) -> Jobs:
        """Settle the last batch and claim the next in one transaction."""
        self.db.execute("begin immediate")
        if keep:
            self.db.executemany(self.sql(KEEP), [(now(), job[0], job[1]) for job in settled])
        self.db.executemany(self.sql(DELETE), [(job[0], job[1]) for job in settled])
        self.db.executemany(self.sql(PUT_BACK), [(now(), ERROR, job[0], job[1]) for job in failed])
        jobs: Jobs = self.db.execute(self.sql(CLAIM), (now() + 30_000_000, now(), BATCH)).fetchall()
        self.db.execute("commit")
        return jobs

    def _effects(self) -> None:
        """Claim batches and work each off job by job, a transaction for every one; only one could write at a time."""
        update, keep, delete = self.effect.update("?"), self.sql(KEEP), self.sql(DELETE)
        while jobs := self._turn([], keep=True):
            for job in jobs:
                self.db.execute("begin immediate")
                self.db.execute(update, (effect_row(job),))
                self.db.execute(keep, (now(), job[0], job[1]))
                self.db.execute(delete, (job[0], job[1]))
                self.db.execute("commit")

    async def effects(self) -> int:
        return int(self.db.execute(self.effect.count).fetchone()[0])

    async def unfinished(self) -> int:
        return int(self.db.execute(self.sql("select count(*) from bench_raw")).fetchone()[0])

    async def work(self, busy: bool = False) -> None:
        self.stamps = []
        self._resting = False
        self._consuming = asyncio.create_task(self._consume())

    async def rest(self) -> None:
        self._resting = True
        await self._consuming

    async def _consume(self) -> None:
        """Look at the file's change counter as often as a worker does; oftener would be quicker and burn the CPU."""
        seen = None
        settled: Jobs = []
        while not self._resting:
            await asyncio.sleep(WATCH_EVERY_SECONDS)
            version = self.db.execute("pragma data_version").fetchone()
            if version != seen:
                seen = version
                while settled := self._turn(settled, keep=True):
                    self.stamps += [age(job[2]) for job in settled]

    async def send(self, sent: Sequence[int]) -> None:
        self._insert([stamp(one) for one in sent])
