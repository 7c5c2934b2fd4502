"""A server that runs and lets nobody in is told from one that is away."""

import asyncio
import re
import sys
from typing import Any

import pytest

from holdfast.errors import AccessRefused, DatabaseUnavailable, DriverMissing
from holdfast.store import Store, migrate


def wrong(url: str, what: str) -> str:
    if what == "database":
        return url.rpartition("/")[0] + "/nothere"
    return re.sub(r"//[^@]*@", "//nobody:wrong@", url)


@pytest.mark.parametrize("what", ["user", "database"])
@pytest.mark.parametrize("database", ["pg_url", "mariadb_url"])
def test_a_wrong_user_or_database_is_said_at_once(what: str, database: str, request: pytest.FixtureRequest) -> None:
    store = Store(wrong(request.getfixturevalue(database), what))
    tried: list[str] = []
    connect: Any = store.dialect.connect
    store.dialect.connect = lambda url: tried.append(url) or connect(url)  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(AccessRefused, match="Check user, password and the database's name"):
        store.run(migrate.version())
    assert len(tried) == 1
    with pytest.raises(AccessRefused):
        asyncio.run(store.arun(migrate.version()))
    store.close()


def test_a_server_that_is_away_is_not_said_to_refuse(pg_url: str) -> None:
    store = Store(re.sub(r":\d+/", ":1/", pg_url))
    with pytest.raises(DatabaseUnavailable) as caught:
        store.run_once(migrate.version())
    assert not isinstance(caught.value, AccessRefused)
    store.close()


@pytest.mark.parametrize("scheme, driver", [("postgresql", "psycopg")])
def test_a_driver_that_is_missing_is_named_with_its_extra(
    scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(DriverMissing, match=rf"{driver} cannot be imported.*pip install"):
        Store(f"{scheme}://app@localhost:1/shop").run_once(migrate.version())
