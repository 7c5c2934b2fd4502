"""Foreign tables on real databases, and the rows as they are."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.flow import Flow, Rows, Statement, Steps, flow
from holdfast.foreign import AirlockOutbox, DurableSteps, PdoQueue
from holdfast.testing.clock import Clock
from tests.servers import MariaDB, MySQL, Postgres

Do = Callable[[Flow[Any]], Any]
Rowset = list[tuple[Any, ...]]


@flow
def statement(sql: str, params: dict[str, Any]) -> Steps[Rows]:
    return (yield Statement("test", params, text=sql))


class Sql:
    """Plain SQL on the application's database, as another program would speak to it."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app

    def __call__(self, sql: str, **params: Any) -> Rowset:
        return [tuple(row) for row in self.app.store.run(statement(sql, params))]

    def one(self, sql: str, **params: Any) -> tuple[Any, ...]:
        [row] = self(sql, **params)
        return row


def made_for_contracts(server: MariaDB) -> str:
    """One database for all these tests: making one takes longer than most of them."""
    url = server.start().create_database("contracts")
    # What a commit waits for is not what these tests are about.
    server.execute("set global innodb_flush_log_at_trx_commit = 2")
    return url


@pytest.fixture(scope="session")
def contracts_in_mariadb(mariadb: MariaDB) -> str:
    return made_for_contracts(mariadb)


@pytest.fixture(scope="session")
def contracts_in_mysql(mysql: MySQL) -> str:
    url = made_for_contracts(mysql)
    mysql.execute("set global sync_binlog = 0")
    return url


# What a test made under names of its own goes; the usual tables stay, and are emptied.
USUAL = r"jobs$|jobs_failed$|durable_|holdfast_"


@pytest.fixture
def emptied_mariadb_url(mariadb: MariaDB, contracts_in_mariadb: str) -> str:
    mariadb.empty_database("contracts", keep=USUAL)
    return contracts_in_mariadb


@pytest.fixture
def emptied_mysql_url(mysql: MySQL, contracts_in_mysql: str) -> str:
    mysql.empty_database("contracts", keep=USUAL)
    return contracts_in_mysql


@pytest.fixture(params=["sqlite", "emptied_mariadb", "emptied_mysql"], ids=["sqlite", "mariadb", "mysql"])
def pdo_url(request: pytest.FixtureRequest) -> str:
    """A database that PHP queue tables may live in."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["pg", "emptied_mariadb", "emptied_mysql"], ids=["postgres", "mariadb", "mysql"])
def durable_url(request: pytest.FixtureRequest) -> str:
    """A database that remote steps may live in."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def contracts_in_postgres(postgres: Postgres) -> str:
    return postgres.start().fresh_database()


@pytest.fixture
def airlock_url(postgres: Postgres, contracts_in_postgres: str) -> str:
    """A database that Airlock's outbox table may live in: it knows PostgreSQL alone."""
    with psycopg.connect(contracts_in_postgres, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
    return contracts_in_postgres


def opened(url: str) -> Iterator[Holdfast]:
    app = Holdfast(url)
    yield app
    app.close()


@pytest.fixture
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """An application on the database that the test's tables live in."""
    known = ("pdo_url", "airlock_url", "durable_url")
    name = next(name for name in known if name in request.fixturenames)
    yield from opened(request.getfixturevalue(name))


@pytest.fixture
def clock(hf: Holdfast) -> Clock:
    return Clock(hf.store)


@pytest.fixture
def sql(hf: Holdfast) -> Sql:
    return Sql(hf)


@pytest.fixture
def jobs(pdo_url: str, hf: Holdfast) -> PdoQueue:
    """PHP queue tables, made, with a handler for one urn."""
    queue = hf.foreign.pdo()
    queue.create_schema()
    return queue


@pytest.fixture
def steps(durable_url: str, hf: Holdfast) -> DurableSteps:
    """Remote step tables, made."""
    source = hf.foreign.durable()
    source.create_schema()
    return source


@pytest.fixture
def outbox(airlock_url: str, hf: Holdfast) -> AirlockOutbox:
    """Airlock's tables, made."""
    source = hf.foreign.airlock()
    source.create_schema()
    return source


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, hf: Holdfast) -> Iterator[Do]:
    """Run a flow on the application's store, in both colours."""
    if request.param == "sync":
        yield hf.store.run
        return
    with asyncio.Runner() as runner:
        yield lambda work: runner.run(hf.store.arun(work))
        runner.run(hf.store.aclose())


def ids(leases: Sequence[Any]) -> list[Any]:
    return [lease.id for lease in leases]
