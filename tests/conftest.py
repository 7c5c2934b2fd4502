"""Fixtures that every test may use, and the rule for servers that cannot be had."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.proxy import Proxy
from tests.servers import MariaDB, MySQL, PgBouncer, Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for the whole session, started when the first test asks for it."""
    with Postgres() as server:
        yield server


@pytest.fixture
def pg_url(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty PostgreSQL database that is this test's own."""
    url = postgres.start().fresh_database()
    yield url
    postgres.start().drop_database(url.rpartition("/")[2])


@pytest.fixture
def pg_proxy(postgres: Postgres) -> Iterator[Proxy]:
    """A proxy in front of the PostgreSQL server; `pg_proxy.url(pg_url)` leads through it."""
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode in front of the session's PostgreSQL server."""
    with PgBouncer(postgres) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """One MariaDB server for the whole session, started when the first test asks for it."""
    with MariaDB() as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb: MariaDB) -> Iterator[str]:
    """The URL of an empty MariaDB database that is this test's own."""
    url = mariadb.start().fresh_database()
    yield url
    mariadb.start().drop_database(url.rpartition("/")[2])


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQL]:
    """One MySQL server for the whole session, where Debian sid's package can be had: an optional leg."""
    with MySQL() as server:
        yield server


@pytest.fixture
def mysql_url(mysql: MySQL) -> Iterator[str]:
    """The URL of an empty MySQL database that is this test's own."""
    url = mysql.start().fresh_database()
    yield url
    mysql.start().drop_database(url.rpartition("/")[2])


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/test.db"


@contextlib.contextmanager
def skipped_unless_ci() -> Iterator[None]:
    """Skip a test whose server cannot be had; in CI let it fail."""
    try:
        yield
    except servers.Unavailable as absent:
        if os.environ.get("CI", "").lower() in ("true", "1") and absent.name not in servers.OPTIONAL:
            raise
        pytest.skip(str(absent))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with skipped_unless_ci():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with skipped_unless_ci():
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, why in sorted(servers.missing.items()):
        terminalreporter.write_line(f"not to be had here: {name} ({why})", yellow=True)
