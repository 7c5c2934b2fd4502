"""The reference for runs: checkpoints of steps by hand, fenced, on lean tables.

Two ways: each run commits its own checkpoints, over as many connections as help; or one connection writes those of all
runs together, and while one batch is being written the next one grows. Either way a run's next step begins when the
last one is committed. There is no claim, no replay and no end of a run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.bench.by_hand import written
from holdfast.store.dialects import dialect_for
from holdfast.values.ids import new_id
from holdfast.values.options import StoreOptions

# Connections where each run commits its own: more of them were no faster on two cores.
OWN_CONNECTIONS = 20
BATCH_LIMIT = 1_000
VALUE = msgspec.json.encode({"charge": "ch_123", "amount": 12.5}).decode()

Checkpoint = tuple[str, int, str, str, int, int]
"""Run, place, key, value, digest, fence."""

TABLES = {
    "postgres": (
        "create table bench_raw_runs (id uuid primary key, fence bigint not null)",
        "create table bench_raw_steps (run_id uuid not null, seq integer not null, key text not null, value text,"
        " digest bigint, at timestamptz not null default statement_timestamp(), primary key (run_id, seq))",
    ),
    "mysql": (
        "create table bench_raw_runs (id char(36) character set ascii collate ascii_bin not null primary key,"
        " fence bigint not null) engine = InnoDB",
        "create table bench_raw_steps (run_id char(36) character set ascii collate ascii_bin not null,"
        " seq integer not null, `key` varchar(300) not null, value longtext, digest bigint,"
        " at datetime(6) not null default current_timestamp(6), primary key (run_id, seq)) engine = InnoDB",
    ),
    "sqlite": (
        "create table bench_raw_runs (id text primary key, fence integer not null) without rowid",
        "create table bench_raw_steps (run_id text not null, seq integer not null, key text not null, value text,"
        " digest integer, at integer not null default 0, primary key (run_id, seq)) without rowid",
    ),
}
ADD_RUN = {
    "postgres": "insert into bench_raw_runs values ($1, 1)",
    "mysql": "insert into bench_raw_runs values (%s, 1)",
    "sqlite": "insert into bench_raw_runs values (?, 1)",
}
# One checkpoint, and a batch of them; the runs are locked, so that a checkpoint and a change of the fence see each
# other.
ONE = {
    "postgres": """
insert into bench_raw_steps (run_id, seq, key, value, digest)
select r.id, $2, $3, $4, $5 from bench_raw_runs r where r.id = $1 and r.fence = $6 for share returning seq
""",
    "mysql": """
insert into bench_raw_steps (run_id, seq, `key`, value, digest)
select r.id, %s, %s, %s, %s from bench_raw_runs r where r.id = %s and r.fence = %s lock in share mode
""",
    "sqlite": """
insert into bench_raw_steps (run_id, seq, key, value, digest)
select r.id, ?, ?, ?, ? from bench_raw_runs r where r.id = ? and r.fence = ?
""",
}
MANY = {
    "postgres": """
with held as materialized (
    select r.id from bench_raw_runs r join unnest($1::uuid[], $6::bigint[]) as u (id, fence)
        on r.id = u.id and r.fence = u.fence
     order by r.id for share of r)
insert into bench_raw_steps (run_id, seq, key, value, digest)
select u.id, u.seq, u.key, u.value, u.digest
  from unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::bigint[]) as u (id, seq, key, value, digest)
 where u.id in (select id from held) returning run_id, seq
""",
    "mysql": """
insert into bench_raw_steps (run_id, seq, `key`, value, digest)
select u.id, u.seq, u.name, u.value, u.digest
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', seq integer path '$[1]',
        name varchar(300) path '$[2]', value longtext path '$[3]', digest bigint path '$[4]',
        fence bigint path '$[5]')) u
 straight_join bench_raw_runs r force index (primary) on r.id = u.id and r.fence = u.fence lock in share mode
""",
}


class RawSteps:
    """Steps of runs by hand on one database; `grouped` says who commits."""

    def __init__(self, url: str, prefix: str, *, grouped: bool) -> None:
        self.url = url
        self.prefix = prefix
        self.grouped = grouped
        self.dialect = dialect_for(url, StoreOptions())
        self.stamps: list[float] = []
        self._crew: list[Any] = []
        self._runs: list[str] = []
        self._waiting: list[tuple[Checkpoint, asyncio.Future[None]]] = []
        self._some = asyncio.Event()

    def sql(self, text: str) -> str:
        return written(text, self.prefix)

    async def open(self) -> None:
        self.sync = self.dialect.connect(self.url)

    async def close(self) -> None:
        self.sync.close()
        for connection in self._crew:
            self.dialect.cut(connection)

    async def install(self) -> None:
        for statement in TABLES[self.dialect.name]:
            self.sync.execute(self.sql(statement))

    async def uninstall(self) -> None:
        for table in ("bench_raw_runs", "bench_raw_steps"):
            self.sync.execute(self.sql(f"drop table {table}"))

    async def clear(self) -> None:
        for table in ("bench_raw_runs", "bench_raw_steps"):
            self.sync.execute(self.sql(f"delete from {table}"))  # noqa: S608 - names of our own

    async def start_runs(self, count: int, steps: int) -> None:
        self._runs = sorted(new_id() for _ in range(count))
        add = self.sql(ADD_RUN[self.dialect.name]).replace("$1", "%s")
        for run in self._runs:
            self.sync.execute(add, (run,))

    async def unfinished(self) -> int:
        """Count the checkpoints that are missing: none, or the reference has cheated."""
        [told] = self.sync.execute(self.sql("select count(*) from bench_raw_steps")).fetchall()
        return self._wanted - int(told[0])

    async def run_all(self, count: int, steps: int, at_once: int) -> float:
        self._wanted = count * steps
        if self.dialect.embedded:
            return self._on_one_connection(steps)
        size = 1 if self.grouped else min(at_once, OWN_CONNECTIONS)
        while len(self._crew) < size:
            self._crew.append(await self.dialect.aconnect(self.url, "holdfast-bench"))
        began = time.perf_counter()
        if self.grouped:
            writer = asyncio.create_task(self._write(self._crew[0]))
            await asyncio.gather(*(self._grouped(run, steps) for run in self._runs))
            writer.cancel()
        else:
            free: asyncio.Queue[Any] = asyncio.Queue()
            for connection in self._crew[:size]:
                free.put_nowait(connection)
            await asyncio.gather(*(self._own(run, steps, free) for run in self._runs))
        return time.perf_counter() - began

    # Each run for itself

    async def _own(self, run: str, steps: int, free: asyncio.Queue[Any]) -> None:
        sql, named = self.sql(ONE[self.dialect.name]), self.dialect.name == "postgres"
        for seq in range(1, steps + 1):
            row = checkpoint(run, seq)
            connection = await free.get()
            if named:
                await connection.fetch(sql, *row)
            else:
                await connection.execute(sql, *row[1:5], row[0], row[5])
            free.put_nowait(connection)

    # All together

    async def _grouped(self, run: str, steps: int) -> None:
        loop = asyncio.get_running_loop()
        for seq in range(1, steps + 1):
            future = loop.create_future()
            self._waiting.append((checkpoint(run, seq), future))
            self._some.set()
            await future

    async def _write(self, connection: Any) -> None:
        sql, named = self.sql(MANY[self.dialect.name]), self.dialect.name == "postgres"
        while True:
            await self._some.wait()
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            if not self._waiting:
                self._some.clear()
            rows = [row for row, _ in batch]
            if named:
                await connection.fetch(sql, *map(list, zip(*rows, strict=True)))
            else:
                await connection.execute(sql, msgspec.json.encode(rows).decode())
            for _, future in batch:
                future.set_result(None)

    def _on_one_connection(self, steps: int) -> float:
        """One writer at a time: each step of each run in turn, committed alone or with those of the other runs."""
        sql = self.sql(ONE["sqlite"])
        began = time.perf_counter()
        for seq in range(1, steps + 1):
            rows = [checkpoint(run, seq) for run in self._runs]
            for batch in [rows] if self.grouped else [[row] for row in rows]:
                self._commit(sql, batch)
        return time.perf_counter() - began

    def _commit(self, sql: str, rows: Sequence[Checkpoint]) -> None:
        self.sync.execute("begin immediate")
        self.sync.executemany(sql, [(*row[1:5], row[0], row[5]) for row in rows])
        self.sync.execute("commit")


def checkpoint(run: str, seq: int) -> Checkpoint:
    return run, seq, f"noop#{seq}", VALUE, 12_345, 1
