"""The stage that worker tests play on: SQLite, PostgreSQL, MariaDB and, where it can be had, MySQL."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.worker import streaks
from tests.servers import MariaDB, MySQL, Postgres
from tests.worker.asking import Asker
from tests.worker.looks import Looks
from tests.worker.processes import Crew, crew_on
from tests.worker.stage import Stage


def migrated(url: str) -> str:
    with Holdfast(url) as hf:
        hf.migrate()
    return url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "empty.db"
    migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> str:
    """The name of a database with our tables, to make others from."""
    return migrated(postgres.start().fresh_database()).rpartition("/")[2]


@pytest.fixture
def sqlite_stage(migrated_file: Path, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'test.db')}")
    yield stage
    stage.close()


@pytest.fixture
def pg_stage(postgres: Postgres, migrated_template: str) -> Iterator[Stage]:
    url = postgres.start().fresh_database(migrated_template)
    stage = Stage(url)
    yield stage
    stage.close()
    postgres.start().drop_database(url.rpartition("/")[2])


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDB) -> str:
    """The URL of one database for all stages, emptied before each."""
    return migrated(mariadb.start().fresh_database())


@pytest.fixture(scope="session")
def migrated_mysql(mysql: MySQL) -> str:
    return migrated(mysql.start().fresh_database())


@pytest.fixture
def mariadb_stage(mariadb: MariaDB, migrated_mariadb: str) -> Iterator[Stage]:
    yield from emptied_stage(mariadb, migrated_mariadb)


@pytest.fixture
def mysql_stage(mysql: MySQL, migrated_mysql: str) -> Iterator[Stage]:
    yield from emptied_stage(mysql, migrated_mysql)


def emptied_stage(server: MariaDB, url: str) -> Iterator[Stage]:
    server.start().empty_database(url.rpartition("/")[2], keep="holdfast_")
    stage = Stage(url)
    stage.sql("update holdfast_meta set value = ? where key = 'schema_version'", SCHEMA_VERSION)
    yield stage
    stage.close()


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def stage(request: pytest.FixtureRequest) -> Stage:
    found: Stage = request.getfixturevalue(f"{request.param}_stage")
    return found


@pytest.fixture
def crew(stage: Stage, tmp_path: Path) -> Iterator[Crew]:
    with crew_on(stage, tmp_path) as crew:
        yield crew


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What workers look at about once a second: settings of queues, and pauses."""
    return Looks(monkeypatch)


@pytest.fixture(params=["slow", "quick"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the worker takes every handler for, whatever it does."""
    monkeypatch.setattr(streaks, "QUICK_SECONDS", 0.0 if request.param == "slow" else 1e9)
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def asker(request: pytest.FixtureRequest) -> Asker:
    """Asks for results in one colour."""
    return Asker(request.param)
