"""Dashboards of a filled shop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.dashboard import ACTIONS, Access, Dashboard
from tests.dashboard.client import Client
from tests.dashboard.ground import Shop

ALL = Access("ada", tuple(ACTIONS))
READ = Access()


def board(shop: Shop, access: Any = ALL, **options: Any) -> Dashboard:
    rule: Callable[[Any], Any] = access if callable(access) else lambda _request: access
    return shop.hf.dashboard(access=rule, **options)


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    """A shop with something on every page."""
    made = Shop(sqlite_url)
    made.fill()
    yield made
    made.hf.close()


@pytest.fixture
def empty(sqlite_url: str) -> Iterator[Shop]:
    """A shop that has just opened: quick, for what needs no rows."""
    made = Shop(sqlite_url)
    yield made
    made.hf.close()


@pytest.fixture(params=["sqlite", "pg"], ids=["sqlite", "postgres"])
def shops(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A filled shop on SQLite and on PostgreSQL."""
    made = Shop(request.getfixturevalue(f"{request.param}_url"))
    made.fill()
    yield made
    made.hf.close()


@pytest.fixture
def client(shop: Shop) -> Client:
    return Client(board(shop))
