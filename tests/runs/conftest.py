"""Applications for tests of runs: in memory, and on every database."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from tests.runs import noting


@pytest.fixture(autouse=True)
def no_calls() -> None:
    noting.calls.clear()


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    """An application in memory: most rules of runs are not about the database."""
    with Holdfast("sqlite:///:memory:") as app:
        yield app


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """An application on each database, with its tables."""
    with Holdfast(request.getfixturevalue(f"{request.param}_url")) as app:
        app.migrate()
        yield app


@pytest.fixture
def hf_file(sqlite_url: str) -> Iterator[Holdfast]:
    """An application on a file: a worker has connections of its own there."""
    with Holdfast(sqlite_url) as app:
        app.migrate()
        yield app
