"""The reference on MySQL and MariaDB: what one would write by hand with asyncmy and PyMySQL, on a lean table.

With a batch of one it is what most queues on these databases do: one row a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.bench.by_hand import ERROR, Jobs, Loops, age, effect_row, payload, stamp, written
from holdfast.bench.effects import Effects
from holdfast.store.dialects import dialect_for
from holdfast.store.dialects.mysql.waker import LOOK_EVERY_SECONDS
from holdfast.values.ids import new_id
from holdfast.values.options import StoreOptions

BATCH, LOOPS = 1000, 2

TABLES = (
    "create table bench_raw (id char(36) character set ascii collate ascii_bin not null primary key,"
    " fence bigint not null default 0, available_at datetime(6) not null default current_timestamp(6),"
    " lease_expires_at datetime(6), attempts integer not null default 0,"
    " state enum('pending', 'leased') not null default 'pending',"
    " queue varchar(100) character set ascii collate ascii_bin not null, payload longtext not null,"
    " leased_by varchar(100), error text, key bench_raw_claim (state, queue, available_at, id)) engine = InnoDB",
    "create table bench_raw_done (id char(36) character set ascii collate ascii_bin not null primary key,"
    " fence bigint not null, available_at datetime(6) not null, finished_at datetime(6) not null,"
    " attempts integer not null, queue varchar(100) not null, payload longtext not null,"
    " leased_by varchar(100)) engine = InnoDB",
)
INSERT = "insert into bench_raw (id, queue, payload) values (%s, %s, %s)"
PICK = """
select id, fence + 1, payload, attempts + 1 from bench_raw force index (bench_raw_claim)
 where state = 'pending' and queue = 'bench' and available_at <= current_timestamp(6)
 order by available_at, id limit %s for update skip locked
"""
# One JSON text is a table of ids and fences; against IN lists it drained a fifth faster on MariaDB 10.11.
HELD = """
json_table(%s, '$[*]' columns (
    id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join bench_raw j force index (primary) on j.id = u.id
"""
MARK = """
update held_rows
   set j.state = 'leased', j.fence = j.fence + 1, j.attempts = j.attempts + 1, j.leased_by = 'raw',
       j.lease_expires_at = current_timestamp(6) + interval 30 second
"""
KEEP = """
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select j.id, j.fence, j.available_at, current_timestamp(6), j.attempts, j.queue, j.payload, j.leased_by
  from held_rows and j.fence = u.fence
"""
DELETE = "delete j from held_rows and j.fence = u.fence"
PUT_BACK = """
update held_rows and j.fence = u.fence
   set j.state = 'pending', j.fence = j.fence + 1, j.available_at = current_timestamp(6), j.leased_by = null,
       j.lease_expires_at = null, j.error = %s
"""
# Two statements where PostgreSQL has one: these databases cannot insert what a delete returns.
KEEP_ONE = """
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select id, fence, available_at, current_timestamp(6), attempts, queue, payload, leased_by
  from bench_raw where id = %s and fence = %s
"""
DELETE_ONE = "delete from bench_raw where id = %s and fence = %s"


def held(jobs: Jobs) -> str:
    return msgspec.json.encode([(job[0], job[1]) for job in jobs]).decode()


class RawMysql(Loops):
    """asyncmy and PyMySQL, by hand."""

    def __init__(self, url: str, prefix: str, batch: int = BATCH) -> None:
        self.url = url
        self.prefix = prefix
        self.batch = batch
        self.dialect = dialect_for(url, StoreOptions())
        self.effect = Effects(self.sql("bench_raw"))
        self.update = self.effect.update("%s")
        self.stamps: list[float] = []

    async def install(self) -> None:
        for statement in (*map(self.sql, TABLES), *self.effect.make):
            self.sync.execute(statement)

    async def uninstall(self) -> None:
        for table in ("bench_raw", "bench_raw_done"):
            self.sync.execute(self.sql(f"drop table {table}"))
        self.sync.execute(self.effect.drop)

    async def open(self) -> None:
        self.connections = [await self.dialect.aconnect(self.url, "holdfast-bench") for _ in range(LOOPS)]
        self.sync = self.dialect.connect(self.url)

    async def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.sync.close()

    def sql(self, text: str) -> str:
        # Tables of their own: the loop of single rows stands beside the one with batches.
        text = text.replace("held_rows", HELD)
        return written(text, self.prefix if self.batch > 1 else f"{self.prefix}_one")

    async def clear(self) -> None:
        for table in ("bench_raw", "bench_raw_done"):
            self.sync.execute(self.sql(f"truncate table {table}"))

    async def enqueue_one(self, count: int) -> None:
        insert = self.sql(INSERT)
        for order in range(count):
            self.sync.execute(insert, (new_id(), "bench", payload(order)))

    async def aenqueue_one(self, count: int) -> None:
        insert = self.sql(INSERT)
        for order in range(count):
            await self.connections[0].execute(insert, (new_id(), "bench", payload(order)))

    async def _insert(self, payloads: list[str]) -> None:
        """Add them in one statement of many rows: both drivers make that of `executemany`."""
        cursor = self.connections[0].cursor()
        await self.connections[0].query("begin")
        await cursor.executemany(self.sql(INSERT), [(new_id(), "bench", one) for one in payloads])
        await self.connections[0].query("commit")

    async def _claim(self, connection: Any) -> Jobs:
        await connection.query("begin")
        jobs: Jobs = await connection.fetch(self.sql(PICK), self.batch)
        if jobs:
            await connection.execute(self.sql(MARK), held(jobs))
        await connection.query("commit")
        return jobs

    def _claim_sync(self) -> Jobs:
        self.sync.query("begin")
        jobs: Jobs = self.sync.execute(self.sql(PICK), (self.batch,)).fetchall()
        if jobs:
            self.sync.execute(self.sql(MARK), (held(jobs),))
        self.sync.query("commit")
        return jobs

    async def _settle(self, connection: Any, jobs: Jobs, keep: bool) -> None:
        await connection.query("begin")
        if keep:
            await connection.execute(self.sql(KEEP), held(jobs))
        await connection.execute(self.sql(DELETE), held(jobs))
        await connection.query("commit")

    async def _put_back(self, connection: Any, jobs: Jobs) -> None:
        await connection.execute(self.sql(PUT_BACK), held(jobs), ERROR)

    async def _effect(self, connection: Any, job: Sequence[Any]) -> None:
        await connection.query("begin")
        await connection.execute(self.update, effect_row(job))
        await connection.execute(self.sql(KEEP_ONE), job[0], job[1])
        await connection.execute(self.sql(DELETE_ONE), job[0], job[1])
        await connection.query("commit")

    def _effect_sync(self, connection: Any, job: Sequence[Any]) -> None:
        connection.query("begin")
        connection.execute(self.update, effect_row(job))
        connection.execute(self.sql(KEEP_ONE), job[0], job[1])
        connection.execute(self.sql(DELETE_ONE), job[0], job[1])
        connection.query("commit")

    async def _hang_up(self, connection: Any) -> None:
        connection.close()

    async def unfinished(self) -> int:
        return int((await self.connections[0].fetch(self.sql("select count(*) from bench_raw")))[0][0])

    async def work(self, busy: bool = False) -> None:
        self.stamps = []
        self._resting = False
        self._consuming = asyncio.create_task(self._consume(self.connections[0]))

    async def rest(self) -> None:
        # Not a cancel: asyncmy closes a connection whose statement was cut short.
        self._resting = True
        await self._consuming

    async def _consume(self, connection: Any) -> None:
        """Look for jobs as often as a worker does: these databases wake nobody."""
        while not self._resting:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            while jobs := await self._claim(connection):
                self.stamps += [age(job[2]) for job in jobs]
                await self._settle(connection, jobs, keep=True)

    async def send(self, sent: Sequence[int]) -> None:
        await self._insert([stamp(one) for one in sent])
