"""Read-only models and their admin: the promises of `promises_of_admin.py` on each database."""

from collections.abc import Iterator

import pytest

from tests.django.outer import names, told
from tests.servers import MariaDB, Postgres


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('taskshop')}/shop.db"
        return
    server: Postgres | MariaDB = request.getfixturevalue("postgres" if request.param == "postgresql" else "mariadb")
    made = server.start().fresh_database()
    yield made
    server.start().drop_database(made.rpartition("/")[2])


@pytest.mark.parametrize("name", names("promises_of_admin"))
def test_admin(url: str, name: str) -> None:
    failure = told("promises_of_admin", url)[name]
    assert failure is None, failure
