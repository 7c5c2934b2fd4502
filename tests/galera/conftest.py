"""One cluster for all these tests: making it takes 17 seconds, healing it after a kill 7."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.flow import Flow
from holdfast.store import Store, migrate
from holdfast.testing import empty
from tests.galera.cluster import Cluster

Run = Callable[[Store, Flow[Any]], Any]


@pytest.fixture(scope="session")
def founded() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(founded: Cluster) -> Cluster:
    """The cluster with all of its nodes, whatever the last test did to them."""
    return founded.whole()


@pytest.fixture(scope="session")
def urls(founded: Cluster) -> list[str]:
    """One database on each node, with our tables."""
    urls = founded.fresh_database()
    store = Store(urls[0])
    store.run(migrate.apply(store.migrations))
    store.close()
    return urls


@pytest.fixture
def stores(cluster: Cluster, urls: list[str]) -> Iterator[list[Store]]:
    """A store on each node, all on one database, empty."""
    stores = [Store(url) for url in urls]
    stores[0].run(empty(stores[0]))
    cluster.caught_up()
    yield stores
    for store in stores:
        store.close()


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, stores: list[Store]) -> Iterator[Run]:
    """Run a flow on a store as its callers do, in both colours: what was lost to another node runs again."""
    if request.param == "sync":
        yield lambda store, work: store.run(work)
        return
    with asyncio.Runner() as runner:
        yield lambda store, work: runner.run(store.arun(work))
        for store in stores:
            runner.run(store.aclose())
