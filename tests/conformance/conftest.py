"""The stores that the conformance suite runs on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store import Store, migrate
from holdfast.testing import empty
from holdfast.testing.fixtures import clock, colour, do, look
from tests.servers import MariaDB, MySQL, Postgres

__all__ = ["clock", "colour", "do", "look"]


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with empty tables, to be copied: ten times faster than migrating for each test."""
    path = tmp_path_factory.mktemp("conformance") / "empty.db"
    store = Store(f"sqlite:///{path}")
    store.run(migrate.apply(store.migrations))
    store.close()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> Iterator[str]:
    """The URL of one database for the whole suite, emptied before each test."""
    url = postgres.start().create_database("conformance")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    yield url
    postgres.start().drop_database("conformance")


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDB) -> Iterator[str]:
    yield from migrated(mariadb)


@pytest.fixture(scope="session")
def migrated_mysql(mysql: MySQL) -> Iterator[str]:
    yield from migrated(mysql)


def migrated(server: MariaDB) -> Iterator[str]:
    """The URL of one database for the whole suite, emptied before each test."""
    url = server.start().create_database("conformance")
    # What a commit waits for is not what this suite is about.
    server.execute("set global innodb_flush_log_at_trx_commit = 2")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    yield url
    server.start().drop_database("conformance")


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "mysql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store that is migrated and empty."""
    if request.param == "sqlite":
        path = shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "test.db")
        store = Store(f"sqlite:///{path}")
    elif request.param in ("mariadb", "mysql"):
        store = Store(request.getfixturevalue(f"migrated_{request.param}"))
        store.run(empty(store))
    else:
        # What a commit waits for is not what this suite is about, and it is a third of the time.
        store = Store(request.getfixturevalue("migrated_postgres") + "?options=-c%20synchronous_commit%3Doff")
        store.run(empty(store))
    yield store
    store.close()
