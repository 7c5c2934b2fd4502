"""The application's own tables and its own connections, on which it enqueues and completes with `tx=`."""

from typing import Any

from holdfast.store import Store
from holdfast.store.dialects.sqlite import path_of
from tests.faults.shared import in_async_style, in_sync_style

TABLES = (
    # No unique constraints: what comes twice shall be seen, not refused.
    "create table effects (job_id varchar(40) not null, fence integer not null, attempt integer not null, "
    "tag varchar(200) not null)",
    # One row for each transaction in which the application enqueues: it tells whether that transaction committed.
    "create table orders (call_id varchar(200) not null)",
    # Two rows that handlers change in either order: where two of them meet, the database ends one's transaction.
    "create table counters (id integer primary key, n integer not null)",
    "insert into counters values (1, 0)",
    "insert into counters values (2, 0)",
)
EFFECT = "insert into effects (job_id, fence, attempt, tag) values (?, ?, ?, ?)"
ORDER = "insert into orders (call_id) values (?)"
COUNT = "update counters set n = n + 1 where id = ?"


def put(store: Store, tx: Any, text: str, *row: Any) -> None:
    """Run one statement on a sync connection."""
    tx.execute(in_sync_style(store, text), row)


async def aput(store: Store, tx: Any, text: str, *row: Any) -> None:
    """Run one statement on an async connection; only asyncpg wants its parameters one by one."""
    given = row if store.dialect.name == "postgres" else (row,)
    await tx.execute(in_async_style(store, text), *given)


def opening(store: Store, repeatable: bool) -> list[str]:
    """List what begins a transaction; a repeatable one does not see what others commit meanwhile."""
    begin, isolation = store.dialect.begin, "set transaction isolation level repeatable read"
    if store.embedded or not repeatable:
        return [begin]
    # MySQL sets it for the next transaction, PostgreSQL for this one.
    return [isolation, begin] if store.dialect.name == "mysql" else [begin, isolation]


class Own:
    """A connection of the application's own inside a transaction, which it ends itself."""

    def __init__(self, store: Store, *, repeatable: bool = False) -> None:
        self._opening = opening(store, repeatable)
        self.tx = store.dialect.connect(store.url)

    def __enter__(self) -> "Own":
        for statement in self._opening:
            self.tx.execute(statement)
        return self

    def __exit__(self, *_: object) -> None:
        # Closing rolls back what was not committed.
        self.tx.close()

    def commit(self) -> None:
        self.tx.execute("commit")


class AsyncOwn:
    """The async twin of `Own`."""

    tx: Any

    def __init__(self, store: Store, *, repeatable: bool = False) -> None:
        self._store = store
        self._opening = opening(store, repeatable)

    async def __aenter__(self) -> "AsyncOwn":
        self.tx = await self._connect()
        for statement in self._opening:
            await self.tx.execute(statement)
        return self

    async def _connect(self) -> Any:
        if not self._store.embedded:
            return await self._store.dialect.aconnect(self._store.url, "application")
        import aiosqlite

        return await aiosqlite.connect(path_of(self._store.url), isolation_level=None, timeout=10)

    async def __aexit__(self, *_: object) -> None:
        if self._store.embedded:
            await self.tx.close()
        else:
            self._store.dialect.cut(self.tx)

    async def commit(self) -> None:
        await self.tx.execute("commit")
