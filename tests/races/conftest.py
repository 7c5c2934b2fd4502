"""Stores for races: real connections, and on SQLite a short patience."""

from collections.abc import Iterator

import pytest

from holdfast import migrate
from holdfast.store import Store
from holdfast.options import StoreOptions


@pytest.fixture
def pg(pg_url: str) -> Iterator[Store]:
    store = Store(pg_url)
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Store]:
    """A SQLite store that waits 10 ms for a lock before it says that the database is busy."""
    store = Store(sqlite_url, StoreOptions(busy_timeout=0.01))
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()
