"""What each database can serve."""

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError


def test_php_tables_on_postgres_are_refused() -> None:
    with pytest.raises(ConfigError, match="mysql and sqlite"):
        Holdfast("postgresql://nobody@localhost/nothing").foreign.pdo()


def test_remote_steps_on_sqlite_are_refused(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="mysql and postgres"):
        Holdfast(sqlite_url).foreign.durable()
