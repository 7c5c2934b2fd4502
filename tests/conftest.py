"""Fixtures that every test may use, and the rule for servers that cannot be had."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import servers
from tests.broker_fixtures import (  # noqa: F401 - one of each for the tests of sinks and of the inbox
    kafka,
    kafka_gate,
    mosquitto,
    mosquitto_gate,
    moto,
    moto_gate,
    nats_gate,
    nats_server,
    rabbitmq,
    rabbitmq_gate,
    redis_gate,
    redis_server,
)
from tests.proxy import Proxy
from tests.servers import MariaDB, MySQL, PgBouncer, Postgres

# Properties are checked without a clock: on a busy machine an example may take its time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Servers of one test process, and what its tests start, take up to this.
GIGABYTES_FOR_A_PROCESS = 3


# Where files of tests are, if there is room: SQLite waits for the disk at each commit, and no test cuts the power.
IN_MEMORY, GIGABYTES_IN_MEMORY = Path("/dev/shm"), 4

left_out: dict[str, int] = {}
"""How many tests another target of `make` runs."""


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


def pytest_configure(config: pytest.Config) -> None:
    """Have folders of tests (`tmp_path`) made in memory, unless somebody said where."""
    if config.option.basetemp is None and "PYTEST_DEBUG_TEMPROOT" not in os.environ and _has_room(IN_MEMORY):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(IN_MEMORY)


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    runs_programs = not found.f_flag & os.ST_NOEXEC
    return runs_programs and found.f_bavail * found.f_frsize > GIGABYTES_IN_MEMORY * 2**30


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Say how many processes `-n auto` means; each starts servers of its own.

    More than there are cores: most tests wait for a server, a lease or another process.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(2 * len(os.sched_getaffinity(0)), int(memory // GIGABYTES_FOR_A_PROCESS), 8))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (config.option.markexpr, config.option.keyword) == ("not galera and not citus", ""):
        for target in ("galera", "citus"):
            left_out[target] = sum(1 for item in items if item.get_closest_marker(target))


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Only in a worker of pytest-xdist: what it returns to the process that prints the summary.
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output |= {"missing": servers.missing, "left_out": left_out}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    servers.missing.update(output.get("missing", {}))
    left_out.update(output.get("left_out", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say last, after pytest's list of failures, what was skipped and why, and what could not be had."""
    yield
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)
    for target, count in left_out.items():
        if count:
            terminalreporter.write_line(f"left out {count}: `make {target}` runs them", yellow=True)
    for name, why in sorted(servers.missing.items()):
        if str(absent := servers.Unavailable(name, why)) not in reasons:
            terminalreporter.write_line(str(absent), yellow=True)
