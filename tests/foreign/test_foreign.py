"""What each database can serve."""

from importlib import resources

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.store.dialects.base import split_queries


def test_php_tables_on_postgres_are_refused() -> None:
    with pytest.raises(ConfigError, match="mysql and sqlite"):
        Holdfast("postgresql://nobody@localhost/nothing").foreign.pdo()


def test_remote_steps_on_sqlite_are_refused(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="mysql and postgres"):
        Holdfast(sqlite_url).foreign.durable()


@pytest.mark.parametrize("contract, databases", [("pdo", ("mysql", "sqlite")), ("durable", ("mysql", "postgres"))])
def test_the_files_of_a_contract_hold_the_same_queries_in_the_same_order(contract: str, databases: list[str]) -> None:
    folder = resources.files("holdfast.foreign").joinpath("sql")
    one, other = (
        list(split_queries(folder.joinpath(f"{contract}.{name}.sql").read_text("utf-8"))) for name in databases
    )
    assert one == other
