"""What each database can serve."""

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.store.catalogue import written_in


def test_php_tables_on_postgres_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^pdo:.*: these tables are served on mysql and sqlite only"):
        Holdfast("postgresql://nobody@localhost/nothing").foreign.pdo()


def test_airlocks_tables_on_anything_but_postgres_are_refused(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match=r"^airlock:airlock_messages: these tables are served on postgres only"):
        Holdfast(sqlite_url).foreign.airlock()


@pytest.mark.parametrize(
    "contract, databases", [("pdo", ("mysql", "sqlite")), ("durable", ("mysql", "postgres", "sqlite"))]
)
def test_the_files_of_a_contract_hold_the_same_queries_in_the_same_order(contract: str, databases: list[str]) -> None:
    first, *others = (list(written_in(f"foreign/{contract}", name)) for name in databases)
    assert all(other == first for other in others)
