"""Dashboards of a filled shop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.dashboard import ACTIONS, Access, Dashboard
from tests.dashboard.client import Client
from tests.dashboard.ground import Shop
from tests.worker.conftest import emptied_stage, migrated_mariadb, migrated_mysql  # noqa: F401 - fixtures

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


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "mysql"])
def shops(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A filled shop on each database."""
    if request.param in ("mariadb", "mysql"):
        # Migrated once and emptied: there each of our tables takes its time, and dozens are made.
        server, url = (request.getfixturevalue(name) for name in (request.param, f"migrated_{request.param}"))
        for _ in emptied_stage(server, url):
            pass
    else:
        url = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[request.param])
    made = Shop(url)
    made.fill()
    yield made
    made.hf.close()


@pytest.fixture
def client(shop: Shop) -> Client:
    return Client(board(shop))
