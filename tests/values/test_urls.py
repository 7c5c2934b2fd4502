"""URLs: read by one grammar, and never shown with a password, however oddly they are written."""

from __future__ import annotations

import re
import traceback

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import ConfigError, DatabaseUnavailable, HoldfastError
from holdfast.store import Store
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions
from holdfast.values.urls import MASK, Url, read, redact, shown

READ = {
    "postgresql://ann:s3cret@db:5433/shop?sslmode=require": ("ann", "s3cret", "db:5433", "shop"),
    "postgresql://ann:p%40ss%2Fw%3Ard@db/shop": ("ann", "p@ss/w:rd", "db", "shop"),
    "postgresql://ann:a:b!$&'()*+,;=~@db/shop": ("ann", "a:b!$&'()*+,;=~", "db", "shop"),
    "postgresql+asyncpg://db": (None, None, "db", ""),
    "postgresql:///shop?host=/run/postgresql&port=5433": (None, None, "", "shop"),
    "postgresql://%2Frun%2Fpostgresql/shop": (None, None, "%2Frun%2Fpostgresql", "shop"),
    "postgresql://ann@a:1,b,[::1]:3/shop?target_session_attrs=read-write": ("ann", None, "a:1,b,[::1]:3", "shop"),
    "mysql://ann@[::1]:3307/my%20shop": ("ann", None, "[::1]:3307", "my shop"),
    "mysql://ann:é😀@db/shop": ("ann", "é😀", "db", "shop"),
}


@pytest.mark.parametrize("url", READ)
def test_a_url_is_taken_apart(url: str) -> None:
    found = read(url)
    assert isinstance(found, Url)
    assert (found.user, found.password, found.hosts, found.database) == READ[url]


ODD = [
    "postgresql://ann:p@ss@db/shop",
    "postgresql://ann:pa/ss@db/shop",
    "postgresql://ann:pa?ss@db/shop",
    "postgresql://ann:pa#ss@db/shop",
    "postgresql://ann:pa ss@db/shop",
    "postgresql://ann:pa%ss@db/shop",
    "postgresql://ann:pa\nss@db/shop",
    "postgresql://ann:pa\0ss@db/shop",
    "postgresql://ann:pass/shop",
    "postgresql://ann:pass@db:54x2/shop",
    "postgresql://ann:pass@db:65536/shop",
    "postgresql://ann:pass@[::1/shop",
    "postgresql:/ann:pass@db/shop",
    "postgresql:ann:pass@db/shop",
    "ann:pass@db/shop",
    "host=db user=ann password=pass dbname=shop",
    " postgresql://ann:pass@db/shop",
]


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize("url", ODD)
def test_a_url_that_could_be_read_in_two_ways_is_refused_when_a_store_is_made(url: str, scheme: str) -> None:
    with pytest.raises(ConfigError, match="url: ") as refused:
        dialect_for(url.replace("postgresql", scheme), StoreOptions())
    assert refused.value.field == "url"


def test_a_listening_url_that_cannot_be_read_is_refused_when_a_store_is_made() -> None:
    with pytest.raises(ConfigError, match="listen_url: cannot be read") as refused:
        dialect_for("postgresql://db/shop", StoreOptions(listen_url="postgresql://ann:s3@cret@db/shop"))
    assert "cret" not in str(refused.value)


def test_a_wrong_port_is_named() -> None:
    for url in ("postgresql://ann@db:54x2/shop", "postgresql://a:1,b:x/shop?user=a@b", "mysql://ann@db:x/shop"):
        with pytest.raises(ConfigError, match="url: "):
            dialect_for(url, StoreOptions())
    with pytest.raises(ConfigError, match="the port must be a number"):
        dialect_for("postgresql://ann@db:54x2/shop", StoreOptions())


def test_mysql_has_one_host() -> None:
    with pytest.raises(ConfigError, match="one host"):
        dialect_for("mysql://ann@a,b/shop", StoreOptions())


SHOWN = {
    "postgresql://ann:s3cret@db:5433/shop?sslmode=require": "postgresql://ann:***@db:5433/shop?sslmode=require",
    "postgresql://ann:p@ss@db/shop": "postgresql://***",
    "postgresql:/ann:pass@db/shop": "postgresql:/***",
    "host=db password=s3cret": "***",
    "foo://x": "foo://***",
    "Foo+bar://ann:s3cret@db": "Foo+bar://***",
    "ann:s3://cret@db/shop": "***",
    "sqlite:////home/ann@x/C:/shop.db": "sqlite:////home/ann@x/C:/shop.db",
    "sqlite://shop.db": "sqlite://shop.db",
    "mysql://db/shop?user=ann&password=s3&cret&charset=utf8mb4": "mysql://db/shop?user=ann&password=***&charset=utf8mb4",
}


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_is_shown_as_far_as_it_is_understood(url: str) -> None:
    assert shown(url) == SHOWN[url]


# The fuzz: no four characters in a row of any password, in anything that anybody may read.

OWN = "XYZWVUQJKLMNPGHBé😀"
ODDLY = "@/:#?%&=+ '\"\\\t[](),;.!$~"
PASSWORDS = st.text(st.sampled_from(OWN + ODDLY), min_size=4, max_size=20)
SCHEMES = st.sampled_from(["postgresql", "mysql", "postgresql+asyncpg"])
SHAPES = [
    "{scheme}://ann:{password}@db:5432/shop",
    "{scheme}://ann:{password}@db/shop?connect_timeout=3",
    "{scheme}://ann:{password}@/shop?host=/tmp",
    "{scheme}://ann:{password}@db:54x2/shop",
    "{scheme}://ann:{password}@[::1/shop",
    "{scheme}://ann:{password}@",
    "{scheme}://:{password}@db/shop",
    "{scheme}://an/n:{password}@db/shop",
    "{scheme}://ann:{password}",
    "{scheme}://ann:{password}/shop",
    "{scheme}:/ann:{password}@db/shop",
    "{scheme}:ann:{password}@db/shop",
    "{scheme}//ann:{password}@db/shop",
    "ann:{password}@db/shop",
    " {scheme}://ann:{password}@db/shop",
    "{scheme}://db/shop?user=ann&password={password}",
    "{scheme}://db/shop?password={password}&sslmode=require",
    "host=db user=ann password={password} dbname=shop",
    "password='{password}' host=db",
    "host=db password={password}",
    "dbname=shop pwd = {password}",
]


def written(shape: str, scheme: str, password: str) -> str:
    # Where the host is missing, a password with an @ cannot be told from one that has a host behind it.
    assume("@" in shape or "=" in shape or "@" not in password)
    # Without a scheme, a space ends what can be told from other words, and two slashes make one.
    assume(not shape.startswith("ann") or not re.search(r"\s|^//", password))
    return shape.format(scheme=scheme, password=password)


def shows(text: str, password: str) -> list[str]:
    """Name the parts of a password that a text shows, as they are or as Python quotes them."""
    fours = [password[start : start + 4] for start in range(len(password) - 3)]
    # Characters that every URL has of its own say nothing.
    telling = [part for part in fours if sum(each in OWN for each in part) >= 2]
    return [part for part in telling if part in text or repr(part)[1:-1] in text]


def told(error: BaseException) -> str:
    return f"{''.join(traceback.format_exception(error))} {error} {error!r}"


@settings(max_examples=400, deadline=None)
@given(shape=st.sampled_from(SHAPES), scheme=SCHEMES, password=PASSWORDS)
@example(SHAPES[0], "postgresql", "SECRET@WORD")
@example(SHAPES[0], "mysql", "SECRET/WORDS")
@example(SHAPES[8], "postgresql", "SECRETWORDS")
def test_no_part_of_a_password_is_shown(shape: str, scheme: str, password: str) -> None:
    url = written(shape, scheme, password)
    errors = [ConfigError(field, "rule", value) for field, value in (("url", url), ("x", url), ("x", [url]))]
    # As drivers quote it.
    texts = [f'invalid dsn: "{url}"', f"cannot reach {url}: refused", f"{url} (Background on this error)"]
    seen = [redact(url), shown(url), errors[0].value, errors[1].value]
    seen += [told(error) for error in (*errors, *map(DatabaseUnavailable, texts))]
    assert [text for text in seen if shows(text, password)] == []


@settings(max_examples=300, deadline=None)
@given(shape=st.sampled_from(SHAPES), scheme=SCHEMES, password=PASSWORDS)
def test_no_application_shows_a_part_of_its_password(shape: str, scheme: str, password: str) -> None:
    url = written(shape, scheme, password)
    try:
        hf = Holdfast(url)
        seen = f"{hf!r} {hf.store!r} {hf.options!r}"
    except HoldfastError as error:
        seen = told(error) + str(vars(error))
    assert shows(seen, password) == []


@settings(max_examples=100, deadline=None)
@given(shape=st.sampled_from(SHAPES), scheme=SCHEMES, password=PASSWORDS)
@example(SHAPES[0], "postgresql", "SECRET@WORD")
@example(SHAPES[0], "mysql", "SECRET@WORD")
@example(SHAPES[0], "mysql", "SECRET😀WORD")
@example(SHAPES[0], "postgresql", "SECRET%WORD")
def test_no_driver_is_given_a_password_that_it_would_quote(shape: str, scheme: str, password: str) -> None:
    """What is accepted is tried, at a port where nobody is."""
    url = written(shape.replace("@db:5432/", "@127.0.0.1:1/").replace("@db/", "@127.0.0.1:1/"), scheme, password)
    assume("127.0.0.1:1/" in url)
    seen = ""
    try:
        Store(url, StoreOptions(connect_timeout=1)).open()
    except (ConfigError, DatabaseUnavailable) as error:
        seen = told(error)
    assert "127.0.0.1" in seen or MASK in seen
    assert shows(seen, password) == []
