"""The reference on PostgreSQL: what one would write by hand with the same drivers, on a lean table.

It gives fewer promises than Holdfast (no retries, no reaping, no limits), so it is the cost of the database itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.bench import producer
from holdfast.bench.measure import Handler
from holdfast.dialects import dialect_for
from holdfast.ids import new_id
from holdfast.options import StoreOptions

BATCH, LOOPS = 500, 2

TABLES = """
create table bench_raw (
    id uuid primary key, fence bigint not null default 0, available_at timestamptz not null default now(),
    lease_expires_at timestamptz, attempts integer not null default 0, state text not null default 'pending',
    queue text not null, payload json not null, leased_by text
) with (fillfactor = 70);
create index bench_raw_claim on bench_raw (queue, available_at, id) where state = 'pending';
create table bench_raw_done (
    id uuid primary key, fence bigint not null, available_at timestamptz not null, finished_at timestamptz not null,
    attempts integer not null, queue text not null, payload json not null, leased_by text
)
"""
# The notification belongs to it: Holdfast's enqueue wakes its workers, too.
INSERT = """
insert into bench_raw (id, queue, payload) values ($1, $2, $3) returning pg_notify('bench_raw', queue)::text
"""
INSERT_MANY = """
with added as (insert into bench_raw (id, queue, payload)
               select id, $2, payload::json from unnest($1::uuid[], $3::text[]) as u (id, payload) returning id)
select pg_notify('bench_raw', $2)::text from added limit 1
"""
CLAIM = """
update bench_raw j set state = 'leased', fence = j.fence + 1, attempts = j.attempts + 1, leased_by = $3,
       lease_expires_at = now() + interval '30 seconds'
 where id = any (array(select id from bench_raw where queue = $1 and state = 'pending' and available_at <= now()
                        order by available_at, id limit $2 for update skip locked))
returning j.id, j.fence, j.payload::text
"""
DELETE = """
delete from bench_raw j using unnest($1::uuid[], $2::bigint[]) as u (id, fence)
 where j.id = u.id and j.fence = u.fence returning j.id
"""
KEEP = """
with gone as (delete from bench_raw j using unnest($1::uuid[], $2::bigint[]) as u (id, fence)
               where j.id = u.id and j.fence = u.fence returning j.*)
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select id, fence, available_at, now(), attempts, queue, payload, leased_by from gone returning id
"""


def written(sql: str, prefix: str) -> str:
    return sql.replace("bench_raw", f"{prefix}_raw")


def payload(order: int) -> str:
    return msgspec.json.encode({"order": order, "amount": 12.5}).decode()


class RawPostgres:
    """asyncpg and psycopg, by hand."""

    name = "raw"

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.dialect = dialect_for(url, StoreOptions())

    async def open(self) -> None:
        self.connections = [await self.dialect.aconnect(self.url, "holdfast-bench") for _ in range(LOOPS)]
        self.sync = self.dialect.connect(self.url)
        await self.connections[0].execute(self.sql(TABLES))

    async def close(self) -> None:
        await self.connections[0].execute(self.sql("drop table bench_raw; drop table bench_raw_done"))
        for connection in self.connections:
            await connection.close()
        self.sync.close()

    def sql(self, text: str) -> str:
        return written(text, self.prefix)

    async def clear(self) -> None:
        await self.connections[0].execute(self.sql("truncate bench_raw; truncate bench_raw_done"))

    async def enqueue_one(self, count: int) -> None:
        insert = _pyformat(self.sql(INSERT))
        for order in range(count):
            self.sync.execute(insert, (new_id(), "bench", payload(order)))

    async def aenqueue_one(self, count: int) -> None:
        insert = await self.connections[0].prepare(self.sql(INSERT))
        for order in range(count):
            await insert.fetch(new_id(), "bench", payload(order))

    async def enqueue_many(
        self, count: int, per_call: int, handler: Handler = "async def", *, keep: bool = True
    ) -> None:
        insert = await self.connections[0].prepare(self.sql(INSERT_MANY))
        for start in range(0, count, per_call):
            orders = range(start, min(start + per_call, count))
            await insert.fetch([new_id() for _ in orders], "bench", [payload(order) for order in orders])

    async def drain(self, count: int, *, keep: bool) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(self._loop(connection, keep) for connection in self.connections))
        return time.perf_counter() - began

    async def _loop(self, connection: Any, keep: bool) -> None:
        claim = await connection.prepare(self.sql(CLAIM))
        settle = await connection.prepare(self.sql(KEEP if keep else DELETE))
        while jobs := await claim.fetch("bench", BATCH, "raw"):
            for job in jobs:
                msgspec.json.decode(job[2])
            await settle.fetch([job[0] for job in jobs], [job[1] for job in jobs])

    async def unfinished(self) -> int:
        return int(await self.connections[0].fetchval(self.sql("select count(*) from bench_raw")))

    async def latencies(self, samples: int) -> list[float]:
        listening, working = self.connections
        woken = asyncio.Event()

        def wake(*_: object) -> None:
            woken.set()

        await listening.add_listener(self.sql("bench_raw"), wake)
        try:
            consuming = asyncio.create_task(self._consume(working, woken, samples))
            async with producer.process(self.url, self.prefix, self.name, samples):
                return await consuming
        finally:
            await listening.remove_listener(self.sql("bench_raw"), wake)

    async def _consume(self, connection: Any, woken: asyncio.Event, samples: int) -> list[float]:
        claim = await connection.prepare(self.sql(CLAIM))
        settle = await connection.prepare(self.sql(KEEP))
        stamps: list[float] = []
        while len(stamps) < samples:
            await woken.wait()
            woken.clear()
            jobs = await claim.fetch("bench", BATCH, "raw")
            stamps += [(time.monotonic_ns() - msgspec.json.decode(job[2])["sent"]) / 1e6 for job in jobs]
            await settle.fetch([job[0] for job in jobs], [job[1] for job in jobs])
        return stamps


def _pyformat(sql: str) -> str:
    for number in range(1, 4):
        sql = sql.replace(f"${number}", "%s")
    return sql


def one_by_one(url: str, prefix: str) -> Callable[[int], object]:
    """Return what the producer process calls for each sample."""
    connection = dialect_for(url, StoreOptions()).connect(url)
    insert = _pyformat(written(INSERT, prefix))
    return lambda sent: connection.execute(insert, (new_id(), "bench", f'{{"sent":{sent}}}'))
