"""Stores for races: real connections, and on SQLite a short patience."""

from collections.abc import Iterator

import pytest

from holdfast.store import Store, migrate
from holdfast.testing import empty
from holdfast.values.options import StoreOptions
from tests.servers import MariaDB, Postgres


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def race_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One database for the races of a module, emptied before each."""
    server: Postgres | MariaDB = request.getfixturevalue(request.param)
    url = server.start().fresh_database()
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    yield url
    server.start().drop_database(url.rpartition("/")[2])


@pytest.fixture
def pg(race_url: str) -> Iterator[Store]:
    store = Store(race_url)
    store.run(empty(store))
    yield store
    store.close()


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Store]:
    """A SQLite store that waits 10 ms for a lock before it says that the database is busy."""
    store = Store(sqlite_url, StoreOptions(busy_timeout=0.01))
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()
