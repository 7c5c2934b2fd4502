"""Stores on schemas of the cluster that was given: one schema for each module, emptied before each test."""

from collections.abc import Iterator

import pytest

from holdfast.store import Store, migrate
from holdfast.testing import empty
from holdfast.testing.fixtures import clock, colour, do, look
from holdfast.values.options import StoreOptions
from tests.citus.cluster import Cluster

__all__ = ["clock", "colour", "do", "look"]


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster.given()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch wake-ups off in applications and workers, too: the statements are those for Citus then."""
    monkeypatch.setenv("HOLDFAST_NOTIFY", "false")


@pytest.fixture(scope="module")
def schema(cluster: Cluster) -> Iterator[str]:
    """A schema with our tables."""
    with cluster.schema() as name:
        store = Store(cluster.url, StoreOptions(schema=name, notify=False))
        store.run(migrate.apply(store.migrations))
        store.close()
        yield name


@pytest.fixture
def store(cluster: Cluster, schema: str) -> Iterator[Store]:
    """A store that is told its schema, as `Holdfast(url, schema=…)` is; migrated and empty."""
    store = Store(cluster.url, StoreOptions(schema=schema, notify=False))
    store.run(empty(store))
    yield store
    store.close()


@pytest.fixture(scope="module")
def race_url(cluster: Cluster, schema: str) -> str:
    return cluster.url_in(schema)


@pytest.fixture
def pg(race_url: str) -> Iterator[Store]:
    """What the races of `tests/races` run on; here the connection says where the tables are."""
    store = Store(race_url, StoreOptions(notify=False))
    store.run(empty(store))
    yield store
    store.close()
