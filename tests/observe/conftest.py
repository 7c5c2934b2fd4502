"""The stage of the worker's tests, for what is told about work."""

import pytest

from tests.observe.spans import Seen
from tests.worker.conftest import (  # noqa: F401 - fixtures
    mariadb_stage,
    migrated_file,
    migrated_mariadb,
    migrated_mysql,
    migrated_template,
    mysql_stage,
    pg_stage,
    sqlite_stage,
    stage,
)


@pytest.fixture
def seen() -> Seen:
    return Seen()
