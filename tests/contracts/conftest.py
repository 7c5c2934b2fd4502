"""Foreign tables on real databases, and the rows as they are."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.contracts.foreign import DurableSteps, PdoQueue
from holdfast.flow import Flow, Rows, Statement, Steps, flow
from holdfast.store import Store
from holdfast.testing.clock import Clock
from tests.servers import MariaDB

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


@pytest.fixture(scope="session")
def contract_store(mariadb: MariaDB) -> Iterator[Store]:
    """One MariaDB database for all these tests: making one takes longer than most of them."""
    url = mariadb.start().create_database("contracts")
    # What a commit waits for is not what these tests are about.
    mariadb.execute("set global innodb_flush_log_at_trx_commit = 2")
    store = Store(url)
    yield store
    store.close()
    mariadb.start().drop_database("contracts")


@flow
def empty() -> Steps[None]:
    names = "select table_name from information_schema.tables where table_schema = database()"
    rows = yield Statement("tables", {}, text=names)
    for (table,) in rows:
        # What a test made under names of its own goes; the usual tables stay, and are emptied.
        keep = table in ("jobs", "jobs_failed") or table.startswith(("durable_", "holdfast_"))
        if table != "holdfast_meta":
            yield Statement("empty", {}, text=f"delete from `{table}`" if keep else f"drop table `{table}`")  # noqa: S608


@pytest.fixture
def emptied_mariadb_url(contract_store: Store) -> str:
    contract_store.run(empty())
    return contract_store.url


@pytest.fixture(params=["sqlite", "emptied_mariadb"], ids=["sqlite", "mariadb"])
def pdo_url(request: pytest.FixtureRequest) -> str:
    """A database that PHP queue tables may live in."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["pg", "emptied_mariadb"], ids=["postgres", "mariadb"])
def durable_url(request: pytest.FixtureRequest) -> str:
    """A database that remote steps may live in."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def opened(url: str) -> Iterator[Holdfast]:
    app = Holdfast(url)
    yield app
    app.close()


@pytest.fixture
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """An application on the database that the test's tables live in."""
    name = "pdo_url" if "pdo_url" in request.fixturenames else "durable_url"
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
