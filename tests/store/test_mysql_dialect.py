"""What the MySQL dialect does without a server: URLs, TLS, versions, errors, lists."""

import ssl

import pymysql
import pytest

from holdfast import errors
from holdfast.errors import ConfigError
from holdfast.store.catalogue import compile_statement
from holdfast.store.dialects import dialect_for
from holdfast.store.dialects.mysql import Mysql, check, split_url
from holdfast.values.options import StoreOptions

STRICT = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "mariadb+asyncmy"])
def test_each_way_to_write_the_scheme_is_this_dialect(scheme: str) -> None:
    assert isinstance(dialect_for(f"{scheme}://root@localhost/shop", StoreOptions()), Mysql)


def test_a_url_is_read_with_its_escapes() -> None:
    at = split_url("mysql://us%40er:p%2Fw%3Ad@db.example:3307/my%20shop?charset=utf8mb4")
    assert (at.user, at.password, at.host, at.port, at.database) == ("us@er", "p/w:d", "db.example", 3307, "my shop")
    assert at.tls is None
    assert at.arguments()["host"] == "db.example"


def test_a_socket_replaces_host_and_port() -> None:
    arguments = split_url("mysql://root@/shop?unix_socket=/run/mysqld/mysqld.sock").arguments()
    assert arguments["unix_socket"] == "/run/mysqld/mysqld.sock"
    assert "host" not in arguments


@pytest.mark.parametrize(
    "url, rule",
    [
        ("mysql://root@localhost", "must name a database"),
        ("mysql://root@localhost:x/shop", "port must be a number"),
        ("mysql://root@localhost/shop?timeout=5", "not timeout"),
        ("mysql://root@localhost/shop?ssl_verify=maybe", "full, ca or none"),
        ("mysql://root@localhost/shop?ssl_ca=/no/such/file", "TLS files cannot be read"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_the_rule(url: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        split_url(url)


@pytest.mark.parametrize(
    "settings, mode, hostname",
    [
        ("ssl=true", ssl.CERT_REQUIRED, True),
        ("ssl=true&ssl_verify=ca", ssl.CERT_REQUIRED, False),
        ("ssl_verify=none", ssl.CERT_NONE, False),
    ],
)
def test_tls_checks_certificate_and_name_by_default(settings: str, mode: ssl.VerifyMode, hostname: bool) -> None:
    tls = split_url(f"mysql://root@localhost/shop?{settings}").tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (mode, hostname)


@pytest.mark.parametrize(
    "version", ["8.0.17", "8.4.3", "9.7.4-2", "10.6.0-MariaDB", "5.5.5-10.11.6-MariaDB-log", "11.4.2-MariaDB"]
)
def test_a_server_with_skip_locked_is_taken(version: str) -> None:
    check(version, STRICT)


@pytest.mark.parametrize("version", ["5.7.44-log", "8.0.16", "10.5.23-MariaDB", "5.5.5-10.3.39-MariaDB"])
def test_a_server_without_skip_locked_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="SKIP LOCKED"):
        check(version, STRICT)


def test_a_server_that_stays_lax_is_refused() -> None:
    with pytest.raises(ConfigError, match="STRICT_TRANS_TABLES"):
        check("8.4.0", "NO_ENGINE_SUBSTITUTION")


@pytest.mark.parametrize(
    "code, expected",
    [
        (1060, errors.DatabaseBusy),
        (1213, errors.DatabaseBusy),
        (1205, errors.DatabaseBusy),
        (1020, errors.DatabaseBusy),
        (1062, errors.UniqueViolation),
        (1146, errors.SchemaMissing),
        (1045, errors.AccessRefused),
        (1047, errors.DatabaseUnavailable),
        (1053, errors.DatabaseUnavailable),
        (1180, errors.DatabaseUnavailable),
        (1927, errors.DatabaseUnavailable),
        (1290, errors.ReadOnlyDatabase),
        (1836, errors.ReadOnlyDatabase),
        (2006, errors.DatabaseUnavailable),
        (2013, errors.DatabaseUnavailable),
        (4031, errors.DatabaseUnavailable),
        (1064, errors.QueryFailed),
        (1153, errors.QueryFailed),
    ],
)
def test_error_numbers_become_our_errors(code: int, expected: type[Exception]) -> None:
    translated = Mysql(StoreOptions()).translate(pymysql.err.OperationalError(code, "because"))
    assert type(translated) is expected


def test_other_peoples_errors_are_not_ours() -> None:
    assert Mysql(StoreOptions()).translate(ValueError("no")) is None
    assert isinstance(Mysql(StoreOptions()).translate(ConnectionResetError()), errors.DatabaseUnavailable)


def test_a_list_becomes_a_parameter_for_each_item_and_nothing_a_null() -> None:
    part = compile_statement("select :a where kind in (:kinds) and id = :a", "format")
    assert part.spread({"a": 1, "kinds": ["x", "y"]}) == (
        "select %s where kind in (%s, %s) and id = %s",
        (1, "x", "y", 1),
    )
    assert part.spread({"a": 1, "kinds": []}) == ("select %s where kind in (%s) and id = %s", (1, None, 1))
