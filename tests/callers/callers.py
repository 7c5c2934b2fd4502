"""Applications with a connection of each kind that `tx=` takes, all with one face, so that a test is written once.

A caller of async code runs on an event loop of its own, one call at a time.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import aiosqlite
import asyncpg
import django
import django.db
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import transaction
from django.db.utils import load_backend
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from holdfast import Bound, Enqueued, Holdfast, Job, JobView
from holdfast.admin import Cancelled, Changed

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}}, USE_TZ=True)
    django.setup()


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


class Caller:
    """An application's connection inside a transaction; sync unless the subclass says otherwise."""

    database: ClassVar[str]
    tx: Any

    def __init__(self, url: str) -> None:
        self.url = url
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def execute(self, sql: str) -> None:
        self.tx.execute(sql)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()

    def enqueue_many(self, app: Holdfast, bound: Sequence[Bound]) -> list[Enqueued]:
        return app.enqueue_many(bound, tx=self.tx)

    def enqueue(self, app: Holdfast, bound: Bound) -> Enqueued:
        [answer] = self.enqueue_many(app, [bound])
        return answer

    def complete(self, job: Job) -> None:
        job.complete(tx=self.tx)

    def get(self, app: Holdfast, job: Enqueued) -> JobView:
        return app.get(job, tx=self.tx)

    def cancel(self, app: Holdfast, *job: Any, **said: Any) -> Cancelled:
        return app.cancel(*job, tx=self.tx, **said)

    def change(self, app: Holdfast, *job: Any, **said: Any) -> Changed:
        return app.change(*job, tx=self.tx, **said)


class AsyncCaller(Caller):
    """An application of async code: `open`, `execute` and the rest are coroutines behind this sync face."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runner = asyncio.Runner()
        self.wait(self.aopen())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def aopen(self) -> None:
        raise NotImplementedError

    async def aexecute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def acommit(self) -> None:
        await self.tx.commit()

    async def arollback(self) -> None:
        await self.tx.rollback()

    async def aclose(self) -> None:
        await self.tx.close()

    def execute(self, sql: str) -> None:
        self.wait(self.aexecute(sql))

    def commit(self) -> None:
        self.wait(self.acommit())

    def rollback(self) -> None:
        self.wait(self.arollback())

    def close(self) -> None:
        self.wait(self.aclose())
        self.runner.close()

    def enqueue_many(self, app: Holdfast, bound: Sequence[Bound]) -> list[Enqueued]:
        answers: list[Enqueued] = self.wait(app.aenqueue_many(bound, tx=self.tx))
        return answers

    def complete(self, job: Job) -> None:
        self.wait(job.acomplete(tx=self.tx))

    def get(self, app: Holdfast, job: Enqueued) -> JobView:
        found: JobView = self.wait(app.aget(job, tx=self.tx))
        return found

    def cancel(self, app: Holdfast, *job: Any, **said: Any) -> Cancelled:
        answer: Cancelled = self.wait(app.acancel(*job, tx=self.tx, **said))
        return answer

    def change(self, app: Holdfast, *job: Any, **said: Any) -> Changed:
        answer: Changed = self.wait(app.achange(*job, tx=self.tx, **said))
        return answer


class Sqlite3(Caller):
    database = "sqlite"

    def open(self) -> None:
        self.tx = sqlite3.connect(path_of(self.url))


class Sqlite3Explicit(Sqlite3):
    """The application opens its transactions itself."""

    def open(self) -> None:
        self.tx = sqlite3.connect(path_of(self.url), isolation_level=None)
        self.tx.execute("begin")


class Sqlite3Rows(Sqlite3):
    def open(self) -> None:
        super().open()
        self.tx.row_factory = sqlite3.Row


class Sqlite3Dicts(Sqlite3):
    def open(self) -> None:
        super().open()
        self.tx.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}


class Aiosqlite(AsyncCaller):
    database = "sqlite"

    async def aopen(self) -> None:
        self.tx = await aiosqlite.connect(path_of(self.url))


class AiosqliteRows(Aiosqlite):
    async def aopen(self) -> None:
        await super().aopen()
        self.tx.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}


class Psycopg(Caller):
    database = "postgres"
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.tx = psycopg.connect(self.url, **self.options)


class PsycopgDicts(Psycopg):
    options: ClassVar = {"row_factory": psycopg.rows.dict_row}


class PsycopgRaw(Psycopg):
    """Another cursor class, with another parameter style, and rows that are named tuples."""

    options: ClassVar = {"cursor_factory": psycopg.RawCursor, "row_factory": psycopg.rows.namedtuple_row}


class PsycopgBlock(Psycopg):
    """A connection in autocommit, inside a transaction block."""

    options: ClassVar = {"autocommit": True}

    def open(self) -> None:
        super().open()
        self.block = self.tx.transaction()
        self.block.__enter__()

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        undo = psycopg.Rollback()
        self.block.__exit__(type(undo), undo, None)


class PsycopgAsync(AsyncCaller):
    database = "postgres"

    async def aopen(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(self.url, row_factory=psycopg.rows.dict_row)


class Asyncpg(AsyncCaller):
    database = "postgres"

    async def aopen(self) -> None:
        self.tx = await asyncpg.connect(self.url)
        await self.begin()

    async def begin(self) -> None:
        # As many applications do: JSON columns as Python values.
        await self.tx.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        self.block = self.tx.transaction()
        await self.block.start()

    async def acommit(self) -> None:
        await self.block.commit()

    async def arollback(self) -> None:
        await self.block.rollback()


class AsyncpgPooled(Asyncpg):
    async def aopen(self) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.tx = await self.pool.acquire()
        await self.begin()

    async def aclose(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


class SqlalchemyConnection(Caller):
    database = "sqlite"
    driver: ClassVar[str] = "sqlite"

    def open(self) -> None:
        self.engine = sqlalchemy.create_engine(f"{self.driver}://{self.url.partition('://')[2]}")
        self.tx = self.hold()

    def hold(self) -> Any:
        return self.engine.connect()

    def execute(self, sql: str) -> None:
        self.tx.execute(sqlalchemy.text(sql))

    def close(self) -> None:
        self.tx.close()
        self.engine.dispose()

    def nested(self) -> Any:
        return self.tx.begin_nested()


class SqlalchemySession(SqlalchemyConnection):
    def hold(self) -> Any:
        return orm.Session(self.engine)


class SqlalchemyScopedSession(SqlalchemyConnection):
    def hold(self) -> Any:
        return orm.scoped_session(orm.sessionmaker(self.engine))


class SqlalchemyConnectionPsycopg(SqlalchemyConnection):
    database, driver = "postgres", "postgresql+psycopg"


class SqlalchemySessionPsycopg(SqlalchemySession):
    database, driver = "postgres", "postgresql+psycopg"


class SqlalchemyScopedSessionPsycopg(SqlalchemyScopedSession):
    database, driver = "postgres", "postgresql+psycopg"


class SqlalchemyAsyncConnection(AsyncCaller):
    database = "sqlite"
    driver: ClassVar[str] = "sqlite+aiosqlite"

    async def aopen(self) -> None:
        self.engine = sqlalchemy_async.create_async_engine(f"{self.driver}://{self.url.partition('://')[2]}")
        self.tx = await self.hold()

    async def hold(self) -> Any:
        return await self.engine.connect()

    async def aexecute(self, sql: str) -> None:
        await self.tx.execute(sqlalchemy.text(sql))

    async def aclose(self) -> None:
        await self.tx.close()
        await self.engine.dispose()

    def nested(self) -> Any:
        return AsyncBlock(self, self.tx.begin_nested())


class AsyncBlock:
    """An async context manager, entered and left by a sync test."""

    def __init__(self, caller: AsyncCaller, block: Any) -> None:
        self.caller = caller
        self.block = block

    def __enter__(self) -> Any:
        return self.caller.wait(self.block.__aenter__())

    def __exit__(self, *what: Any) -> Any:
        return self.caller.wait(self.block.__aexit__(*what))


class SqlalchemyAsyncSession(SqlalchemyAsyncConnection):
    async def hold(self) -> Any:
        return sqlalchemy_async.AsyncSession(self.engine)


class SqlalchemyAsyncScopedSession(SqlalchemyAsyncConnection):
    async def hold(self) -> Any:
        maker = sqlalchemy_async.async_sessionmaker(self.engine)
        return sqlalchemy_async.async_scoped_session(maker, scopefunc=lambda: 1)


class SqlalchemyAsyncConnectionPsycopg(SqlalchemyAsyncConnection):
    database, driver = "postgres", "postgresql+psycopg"


class SqlalchemyAsyncSessionPsycopg(SqlalchemyAsyncSession):
    database, driver = "postgres", "postgresql+psycopg"


class SqlalchemyAsyncConnectionAsyncpg(SqlalchemyAsyncConnection):
    database, driver = "postgres", "postgresql+asyncpg"


class SqlalchemyAsyncSessionAsyncpg(SqlalchemyAsyncSession):
    database, driver = "postgres", "postgresql+asyncpg"


class Django(Caller):
    """`django.db.connection`: a proxy of the default connection."""

    database = "sqlite"
    alias: ClassVar[str] = "default"

    def open(self) -> None:
        self.wrapper = self.connection()
        django.db.connections[self.alias] = self.wrapper
        self.tx = django.db.connection if self.alias == "default" else django.db.connections[self.alias]
        self.block = transaction.atomic(using=self.alias)
        self.block.__enter__()

    def connection(self) -> Any:
        return django_connection(self.url, self.alias)

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self.block.__exit__(None, None, None)

    def rollback(self) -> None:
        transaction.set_rollback(True, using=self.alias)
        self.block.__exit__(None, None, None)

    def close(self) -> None:
        with suppress(Exception):
            if self.wrapper.in_atomic_block:
                self.rollback()
        self.wrapper.close()
        del django.db.connections[self.alias]

    def nested(self) -> Any:
        return transaction.atomic(using=self.alias)


def django_connection(url: str, alias: str) -> Any:
    """Make Django's connection from what would stand in its settings."""
    if url.startswith("sqlite"):
        database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": path_of(url)}
    else:
        at = conninfo_to_dict(url)
        names = {"NAME": at["dbname"], "HOST": at["host"], "PORT": at["port"], "USER": at["user"]}
        database = {"ENGINE": "django.db.backends.postgresql", **names}
    known = django.db.ConnectionHandler({"default": {"ENGINE": "django.db.backends.dummy"}, alias: database}).settings
    return load_backend(database["ENGINE"]).DatabaseWrapper(known[alias], alias)


class DjangoAlias(Django):
    """`django.db.connections["jobs"]`."""

    alias = "jobs"


class DjangoPostgres(Django):
    database = "postgres"


class DjangoAliasPostgres(DjangoAlias):
    database = "postgres"


KINDS: list[Callable[[str], Any]] = [
    Sqlite3,
    Sqlite3Explicit,
    Sqlite3Rows,
    Sqlite3Dicts,
    Aiosqlite,
    AiosqliteRows,
    Psycopg,
    PsycopgDicts,
    PsycopgRaw,
    PsycopgBlock,
    PsycopgAsync,
    Asyncpg,
    AsyncpgPooled,
    SqlalchemyConnection,
    SqlalchemySession,
    SqlalchemyScopedSession,
    SqlalchemyConnectionPsycopg,
    SqlalchemySessionPsycopg,
    SqlalchemyScopedSessionPsycopg,
    SqlalchemyAsyncConnection,
    SqlalchemyAsyncSession,
    SqlalchemyAsyncScopedSession,
    SqlalchemyAsyncConnectionPsycopg,
    SqlalchemyAsyncSessionPsycopg,
    SqlalchemyAsyncConnectionAsyncpg,
    SqlalchemyAsyncSessionAsyncpg,
    Django,
    DjangoAlias,
    DjangoPostgres,
    DjangoAliasPostgres,
]
NESTING = [kind for kind in KINDS if hasattr(kind, "nested")]
