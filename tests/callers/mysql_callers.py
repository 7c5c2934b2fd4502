"""Applications on MySQL or MariaDB with a connection of each kind that `tx=` takes; faces as in `callers`."""

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiomysql
import asyncmy
import asyncmy.cursors
import django.db
import pymysql
import pymysql.cursors
from django.db.utils import load_backend

from tests.callers.callers import (
    AsyncCaller,
    Caller,
    Django,
    SqlalchemyAsyncConnection,
    SqlalchemyAsyncSession,
    SqlalchemyConnection,
    SqlalchemySession,
)
from tests.servers import need


def mysqldb() -> Any:
    """Import mysqlclient, which is built from source."""
    need("mysqlclient")
    import MySQLdb.cursors

    return MySQLdb


def at(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "charset": "utf8mb4"}


def database(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


class PyMySQL(Caller):
    database = "mysql"
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.tx = pymysql.connect(**at(self.url), database=database(self.url), **self.options)

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)


class PyMySQLDicts(PyMySQL):
    options: ClassVar = {"cursorclass": pymysql.cursors.DictCursor}


class PyMySQLBegun(PyMySQL):
    """A connection in autocommit, inside a transaction that was begun by hand."""

    options: ClassVar = {"autocommit": True}

    def open(self) -> None:
        super().open()
        self.tx.begin()


class Mysqlclient(PyMySQL):
    def open(self) -> None:
        self.tx = mysqldb().connect(**at(self.url), database=database(self.url), **self.options)


class MysqlclientDicts(Mysqlclient):
    def open(self) -> None:
        super().open()
        self.tx.cursorclass = mysqldb().cursors.DictCursor


class MysqlclientBegun(Mysqlclient):
    """A connection in autocommit, inside a transaction that was begun by hand."""

    options: ClassVar = {"autocommit": True}

    def open(self) -> None:
        super().open()
        self.tx.query("begin")


class Aiomysql(AsyncCaller):
    database = "mysql"
    options: ClassVar[dict[str, Any]] = {}

    async def aopen(self) -> None:
        self.tx = await aiomysql.connect(**at(self.url), db=database(self.url), **self.options)

    async def aexecute(self, sql: str) -> None:
        async with self.tx.cursor() as cursor:
            await cursor.execute(sql)

    async def aclose(self) -> None:
        await self.tx.ensure_closed()


class AiomysqlDicts(Aiomysql):
    options: ClassVar = {"cursorclass": aiomysql.DictCursor}


class AiomysqlBegun(Aiomysql):
    options: ClassVar = {"autocommit": True}

    async def aopen(self) -> None:
        await super().aopen()
        await self.tx.begin()


class Asyncmy(Aiomysql):
    async def aopen(self) -> None:
        self.tx = await asyncmy.connect(**at(self.url), database=database(self.url), **self.options)


class AsyncmyDicts(Asyncmy):
    options: ClassVar = {"cursor_cls": asyncmy.cursors.DictCursor}


class AsyncmyBegun(Asyncmy):
    options: ClassVar = {"autocommit": True}

    async def aopen(self) -> None:
        await super().aopen()
        await self.tx.begin()


class SqlalchemyConnectionPymysql(SqlalchemyConnection):
    database, driver = "mysql", "mysql+pymysql"


class SqlalchemySessionPymysql(SqlalchemySession):
    database, driver = "mysql", "mariadb+pymysql"


class SqlalchemyConnectionMysqldb(SqlalchemyConnection):
    database, driver = "mysql", "mysql+mysqldb"

    def open(self) -> None:
        mysqldb()
        super().open()


class SqlalchemySessionMysqldb(SqlalchemySession):
    database, driver = "mysql", "mysql+mysqldb"

    def open(self) -> None:
        mysqldb()
        super().open()


class SqlalchemyAsyncConnectionAiomysql(SqlalchemyAsyncConnection):
    database, driver = "mysql", "mysql+aiomysql"


class SqlalchemyAsyncSessionAiomysql(SqlalchemyAsyncSession):
    database, driver = "mysql", "mysql+aiomysql"


class SqlalchemyAsyncConnectionAsyncmy(SqlalchemyAsyncConnection):
    database, driver = "mysql", "mysql+asyncmy"


class SqlalchemyAsyncSessionAsyncmy(SqlalchemyAsyncSession):
    database, driver = "mysql", "mysql+asyncmy"


class DjangoMysql(Django):
    """Django's connection, on mysqlclient."""

    database = "mysql"

    def connection(self) -> Any:
        mysqldb()
        where = at(self.url)
        names = {"NAME": database(self.url), "HOST": where["host"], "PORT": where["port"], "USER": where["user"]}
        settings = {"ENGINE": "django.db.backends.mysql", **names}
        known = {"default": {"ENGINE": "django.db.backends.dummy"}, self.alias: settings}
        known = django.db.ConnectionHandler(known).settings
        return load_backend(settings["ENGINE"]).DatabaseWrapper(known[self.alias], self.alias)


class DjangoAliasMysql(DjangoMysql):
    alias = "jobs"


MYSQL_KINDS: list[Callable[[str], Any]] = [
    PyMySQL,
    PyMySQLDicts,
    PyMySQLBegun,
    Mysqlclient,
    MysqlclientDicts,
    MysqlclientBegun,
    Aiomysql,
    AiomysqlDicts,
    AiomysqlBegun,
    Asyncmy,
    AsyncmyDicts,
    AsyncmyBegun,
    SqlalchemyConnectionPymysql,
    SqlalchemySessionPymysql,
    SqlalchemyConnectionMysqldb,
    SqlalchemySessionMysqldb,
    SqlalchemyAsyncConnectionAiomysql,
    SqlalchemyAsyncSessionAiomysql,
    SqlalchemyAsyncConnectionAsyncmy,
    SqlalchemyAsyncSessionAsyncmy,
    DjangoMysql,
    DjangoAliasMysql,
]
