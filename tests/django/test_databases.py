"""Entries of DATABASES as our URLs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.django.databases import options_of, url_of
from holdfast.errors import ConfigError
from holdfast.store.dialects.mysql import split_url as read_mysql
from holdfast.store.dialects.postgres.hosts import split_url as read_postgres
from holdfast.store.dialects.sqlite import path_of


def entry(vendor: str, **settings: Any) -> Any:
    settings = {"ENGINE": f"django.db.backends.{vendor}", "NAME": "shop"} | settings
    return SimpleNamespace(vendor=vendor, alias="default", settings_dict=settings)


@pytest.mark.parametrize(
    "name", ["shop.db", "/srv/data/shop.db", "/srv/50% off?/#1 shöp.db", Path("/srv/shop.db"), "file:/srv/shop.db"]
)
def test_a_file_is_named_as_django_names_it(name: Any) -> None:
    assert path_of(url_of(entry("sqlite", NAME=name))) == str(name).removeprefix("file:")


@pytest.mark.parametrize(
    "name", [":memory:", "file:memorydb_default?mode=memory&cache=shared", "file::memory:?cache=shared"]
)
def test_a_database_in_memory_is_one(name: str) -> None:
    assert path_of(url_of(entry("sqlite", NAME=name))) == ":memory:"


def test_settings_in_a_uri_are_refused() -> None:
    with pytest.raises(ConfigError, match="settings in a URI are not read"):
        url_of(entry("sqlite", NAME="file:/srv/shop.db?mode=ro"))


@pytest.mark.parametrize("password", ["p@ss/w:rd?#%", "spaces and ünïcode", "%41", "'\"\\"])
def test_a_password_may_hold_anything(password: str) -> None:
    server = {"USER": "a@b", "PASSWORD": password, "HOST": "db.example.org", "PORT": 6543, "NAME": "my shop"}
    found = read_postgres(url_of(entry("postgresql", **server)))
    assert (found.user, found.password, found.hosts, found.database) == (
        "a@b",
        password,
        "db.example.org:6543",
        "my shop",
    )
    address = read_mysql(url_of(entry("mysql", **server)))
    assert (address.user, address.password, address.host, address.port) == ("a@b", password, "db.example.org", 6543)


def test_sockets_and_several_hosts_are_named_as_the_drivers_want_them() -> None:
    assert url_of(entry("postgresql", HOST="/run/postgresql", PORT="5433")) == (
        "postgresql:///shop?host=%2Frun%2Fpostgresql&port=5433"
    )
    assert url_of(entry("postgresql", HOST="a,b", PORT="5432,5433")) == "postgresql://a:5432,b:5433/shop"
    assert url_of(entry("postgresql", HOST="::1", PORT="5432")) == "postgresql://[::1]:5432/shop"
    assert url_of(entry("postgresql")) == "postgresql:///shop"
    assert read_mysql(url_of(entry("mysql", HOST="/run/mysqld.sock", USER="app"))).unix_socket == "/run/mysqld.sock"
    socket = {"unix_socket": "/run/other.sock"}
    assert read_mysql(url_of(entry("mysql", OPTIONS=socket, USER="app"))).unix_socket == "/run/other.sock"


def test_what_a_server_is_asked_for_is_kept_and_djangos_own_options_are_left_out() -> None:
    options = {
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "pool": True,
        "isolation_level": 2,
        "connect_timeout": 3,
    }
    made = entry("postgresql", HOST="db", OPTIONS=options | {"assume_role": "app"})
    found = read_postgres(url_of(made)).query
    assert found == {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "options": "-c role=app"}
    assert options_of(made) == {"connect_timeout": 3.0}
    assert options_of(entry("sqlite", OPTIONS={"timeout": 20})) == {"busy_timeout": 20.0}


@pytest.mark.parametrize(
    "options, tls",
    [
        ({}, None),
        ({"ssl_mode": "DISABLED", "ssl": {}}, None),
        ({"ssl_mode": "REQUIRED"}, "none"),
        ({"ssl_mode": "VERIFY_IDENTITY"}, "full"),
        ({"charset": "utf8mb4", "init_command": "set x = 1"}, None),
    ],
)
def test_tls_of_mysql_is_asked_for_as_mysqlclient_is(options: dict[str, Any], tls: str | None) -> None:
    url = url_of(entry("mysql", HOST="db", USER="app", OPTIONS=options))
    assert (read_mysql(url).tls is not None) == (tls is not None)
    assert tls is None or f"ssl_verify={tls}" in url


def test_a_file_of_options_and_another_database_are_refused() -> None:
    with pytest.raises(ConfigError, match="write host, user and password into DATABASES"):
        url_of(entry("mysql", OPTIONS={"read_default_file": "/etc/my.cnf"}))
    with pytest.raises(ConfigError, match=r'DATABASES\["default"\]\["ENGINE"\]'):
        url_of(entry("oracle"))


def test_a_projects_application_has_no_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.django import application

    monkeypatch.setattr(application, "connections", {"default": entry("sqlite")})
    with pytest.raises(ConfigError, match="has one store"):
        application.DjangoHoldfast("default", shards=["sqlite:///shop", "sqlite:///b.db"])
