"""A server that runs and lets nobody in is told from one that is away."""

import asyncio
import re
import sys
from typing import Any

import pytest

from holdfast.errors import AccessRefused, DatabaseUnavailable, DriverMissing
from holdfast.store import Store, migrate
from tests.servers import MariaDB, Postgres


def wrong(url: str, what: str) -> str:
    if what == "database":
        return url.rpartition("/")[0] + "/nothere"
    return re.sub(r"//[^@]*@", "//nobody:wrong@", url)


@pytest.mark.parametrize("what", ["user", "database"])
@pytest.mark.parametrize("database", ["pg_url", "mariadb_url"])
def test_a_wrong_user_or_database_is_said_at_once(what: str, database: str, request: pytest.FixtureRequest) -> None:
    refused(wrong(request.getfixturevalue(database), what))


def test_a_wrong_password_of_a_user_of_postgresql_is_said_at_once(postgres: Postgres, pg_url: str) -> None:
    # The server trusts everyone else; the first line that fits decides.
    rules = postgres.data / "pg_hba.conf"
    rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    postgres.execute("create role guarded login password 'right'")
    [before] = postgres.execute("select pg_conf_load_time() from pg_reload_conf()")
    while postgres.execute("select pg_conf_load_time()") == [before]:
        pass  # the server reads its files when it comes to it; the test's own time-out ends this
    knocked(pg_url)


def test_a_wrong_password_of_a_user_of_mariadb_is_said_at_once(mariadb: MariaDB, mariadb_url: str) -> None:
    mariadb.execute("create user guarded@'%' identified by 'right'")
    mariadb.execute(f"grant all on `{mariadb_url.rpartition('/')[2]}`.* to guarded@'%'")
    knocked(mariadb_url)


def knocked(url: str) -> None:
    """Try the right password, which must open, and then a wrong one."""
    right = re.sub(r"//[^@]*@", "//guarded:right@", url)
    store = Store(right)
    assert store.run(migrate.version()) == 0
    store.close()
    refused(right.replace(":right@", ":wrong@"))


def refused(url: str) -> None:
    store = Store(url)
    tried: list[str] = []
    connect: Any = store.dialect.connect
    store.dialect.connect = lambda url: tried.append(url) or connect(url)  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(AccessRefused, match="Check user, password and the name of the database"):
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
