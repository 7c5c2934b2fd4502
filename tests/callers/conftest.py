"""A shop with one table of its own beside Holdfast's, on either database."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from holdfast import Holdfast
from holdfast.testing.make import META
from tests.callers.callers import KINDS, NESTING, Caller, path_of
from tests.callers.mysql_callers import MYSQL_KINDS, at, database
from tests.keeper import Keeper
from tests.servers import MariaDB, Postgres

# Every test that is written for each kind of caller is one for MySQL's too.
KINDS += MYSQL_KINDS
NESTING += [kind for kind in MYSQL_KINDS if hasattr(kind, "nested")]


class Shop:
    """An application's database: its orders, its jobs, and a look at both from outside any transaction."""

    def __init__(self, url: str, *, migrate: bool = True) -> None:
        self.url = url
        self.hf = Holdfast(url)
        self._keeper = Keeper(self._connect)
        if migrate:
            self.hf.migrate()
        self.look("create table if not exists orders (id integer primary key)")
        self.receipt = self.hf.job(receipt)

    def empty(self) -> None:
        """Delete orders and jobs, where the tables stay from test to test."""
        for table in ("orders", *(f"holdfast_{table}" for table in self.hf.store.dialect.tables if table != META)):
            self.look(f"delete from {table}")  # noqa: S608 - a name from the line above

    def look(self, sql: str) -> list[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(path_of(self.url), isolation_level=None)) as connection:
                return connection.execute(sql).fetchall()
        return self._keeper.run(re.sub(r"\bkey,", "`key`,", sql) if self.url.startswith("mysql") else sql)

    def close(self) -> None:
        self._keeper.close()
        self.hf.close()

    def _connect(self) -> Any:
        if self.url.startswith("mysql"):
            # Without TLS: PyMySQL would read the machine's authorities for each connection, 35 ms of CPU.
            return pymysql.connect(**at(self.url), database=database(self.url), autocommit=True, ssl_disabled=True)
        return psycopg.connect(self.url, autocommit=True, prepare_threshold=None)

    @property
    def orders(self) -> int:
        return int(self.look("select count(*) from orders")[0][0])

    @property
    def jobs(self) -> int:
        return int(self.look("select count(*) from holdfast_jobs")[0][0])


def receipt(order: int) -> None: ...


@pytest.fixture
def shop_at() -> Iterator[Callable[..., Shop]]:
    """Make shops by URL, closed after the test."""
    shops: list[Shop] = []

    def make(url: str, **options: Any) -> Shop:
        shops.append(Shop(url, **options))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


@pytest.fixture(scope="session")
def shops_url(postgres: Postgres) -> str:
    """A PostgreSQL database that keeps its tables from test to test: making them takes longer than most tests here."""
    return postgres.start().fresh_database()


@pytest.fixture(scope="session")
def bare_url(postgres: Postgres) -> str:
    """A PostgreSQL database without Holdfast's tables."""
    return postgres.start().fresh_database()


@pytest.fixture
def postgres_shop(shops_url: str, shop_at: Callable[..., Shop]) -> Iterator[Shop]:
    """A shop on PostgreSQL, emptied after the test."""
    shop = shop_at(shops_url)
    yield shop
    shop.empty()


@pytest.fixture
def pg_shop(postgres_shop: Shop) -> Shop:
    return postgres_shop


@pytest.fixture(scope="session")
def mariadb_shops_url(mariadb: MariaDB) -> str:
    """A MariaDB database that keeps its tables from test to test."""
    return mariadb.start().fresh_database()


@pytest.fixture(scope="session")
def bare_mariadb_url(mariadb: MariaDB) -> str:
    """A MariaDB database without Holdfast's tables."""
    return mariadb.start().fresh_database()


@pytest.fixture
def mysql_shop(mariadb_shops_url: str, shop_at: Callable[..., Shop]) -> Iterator[Shop]:
    """A shop on MariaDB, emptied after the test."""
    shop = shop_at(mariadb_shops_url)
    yield shop
    shop.empty()


@pytest.fixture
def sqlite_shop(sqlite_url: str, shop_at: Callable[..., Shop]) -> Shop:
    return shop_at(sqlite_url)


@pytest.fixture
def shop(request: pytest.FixtureRequest, kind: Any) -> Shop:
    """The shop in the database that the test's `kind` of caller speaks to."""
    found: Shop = request.getfixturevalue(f"{kind.database}_shop")
    return found


@pytest.fixture
def caller(kind: Callable[[str], Caller], shop: Shop) -> Iterator[Caller]:
    """The shop's code with a connection of this kind, inside a transaction."""
    held = kind(shop.url)
    yield held
    held.close()
