"""The reference on PostgreSQL: what one would write by hand with the same drivers, on a lean table.

It gives fewer promises than Holdfast (no retries, no reaping, no limits), so it is the cost of the database itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

from holdfast.bench.by_hand import ERROR, Jobs, Loops, age, effect_row, payload, stamp, written
from holdfast.bench.effects import Effects
from holdfast.store.dialects import dialect_for
from holdfast.values.ids import new_id
from holdfast.values.options import StoreOptions

BATCH, LOOPS = 500, 2

TABLES = """
create table bench_raw (
    id uuid primary key, fence bigint not null default 0, available_at timestamptz not null default now(),
    lease_expires_at timestamptz, attempts integer not null default 0, state text not null default 'pending',
    queue text not null, payload json not null, leased_by text, error text
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
update bench_raw j set state = 'leased', fence = j.fence + 1, attempts = j.attempts + 1, leased_by = $1,
       lease_expires_at = now() + interval '30 seconds'
 where id = any (array(select id from bench_raw where queue = $2 and state = 'pending' and available_at <= now()
                        order by available_at, id limit $3 for update skip locked))
returning j.id, j.fence, j.payload::text, j.attempts
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
KEEP_ONE = """
with gone as (delete from bench_raw where id = $1 and fence = $2 returning *)
insert into bench_raw_done (id, fence, available_at, finished_at, attempts, queue, payload, leased_by)
select id, fence, available_at, now(), attempts, queue, payload, leased_by from gone returning id
"""
PUT_BACK = """
update bench_raw j set state = 'pending', fence = j.fence + 1, available_at = now(), leased_by = null,
       lease_expires_at = null, error = $3
  from unnest($1::uuid[], $2::bigint[]) as u (id, fence) where j.id = u.id and j.fence = u.fence returning j.id
"""


class RawPostgres(Loops):
    """asyncpg and psycopg, by hand."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.dialect = dialect_for(url, StoreOptions())
        self.effect = Effects(self.sql("bench_raw"))
        self.update, self.update_sync = self.effect.update("$1"), self.effect.update("%s")
        self.stamps: list[float] = []

    async def install(self) -> None:
        await self.connections[0].execute(self.sql(TABLES))
        for statement in self.effect.make:
            await self.connections[0].execute(statement)

    async def uninstall(self) -> None:
        await self.connections[0].execute(self.sql("drop table bench_raw; drop table bench_raw_done"))
        await self.connections[0].execute(self.effect.drop)

    async def open(self) -> None:
        self.connections = [await self.dialect.aconnect(self.url, "holdfast-bench") for _ in range(LOOPS)]
        self.sync = self.dialect.connect(self.url)

    async def close(self) -> None:
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

    async def _insert(self, payloads: list[str]) -> None:
        ids = [new_id() for _ in payloads]
        await self.connections[0].fetch(self.sql(INSERT_MANY), ids, "bench", payloads)

    async def _claim(self, connection: Any) -> Jobs:
        jobs: Jobs = await connection.fetch(self.sql(CLAIM), "raw", "bench", BATCH)
        return jobs

    def _claim_sync(self) -> Jobs:
        jobs: Jobs = self.sync.execute(_pyformat(self.sql(CLAIM)), ("raw", "bench", BATCH)).fetchall()
        return jobs

    async def _settle(self, connection: Any, jobs: Jobs, keep: bool) -> None:
        await connection.fetch(self.sql(KEEP if keep else DELETE), [job[0] for job in jobs], [job[1] for job in jobs])

    async def _put_back(self, connection: Any, jobs: Jobs) -> None:
        await connection.fetch(self.sql(PUT_BACK), [job[0] for job in jobs], [job[1] for job in jobs], ERROR)

    async def _effect(self, connection: Any, job: Sequence[Any]) -> None:
        await connection.execute("begin")
        await connection.execute(self.update, effect_row(job))
        await connection.fetch(self.sql(KEEP_ONE), job[0], job[1])
        await connection.execute("commit")

    def _effect_sync(self, connection: Any, job: Sequence[Any]) -> None:
        connection.execute("begin")
        connection.execute(self.update_sync, (effect_row(job),))
        connection.execute(_pyformat(self.sql(KEEP_ONE)), (job[0], job[1]))
        connection.execute("commit")

    async def _hang_up(self, connection: Any) -> None:
        await connection.close()

    async def unfinished(self) -> int:
        return int(await self.connections[0].fetchval(self.sql("select count(*) from bench_raw")))

    async def work(self, busy: bool = False) -> None:
        listening, working = self.connections
        self.stamps = []
        self._woken, self._resting = asyncio.Event(), False
        await listening.add_listener(self.sql("bench_raw"), lambda *_: self._woken.set())
        self._consuming = asyncio.create_task(self._consume(working))

    async def rest(self) -> None:
        self._resting = True
        self._woken.set()
        await self._consuming
        await self.connections[0].reset()

    async def _consume(self, connection: Any) -> None:
        while not self._resting:
            await self._woken.wait()
            self._woken.clear()
            while jobs := await self._claim(connection):
                self.stamps += [age(job[2]) for job in jobs]
                await self._settle(connection, jobs, keep=True)

    async def send(self, sent: Sequence[int]) -> None:
        if len(sent) > 1:
            await self._insert([stamp(one) for one in sent])
        else:
            await self.connections[0].fetch(self.sql(INSERT), new_id(), "bench", stamp(sent[0]))


@cache
def _pyformat(sql: str) -> str:
    for number in range(1, 4):
        sql = sql.replace(f"${number}", "%s")
    return sql
