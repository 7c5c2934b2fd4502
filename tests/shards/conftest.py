"""Applications with shards on every kind of them."""

from collections.abc import Callable, Iterator

import pytest

from holdfast import Holdfast
from tests.shards.stage import shards

KINDS = ("files", "schemas", "databases", "mariadb")


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Holdfast]]:
    """A maker of applications that share three shards, for each kind of shards."""
    with shards(request.param, request) as maker:
        yield maker


@pytest.fixture
def hf(make: Callable[..., Holdfast]) -> Holdfast:
    return make()


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Iterator[Callable[..., Holdfast]]:
    with shards("files", request) as maker:
        yield maker
