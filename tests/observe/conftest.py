"""The stage of the worker's tests, for what is told about work."""

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
